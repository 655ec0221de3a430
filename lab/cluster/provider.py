"""A simulated provider with strict limits, which counts what passes them."""

import random
from dataclasses import dataclass, field

from hivemind_addon.kernel.values.ticket import Dimension, Hints, Outcome, OutcomeKind, PoolKey, Reading
from lab.limiters import Bucket

MOST_TOKENS = 400
"""Of one answer."""
_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class StrictLimits:
    """What a provider lets pass of one pool."""

    slots: int
    """Attempts in flight."""
    requests: int | None = None
    """A minute, told in headers; None: as many as come."""


@dataclass(frozen=True, slots=True)
class ProviderReply:
    """What the provider will make of an attempt."""

    outcome: Outcome
    hints: Hints
    head_s: float
    """Until its head is there."""
    whole_s: float
    """Until it has ended."""
    tokens: int


@dataclass(slots=True)
class StrictProvider:
    """Attempts begin and end; those above a limit are refused, and counted."""

    limits: dict[PoolKey, StrictLimits]
    rng: random.Random
    fault_rate: float = 0.0
    service_s: tuple[float, float] = (0.3, 2.0)
    """From, to."""
    most_in_flight: dict[PoolKey, int] = field(default_factory=dict)
    begun: int = 0
    refused: int = 0
    _in_flight: dict[PoolKey, int] = field(default_factory=dict)
    _buckets: dict[PoolKey, Bucket] = field(default_factory=dict)

    def in_flight(self, pool: PoolKey) -> int:
        """Now."""
        return self._in_flight.get(pool, 0)

    def begin(self, pool: PoolKey, now: float) -> ProviderReply:
        """An attempt came; `end` follows."""
        limits = self.limits[pool]
        self.begun += 1
        self._in_flight[pool] = self.in_flight(pool) + 1
        self.most_in_flight[pool] = max(self.most_in_flight.get(pool, 0), self.in_flight(pool))
        over = self.in_flight(pool) > limits.slots
        hints = Hints()
        if limits.requests is not None:
            bucket = self._buckets.setdefault(pool, Bucket(limits.requests, _WINDOW_S))
            over = over or bucket.wait_s(now, 1) > 0
            if not over:
                bucket.take(now, 1)
            told = bucket.standing(now)
            reading = Reading(
                "requests", Dimension.REQUESTS, _WINDOW_S, told.limit, int(told.remaining), told.reset_in_s
            )
            hints = Hints(readings=(reading,))
        if over:
            self.refused += 1
            throttled = Outcome(OutcomeKind.THROTTLED, "429 rate_limit_error", status=429, retryable=True)
            return ProviderReply(throttled, hints, 0.02, 0.02, 0)
        head_s, whole_s = 0.05, self.rng.uniform(*self.service_s)
        if self.rng.random() < self.fault_rate:
            outcome = self.rng.choice(_FAULTS)
            return ProviderReply(outcome, hints, head_s, self.rng.uniform(head_s, whole_s), 0)
        tokens = self.rng.randrange(50, MOST_TOKENS)
        return ProviderReply(Outcome(OutcomeKind.SUCCESS, "200", status=200), hints, head_s, whole_s, tokens)

    def end(self, pool: PoolKey) -> None:
        """An attempt has ended, or was cut off."""
        self._in_flight[pool] -= 1


_FAULTS = (
    Outcome(OutcomeKind.THROTTLED, "429 rate_limit_error", status=429, retryable=True, retry_after_s=0.5),
    Outcome(OutcomeKind.OVERLOADED, "529 overloaded_error", status=529, retryable=True),
    Outcome(OutcomeKind.FAILED, "500 api_error", status=500, retryable=True),
    Outcome(OutcomeKind.FAILED, "connection reset", retryable=True, ambiguous=True),
    Outcome(OutcomeKind.IGNORED, "400 invalid_request_error", status=400),
)
