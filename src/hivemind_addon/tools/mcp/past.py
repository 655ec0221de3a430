"""What became of an agent's own requests and of its conversations that a spent budget stopped."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct, convert, to_builtins

from hivemind_addon.api.proxy_user import given_id
from hivemind_addon.proxy.checkpoint.store import CheckpointHead, CheckpointStore, UnknownCheckpoint
from hivemind_addon.tools.checkpoints.prompt import prompt_of
from hivemind_addon.tools.history.filters import RequestFilter, Span
from hivemind_addon.tools.history.history import Biography, biographies, find, requests
from hivemind_addon.tools.history.reader import JournalReader
from hivemind_addon.tools.history.verdict import verdict
from hivemind_addon.tools.mcp.tool import MAX_ROWS, Call, NoArguments, ToolFailed, tool

_HOUR_S = 3600.0
_MAX_CHARS = 50_000


class HistoryQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests."""

    name: Annotated[
        str, Meta(max_length=300, description="A request's id, a task's id or an Idempotency-Key; empty: the newest")
    ] = ""
    hours: Annotated[float, Meta(gt=0, le=24 * 366, description="How far back; means nothing with a name")] = 24
    most: Annotated[int, Meta(ge=1, le=MAX_ROWS, description="At most so many requests")] = 20


class PastRequest(Struct, frozen=True):
    """One request of yours."""

    ticket: str
    arrived: Annotated[str, Meta(description="ISO 8601")]
    model: str
    task: str
    what_happened: Annotated[str, Meta(description="Whether it ran at the provider: once, twice, never, or unknown")]
    end: Annotated[str, Meta(description="delivered, shed, gave up, refused, cancelled, lost; empty: it has none yet")]
    reason: str
    attempts: int
    failures: Annotated[tuple[str, ...], Meta(description="Why attempts failed, in order")]
    waited_s: float
    input_tokens: int
    output_tokens: int
    cost_usd: float


class PastRequests(Struct, frozen=True):
    """Your requests, the newest first."""

    requests: tuple[PastRequest, ...]
    text: str


@tool("What became of your requests")
def history(call: Call, about: HistoryQuestion) -> PastRequests:
    """Look up your own past requests: whether each ran at the provider once, twice, never, or nobody can know, why
    attempts failed, what they used and cost. Use it after an error or a restart, before you do something again.
    Changes nothing.
    """
    session = call.session
    agent, glob = session.agent, session.caller.glob
    with JournalReader(session.journal()) as journal:
        if about.name:
            found = find(journal, given_id(about.name), about.most)
            mine = [one for one in reversed(found.tickets) if one.agent == agent]
            if not mine:
                raise ToolFailed(f"none of your requests, tasks or Idempotency-Keys is {about.name!r}")
            stories = biographies(journal, mine)
        else:
            since = session.clock.wall() - about.hours * _HOUR_S
            newest = requests(journal, RequestFilter(span=Span(since=since), agent=glob), about.most)
            stories = biographies(journal, newest)
        told = tuple(map(_past, stories))
    return PastRequests(told, _text(told))


def _past(story: Biography) -> PastRequest:
    ticket = story.ticket
    failed = tuple(one.reason or one.outcome for one in story.attempts if one.outcome not in ("", "success"))
    told = {
        "ticket": ticket.id,
        "arrived": datetime.fromtimestamp(ticket.arrived).astimezone().isoformat(timespec="seconds"),
        "what_happened": verdict([ticket], story.attempts),
        "attempts": len(story.attempts),
        "failures": failed[:MAX_ROWS],
        "waited_s": round(ticket.waited_s, 1),
        "input_tokens": story.tokens_in,
        "output_tokens": story.tokens_out,
        "cost_usd": story.micro_usd / 1e6,
    }
    return convert(to_builtins(ticket) | told, PastRequest)


def _text(told: Sequence[PastRequest]) -> str:
    if not told:
        return "There are none."
    if len(told) == 1:
        return f"It {told[0].what_happened}."
    delivered = sum(one.end == "delivered" for one in told)
    return f"{len(told)} requests, {delivered} of them delivered."


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


class CheckpointList(Struct, frozen=True):
    """Yours, the newest first."""

    checkpoints: tuple[KeptConversation, ...]
    more: Annotated[int, Meta(description="Older ones that are not listed here")]


class ConversationPart(Struct, frozen=True, forbid_unknown_fields=True):
    """Which one, and which part of it."""

    id: Annotated[str, Meta(min_length=1, max_length=200, description="As checkpoints lists it, or its beginning")]
    offset: Annotated[int, Meta(ge=0, description="Characters to skip: the next_offset of the part before")] = 0
    chars: Annotated[int, Meta(ge=1, le=_MAX_CHARS, description="At most so many characters")] = 20_000


class ConversationText(Struct, frozen=True):
    """A part of a conversation as Markdown, oldest words first."""

    id: str
    text: str
    next_offset: Annotated[int | None, Meta(description="Where the rest begins; null: this is the end")]
    total_chars: int
    resume: Annotated[str, Meta(description="What a person types to go on with it in its own program")]


def _mine(store: CheckpointStore, agent: str) -> list[CheckpointHead]:
    return [head for head in store.heads() if head.agent == agent]


@tool("Your conversations that were stopped")
def checkpoints(call: Call, _: NoArguments) -> CheckpointList:
    """List your own conversations that a spent budget has stopped and that were kept, the newest first. Use it after a
    budget was raised, to find where you were. Changes nothing.
    """
    mine = _mine(call.session.checkpoints(), call.session.agent)
    return CheckpointList(tuple(_kept(head) for head in mine[:MAX_ROWS]), more=len(mine[MAX_ROWS:]))


def _kept(head: CheckpointHead) -> KeptConversation:
    kept_at = datetime.fromtimestamp(head.kept_wall, UTC).isoformat(timespec="seconds")
    return convert(to_builtins(head) | {"kept_at": kept_at, "bytes": head.body_bytes}, KeptConversation)


@tool("Read a stopped conversation")
def checkpoint_read(call: Call, part: ConversationPart) -> ConversationText:
    """Read one of your own stopped conversations as Markdown, with tool calls and their results, in parts: go on at
    next_offset until it is null. Changes nothing.
    """
    store = call.session.checkpoints()
    mine = [head.id for head in _mine(store, call.session.agent)]
    meant = [one for one in mine if one == part.id] or [one for one in mine if one.startswith(part.id)]
    if len(meant) != 1:  # another agent's is as if it were not there
        which = "several" if meant else "none"
        raise UnknownCheckpoint(f"{which} of your checkpoints may be {part.id!r}; the tool checkpoints lists them")
    found = store.read(meant[0])
    text = prompt_of(found)
    end = part.offset + part.chars
    return ConversationText(
        id=found.head.id,
        text=text[part.offset : end],
        next_offset=end if end < len(text) else None,
        total_chars=len(text),
        resume=f"hivemind checkpoint export {found.head.id} --as …",
    )


TOOLS = (history, checkpoints, checkpoint_read)
