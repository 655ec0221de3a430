from collections import Counter
from dataclasses import replace

import pytest

from hivemind_addon.lab.sim.bound import Bound
from hivemind_addon.lab.sim.expectation import Expectation, Verdict
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.result import CrowdResult, Result
from tests.cases import over

RESULT = Result(
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
SLOW = replace(RESULT, makespan_s=130.0, attempts=300, statuses=Counter({200: 300}), cap_used=0.8)


def verdict(expectation, *runs, fifo=()):
    (found,) = expectation.verdicts(runs, fifo)
    return found


@over(
    ("expectation", "value", "met"),
    [
        (Expectation(lost=0), 0, True),
        (Expectation(refused=0.002), 1 / 400, False),
        (Expectation(overloaded=0.01), 1 / 400, True),
        (Expectation(stretch_median=1.2), 1.16, True),
        (Expectation(stretch_worst=1.2), 1.3, False),
        (Expectation(shared_stretch_worst=1.3), 1.3, True),
        (Expectation(cost_worst=1.05), 1.1, False),
        (Expectation(cap_used_least=0.8), 0.8, True),
        (Expectation(cap_used_least=0.85), 0.8, False),
        (Expectation(breaker_opened=1), 2, False),
        (Expectation(wait_p95_s={"agent": 3}), 3, True),
    ],
)
def test_each_bound_is_judged_over_all_runs(expectation, value, met):
    found = verdict(expectation, RESULT, SLOW)
    assert found.value == pytest.approx(value)
    assert found.is_met is met


def test_waits_are_compared_seed_by_seed_with_first_come_first_served():
    slow = replace(RESULT, crowds={"agent": replace(RESULT.crowds["agent"], waits_s=(30.0,))})
    found = verdict(Expectation(wait_p95_to_fifo={"agent": 0.5}), RESULT, fifo=(slow,))
    assert found.value == pytest.approx(0.1)
    assert found.text == "p95 wait of agent ÷ fifo's, worst: 0.1, expected ≤ 0.5"


def test_an_expectation_speaks_of_its_own_limits_and_headers_only():
    anything, windows = Expectation(), Expectation(limits=LimitKind.WINDOW)
    blind = Expectation(headers=False)
    assert anything.covers(LimitKind.BUCKET, headers=True)
    assert anything.covers(None, headers=True)
    assert not windows.covers(LimitKind.BUCKET, headers=True)
    assert not blind.covers(LimitKind.BUCKET, headers=True)
    assert blind.covers(LimitKind.BUCKET, headers=False)


def test_what_is_not_said_is_not_asked():
    assert list(Expectation().verdicts([RESULT])) == []


def test_a_bound_is_missed_on_its_own_side_only():
    assert Verdict("few", 1.0, 1.0).is_met
    assert not Verdict("few", 1.0, 1.1).is_met
    assert Verdict("many", 85, 90, at_least=True).is_met
    assert Verdict("many", 85, 80, at_least=True).text == "many: 80, expected ≥ 85"


def test_time_is_compared_seed_by_seed_with_first_come_first_served():
    runs, fifo = (RESULT, SLOW, SLOW), (replace(RESULT, makespan_s=51.0), RESULT, RESULT)
    found = [*Expectation(time_to_fifo=1.05).verdicts(runs, fifo)]
    assert [(one.value, one.is_met) for one in found] == [(pytest.approx(130 / 102), False)]
    assert next(Expectation(time_to_fifo=1.05).verdicts(runs, runs)).is_met
