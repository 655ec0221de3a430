"""Expectations: bounds on the runs of a world, and their verdicts."""

from collections import Counter
from dataclasses import replace

import pytest

from hivemind_addon.sim.bound import Bound
from hivemind_addon.sim.expectation import Expectation, Verdict
from hivemind_addon.sim.figures import figures_of
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.result import CrowdResult, Result
from tests.cases import each

FAST = figures_of(
    Result(
        makespan_s=102.0,
        bound=Bound(100.0, "the requests limit"),
        attempts=100,
        statuses=Counter({200: 98, 429: 1, 529: 1}),
        crowds={"agent": CrowdResult(agents=5, lost=0, turns_done=99, waits_s=(1.0, 2.0, 3.0), ended_s=(102.0,))},
        deaths=Counter(),
        cost=110.0,
        ideal_cost=100.0,
        cap_used=0.9,
        breaker_opened=1,
        sheds=0,
        neighbour_calls=0,
        shared_bound_s=100.0,
    )
)
SLOW = replace(
    FAST,
    zombies=2,
    overspent=1.5,
    turn_p95_s=8.0,
    makespan_s=130.0,
    stretch=1.3,
    shared_stretch=1.3,
    attempts=300,
    statuses={200: 300},
    refused=33,
    unforeseen=3,
    paid_in_vain=1,
    idle_s=21.0,
    cap_used=0.8,
)


def verdict(expectation, *runs, fifo=()):
    (found,) = expectation.verdicts(runs, {Policy.FIFO: fifo})
    return found


@each(
    ("expectation", "value", "met"),
    [
        (Expectation(lost=0), 0, True),
        (Expectation(refused=0.002), 1 / 400, False),
        (Expectation(overloaded=0.01), 1 / 400, True),
        (Expectation(refused_by_limits=0.1), 0.1, True),
        (Expectation(paid_in_vain=0), 1, False),
        (Expectation(stretch_median=1.2), 1.16, True),
        (Expectation(stretch_worst=1.2), 1.3, False),
        (Expectation(shared_stretch_worst=1.3), 1.3, True),
        (Expectation(cost_worst=1.05), 1.1, False),
        (Expectation(cap_used_least=0.8), 0.8, True),
        (Expectation(cap_used_least=0.85), 0.8, False),
        (Expectation(idle_worst_s=20), 21, False),
        (Expectation(breaker_opened=1), 2, False),
        (Expectation(zombies=1), 2, False),
        (Expectation(latency_p95_s=9), 8, True),
        (Expectation(overspent_worst=1), 1.5, False),
        (Expectation(wait_p95_s={"agent": 3}), 3, True),
    ],
)
def test_each_bound_is_judged_over_all_runs(expectation, value, met):
    found = verdict(expectation, FAST, SLOW)
    assert found.value == pytest.approx(value)
    assert found.is_met is met


def test_a_few_refusals_are_the_price_of_finding_the_limits():
    few, more = (replace(FAST, attempts=20, refused=refused) for refused in (5, 6))
    assert verdict(Expectation(refused_by_limits=0.1), few).is_met
    assert not verdict(Expectation(refused_by_limits=0.1), more).is_met


def test_waits_are_compared_seed_by_seed_with_first_come_first_served():
    slow = replace(FAST, crowds={"agent": replace(FAST.crowds["agent"], wait_p95_s=30.0)})
    found = verdict(Expectation(wait_p95_to_fifo={"agent": 0.5}), FAST, fifo=(slow,))
    assert found.text == "p95 wait of agent ÷ fifo's, worst: 0.1, expected ≤ 0.5"


def test_an_expectation_speaks_of_its_own_limits_and_headers_only():
    anything, windows, blind = Expectation(), Expectation(limits=LimitKind.WINDOW), Expectation(headers=False)
    assert anything.covers(LimitKind.BUCKET, headers=True)
    assert anything.covers(None, headers=True)
    assert not windows.covers(LimitKind.BUCKET, headers=True)
    assert not blind.covers(LimitKind.BUCKET, headers=True)
    assert blind.covers(LimitKind.BUCKET, headers=False)
    assert list(anything.verdicts([FAST], {})) == []


def test_a_bound_is_missed_on_its_own_side_only():
    assert Verdict("few", 1.0, 1.0).is_met
    assert not Verdict("few", 1.0, 1.1).is_met
    assert Verdict("many", 85, 90, at_least=True).is_met
    assert Verdict("many", 85, 80, at_least=True).text == "many: 80, expected ≥ 85"


def test_time_is_compared_seed_by_seed_with_first_come_first_served_that_loses_no_more():
    runs, fifo = (FAST, SLOW, SLOW), (replace(FAST, makespan_s=51.0), FAST, FAST)
    (found,) = Expectation(time_to_fifo=1.05).verdicts(runs, {Policy.FIFO: fifo})
    assert (found.value, found.is_met) == (pytest.approx(130 / 102), False)
    lossy = [replace(run, lost=1) for run in fifo]
    for other in (runs, lossy):
        assert next(Expectation(time_to_fifo=1.05).verdicts(runs, {Policy.FIFO: other})).is_met


QUICK, LATE, BOTH = (
    {"quick": (10.0, 5)},
    {"quick": (20.0, 5), "slow": (100.0, 9)},
    {"quick": (10.0, 4), "slow": (99.0, 9)},
)


@each(
    ("mine", "theirs", "lost", "ratios"),
    [
        # Who loses the slow one does not look fast: the quick one alone is compared.
        (BOTH, QUICK, 1, (0, 1, 0.8)),
        (LATE, BOTH, 0, (0, 120 / 109, 14 / 13)),
        (QUICK, BOTH, -1, (1, 1, 1.25)),
        # Whose agents have the limits of ten lost ones is not compared.
        (LATE, BOTH, 10, (0, 0, 0)),
        (LATE, {}, 0, (0, 0, 0)),
    ],
)
def test_beside_no_proxy_the_agents_count_that_finish_under_both(mine, theirs, lost, ratios):
    def of(finished, lost):
        return replace(FAST, finished=finished, agents=100, lost=lost)

    ours, direct = of(mine, max(0, -lost)), of(theirs, max(0, lost))
    found = list(Expectation(to_no_proxy=1.05).verdicts([ours], {Policy.DIRECT: [direct], Policy.SDK: [ours]}))
    assert [one.value for one in found] == pytest.approx([*ratios, ours.lost, *([1.0] * 2 if mine else [0.0] * 2)])
    assert [one.is_met for one in found[1:3]] == [ratio <= 1.05 for ratio in ratios[1:]]
    assert found[0].is_met is (ours.lost <= direct.lost)
