"""A heap whose items may change their keys or leave: orders lanes, timers and other waiting things.

Deleted entries leave the heap at once if first, else when they outnumber the living entries: O(log n) amortised per
change. Reading the first item, the most frequent operation, is reading an attribute. A single item is kept in
attributes alone; the heap is made for the second item.
"""

import heapq
from collections.abc import Hashable, Iterator
from typing import Any, Never

_NEVER = float("inf")
_STALE_ALLOWED = 16
"""A heap is swept when more than n + this many of its entries are deleted, n being the living entries."""


class KeyedHeap[Item: Hashable]:
    """Items by key: the smallest key first, then the smallest rank, then the earliest `put`."""

    __slots__ = ("_first_rank", "_heap", "_living", "_puts", "first", "first_key")

    def __init__(self) -> None:
        self.first: Item | None = None
        """The first item; None if empty."""
        self.first_key = _NEVER
        """The first item's key; infinite if empty."""
        self._first_rank = 0
        """The rank of a single item."""
        self._heap: list[tuple[float, int, int, Item]] | None = None
        """None until a second item comes, and again after the last item has left."""
        self._living: dict[Item, tuple[float, int, int, Item]] | None = None
        """Item → entry; None if the heap is None."""
        self._puts = 0

    def __len__(self) -> int:
        return (self.first is not None) if self._living is None else len(self._living)

    def __contains__(self, item: Item) -> bool:
        return (self.first is not None and self.first == item) if self._living is None else item in self._living

    def __iter__(self) -> Iterator[Item]:
        """In no order."""
        if self._living is None:
            return iter(() if self.first is None else (self.first,))
        return iter(self._living)

    def __repr__(self) -> str:
        return f"<KeyedHeap {len(self)} living, {len(self) if self._heap is None else len(self._heap)} stored>"

    def put(self, item: Item, key: float, rank: int = 0) -> None:
        """Add an item, or change key and rank. If both are unchanged, the item keeps its place among equals."""
        heap, living = self._heap, self._living
        if heap is None or living is None:
            if self.first is None or self.first == item:
                self.first, self.first_key, self._first_rank = item, key, rank
                return
            entry = (self.first_key, self._first_rank, 0, self.first)
            heap, living = self._heap, self._living = [entry], {self.first: entry}
        known = living.get(item)
        if known is not None and known[0] == key and known[1] == rank:
            return
        self._puts += 1
        entry = (key, rank, self._puts, item)
        living[item] = entry
        if known is not None and heap[0] is known:  # most changes concern the first item
            heapq.heapreplace(heap, entry)
            self._find_first(heap, living)
            return
        heapq.heappush(heap, entry)
        if heap[0] is entry:
            self.first_key, self.first = key, item
        if known is not None:
            self._sweep(heap, living)

    def drop(self, item: Item) -> None:
        """Remove an item, if present."""
        heap, living = self._heap, self._living
        if heap is None or living is None:
            if self.first is not None and self.first == item:
                self.first, self.first_key = None, _NEVER
            return
        entry = living.pop(item, None)
        if entry is None:
            return
        if not living:
            self.first, self.first_key, self._heap, self._living = None, _NEVER, None, None
        elif heap[0] is entry:
            self._find_first(heap, living)
        else:
            self._sweep(heap, living)

    def key_of(self, item: Item) -> float | None:
        """An item's key; None if absent."""
        if self._living is None:
            return self.first_key if item in self else None
        entry = self._living.get(item)
        return None if entry is None else entry[0]

    def _find_first(
        self, heap: list[tuple[float, int, int, Item]], living: dict[Item, tuple[float, int, int, Item]]
    ) -> None:
        """After a change of the first entry of a non-empty heap: bring a living entry to the front."""
        while living.get(heap[0][3]) is not heap[0]:
            heapq.heappop(heap)
        self.first_key, _, _, self.first = heap[0]

    def _sweep(
        self, heap: list[tuple[float, int, int, Item]], living: dict[Item, tuple[float, int, int, Item]]
    ) -> None:
        """After a change of another entry: remove the deleted entries if there are too many."""
        if len(heap) > 2 * len(living) + _STALE_ALLOWED:
            self._heap = list(living.values())
            heapq.heapify(self._heap)


class _Nothing(KeyedHeap[Any]):
    __slots__ = ()

    def put(self, item: object, key: float, rank: int = 0) -> Never:  # noqa: ARG002
        raise TypeError("it stands for an empty heap: put into one of your own")


NOTHING = _Nothing()
"""Stands for a heap that is still empty, because most heaps stay empty."""
