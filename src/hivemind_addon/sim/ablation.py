"""The scheduler with some of its primitives taken away, to see what each is worth.

Nothing in `kernel/` knows of this: a pool's collaborators are replaced by ones that do nothing, and its settings
by ones that a profile could have. What is left works as ever, and whatever another primitive can do instead, it does:
without meters refusals teach hidden limits, without these the meters go on. Two primitives are left out by what drives
it (`policy.py`): the watchdog is not the scheduler's, and without retries every failure is told to it as final.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum

import msgspec.structs

from hivemind_addon.kernel.inference.hidden_limits import HiddenLimits
from hivemind_addon.kernel.inference.hypotheses import Prior
from hivemind_addon.kernel.limits.breaker import Breaker
from hivemind_addon.kernel.limits.meter import Meter
from hivemind_addon.kernel.limits.meters import Meters
from hivemind_addon.kernel.limits.sharing import Sharing
from hivemind_addon.kernel.order.fair_queue import FairQueue, OrderSettings
from hivemind_addon.kernel.order.lanes import Agent, InFlight, Lanes, QueueEntry, Tree
from hivemind_addon.kernel.order.selector import Selector
from hivemind_addon.kernel.pool import KeptPositions, Pool, PoolSettings
from hivemind_addon.kernel.retry import History
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.ticket import Attempt, Demand, OutcomeKind, PoolKey, Priority, Reading, Ticket

_NO_PRIOR = Prior(rate=0.0, concurrency=0.0)
_EVERYBODY = ("everybody", False)
_AFTER_DEADLINE_S = 1.0


class Primitive(Enum):
    """One of the means by which the scheduler does its work."""

    METERS = "meters"
    """Models of the limits that headers tell."""
    HIDDEN_LIMITS = "hidden-limits"
    """What refusals teach beyond headers: rates, windows, concurrency, or that they are chance."""
    BREAKER = "breaker"
    """Parking everybody while the provider is down, and one probe at a time."""
    RETRY = "retry"
    """Trying again what failed."""
    ORDER = "fair-order"
    """Shares for agents and sessions; without: first come, first served."""
    CACHE = "cache-order"
    """A leader for a cold prefix, and warm ones before they lapse."""
    COMEBACK = "comeback"
    """Refusing shortly before a client gives up, and its place kept; without: it is held until it goes."""
    LAST_CHANCE = "last-chance"
    """Letting somebody go first who would not live to see the next window."""
    WATCHDOG = "watchdog"
    """Closing what is silent, and trying it again."""
    BUDGETS = "budgets"
    """Stopping whoever has spent what it may."""
    PRIORITY = "priority"
    """Classes of calls, of which one goes before the next."""


_SHARED = frozenset({Primitive.METERS, Primitive.HIDDEN_LIMITS})
"""What pools may have in common: who is without one of these has none in common with others, either."""


class AblatedScheduler(Scheduler):
    """The scheduler without some primitives."""

    def __init__(self, *, rng: random.Random, without: frozenset[Primitive]) -> None:
        super().__init__(rng=rng)
        self._without = without

    def submit(
        self,
        ticket: Ticket,
        settings: PoolSettings,
        now: float,
        *,
        history: History | None = None,
        not_before: float | None = None,
    ) -> None:
        """See Scheduler."""
        if Primitive.COMEBACK in self._without:
            # Its client has gone by then.
            ticket = msgspec.structs.replace(ticket, shed_at=ticket.deadline_at + _AFTER_DEADLINE_S)
        if Primitive.BUDGETS in self._without:
            ticket = msgspec.structs.replace(ticket, budgets=())
        if Primitive.PRIORITY in self._without:
            ticket = msgspec.structs.replace(ticket, priority=Priority.NORMAL)
        super().submit(ticket, settings, now, history=history, not_before=not_before)

    def _new_pool(self, key: PoolKey, settings: PoolSettings) -> Pool:
        pool = Pool(
            key=key,
            settings=replace(settings, order=_order_without(settings.order, self._without)),
            rng=self._rng,
            emit=self.note,
            budgets=self._budgets,
            overrides=self._overrides,
            sharing=Sharing() if self._without & _SHARED else self._sharing_of(key),
            patience=self._patience,
        )
        _take_away(pool, self._without, self._rng)
        return pool


def _take_away(pool: Pool, without: frozenset[Primitive], rng: random.Random) -> None:
    """The one place that knows what a pool is made of."""
    capacity, order = pool._capacity, pool.settings.order  # noqa: SLF001 - see above, as are the following
    if Primitive.METERS in without:
        capacity.meters = _NoMeters()
    if Primitive.HIDDEN_LIMITS in without:
        capacity.throttles = capacity.overloads = _NoHiddenLimits(_NO_PRIOR)
    if Primitive.BREAKER in without:
        capacity.breaker = _NoBreaker(pool.settings.breaker, rng=rng)
    if Primitive.ORDER in without:
        pool._queue = _ArrivalQueue(order, cost_s=capacity.cost_s, saved_s=capacity.saved_s)  # noqa: SLF001
    selector = _NoLastChance if Primitive.LAST_CHANCE in without else Selector
    pool._selector = selector(queue=pool._queue, capacity=capacity, backoffs=pool._backoffs)  # noqa: SLF001
    if Primitive.COMEBACK in without:
        pool._kept_positions = _NoKeptPositions()  # noqa: SLF001


def _order_without(order: OrderSettings, without: frozenset[Primitive]) -> OrderSettings:
    if Primitive.CACHE in without:
        # What is warm is known all the same: it says what a request will take.
        order = replace(order, affinity_s=0, cache=replace(order.cache, follow_after_s=0))
    if Primitive.ORDER in without:
        order = replace(order, credit_s=0, class_lead_s=0, size_lag_s=0)
    return order


class _NoMeters(Meters):
    def learn(
        self,
        reading: Reading,  # noqa: ARG002
        attempt: Attempt,  # noqa: ARG002
        flights: InFlight,  # noqa: ARG002
        now: float,  # noqa: ARG002
        *,
        answered: bool = True,  # noqa: ARG002
    ) -> Meter | None:
        return None


class _NoHiddenLimits(HiddenLimits):
    def refused(self, stamp: int, retry_after_s: float, now: float) -> None:
        pass


class _NoBreaker(Breaker):
    def attempt_ended(
        self,
        kind: OutcomeKind,  # noqa: ARG002
        *,
        session: str,  # noqa: ARG002
        probe: bool,  # noqa: ARG002
        admitted_at: float,  # noqa: ARG002
        now: float,  # noqa: ARG002
        unreached: bool = False,  # noqa: ARG002
        pending: Iterable[float] = (),  # noqa: ARG002
    ) -> bool:
        return False


class _NoLastChance(Selector):
    def last_chance(self, head: QueueEntry | None, now: float) -> QueueEntry | None:  # noqa: ARG002
        return None


class _NoKeptPositions(KeptPositions):
    def keep(self, entry: QueueEntry, now: float) -> None:
        pass


class _ArrivalQueue(FairQueue):
    """First come, first served; who is tried again keeps its place."""

    def __init__(
        self, settings: OrderSettings, *, cost_s: Callable[[Demand], float], saved_s: Callable[[int], float]
    ) -> None:
        super().__init__(settings, cost_s=cost_s, saved_s=saved_s)
        self._lanes = _OneShare(credit_s=settings.credit_s, cost_s=cost_s)


class _OneShare(Lanes):
    """All tickets are one agent's and of one tree: within it the oldest goes first."""

    def _shares(self, entry: QueueEntry) -> tuple[Agent, Tree]:  # noqa: ARG002
        agent = self._agent(_EVERYBODY, float("inf"))
        tree = agent.trees.by_name.get(_EVERYBODY[0])
        if tree is None:
            tree = Tree(_EVERYBODY[0], agent.trees.floor_s(), agent.roots)
            agent.trees.add(tree)
        return agent, tree
