"""What refusals by rate limits (429) teach, beyond what headers tell: a pause, a pace, a quota.

    the refusal                                       what follows
    the meters show why                               they make everybody wait; again and again: a pace too
    nothing shows why, retry-after above 5 s          it is a window's end: a quota
    nothing shows why, short or no retry-after        a pace

and in all cases the pause that the provider asked for. Whatever kind the limiter is, the pool so comes to send about
what is delivered: never a storm of refusals, never a standstill.
"""

import random
from collections import deque
from dataclasses import dataclass

from hivemind_addon.core.pace import Pace
from hivemind_addon.core.pause import Pause
from hivemind_addon.core.quota import Quota
from hivemind_addon.core.retry import sane_retry_after_s

_WINDOW_RETRY_AFTER_S = 5.0
"""A longer one tells of a window."""
_WRONG_WITHIN_S = 120.0
_MOST_BURSTS = 6
_FEWEST_BURSTS = 2
_MOST_REFUSED = 8
"""Meters are wrong for good when they let six bursts, or eight attempts of at least two, run into a refusal."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What changed with a refusal."""

    paused: bool
    paced: bool
    quota: bool


class Brake:
    """One pool's pause, pace and quota."""

    def __init__(self, *, rng: random.Random) -> None:
        self.pause = Pause(rng=rng)
        self.pace = Pace()
        self.quota = Quota()
        self._wrong: deque[float] = deque(maxlen=_MOST_BURSTS)
        """When the meters let something go that was refused; once for each burst."""
        self._wrong_attempts: deque[float] = deque(maxlen=_MOST_REFUSED)
        """The same, for each attempt."""

    def __repr__(self) -> str:
        return f"<Brake {self.pause!r} {self.pace!r} {self.quota!r}>"

    def passes_at(self, now: float, *, kept: int = 0) -> float:
        """The first instant at which the next attempt may go, apart from the pause.

        `kept`: places of the quota's window that others will want.
        """
        return max(now, self.pace.passes_at, self.quota.passes_at(now, kept=kept))

    @property
    def is_off(self) -> bool:
        """Whether no pace and no quota is known."""
        return self.pace.rate is None and self.quota.limit is None

    @property
    def attempt_s(self) -> float:
        """Seconds between two attempts where pace and quota let go as many as they can; 0: they let all go."""
        paced_s = 1 / self.pace.rate if self.pace.rate is not None else 0.0
        return max(paced_s, self.quota.window_s / self.quota.limit if self.quota.limit is not None else 0.0)

    def sent(self, now: float) -> None:
        """An attempt was admitted."""
        self.pace.sent(now)
        self.quota.sent(now)

    def refused(self, *, admitted_at: float, retry_after_s: float | None, explained: bool, now: float) -> Lesson:
        """A rate limit refused an attempt. `explained`: the meters know when it would fit."""
        told_s = sane_retry_after_s(retry_after_s)
        self.pace.refused(admitted_at=admitted_at)
        self.quota.refused(admitted_at=admitted_at)
        paced = quota = False
        if explained:
            if not self._wrong or admitted_at >= self._wrong[-1]:
                self._wrong.append(now)
            self._wrong_attempts.append(now)
            if self._are_meters_wrong(now):
                paced = self.pace.surprised(admitted_at=admitted_at, now=now, burst=False)
        elif told_s > _WINDOW_RETRY_AFTER_S:
            quota = self.quota.learn(told_s, now)
        else:
            paced = self.pace.surprised(admitted_at=admitted_at, now=now, burst=True)
        paused = self.pause.refused(
            admitted_at=admitted_at, retry_after_s=retry_after_s, explained=explained or paced, now=now
        )
        return Lesson(paused=paused, paced=paced, quota=quota)

    def overloaded(self, *, admitted_at: float) -> None:
        """A busy provider refused an attempt."""
        self.quota.refused(admitted_at=admitted_at)

    def _are_meters_wrong(self, now: float) -> bool:
        bursts = sum(1 for at in self._wrong if now - at <= _WRONG_WITHIN_S)
        attempts = sum(1 for at in self._wrong_attempts if now - at <= _WRONG_WITHIN_S)
        return bursts == _MOST_BURSTS or (bursts >= _FEWEST_BURSTS and attempts == _MOST_REFUSED)

    def succeeded(self, *, admitted_at: float, now: float) -> None:
        """An attempt succeeded."""
        self.pause.succeeded(admitted_at=admitted_at)
        self.pace.succeeded(now)

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept."""
        self.pause.clock_jumped(delta_s)
        self.pace.clock_jumped(delta_s)
        self.quota.clock_jumped(delta_s)
        self._wrong.clear()
        self._wrong_attempts.clear()

    def absorb(self, other: "Brake") -> None:
        """Another pool turned out to be of the same account."""
        self.pause.until = max(self.pause.until, other.pause.until)
        if other.pace.rate is not None:
            self.pace.resume(other.pace.rate)
        if other.quota.limit is not None:
            self.quota.resume(limit=other.quota.limit, window_s=other.quota.window_s)
