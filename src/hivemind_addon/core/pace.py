"""Even spacing of what is sent, for limits that no header tells of.

It is off until a refusal comes that nothing known explains: a hidden limit on bursts, or a limiter of no kind that
our meters model. Then attempts go one by one: after a burst at half of the last second's sends, at least one a
second; where that is the rate already, at what was delivered since one of the last refusals, which is what the limiter
really lets through, and at least 3 % slower. Where it is not the burst that was too much, at what was delivered
within the last minute. Refusals of attempts that were sent before the last one came belong to the same burst.

Slow recovery: after 30 s without a refusal each success makes it 2 % faster; a refusal during that doubles the 30 s,
up to ten minutes.
"""

from collections import deque

_LEAST_RATE = 1.0
"""Per second; a first refusal never makes it slower than this."""
_SLOWER = 0.97
_FASTER = 1.02
_MOST_SLOWER = 0.5
"""One refusal never slows down by more: what was delivered may be little because little was wanted."""
_ENOUGH_SENDS = 4
"""Fewer since a refusal do not make a measurement."""
_SURPRISES_KEPT = 5
_RECOVERY_S = 30.0
_MAX_RECOVERY_S = 600.0
_REMEMBERED = 4096
_MEASURED_S = 60.0
_LEAST_MEASURED_S = 10.0
_LOWEST_RATE = 1e-4


class Pace:
    """One pool's pace."""

    def __init__(self) -> None:
        self.rate: float | None = None
        """Attempts per second; None: as fast as everything else allows."""
        self._sends: deque[float] = deque(maxlen=_REMEMBERED)
        """When attempts went that were not refused."""
        self._last_at = float("-inf")
        self._surprised_at = float("-inf")
        self._surprises: deque[float] = deque(maxlen=_SURPRISES_KEPT)
        self._recovery_s = _RECOVERY_S
        self._recovered = False

    def __repr__(self) -> str:
        return "<Pace off>" if self.rate is None else f"<Pace {self.rate:.3f}/s>"

    @property
    def passes_at(self) -> float:
        """The first instant at which the next attempt may go."""
        return float("-inf") if self.rate is None else self._last_at + 1 / self.rate

    def sent(self, now: float) -> None:
        """An attempt was admitted."""
        self._sends.append(now)
        self._last_at = now

    def refused(self, *, admitted_at: float) -> None:
        """A rate limit refused an attempt, whatever the reason."""
        if admitted_at in self._sends:
            self._sends.remove(admitted_at)

    def surprised(self, *, admitted_at: float, now: float, burst: bool) -> bool:
        """The refusal has no other explanation than a burst, or none at all. True when the pace changed."""
        if admitted_at < self._surprised_at:
            return False
        self.rate = max(_LOWEST_RATE, self._slower(admitted_at, now) if burst else self._measured(now))
        if self._recovered:
            self._recovery_s = min(self._recovery_s * 2, _MAX_RECOVERY_S)
        self._recovered = False
        self._surprised_at = now
        self._surprises.append(now)
        return True

    def succeeded(self, now: float) -> None:
        """An attempt succeeded."""
        if self.rate is not None and now - self._surprised_at >= self._recovery_s:
            self.rate *= _FASTER
            self._recovered = True

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept."""
        self._last_at -= delta_s
        self._surprised_at -= delta_s
        self._sends.clear()
        self._surprises.clear()

    def resume(self, rate: float) -> None:
        """Go on at the pace of an earlier run, or of another pool of the same account."""
        self.rate = rate if self.rate is None else min(rate, self.rate)

    def _slower(self, admitted_at: float, now: float) -> float:
        last_second = 1 + sum(1 for at in self._sends if admitted_at - 1 < at <= admitted_at)
        halved = max(_LEAST_RATE, last_second / 2)
        if self.rate is None or halved < self.rate * _SLOWER:
            return halved
        slower = self.rate * _SLOWER
        for since in reversed(self._surprises):
            delivered = sum(1 for at in self._sends if at > since)
            if delivered >= _ENOUGH_SENDS:
                measured = delivered / max(now - since, 1e-3)
                return max(self.rate * _MOST_SLOWER, min(slower, measured))
        return slower

    def _measured(self, now: float) -> float:
        recent = [at for at in self._sends if at > now - _MEASURED_S]
        over_s = min(_MEASURED_S, max(_LEAST_MEASURED_S, now - self._sends[0] if self._sends else 0.0))
        measured = len(recent) / over_s
        return measured if self.rate is None else min(measured, self.rate * _SLOWER)
