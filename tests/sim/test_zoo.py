"""What the zoo measures, and what it calls missed."""

from dataclasses import replace

from hivemind_addon.lab.sim import zoo
from hivemind_addon.lab.sim.closed_loop import ClosedCrowd, Run
from hivemind_addon.lab.sim.gateway import OVERLOADED, Chance, Gateway, Rule
from hivemind_addon.lab.sim.limiters import Cap
from hivemind_addon.lab.sim.zoo import Measure
from hivemind_addon.lab.sim.zoo_entries import ZooEntry, entries
from tests.cases import over

GOOD = Run(
    time_s=100, agents=20, lost=0, delivered=400, longest_s=9, attempts=400, refused=0, struck=0, over_cap=0, used=None
)
ENTRY = ZooEntry("thing", "a thing", lambda _: Gateway())


def of(**mine):
    oracle = replace(GOOD, used=1.0) if "used" in mine else GOOD
    return Measure(ENTRY, (replace(GOOD, **mine),), (oracle,))


@over(
    ("mine", "missed"),
    [
        ({"attempts": 412, "refused": 12, "time_s": 115, "used": 0.91}, []),
        ({"lost": 1}, ["thing: 1 of 20 agents lost"]),
        ({"attempts": 420, "refused": 20}, ["thing: 4.8% refused, at most 3.0%"]),
        ({"time_s": 116}, ["thing: time ÷ oracle's 1.16, at most 1.15"]),
        ({"over_cap": 9, "used": 0.95}, ["thing: 2.2% over the cap, at most 2%"]),
        ({"used": 0.9}, ["thing: 90% of the cap used, more than 90% wanted"]),
    ],
)
def test_a_goal_that_is_not_reached_is_told(mine, missed):
    assert of(**mine).misses() == missed


def test_chance_is_counted_beside_the_oracles():
    unlucky = replace(GOOD, attempts=500, struck=100)
    assert Measure(ENTRY, (replace(unlucky, attempts=505, refused=5),), (unlucky,)).misses() == []
    worse = replace(unlucky, attempts=520, refused=20)
    assert Measure(ENTRY, (worse,), (unlucky,)).misses() == ["thing: 23.1% refused, at most 21.0%"]


def test_what_is_beyond_is_not_missed():
    slow = of(time_s=300)
    assert zoo.missed([slow]) == ["thing: time ÷ oracle's 3.00, at most 1.15"]
    assert zoo.missed([replace(slow, entry=replace(ENTRY, beyond="nobody knows"))]) == []


def test_some_of_the_zoo_in_short_deliver_all_of_their_turns():
    told = []
    short = [
        replace(entry, crowd=replace(entry.crowd, turns=4))
        for entry in entries(["window-10s", "gcra", "cap-8", "random-529-6%", "told-stale", "tokens-told", "ban"])
    ]
    for one in zoo.measure(short, seeds=2, done=told.append):
        for run in (*one.mine, *one.oracle):
            assert (run.delivered, run.lost) == (4 * run.agents, 0), one.entry.name
            assert run.attempts == run.delivered + run.refused + run.struck, one.entry.name
        assert not any(run.refused for run in one.oracle), one.entry.name
        assert min(one.stretches) >= 0.99, one.entry.name
    assert told == [f"zoo:{entry.name}" for entry in short]


def test_a_cap_and_chance_are_told_apart():
    entry = ZooEntry(
        "both",
        "",
        lambda _: Gateway([Rule(Cap(2), OVERLOADED)], chances=[Chance(0.2, OVERLOADED)]),
        ClosedCrowd(agents=5, turns=6),
    )
    (one,) = zoo.measure([entry], seeds=1)
    (run,) = one.mine
    assert run.struck == one.oracle[0].struck > 0
    assert run.over_cap == run.refused > 0
    assert one.over_cap == run.refused / run.attempts
    assert one.refused == (run.refused + run.struck) / run.attempts
    assert 0 < one.used <= 1
