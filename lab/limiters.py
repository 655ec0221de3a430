"""Limiters of many kinds, as providers and gateways build them: small and exact. Pure.

A limiter is asked how long an attempt would have to wait (`wait_s`), and hears what passed (`take`), what ended (`end`)
and what was refused (`refuse`). They share nothing with the scheduler's models nor with the simulated provider's, on
purpose: what is wrong in one of these is not wrong in the other.
"""

import heapq
import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import override

from hivemind_addon.kernel.values.ticket import Dimension

_DUST = 1e-9
"""Sums of instants and amounts lose digits; less than this is nothing."""


@dataclass(frozen=True, slots=True)
class HonestHeader:
    """What an honest header would say."""

    limit: float
    remaining: float
    reset_in_s: float


class Limiter(ABC):
    """One limit. `counts` says what an attempt takes of it."""

    counts: Dimension = Dimension.REQUESTS

    @abstractmethod
    def wait_s(self, now: float, units: float) -> float:
        """Until an attempt of so many units would pass, if nothing else happens; infinite: not before another ends."""

    @abstractmethod
    def take(self, now: float, units: float) -> None:
        """An attempt passes."""

    def end(self, now: float) -> None:  # noqa: B027 - most limiters do nothing then
        """An attempt that passed has ended."""

    def refuse(self, now: float, units: float) -> None:  # noqa: B027 - most limiters do nothing then
        """An attempt was refused, by this limiter or by another one."""


class RateLimiter(Limiter):
    """A limit on what may begin in some time; headers can tell of it."""

    def __init__(self, limit: float, length_s: float, *, counts: Dimension) -> None:
        self.limit = limit
        self.length_s = length_s
        self.counts = counts

    @abstractmethod
    def standing(self, now: float) -> HonestHeader:
        """What an honest header would say."""

    def resize(self, limit: float, now: float) -> None:  # noqa: ARG002 - a bucket needs it
        """Allow more or less from now on."""
        self.limit = limit


class Window(RateLimiter):
    """So much in each period; all of it comes back when the next one begins."""

    def __init__(
        self,
        limit: float,
        length_s: float,
        *,
        begins_at: float | None = 0.0,
        counts: Dimension = Dimension.REQUESTS,
    ) -> None:
        """`begins_at`: when any one of the periods begins; None: a period begins with the first call that passes."""
        super().__init__(limit, length_s, counts=counts)
        self._begins_at = begins_at
        self._used = 0.0
        self._ends_at = -math.inf

    def __repr__(self) -> str:
        return f"<Window {self._used:g} of {self.limit:g} in {self.length_s:g} s>"

    def _roll(self, now: float) -> None:
        if now >= self._ends_at - _DUST:
            self._used = 0.0
            self._ends_at = math.inf
            if self._begins_at is not None:
                number = math.floor((now - self._begins_at + _DUST) / self.length_s)
                self._ends_at = self._begins_at + (number + 1) * self.length_s

    @override
    def wait_s(self, now: float, units: float) -> float:
        self._roll(now)
        return 0.0 if self._used + units <= self.limit + _DUST else self._ends_at - now

    @override
    def take(self, now: float, units: float) -> None:
        self._roll(now)
        self._used += units
        self._ends_at = min(self._ends_at, now + self.length_s)

    @override
    def standing(self, now: float) -> HonestHeader:
        self._roll(now)
        return HonestHeader(self.limit, max(0.0, self.limit - self._used), min(self._ends_at - now, self.length_s))


class SlidingLog(RateLimiter):
    """So much within any period of a length: every attempt is remembered."""

    def __init__(
        self,
        limit: float,
        length_s: float,
        *,
        counts_refusals: bool = False,
        counts: Dimension = Dimension.REQUESTS,
    ) -> None:
        super().__init__(limit, length_s, counts=counts)
        self._counts_refusals = counts_refusals
        self._log: deque[tuple[float, float]] = deque()
        self._used = 0.0

    def __repr__(self) -> str:
        return f"<SlidingLog {self._used:g} of {self.limit:g} in {self.length_s:g} s>"

    def _forget(self, now: float) -> None:
        while self._log and self._log[0][0] <= now - self.length_s + _DUST:
            self._used -= self._log.popleft()[1]

    @override
    def wait_s(self, now: float, units: float) -> float:
        self._forget(now)
        used = self._used
        if used + units <= self.limit + _DUST:
            return 0.0
        for at, past in self._log:
            used -= past
            if used + units <= self.limit + _DUST:
                return at + self.length_s - now
        return math.inf

    @override
    def take(self, now: float, units: float) -> None:
        self._forget(now)
        self._log.append((now, units))
        self._used += units

    @override
    def refuse(self, now: float, units: float) -> None:
        if self._counts_refusals:
            self.take(now, units)

    @override
    def standing(self, now: float) -> HonestHeader:
        self._forget(now)
        resets_in_s = self._log[0][0] + self.length_s - now if self._log else 0.0
        return HonestHeader(self.limit, max(0.0, self.limit - self._used), resets_in_s)


class SlidingCounter(RateLimiter):
    """Two fixed periods, the last one weighed by how much of it lies within the sliding one."""

    def __init__(self, limit: float, length_s: float, *, counts: Dimension = Dimension.REQUESTS) -> None:
        super().__init__(limit, length_s, counts=counts)
        self._number = 0
        self._last = self._this = 0.0

    def __repr__(self) -> str:
        return f"<SlidingCounter {self._last:g}, {self._this:g} of {self.limit:g} in {self.length_s:g} s>"

    def _roll(self, now: float) -> float:
        """Roll on to the period of `now`; answer how much of it has passed, as a share."""
        number = math.floor((now + _DUST) / self.length_s)
        if number != self._number:
            self._last = self._this if number == self._number + 1 else 0.0
            self._this, self._number = 0.0, number
        return max(0.0, now / self.length_s - number)

    @override
    def wait_s(self, now: float, units: float) -> float:
        passed = self._roll(now)
        for last, this, begins in ((self._last, self._this, 0.0), (self._this, 0.0, 1.0)):
            free = self.limit - this - units
            if free >= -_DUST:
                share = max(0.0, 1 - max(0.0, free) / last) if last else 0.0
                wait_s = (begins + share - passed) * self.length_s
                return 0.0 if wait_s <= _DUST else wait_s
        return math.inf

    @override
    def take(self, now: float, units: float) -> None:
        self._roll(now)
        self._this += units

    @override
    def standing(self, now: float) -> HonestHeader:
        passed = self._roll(now)
        used = self._last * (1 - passed) + self._this
        return HonestHeader(self.limit, max(0.0, self.limit - used), (1 - passed) * self.length_s)


class Ramp(RateLimiter):
    """At least `limit` in any period of a length, and as much more as the period before it proves: a traffic's growth.

    A provider's "sharp increase in usage" is refused by such a one.
    """

    def __init__(self, limit: float, length_s: float, *, growth: float) -> None:
        super().__init__(limit, length_s, counts=Dimension.REQUESTS)
        self._growth = growth
        self._log: deque[float] = deque()

    def __repr__(self) -> str:
        return f"<Ramp {self.limit:g} in {self.length_s:g} s or {self._growth:g} times as much as before>"

    def _free(self, now: float) -> float:
        began_at = now - self.length_s + _DUST
        last = sum(began_at - self.length_s < at <= began_at for at in self._log)
        this = sum(at > began_at for at in self._log)
        return max(self.limit, self._growth * last) - this

    @override
    def wait_s(self, now: float, units: float) -> float:
        while self._log and self._log[0] <= now - 2 * self.length_s:
            self._log.popleft()
        # What passed leaves this period for the one before it: only then is there more to give.
        instants = (now, *(at + self.length_s for at in self._log if at + self.length_s > now))
        return next((at - now for at in instants if self._free(at) >= units - _DUST), math.inf)

    @override
    def take(self, now: float, units: float) -> None:
        self._log.append(now)

    @override
    def standing(self, now: float) -> HonestHeader:
        free = self._free(now)
        return HonestHeader(free + sum(at > now - self.length_s for at in self._log), max(0.0, free), self.length_s)


class Bucket(RateLimiter):
    """`limit` in `length_s`, coming back all the time. `size` is what it holds: 1 makes it a spacing."""

    def __init__(
        self,
        limit: float,
        length_s: float,
        *,
        size: float | None = None,
        counts_refusals: bool = False,
        counts: Dimension = Dimension.REQUESTS,
    ) -> None:
        """`size` None: the whole limit."""
        super().__init__(limit, length_s, counts=counts)
        self._counts_refusals = counts_refusals
        self.size = limit if size is None else size
        self._level, self._at = self.size, 0.0

    def __repr__(self) -> str:
        return f"<Bucket {self._level:.1f} of {self.size:g}, {self.limit:g} in {self.length_s:g} s>"

    @property
    def _per_s(self) -> float:
        return self.limit / self.length_s

    def _fill(self, now: float) -> None:
        self._level = min(self.size, self._level + self._per_s * (now - self._at))
        self._at = now

    @override
    def wait_s(self, now: float, units: float) -> float:
        self._fill(now)
        lacking = units - self._level
        return 0.0 if lacking <= _DUST else lacking / self._per_s if units <= self.size else math.inf

    @override
    def take(self, now: float, units: float) -> None:
        self._fill(now)
        self._level -= units

    @override
    def refuse(self, now: float, units: float) -> None:
        if self._counts_refusals:
            self._fill(now)
            self._level = max(-self.size, self._level - units)

    @override
    def resize(self, limit: float, now: float) -> None:
        self._fill(now)
        self.size *= limit / self.limit
        self.limit = limit
        self._level = min(self._level, self.size)

    @override
    def standing(self, now: float) -> HonestHeader:
        self._fill(now)
        return HonestHeader(self.limit, max(0.0, self._level), (self.size - self._level) / self._per_s)


class Cap(Limiter):
    """So many at once. With `linger_s` a slot stays taken for so long after its attempt has ended."""

    def __init__(self, slots: int, *, linger_s: float = 0.0) -> None:
        self.slots = slots
        self._linger_s = linger_s
        self._running = 0
        self._lingering: list[float] = []

    def __repr__(self) -> str:
        return f"<Cap {self._running} and {len(self._lingering)} lingering of {self.slots}>"

    def taken(self, now: float) -> int:
        """Slots that are not free."""
        while self._lingering and self._lingering[0] <= now + _DUST:
            heapq.heappop(self._lingering)
        return self._running + len(self._lingering)

    @override
    def wait_s(self, now: float, units: float) -> float:
        over = self.taken(now) + 1 - self.slots
        if over <= 0:
            return 0.0
        return heapq.nsmallest(over, self._lingering)[-1] - now if over <= len(self._lingering) else math.inf

    @override
    def take(self, now: float, units: float) -> None:
        self._running += 1

    @override
    def end(self, now: float) -> None:
        self._running -= 1
        if self._linger_s:
            heapq.heappush(self._lingering, now + self._linger_s)

    def resize(self, limit: float, now: float) -> None:  # noqa: ARG002 - as other limiters are resized
        """Allow more or less from now on."""
        self.slots = int(limit)


class Ban(Limiter):
    """Refuses everything for a while after so many refusals within a time."""

    def __init__(self, refusals: int, within_s: float, *, lasts_s: float) -> None:
        self._most = refusals
        self._within_s = within_s
        self._lasts_s = lasts_s
        self._log: deque[float] = deque()
        self._until = 0.0

    def __repr__(self) -> str:
        return f"<Ban until {self._until:.1f} s, {len(self._log)} of {self._most} refusals>"

    @override
    def wait_s(self, now: float, units: float) -> float:
        return max(0.0, self._until - now)

    @override
    def take(self, now: float, units: float) -> None:
        pass

    @override
    def refuse(self, now: float, units: float) -> None:
        if now < self._until:
            return
        self._log.append(now)
        while self._log[0] < now - self._within_s:
            self._log.popleft()
        if len(self._log) >= self._most:
            self._until = now + self._lasts_s
            self._log.clear()


class Outage(Limiter):
    """Refuses everything from one instant on, for a while. What runs already goes on."""

    def __init__(self, begins_at: float, lasts_s: float) -> None:
        self._begins_at = begins_at
        self._ends_at = begins_at + lasts_s

    def __repr__(self) -> str:
        return f"<Outage from {self._begins_at:g} to {self._ends_at:g} s>"

    @override
    def wait_s(self, now: float, units: float) -> float:
        return self._ends_at - now if self._begins_at <= now < self._ends_at else 0.0

    @override
    def take(self, now: float, units: float) -> None:
        pass
