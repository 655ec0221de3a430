"""Events → sums, by pool and by session: the report and Prometheus tell them, each in its way.

Of a bounded size: the newest sessions, ten minutes of each pool. All times are passed: they are the same in a simulated
night.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hivemind_addon.kernel.values.events import (
    AccountBlocked,
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    BreakerChanged,
    CommittedStreamFailed,
    ConcurrencyChanged,
    ContextFull,
    ContextKept,
    ContextShrank,
    Event,
    GuardTripped,
    Held,
    MachineSlept,
    Moved,
    OddityNoted,
    PoolBlocked,
    PoolsMerged,
    StateUnsaved,
    Submitted,
    Superseded,
    TicketEnded,
    WaitOverruled,
)
from hivemind_addon.kernel.values.ticket import OutcomeKind, PoolKey, Ticket
from hivemind_addon.proxy.record.agent_use import AgentUse
from hivemind_addon.proxy.record.attempt_usage import Used

SAMPLE_S = 10.0
"""Length of one sample of a pool's history."""
SAMPLES = 60
RATE_SAMPLES = 6
"""Over which a rate is told: the last minute."""
MOVES = 8
SESSIONS = 2_000
WAITS = 1_000
WAITS_S = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
DURATIONS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)
ENDS = ("delivered", "gave up", "shed", "refused", "cancelled")

_COUNTED: dict[type[Event], str] = {
    BackedOff: "retries",
    CommittedStreamFailed: "committed_failures",
    Superseded: "superseded",
    PoolBlocked: "provider_pauses",
    AccountBlocked: "account_blocks",
    WaitOverruled: "waits_overruled",
    ContextKept: "contexts",
    ContextFull: "full_contexts",
}
"""Events of a pool that count one thing by one, and nothing else."""
_TOTALS: dict[type[Event], str] = {GuardTripped: "guard_trips", OddityNoted: "oddities", MachineSlept: "clock_jumps"}
"""The same of no pool."""


@dataclass(slots=True)
class Distribution:
    """How values spread over spans."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    """Values up to each bound, and above the one before; the last: above all."""
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, other: "Distribution") -> None:
        """Those of another one, over the same spans."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


@dataclass(slots=True, eq=False)
class PoolSums:
    """One pool's."""

    key: PoolKey
    tickets: int = 0
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    holds: dict[str, int] = field(default_factory=dict)
    admitted: int = 0
    outcomes: dict[OutcomeKind, int] = field(default_factory=lambda: dict.fromkeys(OutcomeKind, 0))
    waits: Distribution = field(default_factory=lambda: Distribution(WAITS_S))
    durations: Distribution = field(default_factory=lambda: Distribution(DURATIONS_S))
    used: Used = field(default_factory=Used)
    garbage: int = 0
    ambiguous: int = 0
    ambiguous_resends: int = 0
    retries_absorbed: int = 0
    compactions: int = 0
    compaction_tokens: int = 0
    """Of the calls that made the summaries, like the money."""
    compaction_micro_usd: int = 0
    compacted_tokens: int = 0
    """By which contexts became shorter."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED.values(), 0))
    breaker_changes: dict[str, int] = field(default_factory=dict)
    merged: "list[PoolSums]" = field(default_factory=list)
    """Pools that proved to be this one; what they counted stands still."""
    # As it is now, and was.
    queued: int = 0
    in_flight: int = 0
    limit: int | None = None
    newest_waits: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WAITS))
    """When, and how long."""
    samples: deque[list[float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """Number of the sample, most queued, most in flight, limit (-1: unknown), tokens in and out of ended attempts."""
    moves: deque[tuple[float, int, str]] = field(default_factory=lambda: deque(maxlen=MOVES))

    def sample(self, now: float) -> list[float]:
        """The present sample. Those before it are filled with what stood: to be called before a change."""
        number, samples = now // SAMPLE_S, self.samples
        if samples and number <= samples[-1][0]:
            return samples[-1]
        limit = -1 if self.limit is None else self.limit
        first = max(samples[-1][0] + 1, number - SAMPLES) if samples else number
        for missing in range(int(first), int(number) + 1):
            samples.append([missing, self.queued, self.in_flight, limit, 0, 0])
        return samples[-1]

    def tokens_per_minute(self, now: float) -> tuple[float, float]:
        """Input, of all kinds, and output of the attempts that ended in the last minute."""
        first = now // SAMPLE_S - (RATE_SAMPLES - 1)
        newest = [sample for sample in list(self.samples)[-RATE_SAMPLES:] if sample[0] >= first]
        per_minute = 60 / ((RATE_SAMPLES - 1) * SAMPLE_S + now % SAMPLE_S)  # the present sample is not full yet
        return sum(one[4] for one in newest) * per_minute, sum(one[5] for one in newest) * per_minute


@dataclass(slots=True, eq=False)
class SessionSums:
    """One session's."""

    agent: str
    session: str
    parent_session: str = ""
    model: str = ""
    tickets: int = 0
    live: int = 0
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    retries_absorbed: int = 0
    waited_s: float = 0.0
    used: Used = field(default_factory=Used)
    is_priced: bool = True
    seen_at: float = 0.0


class Sums:
    """An observer. Owns nothing that decides."""

    def __init__(self, catch_up: Callable[[], None] = lambda: None) -> None:
        """`catch_up` hands over the events that have been kept back."""
        self._catch_up = catch_up
        self._pools: dict[PoolKey, PoolSums] = {}
        """In the order in which they were first heard of."""
        self._told: dict[PoolKey, PoolSums] = {}
        """Of these, the ones that are no other's."""
        self._sessions: dict[tuple[str, str], SessionSums] = {}
        """The one that was seen last is at the end."""
        self._live: dict[str, Ticket] = {}
        """Tickets that have not ended."""
        self._held: set[str] = set()
        """Of these, the ones that wait."""
        self._counts = dict.fromkeys(_TOTALS.values(), 0)
        self._is_unsaved = False
        self.agents = AgentUse()
        """What agents used, where that is asked for."""
        self._add: dict[type[Event], Callable[[Any], None]] = {
            Submitted: self._submitted,
            Held: self._hold,
            AttemptStarted: self._started,
            AttemptEnded: self._attempt_ended,
            TicketEnded: self._ended,
            ConcurrencyChanged: self._limit_moved,
            PoolsMerged: self._merged,
            Moved: self._moved,
            BreakerChanged: self._breaker_changed,
            ContextShrank: self._context_shrank,
            StateUnsaved: self._unsaved,
            **dict.fromkeys(_COUNTED, self._of_pool),
            **dict.fromkeys(_TOTALS, self._of_no_pool),
        }

    def __call__(self, event: Event) -> None:
        """Count one event."""
        add = self._add.get(type(event))
        if add is not None:
            add(event)

    # To be read ------------------------------------------------------------------------------------------------------

    def pools(self) -> list[PoolSums]:
        """Every pool that was ever heard of, in this order."""
        self._catch_up()
        return list(self._pools.values())

    def present_pools(self, now: float) -> list[PoolSums]:
        """Those that are not part of another one, with their newest samples."""
        self._catch_up()
        for pool in self._told.values():
            pool.sample(now)
        return list(self._told.values())

    def sessions(self) -> list[SessionSums]:
        """The newest ones, the one that was seen last at the end."""
        self._catch_up()
        return list(self._sessions.values())

    def tokens_per_minute(self, key: PoolKey, now: float) -> tuple[float, float]:
        """Of a pool: input, of all kinds, and output, in the last minute."""
        pool = self._told.get(key)
        return pool.tokens_per_minute(now) if pool else (0.0, 0.0)

    def counts(self) -> dict[str, int]:
        """Of no pool: guard trips, oddities, clock jumps."""
        self._catch_up()
        return dict(self._counts)

    def is_unsaved(self) -> bool:
        """Whether the journal cannot be written."""
        self._catch_up()
        return self._is_unsaved

    # Events ----------------------------------------------------------------------------------------------------------

    def _pool(self, key: PoolKey) -> PoolSums:
        return self._pools.get(key) or self._begin(key)

    def _begin(self, key: PoolKey) -> PoolSums:
        pool = self._pools[key] = self._told[key] = PoolSums(key)
        return pool

    def _session(self, ticket: Ticket) -> SessionSums:
        key = ticket.agent, ticket.session
        session = self._sessions.pop(key, None) or SessionSums(agent=ticket.agent, session=ticket.session)
        self._sessions[key] = session
        if len(self._sessions) > SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return session

    def _submitted(self, event: Submitted) -> None:
        ticket = event.ticket
        self._live[ticket.id] = ticket
        self._pool(ticket.pool).tickets += 1
        session = self._session(ticket)
        session.tickets += 1
        session.live += 1
        session.parent_session = ticket.parent_session or session.parent_session
        session.model = ticket.model
        session.is_priced = session.is_priced and ticket.price is not None
        session.seen_at = event.at

    def _hold(self, event: Held) -> None:
        pool, reason = self._pool(event.pool), event.reason.value
        pool.holds[reason] = pool.holds.get(reason, 0) + 1
        if event.ticket_id not in self._held:
            self._held.add(event.ticket_id)
            sample = pool.sample(event.at)
            pool.queued += 1
            sample[1] = max(sample[1], pool.queued)

    def _started(self, event: AttemptStarted) -> None:
        pool = self._pool(event.pool)
        sample = pool.sample(event.at)
        if event.ticket_id in self._held:
            self._let_go(event.ticket_id, pool)
        pool.in_flight = event.in_flight
        sample[2] = max(sample[2], event.in_flight)
        pool.admitted += 1
        pool.waits.add(event.waited_s)
        pool.newest_waits.append((event.at, event.waited_s))

    def _let_go(self, ticket_id: str, pool: PoolSums) -> None:
        self._held.discard(ticket_id)
        pool.queued -= 1

    def _attempt_ended(self, event: AttemptEnded) -> None:
        pool, outcome, usage = self._pool(event.pool), event.outcome, event.usage
        sample = pool.sample(event.at)
        if usage is not None:
            sample[4] += usage.total_input_tokens
            sample[5] += usage.output_tokens
        pool.in_flight = max(0, pool.in_flight - 1)
        pool.outcomes[outcome.kind] += 1
        pool.durations.add(event.duration_s)
        pool.garbage += bool(outcome.garbage)
        pool.ambiguous += outcome.ambiguous
        pool.used.add_attempt(event)
        ticket = self._live.get(event.ticket_id)
        if ticket is not None:
            self._session(ticket).used.add_attempt(event)
            self.agents.add(ticket.agent, event)

    def _ended(self, event: TicketEnded) -> None:
        pool, end = self._pool(event.pool), event.end
        absorbed = max(0, event.attempts - 1) if end == "delivered" else 0
        # One that was never submitted had its place kept, and came to its end under another's id: it counts, too.
        pool.ends[end] += 1
        pool.ambiguous_resends += event.ambiguous_resends
        pool.retries_absorbed += absorbed
        ticket = self._live.pop(event.ticket_id, None)
        if ticket is None:
            return
        pool.sample(event.at)
        if event.ticket_id in self._held:
            self._let_go(event.ticket_id, pool)
        session = self._session(ticket)
        session.live = max(0, session.live - 1)  # its sums may be new ones
        session.ends[end] += 1
        session.retries_absorbed += absorbed
        session.waited_s += event.waited_s
        session.seen_at = event.at

    def _moved(self, event: Moved) -> None:
        """To another pool, where it waits from now on."""
        if event.ticket_id in self._held:
            left, pool = self._pool(event.left), self._pool(event.pool)
            left.sample(event.at)
            left.queued -= 1
            sample = pool.sample(event.at)
            pool.queued += 1
            sample[1] = max(sample[1], pool.queued)

    def _limit_moved(self, event: ConcurrencyChanged) -> None:
        pool = self._pool(event.pool)
        sample = pool.sample(event.at)
        pool.limit = event.limit
        sample[3] = event.limit
        pool.moves.appendleft((event.at, event.limit, event.reason))

    def _merged(self, event: PoolsMerged) -> None:
        old, new = self._told.pop(event.merged, None), self._pool(event.pool)
        if old is not None:
            new.merged += (old, *old.merged)
            new.queued += old.queued
            new.in_flight += old.in_flight

    def _breaker_changed(self, event: BreakerChanged) -> None:
        changes = self._pool(event.pool).breaker_changes
        changes[event.state] = changes.get(event.state, 0) + 1

    def _context_shrank(self, event: ContextShrank) -> None:
        pool = self._pool(event.pool)
        pool.compactions += 1
        pool.compaction_tokens += event.spend.tokens
        pool.compaction_micro_usd += event.spend.micro_usd
        pool.compacted_tokens += event.before_tokens - event.after_tokens

    def _of_pool(self, event: Any) -> None:
        self._pool(event.pool).counts[_COUNTED[type(event)]] += 1

    def _of_no_pool(self, event: GuardTripped | OddityNoted | MachineSlept) -> None:
        self._counts[_TOTALS[type(event)]] += 1

    def _unsaved(self, event: StateUnsaved) -> None:
        self._is_unsaved = bool(event.reason)
