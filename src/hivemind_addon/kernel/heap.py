"""A heap whose items may change their keys or leave: orders agents, timers and other waiting things.

Deleted entries leave the heap once they are first, or when they outnumber the living entries: O(log n) amortised per
change. Reading the first item, the most frequent operation, is reading an attribute.
"""

import heapq
from collections.abc import Hashable, Iterator

_NEVER = float("inf")
_STALE_ALLOWED = 16
"""A heap is swept when more than n + this many of its entries are deleted, n being the living entries."""


class KeyedHeap[Item: Hashable]:
    """Items by key: the smallest key first, then the smallest rank, then the earliest `put`."""

    __slots__ = ("_heap", "_living", "_puts", "first", "first_key")

    def __init__(self) -> None:
        self.first: Item | None = None
        """The first item; None if empty."""
        self.first_key = _NEVER
        """The first item's key; infinite if empty."""
        self._heap: list[tuple[float, int, int, Item]] = []
        self._living: dict[Item, tuple[float, int, int, Item]] = {}
        """Item → entry."""
        self._puts = 0

    def __contains__(self, item: Item) -> bool:
        return item in self._living

    def __iter__(self) -> Iterator[Item]:
        """The items in order, not to be changed meanwhile: the first k cost O(k log k)."""
        heap, children = self._heap, [0]
        ahead: list[tuple[tuple[float, int, int, Item], int]] = []
        while True:
            for child in children:
                if child < len(heap):
                    heapq.heappush(ahead, (heap[child], child))
            if not ahead:
                return
            entry, place = heapq.heappop(ahead)
            if self._living.get(entry[3]) is entry:
                yield entry[3]
            children = [2 * place + 1, 2 * place + 2]

    def put(self, item: Item, key: float, rank: int = 0) -> None:
        """Add an item, or change key and rank. If both are unchanged, the item keeps its place among equals."""
        known = self._living.get(item)
        if known is not None and known[0] == key and known[1] == rank:
            return
        self._puts += 1
        entry = self._living[item] = (key, rank, self._puts, item)
        heapq.heappush(self._heap, entry)
        self._tidy()

    def drop(self, item: Item) -> None:
        """Remove an item, if present."""
        if self._living.pop(item, None) is not None:
            self._tidy()

    def key_of(self, item: Item) -> float | None:
        """An item's key; None if absent."""
        entry = self._living.get(item)
        return None if entry is None else entry[0]

    def _tidy(self) -> None:
        """Bring a living entry to the front, and remove the deleted entries if there are too many."""
        heap, living = self._heap, self._living
        while heap and living.get(heap[0][3]) is not heap[0]:
            heapq.heappop(heap)
        if len(heap) > 2 * len(living) + _STALE_ALLOWED:
            heap[:] = living.values()
            heapq.heapify(heap)
        self.first_key, self.first = (heap[0][0], heap[0][3]) if heap else (_NEVER, None)
