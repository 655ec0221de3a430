"""The attempts of one pool that are upstream, by ticket and by what they ask for."""

from collections.abc import Iterator

from msgspec import Struct

from hivemind_addon.api.ticket import Demand, Reservation, Ticket
from hivemind_addon.proxy.core.lanes import Place


class Flight(Struct, frozen=True):
    """One attempt upstream."""

    place: Place
    reservation: Reservation
    demand: Demand
    """What is reserved for it."""
    stamp: int
    """Counts the pool's admissions and settles: what a header can know."""
    in_flight: int
    """Attempts of the pool at its admission, itself counted."""
    is_probe: bool

    @property
    def ticket(self) -> Ticket:
        """Whose attempt it is."""
        return self.reservation.ticket


class Flights:
    """Each ticket has one at most."""

    def __init__(self) -> None:
        self._by_ticket: dict[str, Flight] = {}
        self._by_request: dict[tuple[str, str], dict[str, Flight]] = {}
        """By agent and hash: several at one time are nobody's mistake."""

    def __len__(self) -> int:
        return len(self._by_ticket)

    def __iter__(self) -> Iterator[Flight]:
        """The oldest first."""
        return iter(self._by_ticket.values())

    def __repr__(self) -> str:
        return f"<Flights {len(self)}>"

    def of(self, reservation: Reservation) -> Flight | None:
        """The attempt of a reservation; None: it has ended."""
        flight = self._by_ticket.get(reservation.ticket.id)
        return flight if flight is not None and flight.reservation.attempt == reservation.attempt else None

    def of_ticket(self, ticket_id: str) -> Flight | None:
        """A ticket's attempt; None: it has none upstream."""
        return self._by_ticket.get(ticket_id)

    def add(self, flight: Flight) -> None:
        """An attempt was sent."""
        ticket = flight.ticket
        self._by_ticket[ticket.id] = flight
        self._by_request.setdefault((ticket.agent, ticket.request_hash), {})[ticket.id] = flight

    def remove(self, flight: Flight) -> None:
        """It has ended."""
        ticket = flight.ticket
        del self._by_ticket[ticket.id]
        alike = self._by_request[ticket.agent, ticket.request_hash]
        del alike[ticket.id]
        if not alike:
            del self._by_request[ticket.agent, ticket.request_hash]

    def alike(self, ticket: Ticket) -> Iterator[Flight]:
        """Attempts for the same request of the same agent; none where its hash is unknown."""
        return iter(
            self._by_request.get((ticket.agent, ticket.request_hash), {}).values() if ticket.request_hash else ()
        )
