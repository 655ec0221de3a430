"""The tickets of one pool that have been tried and wait again: what is kept for them.

In a fixed window units would be gone by the time a backoff is over, and the ticket would wait for the next window. So
others leave them what they will want, if they are due in time; at most half of the window, and nothing in a bucket,
where no unit is lost by waiting.
"""

from collections.abc import Callable, Iterator

from hivemind_addon.api.ticket import Demand, OutcomeKind, Ticket
from hivemind_addon.proxy.core.lanes import Place
from hivemind_addon.proxy.core.meter import Meter

_LATE_IN_WINDOW_S = 1.0
"""What is due so shortly before a window's end may miss it: no unit is kept for it."""


class Backoffs:
    """Queued tickets that have been tried, due or not."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._told: dict[str, OutcomeKind] = {}
        """Those that wait because a refusal of this kind told them to."""

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        """In the order in which they were put back."""
        return iter(self._places.values())

    def __repr__(self) -> str:
        return f"<Backoffs {len(self)}>"

    def add(self, place: Place, told_by: OutcomeKind | None = None) -> None:
        """A ticket is to be tried again; `told_by`: when, is what a refusal of this kind told."""
        self._places[place.ticket.id] = place
        if told_by is not None:
            self._told[place.ticket.id] = told_by

    def told_falsely(self, believes_told: Callable[[OutcomeKind, Demand], bool]) -> list[Place]:
        """Those that wait for what is no longer believed; each is named once."""
        if not self._told:
            return []
        told = [(self._places[ticket_id], kind) for ticket_id, kind in self._told.items()]
        found = [place for place, kind in told if not believes_told(kind, place.ticket.demand)]
        for place in found:
            del self._told[place.ticket.id]
        return found

    def discard(self, ticket_id: str) -> None:
        """It goes, or goes no more; nothing happens when it was never tried."""
        self._places.pop(ticket_id, None)
        self._told.pop(ticket_id, None)

    def absorb(self, other: "Backoffs") -> None:
        """Another pool turned out to be of the same account."""
        self._places |= other._places  # noqa: SLF001  its own kind
        self._told |= other._told  # noqa: SLF001

    def kept_of_meter(self, meter: Meter, ticket: Ticket, now: float) -> int:
        """Units of a meter that others will want before its window ends, as far as a ticket has to leave them."""
        if not self._places:
            return 0
        half = int(meter.limit / 2)
        ends_at = meter.window_ends_at(now)
        if ends_at is None or meter.level(now) >= ticket.demand.of(meter.dimension) + half:
            return 0
        coming = self._due_before(ends_at, ticket, now)
        return min(sum(place.ticket.demand.of(meter.dimension) for place in coming), half)

    def _due_before(self, ends_at: float, ticket: Ticket, now: float) -> Iterator[Place]:
        """Others that back off now and are due, in time, before a window ends."""
        return (
            place
            for place in self._places.values()
            if now < place.not_before < ends_at - _LATE_IN_WINDOW_S and place.ticket.id != ticket.id
        )
