"""Events → the history of a ticket, shown to people beside the request while the ticket waits and afterwards.

Histories are plain values: they travel with mitmproxy's flow, also into files, and can be shown without a scheduler.
"""

from collections.abc import Callable

from msgspec import Struct, field

from hivemind_addon.kernel.values.events import (
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    Event,
    Held,
    Moved,
    Submitted,
    TicketEnded,
)
from hivemind_addon.kernel.values.snapshot import RequestState, TicketView
from hivemind_addon.kernel.values.ticket import Ticket, Usage
from hivemind_addon.proxy.api.event_text import text_of
from hivemind_addon.proxy.api.words import about, amount, ordinal

MOMENTS = 100
"""A ticket that is tried for hours keeps this many moments: the first few and the newest."""
_FIRST = 10
ENDED = 256
"""Number of histories that are kept after their end for later readers."""
_COLUMNS = (22, 17, 11)
"""Characters of the first columns of a line: agent, state, start. A longer text moves the next column."""
PAD = "\N{NO-BREAK SPACE}"
"""Pages of mitmweb merge several ordinary spaces."""


class Moment(Struct, frozen=True):
    """An event in the life of a ticket."""

    after_s: float
    """Seconds since the request came."""
    text: str


class TicketHistory(Struct, kw_only=True):
    """The known facts of a ticket."""

    ticket_id: str
    agent: str
    session: str = ""
    parent_session: str = ""
    """Empty: unknown."""
    kind: str = ""
    model: str = ""
    pool: str = ""
    priority: str = ""
    moments: list[Moment] = field(default_factory=list)
    """Oldest first."""
    attempts: int = 0
    waited_s: float = 0.0
    """Sum over the waits that have ended."""
    waits: bool = False
    """Whether the ticket is held."""
    failure: str = ""
    """Why the newest attempt failed; empty: no failure."""
    usage: Usage = field(default_factory=Usage)
    """Sum over all attempts."""
    micro_usd: int | None = None
    """None: the model has no price."""
    end: str = ""
    """`delivered`, `gave up`, `shed`, `refused`, `cancelled`; empty: the ticket has not ended."""
    reason: str = ""
    """The reason for the end."""

    @property
    def is_lost(self) -> bool:
        """Whether the client got no answer of the provider."""
        return self.end in ("gave up", "shed", "refused")


class _Record:
    """A history, and the events that are not yet in the history."""

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
        """The history so far, with all events added."""
        if self._history is None:
            self._history = _begin(self._ticket)
        for event in self._events:
            _add(self._history, self._ticket, event)
        self._events.clear()
        return self._history


class Histories:
    """An observer without any part in decisions; a history is made when requested."""

    def __init__(self, catch_up: Callable[[], None] = lambda: None) -> None:
        """`catch_up` hands over the events that were kept back."""
        self._catch_up = catch_up
        self._live: dict[str, _Record] = {}
        self._ended: dict[str, _Record] = {}
        """Oldest first."""

    def __call__(self, event: Event) -> None:
        """Keep an event that concerns a ticket."""
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
        """The ticket's history so far; None: the ticket was never submitted, or ended long ago."""
        self._catch_up()
        record = self._live.get(ticket_id) or self._ended.get(ticket_id)
        return None if record is None else record.read()

    def agent_of(self, ticket_id: str) -> str:
        """The agent of a ticket; empty: the ticket has ended, or was never submitted."""
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


def newest_line(history: TicketHistory) -> str:
    """The last known state of a ticket, in the form of `present_line`; empty: no event yet."""
    if not history.moments:
        return ""
    if not history.waits:
        return _in_flight(history, history.attempts)
    state, _, why = history.moments[-1].text.partition("; ")
    return _line(history, state, rest=why)


def present_line(history: TicketHistory, view: TicketView) -> str:
    """The state of a ticket that has not ended, in columns: `agent-7  queued, 3rd  in 15 s  provider down [1a2b]`."""
    if not view.position:
        return _in_flight(history, view.attempts)
    start = "" if view.starts_in_s is None else f"in {about(view.starts_in_s)}"
    is_queued = view.state is RequestState.QUEUED
    cause = f" ({history.failure})" if history.failure and not is_queued else ""
    why = view.why.removeprefix(view.state).removeprefix(": ") + cause  # the state column shows this part
    return _line(history, f"{view.state}, {ordinal(view.position)}", start, why)


def final_line(history: TicketHistory) -> str:
    """The end of a ticket: `a  delivered  after 12 s  1,345 in (900 cached) + 678 out, $0.03, 2 attempts [1b]`."""
    reason = "" if history.end == "delivered" else history.reason
    tried = f"{history.attempts} attempts" if history.attempts > 1 else ""
    rest = ", ".join(filter(None, (reason, usage_line(history), tried)))
    return _line(history, history.end, _waited(history), rest)


def _in_flight(history: TicketHistory, attempt: int) -> str:
    return _line(history, "in flight", _waited(history), f"attempt {attempt}" if attempt > 1 else "")


def _waited(history: TicketHistory) -> str:
    return f"after {about(history.waited_s)}" if history.waited_s >= 0.5 else ""


def _line(history: TicketHistory, state: str, start: str = "", rest: str = "") -> str:
    """A line of a list: agent, state, start, and the reason for the wait or the usage."""
    return f"{in_columns(history.agent, state, start)}{rest}{' ' if rest else ''}[{history.ticket_id}]"


def in_columns(*texts: str) -> str:
    """Texts as the first columns of a line; the next text begins after them."""
    return "".join(f"{text:{PAD}<{chars}}{PAD}" for text, chars in zip(texts, _COLUMNS, strict=True))


def usage_line(history: TicketHistory) -> str:
    """Tokens and money: `12,345 in (11,000 cached, 200 written) + 678 out, $0.034`; empty: no usage."""
    usage, input_tokens = history.usage, history.usage.total_input_tokens
    if not (input_tokens or usage.output_tokens):
        return ""
    caches = ((usage.cache_read_tokens, "cached"), (usage.cache_write_tokens, "written to the cache"))
    cached = ", ".join(f"{tokens:,} {name}" for tokens, name in caches if tokens)
    line = f"{input_tokens:,} in{f' ({cached})' if cached else ''} + {usage.output_tokens:,} out"
    return f"{line}, {amount('micro_usd', history.micro_usd)}" if history.micro_usd else line
