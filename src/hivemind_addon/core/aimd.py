"""How many attempts may be in flight at once, learned from overload alone.

    GROWING   one slot more per success, until the first overload                      (no ceiling is known)
    CAPPED    an overload at n in flight: n - 1 is the ceiling
    PROBING   one slot above the ceiling; a success up there: GROWING again; an overload: CAPPED

Growth that follows a ceiling is careful: one slot in the first round of as many successes as there are slots, twice
as many in each further one, until it is as fast as at first.

One overload may be chance: as long as no probe has failed, the ceiling is probed after two rounds; and the success of
an attempt that was sent no earlier than the refused one, with more in flight than the ceiling, disproves it at once.
After a failed probe the next one comes after 20 s, and after twice the time with each that fails, up to 300 s; sooner
where 25 attempts have succeeded since, for then one refusal more is a small part of them.

Overloads of attempts that were sent under the newest ceiling, without a success between them, lower it by a factor
from the third on, so that a provider that shrinks is followed in a few steps. So does an overload far below what was
proved within the last seconds: that is the provider's bad moment and not the place where its ceiling is.

Only a success that was admitted while the limit was at least half used counts: an idle pool proves nothing. Latency
never moves it: an answer's length, not the load, decides how long a model takes.
"""

import math
from dataclasses import dataclass

_AFTER_OUTAGE = 2
"""Slots with which a provider that was down is tried again."""
_FIRST_PROBE_S = 20.0
_MAX_PROBE_S = 300.0
_SUCCESSES_PER_PROBE = 25
_ROUNDS_OF_DOUBT = 2
_STEPS = 2
"""Overloads in a row that take one slot each."""
_PROVED_FOR_S = 10.0
"""So long a success shows how many attempts the provider takes."""


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    """Where the concurrency limit starts and how far it may move."""

    initial: int = 4
    """With nothing known about the provider."""
    maximum: int = 256
    decrease: float = 0.7
    """The factor that overloads in a row apply."""


class AimdLimit:
    """Computes the number; the pool enforces it."""

    def __init__(self, settings: ConcurrencySettings) -> None:
        self._settings = settings
        self._maximum = max(1, settings.maximum)
        self.limit = max(1, min(settings.initial, self._maximum))
        """Attempts that may be in flight; at least 1."""
        self._gain = 1.0
        """Slots per success while it grows."""
        self._grown = 0.0
        """Part of the next slot."""
        self._round = 0
        """Successes in this round of growth."""
        self.ceiling: int | None = None
        """What the provider takes, as far as its overloads told."""
        self._lowered_at = float("-inf")
        self._refused_sent_at = float("-inf")
        """When the attempt went whose overload last lowered the ceiling."""
        self._is_doubted = False
        """No probe has failed since the ceiling was last lowered."""
        self._row = 0
        """Times that it was lowered without a proof in between."""
        self._proved_since = True
        """An attempt that was admitted after the ceiling was last lowered has succeeded."""
        self._probe_at = float("inf")
        self._probe_in_s = _FIRST_PROBE_S
        self._successes = 0
        """Since the last overload."""
        self._proved = 0
        self._proved_at = float("-inf")

    def __repr__(self) -> str:
        return f"<AimdLimit {self.limit} slots, {'growing' if self.ceiling is None else f'ceiling {self.ceiling}'}>"

    @property
    def growth(self) -> tuple[float, int]:
        """Slots that one success adds where all are used, and the limit up to which it does."""
        return (self._gain, self._maximum) if self.ceiling is None else (1.0, self.ceiling)

    def fills(self, in_flight: int) -> bool:
        """Whether so many attempts, the new one counted, use enough of the limit to prove anything about it."""
        return in_flight * 2 >= self.limit

    def success(self, *, in_flight: int, filled: bool, admitted_at: float, now: float) -> None:
        """An attempt succeeded; `in_flight` and `filled` are of its admission, itself counted."""
        self._successes += 1
        if in_flight >= self._proved or now - self._proved_at > _PROVED_FOR_S:
            self._proved, self._proved_at = in_flight, now
        is_of_now = admitted_at >= self._lowered_at
        self._proved_since = self._proved_since or is_of_now
        if self.ceiling is not None and admitted_at >= self._refused_sent_at and in_flight > self.ceiling:
            self.ceiling = None
            self.limit = min(max(self.limit, in_flight), self._maximum)
            self._probe_in_s = _FIRST_PROBE_S
            self._gain, self._grown, self._round = 1 / self.limit, 0.0, 0
        if not filled:
            return
        if self.ceiling is None:
            self._grow()
        elif self.limit < self.ceiling:
            self.limit += 1
        elif self._may_probe(now):
            self.limit = min(self.ceiling + 1, self._maximum)

    def overload(self, *, in_flight: int, admitted_at: float, now: float) -> None:
        """An attempt met overload; `in_flight` is of its admission, itself counted."""
        told = max(1, in_flight - 1)
        if now - self._proved_at <= _PROVED_FOR_S:
            told = max(told, int(self._proved * self._settings.decrease))
        if admitted_at >= self._lowered_at:
            is_failed_probe = self.ceiling is not None and in_flight > self.ceiling
            self._row = 1 if self._proved_since else self._row + 1
            if self._row > _STEPS:
                told = min(told, math.ceil(self.limit * self._settings.decrease))
            if is_failed_probe and not self._is_doubted:
                self._probe_in_s = min(self._probe_in_s * 2, _MAX_PROBE_S)
            else:
                self._probe_in_s = _FIRST_PROBE_S
            self._is_doubted = not is_failed_probe
            self._lowered_at, self._refused_sent_at, self._proved_since = now, admitted_at, False
        self.ceiling = self.limit = min(told, self.limit)
        self._probe_at = now + self._probe_in_s
        self._successes = 0

    def recover(self) -> None:
        """The provider is back after an outage: start small, and grow fast."""
        self.limit = min(self.limit, _AFTER_OUTAGE)
        self.ceiling = None
        self._gain = 1.0
        self._probe_in_s = _FIRST_PROBE_S
        self._proved_since = True

    def rest(self) -> None:
        """Much time has passed: start as at first, and grow fast up to the ceiling that is known."""
        self.limit = min(self.limit, max(1, self._settings.initial))

    def resume(self, ceiling: int) -> None:
        """An earlier run has learned a ceiling; it is probed as soon as it is reached."""
        self.ceiling = max(1, min(ceiling, self._maximum))
        self.limit = min(self.limit, self.ceiling)
        self._probe_at = float("-inf")

    def absorb(self, other: "AimdLimit") -> None:
        """Another pool is of the same account: the provider took at least what the larger one had in flight."""
        self.limit = max(self.limit, other.limit)
        known = [limit.ceiling for limit in (self, other) if limit.ceiling is not None]
        self.ceiling = max(known) if len(known) == 2 else None

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept."""
        self._lowered_at -= delta_s
        self._refused_sent_at -= delta_s
        self._probe_at -= delta_s
        self._proved_at -= delta_s

    def _grow(self) -> None:
        self._grown += self._gain
        self._round += 1
        if self._round >= self.limit:
            self._gain, self._round = min(1.0, 2 * self._gain), 0
        if self._grown >= 1:
            self.limit, self._grown = min(self.limit + 1, self._maximum), self._grown - 1

    def _may_probe(self, now: float) -> bool:
        if self._is_doubted and self._successes >= _ROUNDS_OF_DOUBT * self.limit:
            return True
        return now >= self._probe_at or (
            self._successes >= _SUCCESSES_PER_PROBE and now >= self._lowered_at + _FIRST_PROBE_S
        )
