"""Events → what a dashboard shows beside the snapshot: what came of each agent, how each pool moved.

Folded as events come, at a bounded size: the newest sessions, ten minutes of each pool. All times are passed: they are
the same in a simulated night.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from math import ceil

from hivemind_addon.api.events import (
    AttemptEnded,
    AttemptStarted,
    ConcurrencyChanged,
    Event,
    Held,
    PoolsMerged,
    Submitted,
    TicketEnded,
)
from hivemind_addon.api.report import LimitMove, LogLine, PoolStats, Sample, SessionStats, StatsView
from hivemind_addon.api.spend import Spend
from hivemind_addon.api.ticket import OutcomeKind, PoolKey, Ticket, Usage

SAMPLE_S = 10.0
"""Length of one sample of a pool's history."""
SAMPLES = 60
MOVES = 8
SESSIONS = 2_000
SESSIONS_TOLD = 500
"""Of these, the ones that a view has: it is made once a second, on the event loop."""
WAITS = 1_000
WAITS_S = 600.0
"""Waits that are older count no more."""


@dataclass(slots=True)
class _PoolStats:
    key: PoolKey
    admitted: int = 0
    delivered: int = 0
    retries_absorbed: int = 0
    throttled: int = 0
    failed: int = 0
    garbage: int = 0
    usage: Usage = field(default_factory=Usage)
    spent: Spend = field(default_factory=Spend)
    wasted: Spend = field(default_factory=Spend)
    queued: int = 0
    in_flight: int = 0
    limit: int | None = None
    waits: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WAITS))
    """When, and how long."""
    samples: deque[list[float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """Number of the sample, most queued, most in flight, limit (-1: unknown)."""
    moves: deque[tuple[float, int, str]] = field(default_factory=lambda: deque(maxlen=MOVES))

    def sample(self, now: float) -> None:
        """Let the present state count in the present sample; gaps are filled with what stood."""
        number = now // SAMPLE_S
        limit = -1 if self.limit is None else self.limit
        if not self.samples:
            self.samples.append([number, self.queued, self.in_flight, limit])
            return
        last = self.samples[-1]
        if last[0] < number:
            first_missing = max(last[0] + 1, number - SAMPLES)
            for missing in range(int(first_missing), int(number) + 1):
                self.samples.append([missing, self.queued, self.in_flight, limit])
            return
        last[1] = max(last[1], self.queued)
        last[2] = max(last[2], self.in_flight)
        last[3] = limit


@dataclass(slots=True)
class _SessionStats:
    agent: str
    session: str
    parent_session: str = ""
    model: str = ""
    tickets: int = 0
    live: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    retries_absorbed: int = 0
    waited_s: float = 0.0
    usage: Usage = field(default_factory=Usage)
    spent: Spend = field(default_factory=Spend)
    wasted: Spend = field(default_factory=Spend)
    is_priced: bool = True
    seen_at: float = 0.0


_COUNTED = (
    *("admitted", "delivered", "retries_absorbed", "throttled", "failed", "garbage"),
    *("usage", "spent", "wasted", "queued", "in_flight"),
)


class Stats:
    """An observer. Owns nothing that decides."""

    def __init__(self) -> None:
        self._pools: dict[PoolKey, _PoolStats] = {}
        self._sessions: dict[tuple[str, str], _SessionStats] = {}
        """The one that was seen last is at the end."""
        self._live: dict[str, Ticket] = {}
        """Tickets that have not ended."""
        self._held: set[str] = set()
        """Of these, the ones that wait."""

    def __repr__(self) -> str:
        return f"<Stats of {len(self._pools)} pools, {len(self._sessions)} sessions, {len(self._live)} live tickets>"

    def __call__(self, event: Event) -> None:
        """Count one event."""
        match event:
            case Submitted():
                self._submitted(event)
            case Held():
                self._hold(event)
            case AttemptStarted():
                self._started(event)
            case AttemptEnded():
                self._attempt_ended(event)
            case TicketEnded():
                self._ended(event)
            case ConcurrencyChanged():
                book = self._book(event.pool)
                book.sample(event.at)
                book.limit = event.limit
                book.moves.appendleft((event.at, event.limit, event.reason))
                book.sample(event.at)
            case PoolsMerged():
                self._merged(event)

    def view(self, now: float, log: tuple[LogLine, ...] = ()) -> StatsView:
        """What has been counted until now, beside the newest lines of the log."""
        for book in self._pools.values():
            book.sample(now)
        told = list(islice(reversed(self._sessions.values()), SESSIONS_TOLD))
        return StatsView(
            pools=tuple(_pool_view(book, now) for book in self._pools.values()),
            sessions=tuple(_session_view(book, now) for book in reversed(told)),
            more_sessions=len(self._sessions) - len(told),
            log=log,
        )

    def _book(self, key: PoolKey) -> _PoolStats:
        book = self._pools.get(key)
        if book is None:
            book = self._pools[key] = _PoolStats(key)
        return book

    def _session(self, ticket: Ticket) -> _SessionStats:
        key = ticket.agent, ticket.session
        book = self._sessions.pop(key, None) or _SessionStats(agent=ticket.agent, session=ticket.session)
        self._sessions[key] = book
        if len(self._sessions) > SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return book

    def _submitted(self, event: Submitted) -> None:
        ticket = event.ticket
        self._live[ticket.id] = ticket
        book = self._session(ticket)
        book.tickets += 1
        book.live += 1
        book.parent_session = ticket.parent_session or book.parent_session
        book.model = ticket.model
        book.is_priced = book.is_priced and ticket.price is not None
        book.seen_at = event.at

    def _hold(self, event: Held) -> None:
        if event.ticket_id not in self._held:
            self._held.add(event.ticket_id)
            book = self._book(event.pool)
            book.sample(event.at)
            book.queued += 1
            book.sample(event.at)

    def _let_go(self, ticket_id: str, book: _PoolStats) -> None:
        if ticket_id in self._held:
            self._held.discard(ticket_id)
            book.queued -= 1

    def _started(self, event: AttemptStarted) -> None:
        book = self._book(event.pool)
        book.sample(event.at)
        self._let_go(event.ticket_id, book)
        book.in_flight = event.in_flight
        book.admitted += 1
        book.waits.append((event.at, event.waited_s))
        book.sample(event.at)

    def _attempt_ended(self, event: AttemptEnded) -> None:
        book = self._book(event.pool)
        book.sample(event.at)
        book.in_flight = max(0, book.in_flight - 1)
        book.throttled += event.outcome.kind is OutcomeKind.THROTTLED
        book.failed += event.outcome.kind in (OutcomeKind.FAILED, OutcomeKind.OVERLOADED)
        book.garbage += bool(event.outcome.garbage)
        ticket = self._live.get(event.ticket_id)
        usage, wasted = event.usage or Usage(), event.wasted
        for one in (book,) if ticket is None else (book, self._session(ticket)):
            one.usage += usage
            one.spent += event.spend
            one.wasted += wasted

    def _ended(self, event: TicketEnded) -> None:
        ticket = self._live.pop(event.ticket_id, None)
        if ticket is None:
            return
        book = self._book(event.pool)
        book.sample(event.at)
        self._let_go(event.ticket_id, book)
        absorbed = event.attempts - 1 if event.end == "delivered" else 0
        session = self._session(ticket)
        session.live = max(0, session.live - 1)  # its book may be a new one
        session.ends[event.end] = session.ends.get(event.end, 0) + 1
        session.retries_absorbed += absorbed
        session.waited_s += event.waited_s
        session.seen_at = event.at
        book.delivered += event.end == "delivered"
        book.retries_absorbed += absorbed

    def _merged(self, event: PoolsMerged) -> None:
        old, new = self._pools.pop(event.merged, None), self._book(event.pool)
        if old is None:
            return
        for name in _COUNTED:
            setattr(new, name, getattr(new, name) + getattr(old, name))


def _pool_view(book: _PoolStats, now: float) -> PoolStats:
    waits = sorted(waited_s for at, waited_s in book.waits if now - at <= WAITS_S)
    return PoolStats(
        key=book.key,
        admitted=book.admitted,
        delivered=book.delivered,
        retries_absorbed=book.retries_absorbed,
        throttled=book.throttled,
        failed=book.failed,
        usage=book.usage,
        micro_usd=book.spent.micro_usd,
        tokens=book.spent.tokens,
        wasted_tokens=book.wasted.tokens,
        wasted_micro_usd=book.wasted.micro_usd,
        garbage=book.garbage,
        wait_p50_s=quantile(waits, 0.5),
        wait_p95_s=quantile(waits, 0.95),
        history=tuple(
            Sample(
                ago_s=now - (number + 1) * SAMPLE_S,
                queued=int(queued),
                in_flight=int(in_flight),
                limit=None if limit < 0 else int(limit),
            )
            for number, queued, in_flight, limit in book.samples
        ),
        moves=tuple(
            LimitMove(ago_s=max(0.0, now - at), limit=limit, reason=reason) for at, limit, reason in book.moves
        ),
    )


def quantile(ordered: list[float], share: float) -> float | None:
    """The value that `share` of the ordered ones do not exceed; None of none."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def _session_view(book: _SessionStats, now: float) -> SessionStats:
    return SessionStats(
        agent=book.agent,
        session=book.session,
        parent_session=book.parent_session,
        model=book.model,
        tickets=book.tickets,
        delivered=book.ends.get("delivered", 0),
        lost=book.ends.get("gave up", 0),
        refused=book.ends.get("refused", 0),
        shed=book.ends.get("shed", 0),
        cancelled=book.ends.get("cancelled", 0),
        retries_absorbed=book.retries_absorbed,
        waited_s=book.waited_s,
        usage=book.usage,
        micro_usd=book.spent.micro_usd,
        tokens=book.spent.tokens,
        wasted_tokens=book.wasted.tokens,
        wasted_micro_usd=book.wasted.micro_usd,
        is_priced=book.is_priced,
        seen_ago_s=max(0.0, now - book.seen_at),
        live=book.live,
    )
