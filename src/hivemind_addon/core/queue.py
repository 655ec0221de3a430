"""The order of one pool's tickets: first submitted, first served.

- A ticket keeps its place from its first submit to its end, through every backoff.
- A ticket that is not due (it backs off) does not block the ones behind it.
- A due ticket at the head blocks the ones behind it until it fits: small tickets never starve a large one.

Every operation is O(log n). Entries are deleted lazily and swept when they outnumber the living ones.
"""

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from hivemind_addon.core.retry import History
from hivemind_addon.core.ticket import Ticket

_STALE_ALLOWED = 64
"""Deleted entries that a heap may carry beside as many as it has living ones, before it is swept."""


class KeyedHeap[Item: Hashable]:
    """Items by a key that may change or vanish; the smallest first, among equals the one put first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._living: dict[Item, tuple[float, int, Item]] = {}
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

    def put(self, item: Item, key: float) -> None:
        """Add an item, or change its key."""
        self._puts += 1
        entry = (key, self._puts, item)
        self._living[item] = entry
        heapq.heappush(self._heap, entry)
        self._sweep()

    def drop(self, item: Item) -> None:
        """Remove an item; nothing happens when it is not there."""
        if self._living.pop(item, None) is not None:
            self._sweep()

    def first(self) -> tuple[float, Item] | None:
        """The smallest key and its item."""
        while self._heap and self._living.get(self._heap[0][2]) is not self._heap[0]:
            heapq.heappop(self._heap)
        return (self._heap[0][0], self._heap[0][2]) if self._heap else None

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._living) + _STALE_ALLOWED or not self._living:
            self._heap = list(self._living.values())
            heapq.heapify(self._heap)


@dataclass(slots=True, eq=False)
class Place:
    """A ticket in its pool, from submit to its end; in the queue while it waits."""

    ticket: Ticket
    wait_began_at: float
    """When it arrived, or when its last attempt ended."""
    order: int = 0
    """Smaller goes first. Set by the queue."""
    not_before: float = float("-inf")
    """It backs off until this instant."""
    history: History = field(default_factory=History)
    waited_s: float = 0.0
    """Sum of the waits that are over."""


class Queue:
    """The waiting tickets of one pool."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._due: KeyedHeap[str] = KeyedHeap()
        self._later: KeyedHeap[str] = KeyedHeap()
        self._shed: KeyedHeap[str] = KeyedHeap()
        self._last_order = 0
        self._first_order = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, ticket_id: str) -> bool:
        return ticket_id in self._places

    def __repr__(self) -> str:
        return f"<Queue {len(self._due)} due, {len(self._later)} backing off>"

    def append(self, place: Place) -> None:
        """Put a new ticket behind all others."""
        self._last_order += 1
        place.order = self._last_order
        self._insert(place)

    def put_back(self, place: Place, not_before: float) -> None:
        """Put a ticket back at its old place; it is due at `not_before`."""
        place.not_before = not_before
        self._insert(place)

    def get(self, ticket_id: str) -> Place | None:
        """A waiting ticket's place."""
        return self._places.get(ticket_id)

    def remove(self, ticket_id: str) -> Place | None:
        """Take a ticket out; None when it is not waiting."""
        place = self._places.pop(ticket_id, None)
        if place is not None:
            self._due.drop(ticket_id)
            self._later.drop(ticket_id)
            self._shed.drop(ticket_id)
        return place

    def expedite(self, ticket_id: str) -> bool:
        """Move a ticket before all others. It still backs off as long as it has to."""
        place = self._places.get(ticket_id)
        if place is None:
            return False
        self._first_order -= 1
        place.order = self._first_order
        if ticket_id in self._due:
            self._due.put(ticket_id, place.order)
        return True

    def wake(self, now: float) -> None:
        """Let the tickets whose backoff is over take part again."""
        while (first := self._later.first()) and first[0] <= now:
            self._later.drop(first[1])
            self._due.put(first[1], self._places[first[1]].order)

    def head(self) -> Place | None:
        """The first due ticket."""
        first = self._due.first()
        return None if first is None else self._places[first[1]]

    def head_of_others(self, session: str | None) -> Place | None:
        """The first due ticket that is not of this session. O(n): asked once per probe."""
        others = (place for ticket_id in self._due if (place := self._places[ticket_id]).ticket.session != session)
        return min(others, key=lambda place: place.order, default=None)

    def soonest(self) -> Place | None:
        """Of the tickets that back off, the one that is due first."""
        first = self._later.first()
        return None if first is None else self._places[first[1]]

    def next_due_at(self) -> float:
        """When the next backoff ends; infinite when none is running."""
        first = self._later.first()
        return float("inf") if first is None else first[0]

    def next_shed_at(self) -> float:
        """The earliest `shed_at` of all waiting tickets; infinite when none waits."""
        first = self._shed.first()
        return float("inf") if first is None else first[0]

    def first_to_shed(self, now: float) -> Place | None:
        """A ticket whose `shed_at` has come."""
        first = self._shed.first()
        return None if first is None or first[0] > now else self._places[first[1]]

    def in_order(self) -> list[Place]:
        """All waiting tickets, due or not. O(n log n): for snapshots and for stopping."""
        return sorted(self._places.values(), key=lambda place: place.order)

    def _insert(self, place: Place) -> None:
        ticket_id = place.ticket.id
        self._places[ticket_id] = place
        self._later.put(ticket_id, place.not_before)
        self._shed.put(ticket_id, place.ticket.shed_at)
