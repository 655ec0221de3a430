from collections import Counter
from dataclasses import replace

import pytest

from hivemind_addon.sim.bound import Bound
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.proof import Goal, Proof, Series, page, prove, share_of_429
from hivemind_addon.sim.workload import PAPER
from hivemind_addon.sim.world import CrowdResult, Policy, Result

RESULT = Result(
    makespan_s=102.0,
    bound=Bound(100.0, "the requests limit"),
    attempts=100,
    statuses=Counter({200: 99, 429: 1}),
    crowds={"agent": CrowdResult(agents=5, lost=0, turns_done=99, waits_s=(1.0, 2.0, 3.0), ended_s=(102.0,))},
    deaths=Counter(),
    cost=110.0,
    ideal_cost=100.0,
    cap_used=0.0,
    breaker_opened=0,
    sheds=0,
    neighbour_calls=0,
    shared_bound_s=100.0,
)


def series(*runs, scenario="stress", kind=LimitKind.BUCKET, policy=Policy.HIVEMIND, headers=True):
    return Series(scenario, kind, policy, headers, runs or (RESULT,))


def goal(proof, what):
    (found,) = [goal for goal in proof.goals() if goal.what == what]
    return found


def test_refusals_are_pooled_over_scenarios_and_seeds():
    clean = replace(RESULT, attempts=300, statuses=Counter({200: 300}))
    assert share_of_429([series(RESULT, clean)]) == 1 / 400
    proof = Proof(2, (series(RESULT, clean),))
    assert goal(proof, "429s of attempts, the seven").value == pytest.approx(0.25)
    assert goal(proof, "429s of attempts, the seven").is_met


def test_a_goal_is_missed_on_its_own_side_only():
    assert Goal("few", 1.0, 1.0).is_met
    assert not Goal("few", 1.0, 1.1).is_met
    assert Goal("many", 85, 90, at_least=True).is_met
    assert not Goal("many", 85, 80, at_least=True).is_met
    assert Goal("many", 85, 80.25, at_least=True, unit=" %").text == "many: 80.250 %, goal ≥ 85 %"


def test_the_worst_seed_and_the_median_are_told_apart():
    slow = replace(RESULT, makespan_s=130.0)
    proof = Proof(3, (series(RESULT, RESULT, slow),))
    assert goal(proof, "time ÷ bound, the seven, bucket, median").value == pytest.approx(1.02)
    assert not goal(proof, "time ÷ bound, the seven, bucket, worst").is_met


def test_runs_of_other_policies_and_without_headers_are_no_part_of_the_goals():
    lost = replace(RESULT, crowds={"agent": replace(RESULT.crowds["agent"], lost=5)})
    proof = Proof(1, (series(), series(lost, policy=Policy.DIRECT), series(RESULT, headers=False)))
    assert goal(proof, "agents lost, all scenarios").value == 0
    assert goal(proof, "429s of attempts, the seven, no headers").value == pytest.approx(1.0)


def test_the_page_has_every_goal_and_every_series():
    proof = Proof(1, (series(), series(RESULT, policy=Policy.FIFO), series(RESULT, policy=Policy.SDK)))
    text = page(proof, "hivemind prove")
    assert "| stress | bucket | 0 of 5 | 100 | 1 | 0 | 1.020, 1.020 | 2.0, 3.0 | 1.100 |" in text
    assert "| stress | bucket | SDK retries | 0 of 5 | 100 | 1 | 0 |" in text
    assert all(goal.what in text for goal in proof.goals())
    assert "**missed**" in text


def test_named_scenarios_run_alone_on_both_kinds_and_without_headers():
    told = []
    proof = prove(seeds=2, only=[PAPER[0].name], policies=False, tell=told.append)
    assert [(one.kind, one.headers) for one in proof.series] == [
        (LimitKind.BUCKET, True),
        (LimitKind.WINDOW, True),
        (LimitKind.BUCKET, False),
        (LimitKind.WINDOW, False),
    ]
    assert all(len(one.runs) == 2 for one in proof.series)
    assert len(told) == 4
