"""What became of an agent's own requests, from the journal: of earlier runs of the proxy, too."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from hivemind_addon.api.proxy_user import given_id
from hivemind_addon.proxy.journal.tables import AttemptRow, TicketRow
from hivemind_addon.tools.history.asked import RequestFilter, Span
from hivemind_addon.tools.history.history import biographies, find, requests
from hivemind_addon.tools.history.reader import JournalReader
from hivemind_addon.tools.history.verdict import verdict
from hivemind_addon.tools.mcp.tool import MAX_ROWS, Call, McpTool, ToolFailed

_HOUR_S = 3600.0


class About(Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests."""

    name: Annotated[
        str, Meta(max_length=300, description="A request's id, a task's id or an Idempotency-Key; empty: the newest")
    ] = ""
    hours: Annotated[float, Meta(gt=0, le=24 * 366, description="How far back; means nothing with a name")] = 24
    most: Annotated[int, Meta(ge=1, le=MAX_ROWS, description="At most so many requests")] = 20


class Past(Struct, frozen=True):
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

    requests: tuple[Past, ...]
    text: str


def _history(call: Call, about: About) -> PastRequests:
    session = call.session
    agent, glob = session.agent, session.caller.glob
    with JournalReader(session.journal()) as journal:
        if about.name:
            found = find(journal, given_id(about.name), about.most)
            tickets: Sequence[TicketRow] = [one for one in reversed(found.tickets) if one.agent == agent]
            if not tickets:
                raise ToolFailed(f"none of your requests, tasks or Idempotency-Keys is {about.name!r}")
        else:
            since = session.clock.wall() - about.hours * _HOUR_S
            tickets = requests(journal, RequestFilter(span=Span(since=since), agent=glob), about.most)
        told = tuple(_past(one.ticket, one.attempts) for one in biographies(journal, tickets))
    return PastRequests(told, _text(told))


def _past(ticket: TicketRow, attempts: Sequence[AttemptRow]) -> Past:
    failed = tuple(one.reason or one.outcome for one in attempts if one.outcome not in ("", "success"))
    return Past(
        ticket=ticket.id,
        arrived=datetime.fromtimestamp(ticket.arrived).astimezone().isoformat(timespec="seconds"),
        model=ticket.model,
        task=ticket.task,
        what_happened=verdict([ticket], attempts),
        end=ticket.end,
        reason=ticket.reason,
        attempts=len(attempts),
        failures=failed[:MAX_ROWS],
        waited_s=round(ticket.waited_s, 1),
        input_tokens=sum(
            (one.input_tokens or 0) + (one.cache_read_tokens or 0) + (one.cache_write_tokens or 0) for one in attempts
        ),
        output_tokens=sum(one.output_tokens or 0 for one in attempts),
        cost_usd=sum(one.micro_usd for one in attempts) / 1e6,
    )


def _text(told: Sequence[Past]) -> str:
    if not told:
        return "There are none."
    if len(told) == 1:
        return f"It {told[0].what_happened}."
    delivered = sum(one.end == "delivered" for one in told)
    return f"{len(told)} requests, {delivered} of them delivered."


TOOLS = (
    McpTool(
        name="history",
        title="What became of your requests",
        description=(
            "Look up your own past requests: whether each ran at the provider once, twice, never, or nobody can know, "
            "why attempts failed, what they used and cost. Use it after an error or a restart, before you do "
            "something again. Changes nothing."
        ),
        takes=About,
        gives=PastRequests,
        run=_history,
        idempotent=True,
    ),
)
