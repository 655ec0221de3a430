"""Events → one ticket's story: what a person reads beside its request, while it waits and ever after.

A story is plain values: it travels with mitmproxy's flow, into files too, and is told again where no scheduler runs.
"""

from typing import assert_never

from msgspec import Struct, field

from hivemind_addon.api.events import (
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    CommittedStreamFailed,
    Event,
    GuardTripped,
    Held,
    OddityNoted,
    PersonActed,
    Submitted,
    Superseded,
    TicketEnded,
)
from hivemind_addon.api.snapshot import TicketView
from hivemind_addon.api.spend import amount
from hivemind_addon.api.ticket import Ticket, Usage
from hivemind_addon.api.words import about

MOMENTS = 100
"""Of a ticket that is tried for hours the first few and the newest are kept."""
_FIRST = 10
ENDED = 256
"""So many stories are kept after their end, for whoever has not read them yet."""

_Told = (
    Held
    | AttemptStarted
    | AttemptEnded
    | BackedOff
    | Superseded
    | OddityNoted
    | PersonActed
    | CommittedStreamFailed
    | GuardTripped
    | TicketEnded
)
"""The events that are moments of a story."""


class Moment(Struct, frozen=True):
    """One thing that happened."""

    after_s: float
    """Since the request came."""
    text: str


class Story(Struct, kw_only=True):
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


class Stories:
    """An observer. Owns nothing that decides."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[Ticket, Story]] = {}
        self._ended: dict[str, Story] = {}
        """Oldest first."""

    def __repr__(self) -> str:
        return f"<Stories of {len(self._live)} live tickets>"

    def __call__(self, event: Event) -> None:
        """Write one event down, when it is of one ticket."""
        if isinstance(event, Submitted):
            self._live[event.ticket.id] = (event.ticket, _begin(event.ticket))
        elif isinstance(event, _Told) and event.ticket_id in self._live:
            ticket, story = self._live[event.ticket_id]
            _add(story, ticket, event)
            if isinstance(event, TicketEnded):
                del self._live[ticket.id]
                self._ended[ticket.id] = story
                if len(self._ended) > ENDED:
                    del self._ended[next(iter(self._ended))]

    def of(self, ticket_id: str) -> Story | None:
        """The ticket's story so far; None: it was never submitted, or ended long ago."""
        known = self._live.get(ticket_id)
        return known[1] if known else self._ended.get(ticket_id)


def _begin(ticket: Ticket) -> Story:
    return Story(
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


def _add(story: Story, ticket: Ticket, event: _Told) -> None:
    match event:
        case Held() | BackedOff():
            story.waits = True
        case AttemptStarted():
            story.waits = False
            story.attempts = event.attempt
            story.waited_s += event.waited_s
        case AttemptEnded():
            story.failure = event.outcome.reason
            if event.usage is not None:
                story.usage += event.usage
            if story.micro_usd is not None:
                story.micro_usd += event.spend.micro_usd
        case TicketEnded():
            story.waits = False
            story.end, story.reason = event.end, event.reason
            story.attempts, story.waited_s = event.attempts, event.waited_s
    story.moments.append(Moment(after_s=round(max(0.0, event.at - ticket.arrived_at), 3), text=_worded(event)))
    if len(story.moments) > MOMENTS:
        del story.moments[_FIRST]


def _worded(event: _Told) -> str:
    match event:
        case Held():
            return f"held, place {event.position}: {event.reason.value}"
        case AttemptStarted():
            return _in_flight(event.attempt)
        case AttemptEnded():
            return f"attempt {event.attempt}: {event.outcome.reason}, after {event.duration_s:.1f} s"
        case BackedOff():
            wait_s = event.until - event.at
            return f"tried again {f'in {wait_s:.1f} s' if wait_s > 0 else 'when it is its turn'} ({event.reason})"
        case Superseded():
            return f"ended: its client came back with {event.by_ticket_id}"
        case OddityNoted():
            return f"odd: {event.what}"
        case PersonActed():
            return f"a person: {event.text}"
        case CommittedStreamFailed():
            return f"failed after its keep-alives: {event.reason}"
        case GuardTripped():
            return f"the scheduler failed in {event.where}, and lets it pass by: {event.error}"
        case TicketEnded():
            return event.end if event.end == "delivered" else f"{event.end}: {event.reason}"
        case _:
            assert_never(event)


def _in_flight(attempt: int) -> str:
    return f"in flight, attempt {attempt}" if attempt > 1 else "in flight"


def newest_line(story: Story) -> str:
    """What happened to a ticket last, in one line; empty: nothing yet."""
    return f"{story.moments[-1].text} {story.who}" if story.moments else ""


def present_line(story: Story, view: TicketView) -> str:
    """Where a ticket that has not ended is, in one line: `held, place 3: rate limit, in about 15 s [agent-7 1a2b]`."""
    if not view.position:
        return f"{_in_flight(view.attempts)} {story.who}"
    start = "" if view.starts_in_s is None else f", in about {about(view.starts_in_s)}"
    if view.state == "backing off":
        cause = f" after {story.failure}" if story.failure else ""
        return f"held, backing off: attempt {view.attempts + 1}{start.removeprefix(',')}{cause} {story.who}"
    return f"held, place {view.position}: {view.reason}{start} {story.who}"


def final_line(story: Story) -> str:
    """What became of a ticket: `delivered: waited 12 s, 2 attempts, 1,345 in (900 cached) + 678 out, $0.03 [a 1b]`."""
    parts = [] if story.end == "delivered" else [story.reason]
    if story.waited_s >= 0.5:
        parts.append(f"waited {about(story.waited_s)}")
    if story.attempts > 1:
        parts.append(f"{story.attempts} attempts")
    if used := usage_line(story):
        parts.append(used)
    return f"{story.end}: {', '.join(parts)} {story.who}" if parts else f"{story.end} {story.who}"


def usage_line(story: Story) -> str:
    """Tokens and money: `12,345 in (11,000 cached, 200 written) + 678 out, $0.034`; empty: nothing was used."""
    usage = story.usage
    if not (usage.total_input_tokens or usage.output_tokens):
        return ""
    caches = ((usage.cache_read_tokens, "cached"), (usage.cache_write_tokens, "written to the cache"))
    cached = ", ".join(f"{tokens:,} {name}" for tokens, name in caches if tokens)
    line = f"{usage.total_input_tokens:,} in{f' ({cached})' if cached else ''} + {usage.output_tokens:,} out"
    return f"{line}, {amount('micro_usd', story.micro_usd)}" if story.micro_usd else line
