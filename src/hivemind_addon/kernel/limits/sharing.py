"""Limits common to the pools of an account, and an order over the pools' next tickets.

    limits by headers       meters.py
    limits by refusals      here: whether refusals depend on the attempts of their own pool, or of all pools
    who goes next           here: an order over the heads of the pools

Beside the hidden limits of each pool, the account has another pair (`hidden_limits.py`) that counts the attempts of all
pools. At each refusal, both explain the same attempts: the best hypothesis about the account, and the best hypotheses
about each pool. To replace the other, an explanation must be better by a margin. Neither chance nor a model's outage is
a limit, of the account or of a pool.

**The order** over the heads of pools that draw on a common limit is fair among agents, whichever model they use: the
same starts as within a pool (`order/shares.py`), of all the account's tickets.
"""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hivemind_addon.kernel.inference.hidden_limits import HiddenLimits
from hivemind_addon.kernel.inference.hypotheses import OF_OVERLOADS, OF_THROTTLES
from hivemind_addon.kernel.limits.learned import COMMON_CONCURRENCY, COMMON_RATE, LearnedPool
from hivemind_addon.kernel.limits.meters import CommonMeters
from hivemind_addon.kernel.limits.stated_limits import StatedLimits
from hivemind_addon.kernel.order.shares import StartTimes
from hivemind_addon.kernel.values.ticket import Attempt, Demand, Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hivemind_addon.kernel.limits.capacity import Capacity

_CAP_MARGIN = 1.5
_RATE_MARGIN = 3.0
"""Log-likelihood by which an explanation must be better to replace the other. Evidence of a concurrency limit is
scarce: once known, the limit is kept, and nothing more is refused."""


@dataclass(slots=True)
class Evidence:
    """Whether refusals come from a limit of the account, or of each pool."""

    margin: float
    is_common: bool = False

    def judge(self, account: HiddenLimits, pools: "Sequence[HiddenLimits]", now: float) -> None:
        """Compare the explanations after a refusal that the account and the pools have counted."""
        since = account.remembers_since
        common, is_a_limit = account.explains(since, now)
        own = sum(pool.explains(since, now)[0] for pool in pools)
        if is_a_limit and common - own >= self.margin:
            self.is_common = True
        elif own - common >= self.margin:
            self.is_common = False


class Sharing:
    """Limits and order shared by an account's pools. Each pool's capacity joins once and reports every attempt."""

    def __init__(self, stamps: "itertools.count[int] | None" = None) -> None:
        """`stamps`: the counter of all accounts, since two accounts may prove to be the same."""
        self.meters = CommonMeters()
        self.stated = StatedLimits()
        self.order = StartTimes()
        self.concurrency = Evidence(_CAP_MARGIN)
        self.rate = Evidence(_RATE_MARGIN)
        self.members: list[Capacity] = []
        self.throttles = HiddenLimits(OF_THROTTLES)
        """For rate limits of all pools; unused while there is a single pool, as is `overloads`."""
        self.overloads = HiddenLimits(OF_OVERLOADS)
        self.has_one_cap = False
        """Whether the overloads of all pools count as a single limit's."""
        self.has_one_rate = False
        """Whether the rate limits' refusals of all pools count as a single limit's."""
        self.was_in_force = False
        """`is_in_force` at the last poll of the pools."""
        self._stamps = itertools.count(1) if stamps is None else stamps

    def __repr__(self) -> str:
        return f"<Sharing of {len(self.members)} pools, {self.concurrency!r}, {self.rate!r}, {self.meters!r}>"

    @property
    def in_flight(self) -> int:
        """Attempts in flight of all pools."""
        return sum(member.in_flight for member in self.members)

    def _decide(self) -> None:
        several = len(self.members) > 1
        self.has_one_cap, self.has_one_rate = several and self.concurrency.is_common, several and self.rate.is_common
        for member in self.members:
            member.choose_hidden()

    @property
    def is_in_force(self) -> bool:
        """Whether attempts of a pool may keep another pool from sending."""
        if self.meters.is_in_use:
            return True
        return len(self.members) > 1 and (self.has_one_cap or self.has_one_rate or bool(self.stated.limits))

    def next_stamp(self) -> int:
        """Count an admission or settle of any pool."""
        return next(self._stamps)

    def join(self, member: "Capacity") -> None:
        """Add a pool to the account."""
        self.members.append(member)
        self._decide()

    def leave(self, member: "Capacity") -> None:
        """Remove a pool from the account."""
        self.members.remove(member)
        self._decide()

    @property
    def in_common(self) -> tuple[str, ...]:
        """The hidden limits that are known to be common to all pools, for `resume`."""
        kinds = {COMMON_CONCURRENCY: self.concurrency, COMMON_RATE: self.rate}
        return tuple(name for name, evidence in kinds.items() if evidence.is_common)

    def resume(self, learned: LearnedPool, now: float) -> None:
        """Continue with the common limits that an earlier run learned."""
        if COMMON_CONCURRENCY in learned.common:
            self.concurrency.is_common = True
            self.overloads.resume(learned.overloads, now)
        if COMMON_RATE in learned.common:
            self.rate.is_common = True
            self.throttles.resume(learned.throttles, now, held=learned.held(now))
        self._decide()

    # An attempt's way ------------------------------------------------------------------------------------------------

    def sent(self, attempt: Attempt, now: float) -> None:
        """Count an admitted attempt, which is in flight, where the account has several pools."""
        for hidden in (self.throttles, self.overloads):
            hidden.sent(attempt.stamp, attempt.demand, self.in_flight, now)

    def passed(self, attempt: Attempt, now: float) -> None:
        """Learn that the provider has taken an attempt."""
        for hidden in (self.throttles, self.overloads):
            hidden.passed(attempt.stamp, now)

    def ended(self, attempt: Attempt, charged: Demand | None, now: float) -> None:
        """End an answered attempt; `charged`: the provider's charge, where known."""
        self.throttles.ended(attempt.stamp, now, charged=charged)
        self.overloads.ended(attempt.stamp, now)

    def judge(self, member: "Capacity", outcome: Outcome, now: float) -> None:
        """Judge after an attempt's end, which both pairs have counted, whose limits the refusals come from."""
        if len(self.members) < 2:
            return
        if outcome.kind is OutcomeKind.OVERLOADED:
            self.concurrency.judge(self.overloads, [pool.overloads for pool in self.members], now)
        elif outcome.kind is OutcomeKind.THROTTLED and not len(member.meters):
            self.rate.judge(self.throttles, [pool.throttles for pool in self.members], now)
        self._decide()

    def forget_since(self, at: float, now: float) -> None:
        """Forget refusals since `at`: they were an outage and no limit."""
        for hidden in (self.throttles, self.overloads):
            hidden.forget_since(at, now)
