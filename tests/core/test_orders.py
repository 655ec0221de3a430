import pytest

from hivemind_addon.core.orders import Orders
from hivemind_addon.core.snapshot import PriorityView
from hivemind_addon.core.ticket import PoolKey, Priority

ONE, TWO, OTHER = PoolKey("a.test", "k", "m"), PoolKey("a.test", "k", "n"), PoolKey("b.test", "k", "m")


@pytest.fixture
def orders():
    return Orders()


def paused(orders):
    return [orders.is_paused(key) for key in (ONE, TWO, OTHER)]


def test_nothing_is_ordered_at_first(orders):
    assert paused(orders) == [False] * 3
    assert orders.cap_of(ONE) is None
    assert orders.priority_of("x", Priority.LOW) is Priority.LOW
    assert orders.priorities == ()


def test_the_newest_order_that_matches_counts(orders):
    orders.pause("*", paused=True)
    orders.pause("a.test", paused=False)
    assert paused(orders) == [False, False, True]
    orders.pause("*/m", paused=True)
    assert paused(orders) == [True, False, True]
    orders.pause("*", paused=False)
    assert paused(orders) == [False] * 3


def test_caps_and_priorities_are_taken_back_alone(orders):
    orders.cap("*", 8)
    orders.cap("a.test", 2)
    assert (orders.cap_of(ONE), orders.cap_of(OTHER)) == (2, 8)
    orders.cap("a.test", None)
    assert (orders.cap_of(ONE), orders.cap_of(OTHER)) == (None, 8)
    orders.prefer("night-*", Priority.LOW)
    orders.prefer("night-1", Priority.HIGH)
    assert [orders.priority_of(name, Priority.NORMAL) for name in ("night-1", "night-2", "day")] == [
        Priority.HIGH,
        Priority.LOW,
        Priority.NORMAL,
    ]
    assert orders.priorities == (PriorityView("night-1", Priority.HIGH), PriorityView("night-*", Priority.LOW))


def test_orders_that_were_taken_back_are_forgotten(orders):
    for number in range(1000):
        orders.pause(f"pool-{number}", paused=True)
        orders.pause(f"pool-{number}", paused=False)
        orders.prefer("night-*", Priority.LOW)
        orders.prefer("night-*", None)
    assert repr(orders) == "<Orders [] [] []>"


def test_a_pool_that_swallows_another_inherits_what_is_stricter(orders):
    orders.cap("*/m", 5)
    orders.cap("*/n", 3)
    orders.pause("*/n", paused=True)
    orders.inherit(ONE, merged=TWO)
    assert orders.is_paused(ONE)
    assert orders.cap_of(ONE) == 3
    assert not orders.is_paused(OTHER)
    orders.inherit(TWO, merged=OTHER)
    assert orders.cap_of(TWO) == 3


def test_whether_a_pause_stands_for_pools_that_come(orders):
    assert not orders.pauses_for("*")
    orders.pause("a.test", paused=True)
    assert orders.pauses_for("a.test")
    assert orders.pauses_for("*")
    assert not orders.pauses_for("b.test")
