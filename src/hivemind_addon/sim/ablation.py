"""The scheduler without some of its mechanisms, to measure the worth of each.

Settings, tickets, hints and results are made as if the mechanism did not exist, so the scheduler decides as usual. The
other mechanisms do the missing work as far as they can: without meters, refusals teach hidden limits; without hidden
limits, meters go on. The watchdog is outside the scheduler: `policy.py` leaves it out.
"""

import random
from collections.abc import Collection
from dataclasses import replace
from enum import Enum
from typing import override

import msgspec.structs

from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.retry import History
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Verdict
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, Hints, Priority, Ticket

_NO_OUTAGE = 10**9
"""Failures in a row that no run has."""
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
    """A leader for a cold prefix, and warm tickets before the prefix lapses."""
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


class AblatedScheduler(Scheduler):
    """The scheduler without some mechanisms."""

    def __init__(self, *, rng: random.Random, without: Collection[Primitive]) -> None:
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
        ticket, settings = _ticket(ticket, self._without), _settings(settings, self._without)
        super().submit(ticket, settings, now, history=history, not_before=not_before)

    @override
    def observe(self, attempt: Attempt, hints: Hints, now: float, *, answered: bool = True) -> None:
        if Primitive.METERS in self._without:
            hints = msgspec.structs.replace(hints, readings=())
        super().observe(attempt, hints, now, answered=answered)

    @override
    def settle(self, attempt: Attempt, result: AttemptResult, now: float, *, judged: Verdict | None = None) -> Verdict:
        if Primitive.RETRY in self._without:
            outcome = msgspec.structs.replace(result.outcome, retryable=False)
            result = msgspec.structs.replace(result, outcome=outcome)
        return super().settle(attempt, result, now, judged=judged)


def _ticket(ticket: Ticket, without: Collection[Primitive]) -> Ticket:
    changes: dict[str, object] = {}
    if Primitive.COMEBACK in without:
        # The client has gone by then, and a client that comes back is not known again.
        changes |= {"shed_at": ticket.deadline_at + _AFTER_DEADLINE_S, "request_hash": ""}
    if Primitive.BUDGETS in without:
        changes["budgets"] = ()
    if Primitive.PRIORITY in without:
        changes["priority"] = Priority.NORMAL
    return msgspec.structs.replace(ticket, **changes)


def _settings(settings: PoolSettings, without: Collection[Primitive]) -> PoolSettings:
    order, breaker = settings.order, settings.breaker
    if Primitive.CACHE in without:
        # The pool still knows the warm prefixes, because estimates need them.
        order = replace(order, affinity_s=0, cache=replace(order.cache, follow_after_s=0))
    if Primitive.ORDER in without:
        order = replace(order, has_shares=False, class_lead_s=0)
    if Primitive.BREAKER in without:
        breaker = replace(breaker, failures_to_open=_NO_OUTAGE)
    return replace(
        settings,
        order=order,
        breaker=breaker,
        infers=Primitive.HIDDEN_LIMITS not in without,
        backfills=Primitive.BACKFILLING not in without,
    )
