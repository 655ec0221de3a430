"""How many attempts may be in flight while nothing is known against it: one more after the other.

An attempt that fills all slots proves the last one when it was not refused for as long as a refusal takes: then there
is one slot more. What the provider refuses is not known here; `hidden_limits.py` finds out what that means.
"""

from dataclasses import dataclass

_NEVER = float("inf")
_LEAST_AFTER_OUTAGE = 2
_PROOF_S = 0.05
"""A limiter's refusal takes about so long."""


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    """Where the concurrency limit starts and how far it may move."""

    initial: int = 4
    """With nothing known about the provider."""
    maximum: int = 256


class Slots:
    """Computes the number; the pool enforces it."""

    def __init__(self, settings: ConcurrencySettings) -> None:
        self._settings = settings
        self.maximum = max(1, settings.maximum)
        self.limit = _first_limit(settings)
        """Attempts that may be in flight; at least 1."""
        self._filled_at: float | None = None
        """When the last slot was first used."""

    def __repr__(self) -> str:
        return f"<Slots {self.limit}>"

    def sent(self, in_flight: int, now: float) -> None:
        """An attempt was admitted; `in_flight` counts it."""
        if in_flight > self.limit:
            # The last slot is proved: nothing was refused for a while.
            self.limit, self._filled_at = min(in_flight, self.maximum), None
        if in_flight == self.limit and self._filled_at is None:
            self._filled_at = now

    def passed(self, in_flight: int) -> None:
        """The provider took an attempt that had so many in flight at its admission, itself counted."""
        if in_flight >= self.limit:
            self._grow()

    def opens_at(self, in_flight: int, now: float) -> float:
        """When one more attempt may go; infinite: when another one ends."""
        if in_flight < self.limit:
            return now
        if in_flight > self.limit or self._filled_at is None or self.limit == self.maximum:
            return _NEVER
        return max(now, self._filled_at + _PROOF_S)

    def configure(self, settings: ConcurrencySettings) -> None:
        """Begin anew where nothing was proved yet; else keep the limit, within the new maximum."""
        is_new = self.limit == _first_limit(self._settings)
        self._settings = settings
        self.maximum = max(1, settings.maximum)
        before, self.limit = self.limit, _first_limit(settings) if is_new else min(self.limit, self.maximum)
        if self.limit != before:
            self._filled_at = None

    def recover(self, in_flight: int, now: float) -> None:
        """The provider is back after an outage: half of what it took before, and from there on as ever.

        What is in flight has outlived the outage: it keeps nobody waiting.
        """
        self.limit = min(self.limit, max(_LEAST_AFTER_OUTAGE, self.limit // 2, in_flight))
        self._filled_at = now if in_flight == self.limit else None

    def rest(self) -> None:
        """Much time has passed: start as at first."""
        self.limit = min(self.limit, max(1, self._settings.initial))
        self._filled_at = None

    def _grow(self) -> None:
        self.limit = min(self.limit + 1, self.maximum)
        self._filled_at = None


def _first_limit(settings: ConcurrencySettings) -> int:
    return max(1, min(settings.initial, settings.maximum))
