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
        heap, entry = self._heap, (key, rank, self._puts, item)
        self._living[item] = entry
        if known is not None and heap[0] is known:  # most often it is the first one that moves on
            heapq.heapreplace(heap, entry)
            self._find_first()
            return
        heapq.heappush(heap, entry)
        if heap[0] is entry:
            self.first_key, self.first = key, item
        if known is not None:
            self._sweep()

    def drop(self, item: Item) -> None:
        """Remove an item; nothing happens when it is not there."""
        entry = self._living.pop(item, None)
        if entry is None:
            return
        if self._heap[0] is entry:
            self._find_first()
        else:
            self._sweep()

    def key_of(self, item: Item) -> float | None:
        """An item's key; None when it is not there."""
        entry = self._living.get(item)
        return None if entry is None else entry[0]

    def _find_first(self) -> None:
        """The first entry has changed: have a living one first again."""
        heap, living = self._heap, self._living
        while heap and living.get(heap[0][3]) is not heap[0]:
            heapq.heappop(heap)
        if heap:
            self.first_key, _, _, self.first = heap[0]
        else:
            self.first_key, self.first = _NEVER, None

    def _sweep(self) -> None:
        """Another entry has changed, and is left where it is: have few of those."""
        if len(self._heap) > 2 * len(self._living) + _STALE_ALLOWED:
            self._heap = list(self._living.values())
            heapq.heapify(self._heap)
