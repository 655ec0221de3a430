"""Tickets, readings and outcomes for the tests of the core, with everything filled in that a test does not care for."""

import random

from msgspec.structs import replace

from hivemind_addon.kernel.limits.breaker import BreakerSettings
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Shed
from hivemind_addon.kernel.values.events import Event
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    Demand,
    Dimension,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Reading,
    Ticket,
)

POOL = PoolKey(host="api.test", account="key-1", model_group="m")
SUCCESS = Outcome(kind=OutcomeKind.SUCCESS, reason="200", status=200)
THROTTLED = Outcome(kind=OutcomeKind.THROTTLED, reason="429", status=429, retryable=True)
OVERLOADED = Outcome(kind=OutcomeKind.OVERLOADED, reason="529", status=529, retryable=True)
FAILED = Outcome(kind=OutcomeKind.FAILED, reason="500", status=500, retryable=True)
CUT = Outcome(kind=OutcomeKind.FAILED, reason="cut", retryable=True, ambiguous=True)
IGNORED = Outcome(kind=OutcomeKind.IGNORED, reason="400", status=400)
CANCELLED = Outcome(kind=OutcomeKind.CANCELLED, reason="client went")


def ticket(
    ticket_id: str = "t1",
    *,
    session: str = "s1",
    at: float = 0.0,
    patience_s: float = 600.0,
    demand: Demand | None = None,
    pool: PoolKey = POOL,
    request_hash: str = "",
) -> Ticket:
    return Ticket(
        id=ticket_id,
        pool=pool,
        agent=session,
        session=session,
        model="m",
        demand=demand or Demand(),
        arrived_at=at,
        deadline_at=at + patience_s + 5,
        shed_at=at + patience_s,
        request_hash=request_hash,
    )


def requests_reading(
    *,
    limit: float | None = 50,
    remaining: float | None = None,
    reset_in_s: float | None = None,
    window_s: float = 60,
) -> Reading:
    return Reading(
        meter="requests",
        dimension=Dimension.REQUESTS,
        window_s=window_s,
        limit=limit,
        remaining=remaining,
        reset_in_s=reset_in_s,
    )


def hints(*readings: Reading, account: str | None = None) -> Hints:
    return Hints(readings=readings, account=account)


class Bench:
    """A scheduler and the instant at which it is called; polls after every call."""

    def __init__(self, *, slots: int = 4, settings: PoolSettings | None = None, seed: int = 0) -> None:
        self.scheduler = Scheduler(rng=random.Random(seed))
        self.settings = settings or PoolSettings(concurrency=ConcurrencySettings(initial=slots, maximum=slots))
        self.now = 0.0
        self.running: dict[str, Attempt] = {}
        self.shed: list[Shed] = []
        self.events: list[Event] = []

    def submit(self, *ticket_ids: str, session: str | None = None, **wanted: object) -> list[str]:
        """Each ticket is a session of its own, unless said otherwise. Answers who was admitted."""
        for ticket_id in ticket_ids:
            made = ticket(ticket_id, session=session or ticket_id, at=self.now, **wanted)  # type: ignore[arg-type]
            self.scheduler.submit(made, self.settings, self.now)
        return self.poll()

    def poll(self) -> list[str]:
        admitted = []
        for decision in self.scheduler.poll(self.now):
            match decision:
                case Admitted(attempt):
                    self.running[attempt.ticket.id] = attempt
                    admitted.append(attempt.ticket.id)
                case Shed():
                    self.shed.append(decision)
        self.events.extend(self.scheduler.drain_events())
        return admitted

    def settle(self, ticket_id: str, outcome: Outcome = SUCCESS, **more: object) -> object:
        verdict = self.scheduler.settle(self.running.pop(ticket_id), AttemptResult(outcome, **more), self.now)  # type: ignore[arg-type]
        self.poll()
        return verdict

    def observe(self, ticket_id: str, *readings: Reading, account: str | None = None) -> None:
        self.scheduler.observe(self.running[ticket_id], hints(*readings, account=account), self.now)
        self.poll()

    def advance(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.poll()

    def advance_to_wakeup(self) -> list[str]:
        wakeup_at = self.scheduler.next_wakeup()
        assert wakeup_at is not None
        assert wakeup_at > self.now
        self.now = wakeup_at
        return self.poll()

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def outage(self, *ticket_ids: str) -> None:
        """All of these fail, and that opens the breaker."""
        self.submit(*ticket_ids)
        for ticket_id in ticket_ids:
            assert isinstance(self.settle(ticket_id, FAILED), Backoff)
        assert self.pool.breaker == "open"

    @property
    def pool(self):
        return self.scheduler.snapshot(self.now).pools[0]


def brittle(failures: int = 2) -> PoolSettings:
    """So many failures open the breaker."""
    return PoolSettings(
        concurrency=ConcurrencySettings(initial=8, maximum=8), breaker=BreakerSettings(failures_to_open=failures)
    )


def after(outcome: Outcome, retry_after_s: float) -> Outcome:
    return replace(outcome, retry_after_s=retry_after_s)
