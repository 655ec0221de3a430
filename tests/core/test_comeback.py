import pytest
from msgspec.structs import replace

from hivemind_addon.api.ticket import Demand, Reservation
from hivemind_addon.proxy.core.fair_queue import FairQueue, OrderSettings
from hivemind_addon.proxy.core.lanes import Flight, Flights, Place, PlaceWorth
from hivemind_addon.proxy.core.pool import Comebacks, Successors
from tests.core.samples import ticket

ONE = replace(ticket("one"), request_hash="h")


def standing() -> PlaceWorth:
    queue = FairQueue(OrderSettings(), cost_s=lambda _: 1.0, saved_s=lambda _: 0.0)
    queue.append(Place(ticket=ONE, wait_began_at=0), 0)
    place = queue.remove("one", 0)
    assert place is not None
    assert place.standing is not None
    return place.standing


def test_a_place_is_given_back_once():
    kept, place = Comebacks(), standing()
    kept.keep(ONE, place, 0)
    assert kept.claim(replace(ONE, id="two"), 599) is place
    assert kept.claim(replace(ONE, id="three"), 599) is None
    assert len(kept) == 0


def test_each_refusal_keeps_one():
    kept, place = Comebacks(), standing()
    kept.keep(ONE, place, 0)
    kept.keep(ONE, place, 5)
    claims = [kept.claim(ONE, 10) for _ in range(3)]
    assert claims == [place, place, None]


def test_after_ten_minutes_it_is_forgotten():
    kept = Comebacks()
    kept.keep(ONE, standing(), 0)
    kept.keep(replace(ONE, agent="other"), standing(), 300)
    assert kept.claim(ONE, 600) is None
    assert len(kept) == 1


@pytest.mark.parametrize("other", [{"agent": "other"}, {"request_hash": "other"}, {"request_hash": ""}])
def test_nobody_else_gets_it(other):
    kept = Comebacks()
    kept.keep(ONE, standing(), 0)
    assert kept.claim(replace(ONE, **other), 1) is None


def test_a_request_without_a_hash_keeps_nothing():
    kept = Comebacks()
    kept.keep(replace(ONE, request_hash=""), standing(), 0)
    assert len(kept) == 0


class TestSuccessors:
    def flights(self, *, shed_at: float = 30.0) -> Flights:
        """One attempt, for `ONE`."""
        place = Place(ticket=replace(ONE, shed_at=shed_at), wait_began_at=0)
        flights = Flights()
        flights.add(
            Flight(
                place=place,
                reservation=Reservation(ticket=place.ticket, attempt=1, admitted_at=0),
                demand=Demand(),
                stamp=1,
                in_flight=1,
                is_probe=False,
            )
        )
        return flights

    def test_an_attempt_whose_client_has_given_up_is_superseded_once(self):
        successors, flights = Successors(), self.flights()
        old = successors.supersede(replace(ONE, id="two"), flights, 30.0)
        assert old is not None
        assert old.ticket.id == "one"
        assert successors.supersede(replace(ONE, id="three"), flights, 31.0) is None
        assert successors.of_ended("one") == "two"
        assert successors.of_ended("one") == ""

    def test_one_whose_client_still_waits_is_not(self):
        successors = Successors()
        assert successors.supersede(replace(ONE, id="two"), self.flights(), 29.9) is None
        assert len(successors) == 0

    def test_another_pool_brings_its_own(self):
        one, other = Successors(), Successors()
        other.supersede(replace(ONE, id="two"), self.flights(), 30.0)
        one.absorb(other)
        assert one.of_ended("one") == "two"
