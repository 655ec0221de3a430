"""Additive increase, multiplicative decrease: how many attempts may be in flight at once.

Slow start adds one slot per success until the first overload; from then on one slot per `limit` successes. Only a
success that was admitted while the limit was at least half used counts: an idle pool proves nothing. An overload
multiplies by `decrease`, once per generation: what was admitted before the last decrease was sent under the old
limit. Latency never moves it: an answer's length, not the load, decides how long a model takes.
"""

from dataclasses import dataclass

_AFTER_OUTAGE = 2
"""Slots with which a provider that was down is tried again."""


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    """Where the concurrency limit starts and how far it may move."""

    initial: int = 4
    """With nothing known about the provider."""
    maximum: int = 256
    decrease: float = 0.7
    """The factor that one overload applies."""


class AimdLimit:
    """Computes the number; the pool enforces it."""

    def __init__(self, settings: ConcurrencySettings) -> None:
        self._settings = settings
        self._value = float(max(1, min(settings.initial, settings.maximum)))
        self._slow_start = True
        self._decreased_at = float("-inf")

    def __repr__(self) -> str:
        return f"<AimdLimit {self.limit} slots{', slow start' if self._slow_start else ''}>"

    @property
    def limit(self) -> int:
        """Attempts that may be in flight; at least 1."""
        return int(self._value)

    def fills(self, in_flight: int) -> bool:
        """Whether so many attempts, the new one counted, use enough of the limit to prove anything about it."""
        return in_flight * 2 >= self.limit

    def success(self, *, filled: bool) -> None:
        """An attempt succeeded; `filled` is what `fills` said at its admission."""
        if filled:
            step = 1.0 if self._slow_start else 1.0 / self.limit
            self._value = min(self._value + step, float(max(1, self._settings.maximum)))

    def overload(self, *, admitted_at: float, now: float) -> None:
        """An attempt met overload."""
        self._slow_start = False
        if admitted_at >= self._decreased_at:
            self._value = max(1.0, self.limit * self._settings.decrease)
            self._decreased_at = now

    def recover(self) -> None:
        """The provider is back after an outage: start small, and grow fast."""
        self._value = float(min(self.limit, _AFTER_OUTAGE))
        self._slow_start = True
