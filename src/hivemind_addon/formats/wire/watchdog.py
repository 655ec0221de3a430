"""How long an attempt may be silent before it counts as hanging: learned from how long others take.

    streamed    max(silent_s, factor * p99 of the times to the head)
    with a head max(content_s, factor * p99 of the longest silences after content) * 2 ** (attempt - 1)
    begun       begun_s, or as long as its client waits: an event came, and no word
    unstreamed  max(silent_s, answer_factor * p99 of whole durations) * 2 ** (attempt - 1); never while few are known

A plain answer is silent until it is complete, and may rightly be long. So nobody watches it at first, and an answer
that is longer than all before it gets twice the time with each attempt.
"""

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from hivemind_addon.kernel.values.ticket import PoolKey

_KEPT = 200
"""Newest answers of a pool that are looked at."""
_POOLS = 256
_TELLING = 20
"""Fewer answers say nothing about their slowest."""


@dataclass(slots=True)
class _Times:
    """Of one pool, in seconds: as they came, and sorted; every attempt asks for the slowest."""

    newest: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def note(self, seconds: float) -> None:
        if len(self.newest) == _KEPT:
            del self.ordered[bisect_left(self.ordered, self.newest.popleft())]
        self.newest.append(seconds)
        insort(self.ordered, seconds)


class Durations:
    """How long attempts take, by pool: to the head of a streamed answer, or to the end of a plain one; or how long they
    are silent, by model. Bounded.
    """

    def __init__(self) -> None:
        self._pools: OrderedDict[PoolKey, _Times] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Durations of {len(self._pools)} pools>"

    def note(self, pool: PoolKey, seconds: float) -> None:
        """One attempt took so long."""
        times = self._pools.get(pool)
        if times is None:
            times = self._pools[pool] = _Times()
            if len(self._pools) > _POOLS:
                self._pools.popitem(last=False)
        else:
            self._pools.move_to_end(pool)
        times.note(max(0.0, seconds))

    def p99_s(self, pool: PoolKey) -> float:
        """What 99 of 100 answers of the pool take; 0 while too few are known."""
        known = self._pools.get(pool)
        if known is None or len(known.ordered) < _TELLING:
            return 0.0
        return known.ordered[math.ceil(0.99 * len(known.ordered)) - 1]

    def silent_s(self, pool: PoolKey, *, least_s: float, factor: float) -> float:
        """How long an attempt of the pool may be silent."""
        return max(least_s, factor * self.p99_s(pool))

    def overdue_s(self, pool: PoolKey, *, least_s: float, factor: float, attempt: int) -> float:
        """How long an attempt (from 1) may take that is silent until its end; infinite: nothing is known."""
        p99_s = self.p99_s(pool)
        return max(least_s, factor * p99_s) * 2.0 ** (attempt - 1) if p99_s else math.inf
