import json

import pytest

from hivemind_addon.api.snapshot import GivenBudget, PriorityView
from hivemind_addon.api.spend import Budget, Period, Scope
from hivemind_addon.api.ticket import PoolKey, Priority
from hivemind_addon.proxy.core.orders import Orders, time_words

ONE, TWO, OTHER = PoolKey("a.test", "k", "m"), PoolKey("a.test", "k", "n"), PoolKey("b.test", "k", "m")

EPOCH = 1_800_000_000.0
"""The wall clock at the instant 0, or at that of saving."""


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
    orders.expire(10.0)
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


def test_what_stands_outlives_a_run(orders):
    saved = json.loads(json.dumps(ordered().export(0.0, EPOCH)))
    assert orders.restore(saved, 0.0, EPOCH) == []
    assert orders.export(0.0, EPOCH) == saved
    assert paused(orders) == [True, True, False]
    assert (orders.cap_of(ONE), orders.cap_of(OTHER)) == (None, 8)
    assert orders.priorities(0.0) == (
        PriorityView("now", Priority.HIGH, ends_in_s=9.0),
        PriorityView("night-*", Priority.LOW),
    )
    assert orders.budgets_of(Scope.AGENT, "ab") == {}
    assert orders.budgets_of(Scope.AGENT, "ac")[Period.DAY].tokens == 5
    assert orders.budgets_of(Scope.EVERYONE, "")[Period.RUN].micro_usd == 7


@pytest.mark.parametrize(
    ("away_s", "left_s"),
    [
        (0.0, 100.0),
        (60.0, 40.0),
        (99.5, 0.5),
        (100.0, None),
        (86_400.0, None),
        (-3600.0, 100.0),  # a clock that was set back makes no order longer
    ],
)
def test_an_order_for_a_while_goes_on_after_a_restart_for_what_is_left_by_the_wall_clock(orders, away_s, left_s):
    before = Orders()
    before.prefer("a", Priority.HIGH)
    before.prefer("a", Priority.LOW, ends_at=600.0, by="planner")
    saved = json.loads(json.dumps(before.export(500.0, EPOCH)))
    assert orders.restore(saved, 7.0, EPOCH + away_s) == []
    high = PriorityView("a", Priority.HIGH)
    low = () if left_s is None else (PriorityView("a", Priority.LOW, ends_in_s=left_s, by="planner"),)
    assert orders.priorities(7.0) == (*low, high)
    assert orders.ends_at == (float("inf") if left_s is None else 7.0 + left_s)
    orders.expire(107.0)
    assert orders.priorities(107.0) == (high,)


def test_what_is_over_is_not_saved_and_neither_is_what_takes_back_only_that(orders):
    orders.prefer("a*", Priority.HIGH, ends_at=9.0)
    orders.prefer("ab", None)
    assert [saved[0] for saved in orders.export(8.0, EPOCH)["priorities"]] == ["ab", "a*"]
    assert orders.export(9.0, EPOCH)["priorities"] == []


def test_who_asked_is_kept_over_a_restart(orders):
    before = Orders()
    before.prefer("a", Priority.LOW, by="planner")
    before.give(Budget(Scope.EVERYONE, "", Period.DAY, tokens=5), by="planner")
    before.give(Budget(Scope.AGENT, "b", Period.DAY, tokens=6))
    saved = json.loads(json.dumps(before.export(0.0, EPOCH)))
    orders.give(Budget(Scope.GROUP, "g", Period.DAY, tokens=7), by="since")
    assert orders.restore(saved, 0.0, EPOCH) == []
    assert orders.priorities(0.0) == (PriorityView("a", Priority.LOW, by="planner"),)
    assert {given.budget.holder: given.by for given in orders.budgets} == {
        "agent b": "",
        "group g": "since",
        "everyone": "planner",
    }


def test_orders_of_a_journal_that_does_not_say_who_asked_stand(orders):
    saved = {
        "version": 1,
        "priorities": [["a", "low"]],
        "budgets": [{"scope": "everyone", "name": "", "per": "day", "tokens": 5, "micro_usd": None}],
    }
    assert orders.restore(saved, 0.0, EPOCH) == []
    assert orders.priorities(0.0) == (PriorityView("a", Priority.LOW),)
    assert orders.budgets == (GivenBudget(Budget(Scope.EVERYONE, "", Period.DAY, tokens=5)),)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.5, "0.5 s"),
        (90, "90 s"),
        (300, "5 min"),
        (299.97, "5 min"),
        (310, "310 s"),
        (3599, "1 h"),
        (3600, "1 h"),
        (5400, "90 min"),
        (5460, "91 min"),
        (172_800, "2 d"),
    ],
)
def test_a_time_in_words(seconds, words):
    assert time_words(seconds) == words


def test_what_stands_is_told_in_a_line_with_what_takes_it_back(orders):
    assert orders.words(0.0) == ""
    assert ordered().words(5.0) == (
        "paused: a.test (`hivemind resume`); at most at once: 8 in *, but not a.test (`hivemind limit auto`); "
        "priorities: now high for 4 s, night-* low; budgets: agent a*, everyone"
    )
    orders.prefer("a", Priority.LOW, ends_at=594.1)
    assert orders.words(0.0) == "priorities: a low for 10 min"
    for number in range(9):
        orders.prefer(f"agent-{number}", Priority.LOW)
    assert orders.words(0.0).endswith("agent-4 low and 5 more")


def test_what_was_ordered_since_counts_before_what_is_restored(orders):
    orders.cap("a.test", 3)
    orders.pause("a.test", paused=True)
    orders.give(Budget(Scope.AGENT, "ac", Period.DAY, tokens=1))
    assert orders.restore(ordered().export(0.0, EPOCH), 0.0, EPOCH) == []
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
        ("priorities", ["x", "low", {"until": "soon", "left_s": 5}]),
        ("priorities", ["x", "low", {"until": float("nan"), "left_s": 5}]),
        ("priorities", ["x", "low", {"until": 5}]),
        ("priorities", ["x", "low", 5]),
        ("budgets", []),
        ("budgets", {"scope": "agent", "name": "x", "per": "year", "tokens": 1, "micro_usd": None}),
        ("budgets", {"scope": "agent", "name": "x", "per": "day", "tokens": -1, "micro_usd": None}),
        ("budgets", {"scope": "agent", "name": "x", "per": "day", "tokens": 1}),
    ],
)
def test_an_order_that_cannot_be_read_is_named_and_the_others_stand(orders, name, damaged):
    saved = json.loads(json.dumps(ordered().export(0.0, EPOCH)))
    whole = json.loads(json.dumps(saved))
    saved[name].append(damaged)
    (oddity,) = orders.restore(saved, 0.0, EPOCH)
    assert name in oddity
    assert orders.export(0.0, EPOCH) == whole


@pytest.mark.parametrize("damaged", [None, [], {}, {"version": 2}, "x"])
def test_orders_of_another_kind_are_named_and_none_stands(orders, damaged):
    assert len(orders.restore(damaged, 0.0, EPOCH)) == 1
    assert repr(orders) == "<Orders [] [] [] []>"


def test_every_order_about_pools_is_told_be_there_such_a_pool_or_not():
    orders = Orders()
    assert orders.about_pools == ()
    orders.pause("nosuch.test", paused=True)
    for number in range(7):
        orders.cap(f"h{number}.test", number + 1)
    paused, capped = orders.about_pools
    assert paused == "paused: nosuch.test"
    assert all(f"{number + 1} in h{number}.test" in capped for number in range(7))
