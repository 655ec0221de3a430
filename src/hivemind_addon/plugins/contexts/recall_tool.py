"""A tool that gives back to a conversation the results that a compaction took out."""

from typing import Annotated

from msgspec import Meta, Struct

from hivemind_addon.tools.mcp.tool import Call, tool

Offset = Annotated[int, Meta(ge=0, description="Characters to skip: the next_offset of the part before")]
Chars = Annotated[int, Meta(ge=1, le=50_000, description="At most so many characters")]


class TextPart(Struct, frozen=True):
    """A part of a text."""

    text: str
    next_offset: Annotated[int | None, Meta(description="Where the rest begins; null: this is the end")]
    total_chars: int


def part_of(text: str, offset: int, chars: int) -> TextPart:
    """The part of a text that begins at an offset."""
    end = offset + chars
    return TextPart(text[offset:end], next_offset=end if end < len(text) else None, total_chars=len(text))


@tool("A tool result that was taken out of your context")
def recall(
    call: Call,
    id: Annotated[  # noqa: A002 - the argument's public name
        str,
        Meta(
            pattern="^[0-9a-f]{12}$", max_length=12, description="As it stands where the tool result was: 12 hex digits"
        ),
    ],
    offset: Offset = 0,
    chars: Chars = 20_000,
) -> TextPart:
    """Read an old tool result of your conversation that was taken out to keep your context short: a stub in the
    conversation names the id. In parts: go on at next_offset until it is null. Changes nothing.
    """
    # The id is a hash of the result: whoever knows the id has had the result.
    return part_of(call.session.contexts().result(id).text, offset, chars)
