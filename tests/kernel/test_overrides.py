"""What persons changed at run time: what counts, until when, and what of it outlives a run."""

import json
from pathlib import Path

import pytest

from hivemind_addon.kernel.overrides import Overrides
from hivemind_addon.kernel.values.snapshot import GivenBudget, PriorityView
from hivemind_addon.kernel.values.spend import Budget, Period, Scope
from hivemind_addon.kernel.values.ticket import PoolKey, Priority

ONE, TWO, OTHER = PoolKey("a.test", "k", "m"), PoolKey("a.test", "k", "n"), PoolKey("b.test", "k", "m")
NEVER = float("inf")
EPOCH = 1_800_000_000.0
"""The wall clock at the instant 0, or at that of saving."""
RECORDED = Path(__file__).with_name("data") / "orders-1.json"
"""Saved by the version of November 2026, at the instant 0."""
NOTHING = repr(Overrides())


@pytest.fixture
def overrides():
    return Overrides()


def paused(overrides):
    return [overrides.is_paused(key) for key in (ONE, TWO, OTHER)]


def saved(overrides, now=0.0, wall=EPOCH):
    return json.loads(json.dumps(overrides.export(now, wall)))


def test_nothing_is_changed_at_first(overrides):
    assert paused(overrides) == [False] * 3
    assert overrides.cap_of(ONE) is None
    assert overrides.priority_of("x", Priority.LOW) is Priority.LOW
    assert (overrides.priorities(0.0), overrides.pauses, overrides.caps, overrides.ends_at) == ((), {}, {}, NEVER)


def test_the_newest_override_that_matches_counts(overrides):
    overrides.pause("*", paused=True)
    overrides.pause("a.test", paused=False)
    assert paused(overrides) == [False, False, True]
    assert list(overrides.pauses.items()) == [("a.test", False), ("*", True)]
    overrides.pause("*/m", paused=True)
    assert paused(overrides) == [True, False, True]
    overrides.pause("*", paused=False)
    assert paused(overrides) == [False] * 3


def test_caps_and_priorities_are_taken_back_alone(overrides):
    overrides.cap("*", 8)
    overrides.cap("a.test", 2)
    assert (overrides.cap_of(ONE), overrides.cap_of(OTHER)) == (2, 8)
    overrides.cap("a.test", None)
    assert (overrides.cap_of(ONE), overrides.cap_of(OTHER)) == (None, 8)
    assert list(overrides.caps.items()) == [("a.test", None), ("*", 8)]
    overrides.prefer("night-*", Priority.LOW)
    overrides.prefer("night-1", Priority.HIGH)
    classes = [overrides.priority_of(name, Priority.NORMAL) for name in ("night-1", "night-2", "day")]
    assert classes == [Priority.HIGH, Priority.LOW, Priority.NORMAL]
    assert overrides.priorities(0.0) == (PriorityView("night-1", Priority.HIGH), PriorityView("night-*", Priority.LOW))


def test_what_was_taken_back_is_forgotten(overrides):
    for number in range(1000):
        overrides.pause(f"pool-{number}", paused=True)
        overrides.pause(f"pool-{number}", paused=False)
        overrides.prefer("night-*", Priority.LOW)
        overrides.prefer("night-*", None)
    assert repr(overrides) == NOTHING


def test_a_pool_that_swallows_another_inherits_what_is_stricter(overrides):
    overrides.cap("*/m", 5)
    overrides.cap("*/n", 3)
    overrides.pause("*/n", paused=True)
    overrides.inherit(ONE, merged=TWO)
    assert overrides.is_paused(ONE)
    assert overrides.cap_of(ONE) == 3
    assert not overrides.is_paused(OTHER)
    overrides.inherit(TWO, merged=OTHER)
    assert overrides.cap_of(TWO) == 3


def test_whether_a_pause_stands_for_pools_that_come(overrides):
    assert not overrides.pauses_for("*")
    overrides.pause("a.test", paused=True)
    assert [overrides.pauses_for(glob) for glob in ("a.test", "*", "b.test")] == [True, True, False]


def test_a_priority_that_ends_by_itself_lies_on_the_older_ones(overrides):
    overrides.prefer("a", Priority.HIGH)
    overrides.prefer("a", Priority.LOW, ends_at=10.0)
    overrides.prefer("*", None, ends_at=5.0)
    assert (overrides.priority_of("a", Priority.NORMAL), overrides.ends_at) == (Priority.NORMAL, 5.0)
    assert overrides.expire(5.0) == []
    assert (overrides.priority_of("a", Priority.NORMAL), overrides.ends_at) == (Priority.LOW, 10.0)
    assert overrides.priorities(4.0)[0] == PriorityView("a", Priority.LOW, ends_in_s=6.0)
    assert overrides.expire(10.0) == [PriorityView("a", Priority.LOW, ends_in_s=0.0)]
    assert (overrides.priority_of("a", Priority.NORMAL), overrides.ends_at) == (Priority.HIGH, NEVER)


def test_one_for_good_replaces_one_that_would_end_and_the_same_one_again_lasts_longer(overrides):
    overrides.prefer("a", Priority.LOW, ends_at=10.0)
    overrides.prefer("a", Priority.LOW, ends_at=20.0)
    assert (len(overrides.priorities(0.0)), overrides.ends_at) == (1, 20.0)
    overrides.prefer("a", Priority.HIGH)
    assert overrides.priorities(0.0) == (PriorityView("a", Priority.HIGH),)


def test_budgets_are_given_by_holder_and_period(overrides):
    assert not overrides.has_budgets
    overrides.give(Budget(Scope.AGENT, "a*", Period.DAY, tokens=5))
    overrides.give(Budget(Scope.AGENT, "ab", Period.HOUR, micro_usd=7))
    overrides.give(Budget(Scope.GROUP, "a*", Period.DAY, tokens=9))
    assert overrides.budgets_of(Scope.AGENT, "ab") == {
        Period.DAY: Budget(Scope.AGENT, "ab", Period.DAY, tokens=5),
        Period.HOUR: Budget(Scope.AGENT, "ab", Period.HOUR, micro_usd=7),
    }
    assert overrides.budgets_of(Scope.GROUP, "ab") == {}
    overrides.give(Budget(Scope.AGENT, "ab", Period.DAY))
    assert list(overrides.budgets_of(Scope.AGENT, "ab")) == [Period.HOUR]
    assert list(overrides.budgets_of(Scope.AGENT, "ac")) == [Period.DAY]
    for glob in ("a*", "ab"):
        for scope, per in ((Scope.AGENT, Period.DAY), (Scope.AGENT, Period.HOUR), (Scope.GROUP, Period.DAY)):
            overrides.give(Budget(scope, glob, per))
    assert not overrides.has_budgets
    assert overrides.budgets == ()


# Restarts -------------------------------------------------------------------------------------------------------------


def changed():
    overrides = Overrides()
    overrides.pause("a.test", paused=True)
    overrides.cap("*", 8)
    overrides.cap("a.test", None)
    overrides.prefer("night-*", Priority.LOW)
    overrides.prefer("now", Priority.HIGH, ends_at=9.0, by="planner")
    overrides.give(Budget(Scope.AGENT, "a*", Period.DAY, tokens=5, micro_usd=6))
    overrides.give(Budget(Scope.AGENT, "ab", Period.DAY))
    overrides.give(Budget(Scope.EVERYONE, "", Period.RUN, micro_usd=7), by="planner")
    return overrides


def test_what_stands_outlives_a_run(overrides):
    assert overrides.restore(saved(changed()), 0.0, EPOCH) == []
    assert repr(overrides) == repr(changed())
    assert overrides.priorities(0.0) == changed().priorities(0.0)
    assert overrides.budgets == changed().budgets
    assert saved(overrides) == saved(changed())


def test_what_an_earlier_version_saved_is_read(overrides):
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert overrides.restore(recorded, 0.0, EPOCH + 0.5) == []
    assert overrides.pauses == {"*/n": False, "a.test": True, "*": True}
    assert overrides.caps == {"a.test": None, "*": 8}
    assert overrides.priorities(0.0) == (
        PriorityView("soon", Priority.NORMAL, ends_in_s=100.0),
        PriorityView("now", Priority.HIGH, ends_in_s=599.5, by="planner"),
        PriorityView("ci-*", Priority.CRITICAL, by="planner"),
        PriorityView("night-*", Priority.LOW),
    )
    assert overrides.priority_of("day", Priority.NORMAL) is Priority.NORMAL
    assert overrides.budgets == (
        GivenBudget(Budget(Scope.AGENT, "a*", Period.DAY, tokens=5, micro_usd=6)),
        GivenBudget(Budget(Scope.GROUP, "g", Period.HOUR, tokens=9), by="planner"),
        GivenBudget(Budget(Scope.EVERYONE, "", Period.RUN, micro_usd=7)),
    )
    assert overrides.budgets_of(Scope.AGENT, "ab") == {}


def test_what_a_journal_without_askers_has_saved_is_read(overrides):
    budget = {"scope": "everyone", "name": "", "per": "day", "tokens": 5, "micro_usd": None}
    assert overrides.restore({"version": 1, "priorities": [["a", "low"]], "budgets": [budget]}, 0.0, EPOCH) == []
    assert overrides.priorities(0.0) == (PriorityView("a", Priority.LOW),)
    assert overrides.budgets == (GivenBudget(Budget(Scope.EVERYONE, "", Period.DAY, tokens=5)),)


def test_a_priority_for_a_while_goes_on_for_what_is_left_of_it_by_the_wall_clock():
    for away_s, left_s in (
        (0.0, 100.0),
        (60.0, 40.0),
        (99.5, 0.5),
        (100.0, None),
        (86_400.0, None),
        (-3600.0, 100.0),  # a clock that was set back makes nothing longer
    ):
        before, after = Overrides(), Overrides()
        before.prefer("a", Priority.HIGH)
        before.prefer("a", Priority.LOW, ends_at=600.0)
        assert after.restore(saved(before, now=500.0), 7.0, EPOCH + away_s) == []
        assert [view.ends_in_s for view in after.priorities(7.0)] == [*([left_s] if left_s else []), None], away_s
        assert after.ends_at == (7.0 + left_s if left_s else NEVER), away_s
        after.expire(107.0)
        assert after.priorities(107.0) == (PriorityView("a", Priority.HIGH),)


def test_what_is_over_is_not_saved_and_neither_is_what_takes_back_only_that(overrides):
    overrides.prefer("a*", Priority.HIGH, ends_at=9.0)
    overrides.prefer("ab", None)
    assert [glob for glob, *_ in saved(overrides, now=8.0)["priorities"]] == ["ab", "a*"]
    assert saved(overrides, now=9.0)["priorities"] == []


def test_what_was_changed_since_counts_before_what_is_restored(overrides):
    overrides.cap("a.test", 3)
    overrides.pause("a.test", paused=True)
    overrides.give(Budget(Scope.AGENT, "ac", Period.DAY, tokens=1), by="since")
    assert overrides.restore(saved(changed()), 0.0, EPOCH) == []
    assert (overrides.cap_of(ONE), overrides.cap_of(OTHER)) == (3, 8)
    assert overrides.budgets_of(Scope.AGENT, "ac")[Period.DAY].tokens == 1
    assert overrides.budgets_of(Scope.AGENT, "ad")[Period.DAY].tokens == 5
    assert overrides.budgets[0].by == "since"


def test_entries_that_cannot_be_read_are_named_and_the_others_stand():
    budget = {"scope": "agent", "name": "x", "per": "day", "tokens": 1, "micro_usd": None}
    for name, damaged in (
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
        ("budgets", budget | {"per": "year"}),
        ("budgets", budget | {"tokens": -1}),
        ("budgets", budget | {"tokens": 10**16}),
        ("budgets", {unit: value for unit, value in budget.items() if unit != "micro_usd"}),
    ):
        data, overrides = saved(changed()), Overrides()
        data[name].append(damaged)
        (oddity,) = overrides.restore(data, 0.0, EPOCH)
        assert oddity.startswith(f"saved orders: {name}: {str(damaged)[:60]} is left out: "), oddity
        assert saved(overrides) == saved(changed()), damaged


def test_what_is_no_list_is_named_and_what_is_of_another_kind_too():
    data, overrides = saved(changed()), Overrides()
    data["caps"] = 7
    assert overrides.restore(data, 0.0, EPOCH) == [
        "saved orders: caps: 7 is left out: Expected `array`, got `int`",
    ]
    assert (overrides.caps, overrides.pauses) == ({}, {"a.test": True})
    for damaged in (None, [], {}, {"version": 2}, "x"):
        overrides = Overrides()
        assert overrides.restore(damaged, 0.0, EPOCH) == [f"saved orders: {str(damaged)!r} is not of version 1"]
        assert repr(overrides) == NOTHING
