"""A heap whose items may change their key or leave: the order within a lane, of timers, of whatever waits.

Entries are deleted lazily, the first ones at once and the others when they outnumber the living ones: O(log n)
amortised per change. To look at the first item, which is done most often, is to read an attribute.
"""

import heapq
from collections.abc import Hashable, Iterator

_NEVER = float("inf")
_STALE_ALLOWED = 16
"""Deleted entries that a heap may carry beside as many as it has living ones, before it is swept."""


class KeyedHeap[Item: Hashable]:
    """Items by a key that may change or vanish; the smallest first, then by rank, then the one put first."""

    __slots__ = ("_heap", "_living", "_puts", "first", "first_key")

    def __init__(self) -> None:
        self.first: Item | None = None
        """None when it is empty."""
        self.first_key = _NEVER
        """Infinite when it is empty."""
        self._heap: list[tuple[float, int, int, Item]] = []
        self._living: dict[Item, tuple[float, int, int, Item]] = {}
        self._puts = 0

    def __len__(self) -> int:
        return len(self._living)

    def __contains__(self, item: Item) -> bool:
        return item in self._living

    def __iter__(self) -> Iterator[Item]:
        """In no order."""
        return iter(self._living)

    def __repr__(self) -> str:
        return f"<KeyedHeap {len(self._living)} living, {len(self._heap)} stored>"

    def put(self, item: Item, key: float, rank: int = 0) -> None:
        """Add an item, or change its key. With the key and rank that it has it keeps its place among equals."""
        known = self._living.get(item)
        if known is not None and known[0] == key and known[1] == rank:
            return
        self._puts += 1
        entry = (key, rank, self._puts, item)
        self._living[item] = entry
        if known is None:
            heapq.heappush(self._heap, entry)
            if self._heap[0] is entry:
                self.first_key, self.first = key, item
            return
        if self._heap[0] is known:  # most often it is the first one that moves on
            heapq.heapreplace(self._heap, entry)
        else:
            heapq.heappush(self._heap, entry)
        self._tidy()

    def drop(self, item: Item) -> None:
        """Remove an item; nothing happens when it is not there."""
        if self._living.pop(item, None) is not None:
            self._tidy()

    def key_of(self, item: Item) -> float | None:
        """An item's key; None when it is not there."""
        entry = self._living.get(item)
        return None if entry is None else entry[0]

    def _tidy(self) -> None:
        """Have a living entry first, and few deleted ones."""
        heap, living = self._heap, self._living
        if len(heap) > 2 * len(living) + _STALE_ALLOWED:
            self._heap = heap = list(living.values())
            heapq.heapify(heap)
        while heap and living.get(heap[0][3]) is not heap[0]:
            heapq.heappop(heap)
        if heap:
            self.first_key, _, _, self.first = heap[0]
        else:
            self.first_key, self.first = _NEVER, None
