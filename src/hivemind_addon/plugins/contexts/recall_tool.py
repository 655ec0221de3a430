"""What a compaction took out of a conversation, given back to it."""

from typing import Annotated

from msgspec import Meta, Struct

from hivemind_addon.tools.mcp.tool import Call, tool

_MAX_CHARS = 50_000


class TakenPart(Struct, frozen=True, forbid_unknown_fields=True):
    """Which tool result, and which part of it."""

    id: Annotated[
        str,
        Meta(
            pattern="^[0-9a-f]{12}$", max_length=12, description="As it stands where the tool result was: 12 hex digits"
        ),
    ]
    offset: Annotated[int, Meta(ge=0, description="Characters to skip: the next_offset of the part before")] = 0
    chars: Annotated[int, Meta(ge=1, le=_MAX_CHARS, description="At most so many characters")] = 20_000


class RecalledText(Struct, frozen=True):
    """A part of a tool result."""

    text: str
    next_offset: Annotated[int | None, Meta(description="Where the rest begins; null: this is the end")]
    total_chars: int


@tool("A tool result that was taken out of your context")
def recall(call: Call, part: TakenPart) -> RecalledText:
    """Read an old tool result of your conversation that was taken out to keep your context short: what stands in its
    place names its id. In parts: go on at next_offset until it is null. Changes nothing.
    """
    # The id is a hash of what it names: who knows it has had it.
    text = call.session.contexts().result(part.id).text
    end = part.offset + part.chars
    return RecalledText(
        text=text[part.offset : end], next_offset=end if end < len(text) else None, total_chars=len(text)
    )


TOOLS = (recall,)
