"""How long an attempt may be silent before it counts as hanging: as long as its client waits, or as others were.

    nothing has come; streamed, or whole answers known   max(silent_s, factor * p99 of the times to this point)
    a good head has come; or nothing, and few are known  max(begun_s, silent_s, factor * p99 of the longest silences)

Each attempt that hung before it doubles the time. A whole answer comes at its end, so its time to the first byte is the
time of all of it. What is learned only adds to the time.
"""

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from hivemind_addon.formats.profile.model import Watchdog
from hivemind_addon.kernel.values.ticket import PoolKey

_KEPT = 200
"""Newest answers of a pool that are looked at."""
_POOLS = 256
_TELLING = 20
"""Fewer answers say nothing about their slowest."""
LEAST_BEGUN_S = 900.0
"""Models think for ten minutes (2026-11). Where `begun_s` states nothing, a client may wait longer than is known."""


def may_be_silent_s(
    watchdog: Watchdog, *, streamed: bool, begun: bool, usual_s: float, patience_s: float, stalls: int
) -> float:
    """How long an attempt may be silent from the last byte on.

    `begun`: the head of a good answer came. `usual_s`: 99 of 100 answers of the model take no longer, 0 while few are
    known: to the head, after it, or to the end where they are whole. `stalls`: attempts of the request that hung.
    """
    least_s = watchdog.silent_s
    if begun or not (streamed or usual_s):
        least_s = max(least_s, watchdog.begun_s or max(LEAST_BEGUN_S, patience_s))
    return max(least_s, watchdog.factor * usual_s) * 2.0**stalls


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
    """How long attempts of a pool, or of a model, take: to the head, to the end, or from piece to piece. Bounded."""

    def __init__(self) -> None:
        self._pools: OrderedDict[PoolKey, _Times] = OrderedDict()

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
