"""Tools for an agent about past requests and kept conversations."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct

from hivemind_addon.formats.wire.proxy_user import given_id
from hivemind_addon.plugins.contexts.reading.prompt import prompt_of
from hivemind_addon.plugins.contexts.reading.tree import of_agent
from hivemind_addon.plugins.contexts.recall_tool import Chars, Offset, TextPart, part_of
from hivemind_addon.plugins.contexts.store import ContextHead, UnknownContext
from hivemind_addon.tools.history.filters import RequestFilter, Span
from hivemind_addon.tools.history.history import Biography, biographies, find, requests
from hivemind_addon.tools.history.reader import JournalReader
from hivemind_addon.tools.history.verdict import verdict
from hivemind_addon.tools.mcp.session import ToolFailed
from hivemind_addon.tools.mcp.tool import MAX_ROWS, Call, picked, tool


class PastRequest(Struct, frozen=True):
    """A request of yours."""

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
    micro_usd: int


class PastRequests(Struct, frozen=True):
    """Your requests, the newest first."""

    requests: tuple[PastRequest, ...]
    text: str


@tool("What became of your requests")
def history(
    call: Call,
    name: Annotated[
        str, Meta(max_length=300, description="A request's id, a task's id or an Idempotency-Key; empty: the newest")
    ] = "",
    hours: Annotated[float, Meta(gt=0, le=24 * 366, description="How far back; means nothing with a name")] = 24,
    most: Annotated[int, Meta(ge=1, le=MAX_ROWS, description="At most so many requests")] = 20,
) -> PastRequests:
    """Look up your own past requests: whether each ran at the provider once, twice, never, or nobody can know, why
    attempts failed, what they used and cost. Use it after an error or a restart, before you do something again.
    Changes nothing.
    """
    session = call.session
    agent, glob = session.agent, session.caller.glob
    with JournalReader(session.journal()) as journal:
        if name:
            found = find(journal, given_id(name), most)
            mine = [ticket for ticket in reversed(found.tickets) if ticket.agent == agent]
            if not mine:
                raise ToolFailed(f"none of your requests, tasks or Idempotency-Keys is {name!r}")
            stories = biographies(journal, mine)
        else:
            since = session.clock.wall() - hours * 3600
            newest = requests(journal, RequestFilter(span=Span(since=since), agent=glob), most)
            stories = biographies(journal, newest)
        past = tuple(map(_past, stories))
    return PastRequests(past, _text(past))


def _past(story: Biography) -> PastRequest:
    ticket = story.ticket
    failed = tuple(one.reason or one.outcome for one in story.attempts if one.outcome not in ("", "success"))
    return picked(
        PastRequest,
        ticket,
        ticket=ticket.id,
        arrived=datetime.fromtimestamp(ticket.arrived).astimezone().isoformat(timespec="seconds"),
        what_happened=verdict([ticket], story.attempts),
        attempts=len(story.attempts),
        failures=failed[:MAX_ROWS],
        input_tokens=ticket.tokens_in,
        output_tokens=ticket.tokens_out,
    )


def _text(past: Sequence[PastRequest]) -> str:
    if not past:
        return "There are none."
    if len(past) == 1:
        return f"It {past[0].what_happened}."
    delivered = sum(one.end == "delivered" for one in past)
    return f"{len(past)} requests, {delivered} of them delivered."


class KeptConversation(Struct, frozen=True):
    """A conversation that was kept."""

    id: str
    version: Annotated[int, Meta(description="The newest; earlier ones are read with a version of their own")]
    kept_at: Annotated[str, Meta(description="ISO 8601, UTC")]
    agent: Annotated[str, Meta(description="You, or a sub-agent of yours")]
    session: str
    parent_session: Annotated[str, Meta(description="The session that started it; empty: none is known")]
    model: str
    task: str
    messages: int
    tokens: Annotated[int, Meta(description="Of the newest request")]
    bytes: int
    micro_usd: Annotated[int, Meta(description="So far")]
    reason: Annotated[str, Meta(description="Why it was kept then")]


class ContextList(Struct, frozen=True):
    """Yours and your sub-agents', the newest first."""

    contexts: tuple[KeptConversation, ...]
    more: Annotated[int, Meta(description="Older ones that are not listed here")]


class ConversationText(TextPart, frozen=True, kw_only=True):
    """A part of a conversation as Markdown, oldest words first."""

    id: str
    version: int
    resume: Annotated[str, Meta(description="What a person types to go on with it in its own program")]


class SearchHit(Struct, frozen=True):
    """A message with the text."""

    id: str
    version: Annotated[int, Meta(description="The newest that has this message")]
    message: Annotated[int, Meta(description="Its number, from 1")]
    excerpt: str


class SearchHits(Struct, frozen=True):
    """The newest conversation's first."""

    hits: tuple[SearchHit, ...]
    more: Annotated[bool, Meta(description="Whether there are others")]


@tool("Your conversations that were kept")
def contexts(call: Call) -> ContextList:
    """List your own conversations that were kept, and those of your sub-agents, the newest first. Use it after a
    restart, a compaction or a raised budget, to find where you were. Changes nothing.
    """
    mine = of_agent(call.session.agent, call.session.contexts().heads())
    return ContextList(tuple(map(_kept, mine[:MAX_ROWS])), more=len(mine[MAX_ROWS:]))


def _kept(head: ContextHead) -> KeptConversation:
    kept_at = datetime.fromtimestamp(head.kept_wall, UTC).isoformat(timespec="seconds")
    return picked(KeptConversation, head, kept_at=kept_at, bytes=head.body_bytes, micro_usd=head.spent.micro_usd)


@tool("Read a kept conversation")
def context_read(
    call: Call,
    id: Annotated[  # noqa: A002 - the argument's public name
        str, Meta(min_length=1, max_length=200, description="As contexts lists it, or its beginning")
    ],
    version: Annotated[int, Meta(ge=0, description="An earlier one; 0: the newest")] = 0,
    offset: Offset = 0,
    chars: Chars = 20_000,
) -> ConversationText:
    """Read one of your own kept conversations, or of a sub-agent's, as Markdown, with tool calls and their results,
    in parts: go on at next_offset until it is null. Changes nothing.
    """
    store = call.session.contexts()
    mine = [head.id for head in of_agent(call.session.agent, store.heads())]
    meant = [one for one in mine if one == id] or [one for one in mine if one.startswith(id)]
    if len(meant) != 1:  # another agent's is as if it were not there
        which = "several" if meant else "none"
        raise UnknownContext(f"{which} of your contexts may be {id!r}; the tool contexts lists them")
    found = store.read(meant[0], version or None)
    resume = f"hivemind context resume {found.head.id}"
    return picked(ConversationText, part_of(prompt_of(found), offset, chars), found.head, resume=resume)


@tool("Search your kept conversations")
def context_search(
    call: Call,
    text: Annotated[
        str, Meta(min_length=1, max_length=500, description="As it was said, in whatever case; no pattern")
    ],
    most: Annotated[int, Meta(ge=1, le=MAX_ROWS, description="At most so many hits")] = 20,
) -> SearchHits:
    """Find where a text was said in your own kept conversations and your sub-agents': by you, by people, by tools.
    Use it for facts that you knew before a compaction. Changes nothing.
    """
    store = call.session.contexts()
    mine = of_agent(call.session.agent, store.heads())
    ids, agents = {head.id for head in mine}, dict.fromkeys(head.agent for head in mine)
    found = (hit for agent in agents for hit in store.search(text, agent) if hit[0].id in ids)
    hits = [SearchHit(head.id, head.version, index + 1, excerpt) for head, index, excerpt in islice(found, most + 1)]
    return SearchHits(tuple(hits[:most]), more=len(hits) > most)
