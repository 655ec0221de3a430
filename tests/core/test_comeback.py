import pytest
from msgspec.structs import replace

from hivemind_addon.core.comeback import Comebacks
from hivemind_addon.core.fair_queue import FairQueue, OrderSettings
from hivemind_addon.core.lanes import Place, Standing
from tests.core.samples import ticket

ONE = replace(ticket("one"), request_hash="h")


def standing() -> Standing:
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
