"""Events → one ticket's history: what a person reads beside its request, while it waits and ever after.

It is plain values: it travels with mitmproxy's flow, into files too, and is shown where no scheduler runs.
"""

from collections.abc import Callable

from msgspec import Struct, field

from hivemind_addon.api.event_text import text_of
from hivemind_addon.api.events import (
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    Event,
    Held,
    Moved,
    Submitted,
    TicketEnded,
)
from hivemind_addon.api.pool_words import waiting_line
from hivemind_addon.api.snapshot import RequestState, TicketView
from hivemind_addon.api.spend import amount
from hivemind_addon.api.ticket import Ticket, Usage
from hivemind_addon.api.words import about

MOMENTS = 100
"""Of a ticket that is tried for hours the first few and the newest are kept."""
_FIRST = 10
ENDED = 256
"""So many histories are kept after their end, for whoever has not read them yet."""


class Moment(Struct, frozen=True):
    """One thing that happened."""

    after_s: float
    """Since the request came."""
    text: str


class TicketHistory(Struct, kw_only=True):
    """What is known of one ticket."""

    ticket_id: str
    agent: str
    session: str = ""
    parent_session: str = ""
    """Empty: none is known."""
    kind: str = ""
    model: str = ""
    pool: str = ""
    priority: str = ""
    moments: list[Moment] = field(default_factory=list)
    """Oldest first."""
    attempts: int = 0
    waited_s: float = 0.0
    """Sum over its waits that have ended."""
    waits: bool = False
    """Whether it is held."""
    failure: str = ""
    """Why its newest attempt failed; empty: it did not."""
    usage: Usage = field(default_factory=Usage)
    """Of all its attempts."""
    micro_usd: int | None = None
    """None: its model has no price."""
    end: str = ""
    """`delivered`, `gave up`, `shed`, `refused`, `cancelled`; empty: it has not ended."""
    reason: str = ""
    """Why it ended so."""

    @property
    def is_lost(self) -> bool:
        """Whether its client got no answer of the provider."""
        return self.end in ("gave up", "shed", "refused")

    @property
    def who(self) -> str:
        """The agent and the ticket, as all lines about it end."""
        return f"[{self.agent} {self.ticket_id}]"


class _Record:
    """What is known of one ticket: a history, and the events that are not in it yet."""

    __slots__ = ("_events", "_history", "_ticket")

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._events: list[Event] = []
        self._history: TicketHistory | None = None

    @property
    def agent(self) -> str:
        return self._ticket.agent

    def add(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) >= MOMENTS:
            self.read()

    def read(self) -> TicketHistory:
        """The history so far, told now."""
        if self._history is None:
            self._history = _begin(self._ticket)
        for event in self._events:
            _add(self._history, self._ticket, event)
        self._events.clear()
        return self._history


class Histories:
    """An observer. Owns nothing that decides; a history is made when it is read."""

    def __init__(self, catch_up: Callable[[], None] = lambda: None) -> None:
        """`catch_up` hands over the events that have been kept back."""
        self._catch_up = catch_up
        self._live: dict[str, _Record] = {}
        self._ended: dict[str, _Record] = {}
        """Oldest first."""

    def __repr__(self) -> str:
        return f"<Histories of {len(self._live)} live tickets>"

    def __call__(self, event: Event) -> None:
        """Keep one event, when it is of one ticket."""
        if type(event) is Submitted:
            self._live[event.ticket.id] = _Record(event.ticket)
        elif (record := self._live.get(getattr(event, "ticket_id", None) or "")) is not None:
            record.add(event)
            if type(event) is TicketEnded:
                del self._live[event.ticket_id]
                self._ended[event.ticket_id] = record
                if len(self._ended) > ENDED:
                    del self._ended[next(iter(self._ended))]

    def of(self, ticket_id: str) -> TicketHistory | None:
        """The ticket's history so far; None: it was never submitted, or ended long ago."""
        self._catch_up()
        record = self._live.get(ticket_id) or self._ended.get(ticket_id)
        return None if record is None else record.read()

    def agent_of(self, ticket_id: str) -> str:
        """Whose ticket it is; empty: it has ended, or was never submitted."""
        self._catch_up()
        record = self._live.get(ticket_id)
        return "" if record is None else record.agent


def _begin(ticket: Ticket) -> TicketHistory:
    return TicketHistory(
        ticket_id=ticket.id,
        agent=ticket.agent,
        session=ticket.session,
        parent_session=ticket.parent_session,
        kind=ticket.kind.value,
        model=ticket.model,
        pool=str(ticket.pool),
        priority=ticket.priority.name.lower(),
        micro_usd=None if ticket.price is None else 0,
    )


def _add(history: TicketHistory, ticket: Ticket, event: Event) -> None:
    match event:
        case Held() | BackedOff():
            history.waits = True
        case Moved():
            history.pool = str(event.pool)
        case AttemptStarted():
            history.waits = False
            history.attempts = event.attempt
            history.waited_s += event.waited_s
        case AttemptEnded():
            history.failure = event.outcome.reason
            if event.usage is not None:
                history.usage += event.usage
            if history.micro_usd is not None:
                history.micro_usd += event.spend.micro_usd
        case TicketEnded():
            history.waits = False
            history.end, history.reason = event.end, event.reason
            history.attempts, history.waited_s = event.attempts, event.waited_s
    history.moments.append(Moment(after_s=round(max(0.0, event.at - ticket.arrived_at), 3), text=text_of(event)))
    if len(history.moments) > MOMENTS:
        del history.moments[_FIRST]


def _in_flight(attempt: int) -> str:
    return f"in flight, attempt {attempt}" if attempt > 1 else "in flight"


def newest_line(history: TicketHistory) -> str:
    """Where a ticket was put last, in one line; empty: nothing has happened yet."""
    if not history.moments:
        return ""
    return f"{history.moments[-1].text if history.waits else _in_flight(history.attempts)} {history.who}"


def present_line(history: TicketHistory, view: TicketView) -> str:
    """Where a ticket that has not ended is, in one line: `queued, 3rd; provider down, in about 15 s [a 1b]`."""
    if not view.position:
        return f"{_in_flight(view.attempts)} {history.who}"
    is_queued = view.state is RequestState.QUEUED
    cause = f" ({history.failure})" if history.failure and not is_queued else ""
    line = waiting_line(view.position, view.why + cause, view.starts_in_s)
    return f"{'queued, ' if is_queued else ''}{line} {history.who}"


def final_line(history: TicketHistory) -> str:
    """What became of a ticket: `delivered: waited 12 s, 2 attempts, 1,345 in (900 cached) + 678 out, $0.03 [a 1b]`."""
    parts = [] if history.end == "delivered" else [history.reason]
    if history.waited_s >= 0.5:
        parts.append(f"waited {about(history.waited_s)}")
    if history.attempts > 1:
        parts.append(f"{history.attempts} attempts")
    if used := usage_line(history):
        parts.append(used)
    return f"{history.end}: {', '.join(parts)} {history.who}" if parts else f"{history.end} {history.who}"


def usage_line(history: TicketHistory) -> str:
    """Tokens and money: `12,345 in (11,000 cached, 200 written) + 678 out, $0.034`; empty: nothing was used."""
    usage, input_tokens = history.usage, history.usage.total_input_tokens
    if not (input_tokens or usage.output_tokens):
        return ""
    caches = ((usage.cache_read_tokens, "cached"), (usage.cache_write_tokens, "written to the cache"))
    cached = ", ".join(f"{tokens:,} {name}" for tokens, name in caches if tokens)
    line = f"{input_tokens:,} in{f' ({cached})' if cached else ''} + {usage.output_tokens:,} out"
    return f"{line}, {amount('micro_usd', history.micro_usd)}" if history.micro_usd else line
