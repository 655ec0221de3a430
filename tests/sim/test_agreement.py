"""When socket and virtual time agree, and how that is told."""

import dataclasses
from collections import Counter

from hivemind_addon.lab.sim import agreement
from hivemind_addon.lab.sim.agreement import Comparison, page, table
from hivemind_addon.lab.sim.bound import Bound
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.result import CrowdResult, Result
from tests.cases import over


def result(*, lost=0, end_s=11.0, refused=0, cost=100.0):
    return Result(
        makespan_s=end_s,
        bound=Bound(10.0, "a limit"),
        attempts=100,
        statuses=Counter({200: 100 - refused, 429: refused // 2, 529: refused - refused // 2}),
        crowds={"agent": CrowdResult(20, lost, 80, (1.0, 2.0), (end_s,))},
        deaths=Counter({"status 502": lost} if lost else {}),
        cost=cost,
        ideal_cost=100.0,
        cap_used=0.0,
        breaker_opened=0,
        sheds=0,
        neighbour_calls=0,
        shared_bound_s=10.0,
    )


def comparison(live, virtual=None, guard_trips=0):
    return Comparison("stress", LimitKind.BUCKET, 4, virtual or result(), live, guard_trips)


@over("live", [result(), result(refused=6), result(end_s=11.9), result(end_s=10.1), result(cost=108)])
def test_small_differences_are_agreement(live):
    assert not comparison(live).disagreements()


@over(
    ("live", "word"),
    [
        (result(lost=1), "1 agents lost, 0 in virtual time: {'status 502': 1}"),
        (result(refused=7), "7 more attempts refused"),
        (result(end_s=12.5), "time ÷ bound 1.250, 1.100 in virtual time"),
        (result(end_s=9.5), "time ÷ bound 0.950"),
        (result(cost=115), "input cost ÷ ideal 1.150"),
    ],
)
def test_large_differences_are_told(live, word):
    (told,) = comparison(live).disagreements()
    assert word in told


def test_each_turn_of_a_conversation_may_take_a_little_longer():
    def of(turns_done):
        crowd = CrowdResult(20, 0, turns_done, (1.0,), (11.0,))
        return dataclasses.replace(result(), crowds={"agent": crowd})

    live = result(end_s=12.4)
    assert comparison(live, of(20)).disagreements()
    assert not comparison(live, of(20 * 20)).disagreements()


def test_where_calls_fail_the_last_backoffs_are_chance():
    faulty = dataclasses.replace(result(), statuses=Counter({200: 90, 502: 10}))
    live = dataclasses.replace(faulty, makespan_s=13.5)
    assert comparison(live, result()).disagreements()
    assert not comparison(live, faulty).disagreements()


def test_a_guard_trip_is_a_disagreement():
    assert comparison(result(), guard_trips=2).disagreements() == ["2 guard trips"]


def test_where_virtual_time_loses_agents_a_few_more_may_be_lost():
    some = result(lost=3)
    assert not comparison(result(lost=6), some).disagreements()
    assert comparison(result(lost=7), some).disagreements()


def test_the_table_has_both_ways_under_one_head():
    lines = table([comparison(result(lost=1, end_s=12), result())]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| stress | bucket | 4 | virtual | 0 of 20 | 100 ")
    assert lines[3].startswith("| stress | bucket | 4 | socket | 1 of 20 | 100 ")


def test_the_page_says_how_it_was_made_and_what_the_margins_are():
    text = page([comparison(result())], "hivemind prove --live --seeds 1")
    assert "`hivemind prove --live --seeds 1`" in text
    assert "divided by 5" in text
    assert "within 10%" in text
    assert "All of the above agree." in text


def test_the_page_tells_who_does_not_agree():
    text = page([comparison(result()), comparison(result(cost=120))], "hivemind prove --live")
    assert "- stress, bucket, seed 4: input cost ÷ ideal 1.200, 1.000 in virtual time\n" in text
    assert "All of the above agree." not in text


def test_every_kind_and_seed_of_the_chosen_scenarios_is_compared(monkeypatch):
    async def compared(scenario, kind, *, seed):
        assert {limit.window_s for limit in scenario.provider.limits} == {60 / agreement.FACTOR}
        return dataclasses.replace(comparison(result()), scenario=scenario.name, kind=kind, seed=seed)

    monkeypatch.setattr(agreement, "compare", compared)
    told = []
    names = [one.name for one in agreement.prove(seeds=2, only=("stress",), tell=told.append)]
    assert names == [f"stress, {kind.value}, seed {seed}" for kind in LimitKind for seed in (0, 1)]
    assert len(told) == 4
    everything = agreement.prove(seeds=1, tell=told.append)
    assert {one.scenario for one in everything} == {"replay-11", "stress", "fan-out"}
