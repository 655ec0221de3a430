from msgspec.structs import replace

from hivemind_addon.api.ticket import Demand, Reservation
from hivemind_addon.proxy.core.lanes import Flight, Flights, Place
from tests.core.samples import ticket


def flight(ticket_id: str = "a", *, attempt: int = 1, request_hash: str = "h") -> Flight:
    its = replace(ticket(ticket_id, session="s"), request_hash=request_hash)
    return Flight(
        place=Place(ticket=its, wait_began_at=0),
        reservation=Reservation(ticket=its, attempt=attempt, admitted_at=5),
        demand=Demand(),
        stamp=1,
        in_flight=1,
        is_probe=False,
    )


def test_an_attempt_is_found_by_its_reservation_until_it_ends():
    flights, one = Flights(), flight()
    flights.add(one)
    assert flights.of(one.reservation) is one
    assert (len(flights), list(flights)) == (1, [one])
    flights.remove(one)
    assert flights.of(one.reservation) is None
    assert len(flights) == 0


def test_another_attempt_of_the_same_ticket_is_another_one():
    flights = Flights()
    flights.add(flight(attempt=2))
    assert flights.of(flight(attempt=1).reservation) is None


def test_attempts_for_the_same_request_are_alike():
    flights, first, second, other = Flights(), flight("a"), flight("b"), flight("c", request_hash="other")
    for one in (first, second, other):
        flights.add(one)
    assert list(flights.alike(flight("d").ticket)) == [first, second]
    flights.remove(first)
    flights.remove(second)
    assert list(flights.alike(flight("d").ticket)) == []


def test_without_a_hash_nothing_is_alike():
    flights = Flights()
    flights.add(flight("a", request_hash=""))
    assert list(flights.alike(flight("b", request_hash="").ticket)) == []
