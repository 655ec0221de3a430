"""The pause that a rate limit's refusal (429) asks for: nothing of the pool goes before its end.

With a retry-after: exactly that, and a small jitter. Without one: nothing when the meters explain the refusal (they
make everybody wait long enough), else one second, doubling up to 30 with each refusal until a success. Refusals of
attempts that were admitted before the last one came belong to the same burst and do not double again.
"""

import random

from hivemind_addon.core.retry import sane_retry_after_s

_JITTER_S = (0.05, 0.25)
_FIRST_S = 1.0
_MAX_S = 30.0
_MAX_DOUBLINGS = 5
_STEP_JITTER = (0.75, 1.25)
_LONGEST_S = 86_400.0
"""A longer retry-after is taken for this one."""


class Pause:
    """One pool's pause."""

    def __init__(self, *, rng: random.Random) -> None:
        self._rng = rng
        self.until = float("-inf")
        self._refused_at = float("-inf")
        self._refusals = 0

    def __repr__(self) -> str:
        return f"<Pause until {self.until:.3f}, {self._refusals} refusals in a row>"

    def refused(self, *, admitted_at: float, retry_after_s: float | None, explained: bool, now: float) -> bool:
        """A rate limit refused an attempt. `explained`: the meters know when it would fit. True when it got longer."""
        told_s = min(sane_retry_after_s(retry_after_s), _LONGEST_S)
        same_burst = admitted_at < self._refused_at
        if told_s:
            self._refused_at = now
            return self._extend(now + told_s + self._rng.uniform(*_JITTER_S))
        if not same_burst:
            self._refused_at = now
            self._refusals += 1
        # The second refusal in a row shows that the meters' explanation was wrong.
        if (explained and self._refusals <= 1) or (same_burst and now < self.until):
            return False
        doublings = min(max(self._refusals - 1, 0), _MAX_DOUBLINGS)
        step_s = min(_FIRST_S * 2**doublings, _MAX_S)
        return self._extend(now + step_s * self._rng.uniform(*_STEP_JITTER))

    def succeeded(self, *, admitted_at: float) -> None:
        """An attempt succeeded; one that was admitted since the last refusal ends the doubling."""
        if admitted_at >= self._refused_at:
            self._refusals = 0

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept."""
        self.until -= delta_s
        self._refused_at -= delta_s

    def _extend(self, until: float) -> bool:
        longer = until > self.until
        self.until = max(self.until, until)
        return longer
