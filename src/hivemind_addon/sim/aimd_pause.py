"""What most of the field does, written anew for comparison: AIMD on concurrency, a pause after a 429, some retries.

Additive increase with each round of successes, one multiplicative decrease a round with each refusal or failure, and
nobody goes while a 429's retry-after lasts. No model of a limit, no deadline, no order but arrival; a call that was
tried four times is over. The numbers are those of `hivemind-scheduler` 0.2.0 (five at first and at most, halved, three
re-sends after 1, 2 and 4 s), but for its reaction to latency, with which it would do worse.
"""

import random
from collections.abc import Collection

from hivemind_addon.kernel.values.ticket import Attempt, Outcome, OutcomeKind
from hivemind_addon.sim.queue_admission import ArrivalOrder, QueueAdmission

_MOST_IN_FLIGHT = 5.0
_LEAST_IN_FLIGHT = 1.0
_INCREASE = 0.5
_DECREASE = 0.5
_PAUSE_S = 1.0
"""After a 429 that does not say how long."""
ATTEMPTS = 4
"""Of one call."""


def aimd_pause(rng: random.Random) -> QueueAdmission:
    """Five at first and at most, first come, first served."""
    any_failure = set(OutcomeKind) - {OutcomeKind.SUCCESS, OutcomeKind.CANCELLED}
    return QueueAdmission(
        rng=rng,
        order=ArrivalOrder,
        gate=lambda _: AimdGate(most_in_flight=_MOST_IN_FLIGHT, lowered_by=any_failure),
        attempts=ATTEMPTS,
    )


class AimdGate:
    """AIMD on how many may be in flight, and a pause after a 429."""

    def __init__(self, *, most_in_flight: float, lowered_by: Collection[OutcomeKind]) -> None:
        self._most_in_flight = most_in_flight
        self._lowered_by = lowered_by
        self._limit = most_in_flight
        self._lowered_at = float("-inf")
        self._opens_at = float("-inf")

    @property
    def limit(self) -> int:
        """See AttemptGate."""
        return int(self._limit)

    @property
    def opens_at(self) -> float:
        """See AttemptGate."""
        return self._opens_at

    def ended(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """See AttemptGate."""
        if outcome.kind is OutcomeKind.SUCCESS:
            self._limit = min(self._most_in_flight, self._limit + _INCREASE / self._limit)
        elif outcome.kind in self._lowered_by:
            if attempt.admitted_at >= self._lowered_at:
                self._limit = max(_LEAST_IN_FLIGHT, self._limit * _DECREASE)
                self._lowered_at = now
            if outcome.kind is OutcomeKind.THROTTLED:
                self._opens_at = max(self._opens_at, now + (outcome.retry_after_s or _PAUSE_S))
