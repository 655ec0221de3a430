from collections import Counter
from dataclasses import replace

import pytest

from hivemind_addon.lab.sim.bound import Bound
from hivemind_addon.lab.sim.result import CrowdResult, Result
from tests.cases import over

CROWD = CrowdResult(4, 1, 10, waits_s=(4.0, 1.0, 3.0, 2.0), ended_s=(5.0, 7.0), halfway_turns=(2, 2, 2, 2))
RESULT = Result(
    10.0, Bound(8.0, "a limit"), 12, Counter({200: 12}), {"agent": CROWD}, Counter(), 5.0, 4.0, 0.0, 0, 0, 0, 5.0
)


def test_a_wait_is_that_of_a_share_of_the_requests():
    assert [CROWD.wait_s(share) for share in (0.25, 0.5, 0.95)] == [1.0, 2.0, 4.0]
    assert replace(CROWD, waits_s=()).wait_s(0.5) == 0.0


@over(("turns", "index"), [((3, 3, 3), 1.0), ((6, 0, 0), 1 / 3), ((0, 0), 0.0), ((), 0.0)])
def test_fairness_is_jains_index_of_the_turns_done_at_half_time(turns, index):
    run = replace(RESULT, crowds={"agent": replace(CROWD, halfway_turns=turns)})
    assert run.fairness == pytest.approx(index)


def test_fairness_is_that_of_the_crowd_that_is_worst_off():
    unequal = replace(CROWD, halfway_turns=(4, 0))
    assert replace(RESULT, crowds={"one": CROWD, "other": unequal}).fairness == 0.5


def test_ratios():
    assert (RESULT.stretch, RESULT.shared_stretch, RESULT.cost_ratio) == (1.25, 2.0, 1.25)
    assert replace(RESULT, ideal_cost=0.0).cost_ratio == 1.0
    assert (RESULT.agents, RESULT.lost) == (4, 1)
