import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.order.entry import QueueEntry
from hivemind_addon.kernel.pool import KeptPositions
from tests.kernel.samples import ticket

ONE = replace(ticket("one"), request_hash="h")


def left(**more: str) -> QueueEntry:
    """The entry of one that has gone."""
    return QueueEntry(ticket=replace(ONE, **more), wait_began_at=0)


def test_a_place_is_given_back_once():
    kept, entry = KeptPositions(), left()
    kept.keep(entry, 0)
    assert kept.claim(replace(ONE, id="two"), 599) is entry
    assert kept.claim(replace(ONE, id="three"), 599) is None
    assert len(kept) == 0


def test_each_refusal_keeps_one():
    kept, entry = KeptPositions(), left()
    kept.keep(entry, 0)
    kept.keep(entry, 5)
    claims = [kept.claim(ONE, 10) for _ in range(3)]
    assert claims == [entry, entry, None]


def test_after_ten_minutes_it_is_forgotten():
    kept = KeptPositions()
    kept.keep(left(), 0)
    kept.keep(left(agent="other"), 300)
    assert kept.claim(ONE, 600) is None
    assert len(kept) == 1


@pytest.mark.parametrize("other", [{"agent": "other"}, {"request_hash": "other"}, {"request_hash": ""}])
def test_nobody_else_gets_it(other):
    kept = KeptPositions()
    kept.keep(left(), 0)
    assert kept.claim(replace(ONE, **other), 1) is None


def test_a_request_without_a_hash_keeps_nothing():
    kept = KeptPositions()
    kept.keep(left(request_hash=""), 0)
    assert len(kept) == 0
