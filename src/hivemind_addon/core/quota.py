"""A window's quota of requests, learned from refusals alone, for providers that send no limit headers.

A refusal with a long retry-after tells when the window ends; what was sent in it and not refused is the quota. The
window's length is the first of 10 s, a minute, an hour and a day that is long enough for the retry-after. From then
on a window begins with its first attempt, for that is the later of what a provider may mean.

A quota that was used up without a refusal is tried with 5 % more in the next window; each such trial that is refused
makes the next one come after twice as many windows.
"""

from collections import deque

_WINDOWS_S = (10.0, 60.0, 3600.0, 86_400.0)
_GUARD_S = 0.1
_ROUNDING_S = 1.25
"""A retry-after in whole seconds is up to one too long, and its way here takes a moment."""
_REMEMBERED = 4096
_MORE = 0.05
_MAX_TRIAL_EVERY = 32


class Quota:
    """One pool's quota."""

    def __init__(self) -> None:
        self.limit: int | None = None
        """Attempts per window; None: not known."""
        self.window_s = _WINDOWS_S[1]
        self._sends: deque[float] = deque(maxlen=_REMEMBERED)
        """When attempts went that were not refused."""
        self._began_at: float | None = None
        """The running window; None: the next attempt begins one."""
        self._used = 0
        """Attempts in it."""
        self._extra = 0
        """Attempts above the limit that this window tries."""
        self._refused = False
        self._full_windows = 0
        self._trial_every = 1

    def __repr__(self) -> str:
        return "<Quota unknown>" if self.limit is None else f"<Quota {self.limit} per {self.window_s:.0f} s>"

    def passes_at(self, now: float, *, kept: int = 0) -> float:
        """The first instant at which the next attempt may go beside those for which a place is kept."""
        if self.limit is None:
            return float("-inf")
        self.roll(now)
        if self._began_at is None or self._used + kept < self.limit + self._extra:
            return now
        return self._began_at + self.window_s

    def turns_at(self, now: float) -> float | None:
        """When the next window may begin; None where there is none."""
        if self.limit is None:
            return None
        self.roll(now)
        return (now if self._began_at is None else self._began_at) + self.window_s

    def left(self, now: float) -> int:
        """Attempts that the running window still has; 0 where no quota is known."""
        if self.limit is None:
            return 0
        self.roll(now)
        return max(0, self.limit + self._extra - self._used)

    def sent(self, now: float) -> None:
        """An attempt was admitted."""
        self.roll(now)
        if self._began_at is None:
            self._began_at = now
        self._used += 1
        self._sends.append(now)

    def refused(self, *, admitted_at: float) -> None:
        """An attempt was refused, by a rate limit or for overload: it did not count."""
        if admitted_at in self._sends:
            self._sends.remove(admitted_at)
            self._used = max(0, self._used - 1)

    def learn(self, retry_after_s: float, now: float) -> bool:
        """The refusal told when the window ends. True when the quota changed."""
        before = (self.limit, self.window_s)
        if self.limit is None or retry_after_s > self.window_s:
            self.window_s = next((window_s for window_s in _WINDOWS_S if window_s >= retry_after_s), _WINDOWS_S[-1])
        began_at = now + retry_after_s - self.window_s
        if self._began_at is None or abs(self._began_at - began_at) > _ROUNDING_S:
            self._used = sum(1 for at in self._sends if at >= began_at - _ROUNDING_S)
        self._began_at = began_at + _GUARD_S
        if self._extra and not self._refused:
            self._trial_every = min(self._trial_every * 2, _MAX_TRIAL_EVERY)
        self._extra, self._refused, self._full_windows = 0, True, 0
        self.limit = max(1, self._used)
        return before != (self.limit, self.window_s)

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept."""
        if self._began_at is not None:
            self._began_at -= delta_s
        self._sends = deque((at - delta_s for at in self._sends), maxlen=_REMEMBERED)

    def resume(self, *, limit: int, window_s: float) -> None:
        """Go on with the quota of an earlier run, or of another pool of the same account."""
        if self.limit is None or limit < self.limit:
            self.limit, self.window_s = max(1, limit), window_s

    def roll(self, now: float) -> None:
        """Look back at a window that is over."""
        if self.limit is None or self._began_at is None or now < self._began_at + self.window_s:
            return
        if not self._refused and self._used >= self.limit + self._extra:
            self.limit += self._extra
            self._full_windows += 1
        is_trial = self._full_windows >= self._trial_every
        self._extra = max(1, int(self.limit * _MORE)) if is_trial else 0
        if is_trial:
            self._full_windows = 0
        self._refused = False
        self._began_at, self._used = None, 0
