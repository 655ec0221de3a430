"""The scheduler without some primitives, to measure the worth of each.

`kernel/` does not know this module, which replaces a pool's collaborators by objects that do nothing, and settings by
values that a profile could have. The remaining primitives work as usual, and do the missing work as far as they can:
without meters, refusals teach hidden limits; without hidden limits, meters go on. The driver (`policy.py`) leaves out
two primitives: the watchdog is outside the scheduler, and without retries the driver reports every failure as final.
"""

import random
from dataclasses import replace
from enum import Enum
from typing import override

import msgspec.structs

from hivemind_addon.kernel.inference.hidden_limits import HiddenLimits
from hivemind_addon.kernel.inference.hypotheses import Prior
from hivemind_addon.kernel.limits.breaker import Breaker
from hivemind_addon.kernel.limits.meter import Meter
from hivemind_addon.kernel.limits.meters import Meters
from hivemind_addon.kernel.limits.sharing import Sharing
from hivemind_addon.kernel.order.entry import QueueEntry
from hivemind_addon.kernel.order.fair_queue import OrderSettings
from hivemind_addon.kernel.order.selector import Selector
from hivemind_addon.kernel.order.shares import StartTimes
from hivemind_addon.kernel.pool import KeptPositions, Pool, PoolSettings
from hivemind_addon.kernel.retry import History
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.ticket import PoolKey, Priority, Ticket

_NO_PRIOR = Prior(rate=0.0, concurrency=0.0)
_AFTER_DEADLINE_S = 1.0


class Primitive(Enum):
    """A mechanism of the scheduler that can be left out."""

    METERS = "meters"
    """Models of the limits that headers report."""
    HIDDEN_LIMITS = "hidden-limits"
    """Lessons of refusals beyond headers: rates, windows, concurrency, or that a refusal was chance."""
    BREAKER = "breaker"
    """Holding all tickets while the provider is down, and sending single probes."""
    RETRY = "retry"
    """Trying failed requests again."""
    ORDER = "fair-order"
    """Shares for agents; without: first come, first served."""
    CACHE = "cache-order"
    """A leader for a cold prefix, and warm ones before they lapse."""
    COMEBACK = "comeback"
    """Refusing shortly before a client gives up, but keeping the place; without: holding until the client goes."""
    BACKFILLING = "backfilling"
    """Letting others go before a ticket that waits, and late tickets; without: the first ticket holds all others."""
    WATCHDOG = "watchdog"
    """Closing silent attempts, and trying them again."""
    BUDGETS = "budgets"
    """Stopping holders of spent budgets."""
    PRIORITY = "priority"
    """Classes of calls: a higher class goes before a lower class."""


_SHARED = frozenset({Primitive.METERS, Primitive.HIDDEN_LIMITS})
"""Primitives that pools may share. A pool that lacks any of them shares none."""


class AblatedScheduler(Scheduler):
    """The scheduler without some primitives."""

    def __init__(self, *, rng: random.Random, without: frozenset[Primitive]) -> None:
        super().__init__(rng=rng)
        self._without = without

    @override
    def submit(
        self,
        ticket: Ticket,
        settings: PoolSettings,
        now: float,
        *,
        history: History | None = None,
        not_before: float | None = None,
    ) -> None:
        if Primitive.COMEBACK in self._without:
            # The client has gone by then.
            ticket = msgspec.structs.replace(ticket, shed_at=ticket.deadline_at + _AFTER_DEADLINE_S)
        if Primitive.BUDGETS in self._without:
            ticket = msgspec.structs.replace(ticket, budgets=())
        if Primitive.PRIORITY in self._without:
            ticket = msgspec.structs.replace(ticket, priority=Priority.NORMAL)
        super().submit(ticket, settings, now, history=history, not_before=not_before)

    @override
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
    """The only place that knows the parts of a pool."""
    capacity = pool.capacity
    if Primitive.METERS in without:
        capacity.meters = _NoMeters()
    if Primitive.HIDDEN_LIMITS in without:
        capacity.throttles = capacity.overloads = _NoHiddenLimits(_NO_PRIOR)
    if Primitive.BREAKER in without:
        capacity.breaker = _NoBreaker(pool.settings.breaker, rng=rng)
    if Primitive.ORDER in without:
        pool.queue._starts = _OneStart()  # noqa: SLF001 - see above, as are the following
    selector = _NoBackfilling if Primitive.BACKFILLING in without else Selector
    pool._selector = selector(queue=pool.queue, capacity=capacity)  # noqa: SLF001
    if Primitive.COMEBACK in without:
        pool._kept_positions = _NoKeptPositions()  # noqa: SLF001


def _order_without(order: OrderSettings, without: frozenset[Primitive]) -> OrderSettings:
    if Primitive.CACHE in without:
        # The pool still knows the warm prefixes, because estimates need them.
        order = replace(order, affinity_s=0, cache=replace(order.cache, follow_after_s=0))
    if Primitive.ORDER in without:
        order = replace(order, class_lead_s=0)
    return order


class _NoMeters(Meters):
    def learn(self, *_: object, **__: object) -> Meter | None:
        return None


class _NoHiddenLimits(HiddenLimits):
    def refused(self, *_: object, **__: object) -> None:
        pass


class _NoBreaker(Breaker):
    def attempt_ended(self, *_: object, **__: object) -> bool:
        return False


class _NoBackfilling(Selector):
    def _late_ticket(self, head: QueueEntry | None, now: float) -> QueueEntry | None:  # noqa: ARG002
        return None

    def backfill(self, *_: object) -> tuple[None, float]:
        return None, float("inf")


class _NoKeptPositions(KeptPositions):
    def keep(self, *_: object) -> None:
        pass


class _OneStart(StartTimes):
    """Orders tickets as they came; a retried ticket keeps the place."""

    def start_s(self, entry: QueueEntry) -> float:  # noqa: ARG002
        return 0.0
