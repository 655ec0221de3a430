import json

import pytest

from hivemind_addon.core.orders import Orders
from hivemind_addon.core.snapshot import PriorityView
from hivemind_addon.core.spend import Budget, Period, Scope
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
    assert orders.priorities(0.0) == ()


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
    assert orders.priorities(0.0) == (PriorityView("night-1", Priority.HIGH), PriorityView("night-*", Priority.LOW))


def test_orders_that_were_taken_back_are_forgotten(orders):
    for number in range(1000):
        orders.pause(f"pool-{number}", paused=True)
        orders.pause(f"pool-{number}", paused=False)
        orders.prefer("night-*", Priority.LOW)
        orders.prefer("night-*", None)
    assert repr(orders) == "<Orders [] [] [] []>"


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


def test_an_order_that_ends_by_itself_lies_on_the_older_ones(orders):
    orders.prefer("a", Priority.HIGH)
    orders.prefer("a", Priority.LOW, ends_at=10.0)
    orders.prefer("*", None, ends_at=5.0)
    assert (orders.priority_of("a", Priority.NORMAL), orders.ends_at) == (Priority.NORMAL, 5.0)
    orders.expire(5.0)
    assert (orders.priority_of("a", Priority.NORMAL), orders.ends_at) == (Priority.LOW, 10.0)
    assert orders.priorities(4.0)[0] == PriorityView("a", Priority.LOW, ends_in_s=6.0)
    orders.clock_jumped(4.0)
    assert orders.ends_at == 6.0
    orders.expire(6.0)
    assert (orders.priority_of("a", Priority.NORMAL), orders.ends_at) == (Priority.HIGH, float("inf"))


def test_an_order_for_good_replaces_one_that_would_end_and_the_same_one_again_lasts_longer(orders):
    orders.prefer("a", Priority.LOW, ends_at=10.0)
    orders.prefer("a", Priority.LOW, ends_at=20.0)
    assert (len(orders.priorities(0.0)), orders.ends_at) == (1, 20.0)
    orders.prefer("a", Priority.HIGH)
    assert orders.priorities(0.0) == (PriorityView("a", Priority.HIGH),)


def test_budgets_are_given_by_holder_and_period(orders):
    assert not orders.has_budgets
    orders.give(Budget(Scope.AGENT, "a*", Period.DAY, tokens=5))
    orders.give(Budget(Scope.AGENT, "ab", Period.HOUR, micro_usd=7))
    orders.give(Budget(Scope.GROUP, "a*", Period.DAY, tokens=9))
    assert orders.budgets_of(Scope.AGENT, "ab") == {
        Period.DAY: Budget(Scope.AGENT, "ab", Period.DAY, tokens=5),
        Period.HOUR: Budget(Scope.AGENT, "ab", Period.HOUR, micro_usd=7),
    }
    assert orders.budgets_of(Scope.GROUP, "ab") == {}
    orders.give(Budget(Scope.AGENT, "ab", Period.DAY))
    assert list(orders.budgets_of(Scope.AGENT, "ab")) == [Period.HOUR]
    assert list(orders.budgets_of(Scope.AGENT, "ac")) == [Period.DAY]
    for glob in ("a*", "ab"):
        for scope, per in ((Scope.AGENT, Period.DAY), (Scope.AGENT, Period.HOUR), (Scope.GROUP, Period.DAY)):
            orders.give(Budget(scope, glob, per))
    assert not orders.has_budgets
    assert orders.budgets == ()


def ordered():
    orders = Orders()
    orders.pause("a.test", paused=True)
    orders.cap("*", 8)
    orders.cap("a.test", None)
    orders.prefer("night-*", Priority.LOW)
    orders.prefer("now", Priority.HIGH, ends_at=9.0)
    orders.give(Budget(Scope.AGENT, "a*", Period.DAY, tokens=5, micro_usd=6))
    orders.give(Budget(Scope.AGENT, "ab", Period.DAY))
    orders.give(Budget(Scope.EVERYONE, "", Period.RUN, micro_usd=7))
    return orders


def test_what_stands_outlives_a_run_and_what_ends_by_itself_does_not(orders):
    saved = json.loads(json.dumps(ordered().export()))
    assert orders.restore(saved) == []
    assert orders.export() == saved
    assert paused(orders) == [True, True, False]
    assert (orders.cap_of(ONE), orders.cap_of(OTHER)) == (None, 8)
    assert orders.priorities(0.0) == (PriorityView("night-*", Priority.LOW),)
    assert orders.budgets_of(Scope.AGENT, "ab") == {}
    assert orders.budgets_of(Scope.AGENT, "ac")[Period.DAY].tokens == 5
    assert orders.budgets_of(Scope.EVERYONE, "")[Period.RUN].micro_usd == 7


def test_what_takes_back_only_an_order_for_a_while_does_not_outlive_a_run(orders):
    orders.prefer("a*", Priority.HIGH, ends_at=9.0)
    orders.prefer("ab", None)
    assert orders.export()["priorities"] == []


def test_what_stands_is_told_in_a_line_with_what_takes_it_back(orders):
    assert orders.words == ""
    assert ordered().words == (
        "paused: a.test (`hivemind resume`); at most at once: 8 in *, but not a.test (`hivemind limit auto`); "
        "priorities: now high, night-* low; budgets: agent a*, everyone"
    )
    for number in range(9):
        orders.prefer(f"agent-{number}", Priority.LOW)
    assert orders.words.endswith("agent-4 low and 4 more")


def test_what_was_ordered_since_counts_before_what_is_restored(orders):
    orders.cap("a.test", 3)
    orders.pause("a.test", paused=True)
    orders.give(Budget(Scope.AGENT, "ac", Period.DAY, tokens=1))
    assert orders.restore(ordered().export()) == []
    assert (orders.cap_of(ONE), orders.cap_of(OTHER)) == (3, 8)
    assert orders.budgets_of(Scope.AGENT, "ac")[Period.DAY].tokens == 1
    assert orders.budgets_of(Scope.AGENT, "ad")[Period.DAY].tokens == 5


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        ("pauses", ["x", 1]),
        ("pauses", "x"),
        ("caps", ["x", 0]),
        ("caps", ["x", True]),
        ("caps", [3, 3]),
        ("priorities", ["x", "loud"]),
        ("priorities", {"x": "low"}),
        ("budgets", []),
        ("budgets", {"scope": "agent", "name": "x", "per": "year", "tokens": 1, "micro_usd": None}),
        ("budgets", {"scope": "agent", "name": "x", "per": "day", "tokens": -1, "micro_usd": None}),
        ("budgets", {"scope": "agent", "name": "x", "per": "day", "tokens": 1}),
    ],
)
def test_an_order_that_cannot_be_read_is_named_and_the_others_stand(orders, name, damaged):
    saved = json.loads(json.dumps(ordered().export()))
    whole = json.loads(json.dumps(saved))
    saved[name].append(damaged)
    (oddity,) = orders.restore(saved)
    assert name in oddity
    assert orders.export() == whole


@pytest.mark.parametrize("damaged", [None, [], {}, {"version": 2}, "x"])
def test_orders_of_another_kind_are_named_and_none_stands(orders, damaged):
    assert len(orders.restore(damaged)) == 1
    assert repr(orders) == "<Orders [] [] [] []>"
