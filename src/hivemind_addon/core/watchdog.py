"""How long a streamed answer may be silent before it counts as hanging: learned from how long first bytes take."""

import math
from collections import OrderedDict, deque

from hivemind_addon.core.ticket import PoolKey

_KEPT = 200
"""Newest answers of a pool that are looked at."""
_POOLS = 256
_TELLING = 20
"""Fewer answers say nothing about their slowest."""


class FirstBytes:
    """Times from an attempt's start to the head of its answer, by pool. Bounded."""

    def __init__(self) -> None:
        self._pools: OrderedDict[PoolKey, deque[float]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<FirstBytes of {len(self._pools)} pools>"

    def note(self, pool: PoolKey, seconds: float) -> None:
        """A streamed attempt's answer began."""
        known = self._pools.setdefault(pool, deque(maxlen=_KEPT))
        known.append(max(0.0, seconds))
        self._pools.move_to_end(pool)
        if len(self._pools) > _POOLS:
            self._pools.popitem(last=False)

    def p99_s(self, pool: PoolKey) -> float:
        """What 99 of 100 answers of the pool take; 0 while too few are known."""
        known = self._pools.get(pool, ())
        if len(known) < _TELLING:
            return 0.0
        return sorted(known)[math.ceil(0.99 * len(known)) - 1]

    def silent_s(self, pool: PoolKey, *, least_s: float, factor: float) -> float:
        """How long an attempt of the pool may be silent."""
        return max(least_s, factor * self.p99_s(pool))
