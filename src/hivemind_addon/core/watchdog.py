"""How long a streamed answer may be silent before it counts as hanging: learned from how long first bytes take."""

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from hivemind_addon.core.ticket import PoolKey

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


class FirstBytes:
    """Times from an attempt's start to the head of its answer, by pool. Bounded."""

    def __init__(self) -> None:
        self._pools: OrderedDict[PoolKey, _Times] = OrderedDict()

    def __repr__(self) -> str:
        return f"<FirstBytes of {len(self._pools)} pools>"

    def note(self, pool: PoolKey, seconds: float) -> None:
        """A streamed attempt's answer began."""
        self._pools.setdefault(pool, _Times()).note(max(0.0, seconds))
        self._pools.move_to_end(pool)
        if len(self._pools) > _POOLS:
            self._pools.popitem(last=False)

    def p99_s(self, pool: PoolKey) -> float:
        """What 99 of 100 answers of the pool take; 0 while too few are known."""
        known = self._pools.get(pool)
        if known is None or len(known.ordered) < _TELLING:
            return 0.0
        return known.ordered[math.ceil(0.99 * len(known.ordered)) - 1]

    def silent_s(self, pool: PoolKey, *, least_s: float, factor: float) -> float:
        """How long an attempt of the pool may be silent."""
        return max(least_s, factor * self.p99_s(pool))
