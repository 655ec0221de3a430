"""A simulated provider with strict limits, which counts the attempts above them."""

import random
from collections import Counter
from dataclasses import dataclass

from hivemind_addon.kernel.values.ticket import Dimension, Hints, Outcome, OutcomeKind, PoolKey, Reading
from hivemind_addon.sim.limits import Limit

MOST_TOKENS = 400
"""Of an answer."""
_SUCCESS = Outcome(OutcomeKind.SUCCESS, "200", status=200)
_THROTTLED = Outcome(OutcomeKind.THROTTLED, "429 rate_limit_error", status=429, retryable=True)
_FAULTS = (
    Outcome(OutcomeKind.THROTTLED, "429 rate_limit_error", status=429, retryable=True, retry_after_s=0.5),
    Outcome(OutcomeKind.OVERLOADED, "529 overloaded_error", status=529, retryable=True),
    Outcome(OutcomeKind.FAILED, "500 api_error", status=500, retryable=True),
    Outcome(OutcomeKind.FAILED, "connection reset", retryable=True, ambiguous=True),
    Outcome(OutcomeKind.IGNORED, "400 invalid_request_error", status=400),
)


@dataclass(frozen=True, slots=True)
class ProviderReply:
    """The provider's answer to an attempt, and the seconds until the head and the end."""

    outcome: Outcome
    hints: Hints
    head_s: float
    whole_s: float
    tokens: int = 0


class StrictProvider:
    """Attempts begin and end; those above a limit are refused, and counted."""

    def __init__(
        self, slots: int, per_minute: dict[PoolKey, int], service_s: tuple[float, float], rng: random.Random
    ) -> None:
        """`slots`: attempts in flight, of each pool. `per_minute`: requests, as headers say."""
        self.fault_rate = 0.1
        self.in_flight: Counter[PoolKey] = Counter()
        self.refused = 0
        self._slots, self._service_s, self._rng = slots, service_s, rng
        self._minutes = {pool: Limit(Dimension.REQUESTS, amount).allowance(0.0) for pool, amount in per_minute.items()}

    def begin(self, pool: PoolKey, now: float) -> ProviderReply:
        """Answer an attempt; the caller takes the attempt off `in_flight` at the end."""
        self.in_flight[pool] += 1
        over, hints = self.in_flight[pool] > self._slots, Hints()
        if minute := self._minutes.get(pool):
            over = over or not minute.fits(1, now)
            minute.take(0 if over else 1, now)
            amount, free = minute.limit.amount, int(max(0.0, minute.level(now)))
            hints = Hints(
                readings=(Reading("requests", Dimension.REQUESTS, 60.0, amount, free, minute.full_in_s(now)),)
            )
        if over:
            self.refused += 1
            return ProviderReply(_THROTTLED, hints, 0.02, 0.02)
        head_s, whole_s = 0.05, self._rng.uniform(*self._service_s)
        if self._rng.random() < self.fault_rate:
            fault = self._rng.choice(_FAULTS)
            return ProviderReply(fault, hints, head_s, self._rng.uniform(head_s, whole_s))
        return ProviderReply(_SUCCESS, hints, head_s, whole_s, self._rng.randrange(50, MOST_TOKENS))
