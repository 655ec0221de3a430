"""The concurrency limit while no refusal limits it."""

from dataclasses import dataclass

_NEVER = float("inf")
_LEAST_AFTER_OUTAGE = 2
_PROOF_S = 0.05
"""The usual time of a limiter's refusal."""
_CROWDED_S = 5.0
"""After a refusal, where others may use the rest of a limit, no further slot is tried for this time."""


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    """The start and the bounds of the concurrency limit."""

    initial: int = 4
    """The limit before anything is known about the provider."""
    maximum: int = 4096
    """The upper bound. A third of the files that the proxy may open is never exceeded."""
    maximum_from: str = "concurrency.maximum"
    """The setting that the maximum comes from, for people who want to raise the limit. Not written in files."""


class Slots:
    """The concurrency limit while no refusal limits it: each proof adds a slot.

    An attempt that fills all slots proves the last slot if no refusal comes in the usual time of a refusal.
    `hidden_limits.py` interprets refusals.
    """

    def __init__(self, settings: ConcurrencySettings) -> None:
        self._settings = settings
        self.maximum, self.maximum_from = max(1, settings.maximum), settings.maximum_from
        self.limit = _first_limit(settings)
        """The most attempts in flight; at least 1."""
        self._filled_at: float | None = None
        """When the last slot was first used."""
        self._crowded_until = self._full_until = -_NEVER

    def __repr__(self) -> str:
        return f"<Slots {self.limit}>"

    def sent(self, in_flight: int, now: float) -> None:
        """Note an admitted attempt; `in_flight` includes the attempt."""
        if in_flight > self.limit:
            # The last slot is proved: no refusal came for a while.
            self.limit, self._filled_at = min(in_flight, self.maximum), None
        if in_flight == self.limit and self._filled_at is None:
            self._filled_at = now

    def passed(self, in_flight: int, now: float) -> None:
        """Note an accepted attempt; `in_flight`: at the admission, the attempt included."""
        if in_flight >= self.limit and now >= self._full_until:
            self._grow()

    def crowded(self, in_flight: int, now: float, *, by_others: bool) -> None:
        """Cut the slots for a while, and learn no limit: others had unknown attempts in flight, or the edge refused.

        Where the edge refuses some attempts, each pass gives a slot back.
        """
        self.limit = max(1, min(self.limit, in_flight - 1) if by_others else self.limit - 1)
        self._filled_at, self._crowded_until = None, now + _CROWDED_S
        if by_others:
            self._full_until = self._crowded_until

    def opens_at(self, in_flight: int, now: float) -> float:
        """When a further attempt may go; infinite: when an attempt ends."""
        if in_flight < self.limit:
            return now
        if in_flight > self.limit or self._filled_at is None or self.limit == self.maximum:
            return _NEVER
        return max(now, self._filled_at + _PROOF_S, self._crowded_until)

    def configure(self, settings: ConcurrencySettings) -> None:
        """Restart if nothing was proved yet; else keep the limit within the new maximum."""
        is_new = self.limit == _first_limit(self._settings)
        self._settings = settings
        self.maximum, self.maximum_from = max(1, settings.maximum), settings.maximum_from
        before, self.limit = self.limit, _first_limit(settings) if is_new else min(self.limit, self.maximum)
        if self.limit != before:
            self._filled_at = None

    def recover(self, in_flight: int, now: float) -> None:
        """Halve the slots after an outage, then grow as ever.

        Attempts in flight outlived the outage, so there are at least as many slots.
        """
        self.limit = min(self.limit, max(_LEAST_AFTER_OUTAGE, self.limit // 2, in_flight))
        self._filled_at = now if in_flight == self.limit else None

    def rest(self) -> None:
        """Restart after a long time."""
        self.limit = min(self.limit, max(1, self._settings.initial))
        self._filled_at = None

    def _grow(self) -> None:
        self.limit = min(self.limit + 1, self.maximum)
        self._filled_at = None


def _first_limit(settings: ConcurrencySettings) -> int:
    return max(1, min(settings.initial, settings.maximum))
