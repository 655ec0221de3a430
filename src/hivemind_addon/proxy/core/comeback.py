"""Requests that come back: their places are kept, and their old attempts are ended.

A refusal asks the client to come back, and most do, with the same request under a new ticket; so do clients whose own
patience ended (Claude Code: after three minutes, see docs/endurance.md). It gets the place that the old one had: once
for each, and within ten minutes. Where an attempt for the old one still runs although its client has given up, it is
superseded: to be ended, and the new ticket waits for that.
"""

from dataclasses import dataclass

from hivemind_addon.api.ticket import Reservation, Ticket
from hivemind_addon.proxy.core.flights import Flights
from hivemind_addon.proxy.core.lanes import Standing

_KEPT_FOR_S = 600.0


@dataclass(frozen=True, slots=True)
class _Kept:
    standing: Standing
    until: float


class Comebacks:
    """One pool's kept places, oldest first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], list[_Kept]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def __repr__(self) -> str:
        return f"<Comebacks {len(self)} places kept>"

    def keep(self, ticket: Ticket, standing: Standing | None, now: float) -> None:
        """A ticket was shed, or its client went."""
        self._forget(now)
        if standing is not None and ticket.request_hash:
            kept = self._kept.pop((ticket.agent, ticket.request_hash), [])
            self._kept[ticket.agent, ticket.request_hash] = [*kept, _Kept(standing, now + _KEPT_FOR_S)]

    def claim(self, ticket: Ticket, now: float) -> Standing | None:
        """The place of an earlier ticket for the same request; None: it has none."""
        self._forget(now)
        kept = self._kept.get((ticket.agent, ticket.request_hash))
        if not kept:
            return None
        if len(kept) == 1:
            del self._kept[ticket.agent, ticket.request_hash]
        return kept.pop(0).standing

    def absorb(self, other: "Comebacks") -> None:
        """Another pool turned out to be of the same account. Its virtual time is another one: its places are void."""
        other._kept.clear()  # noqa: SLF001  its own kind

    def _forget(self, now: float) -> None:
        while self._kept:
            (name, kept) = next(iter(self._kept.items()))
            while kept and kept[0].until <= now:
                kept.pop(0)
            if kept:
                return
            del self._kept[name]


class Successors:
    """Tickets of one pool that wait for the end of an attempt for the same request, by that attempt's ticket."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __repr__(self) -> str:
        return f"<Successors {self._of}>"

    def supersede(self, ticket: Ticket, flights: Flights, now: float) -> Reservation | None:
        """The attempt that a new ticket is to wait for: its client has given up by now. None: there is none."""
        for flight in flights.alike(ticket):
            if now >= flight.place.shed_at and flight.ticket.id not in self._of:
                self._of[flight.ticket.id] = ticket.id
                return flight.reservation
        return None

    def of_ended(self, ticket_id: str) -> str:
        """Who waited for a ticket's attempt, which has ended; empty: nobody."""
        return self._of.pop(ticket_id, "")

    def absorb(self, other: "Successors") -> None:
        """Another pool turned out to be of the same account."""
        self._of |= other._of  # noqa: SLF001  its own kind
