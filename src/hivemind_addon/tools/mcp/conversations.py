"""An agent's own checkpoints: conversations that a spent budget stopped, for it to go on with later."""

from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct

from hivemind_addon.proxy.checkpoint.model import CheckpointHead, CheckpointStore, UnknownCheckpoint
from hivemind_addon.tools.checkpoints.prompt import prompt_of
from hivemind_addon.tools.mcp.tool import MAX_ROWS, Call, McpTool, Nothing

_MAX_CHARS = 50_000


class KeptConversation(Struct, frozen=True):
    """One conversation that was kept."""

    id: str
    kept_at: Annotated[str, Meta(description="ISO 8601, UTC")]
    session: str
    model: str
    task: str
    messages: int
    bytes: int
    reason: str


class Checkpoints(Struct, frozen=True):
    """Yours, the newest first."""

    checkpoints: tuple[KeptConversation, ...]
    more: Annotated[int, Meta(description="Older ones that are not listed here")]


class ConversationPart(Struct, frozen=True, forbid_unknown_fields=True):
    """Which one, and which part of it."""

    id: Annotated[str, Meta(min_length=1, max_length=200, description="As checkpoints lists it, or its beginning")]
    offset: Annotated[int, Meta(ge=0, description="Characters to skip: the next_offset of the part before")] = 0
    chars: Annotated[int, Meta(ge=1, le=_MAX_CHARS, description="At most so many characters")] = 20_000


class Text(Struct, frozen=True):
    """A part of a conversation as Markdown, oldest words first."""

    id: str
    text: str
    next_offset: Annotated[int | None, Meta(description="Where the rest begins; null: this is the end")]
    total_chars: int
    resume: Annotated[str, Meta(description="What a person types to go on with it in its own program")]


def _mine(store: CheckpointStore, agent: str) -> list[CheckpointHead]:
    return [head for head in store.heads() if head.agent == agent]


def _checkpoints(call: Call, _: Nothing) -> Checkpoints:
    mine = _mine(call.session.checkpoints(), call.session.agent)
    return Checkpoints(tuple(_kept(head) for head in mine[:MAX_ROWS]), more=len(mine[MAX_ROWS:]))


def _kept(head: CheckpointHead) -> KeptConversation:
    return KeptConversation(
        id=head.id,
        kept_at=datetime.fromtimestamp(head.kept_wall, UTC).isoformat(timespec="seconds"),
        session=head.session,
        model=head.model,
        task=head.task,
        messages=head.messages,
        bytes=head.body_bytes,
        reason=head.reason,
    )


def _read(call: Call, part: ConversationPart) -> Text:
    store = call.session.checkpoints()
    mine = [head.id for head in _mine(store, call.session.agent)]
    meant = [one for one in mine if one == part.id] or [one for one in mine if one.startswith(part.id)]
    if len(meant) != 1:  # another agent's is as if it were not there
        which = "several" if meant else "none"
        raise UnknownCheckpoint(f"{which} of your checkpoints may be {part.id!r}; the tool checkpoints lists them")
    found = store.read(meant[0])
    text = prompt_of(found)
    end = part.offset + part.chars
    return Text(
        id=found.head.id,
        text=text[part.offset : end],
        next_offset=end if end < len(text) else None,
        total_chars=len(text),
        resume=f"hivemind checkpoint export {found.head.id} --as …",
    )


TOOLS = (
    McpTool(
        name="checkpoints",
        title="Your conversations that were stopped",
        description=(
            "List your own conversations that a spent budget has stopped and that were kept, the newest first. Use it "
            "after a budget was raised, to find where you were. Changes nothing."
        ),
        takes=Nothing,
        gives=Checkpoints,
        run=_checkpoints,
        idempotent=True,
    ),
    McpTool(
        name="checkpoint_read",
        title="Read a stopped conversation",
        description=(
            "Read one of your own stopped conversations as Markdown, with tool calls and their results, in parts: go "
            "on at next_offset until it is null. Changes nothing."
        ),
        takes=ConversationPart,
        gives=Text,
        run=_read,
        idempotent=True,
    ),
)
