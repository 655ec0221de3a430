"""Both ways of sending: everything is delivered once, and the oracle is refused by chance alone."""

import pytest

from hivemind_addon.lab.sim.closed_loop import ClosedCrowd, Oracle, Order, Scheduled, compare
from hivemind_addon.lab.sim.gateway import OVERLOADED, RESET, Chance, Gateway, GatewayNeighbour, Rule
from hivemind_addon.lab.sim.limiters import Bucket, Cap, Window
from tests.cases import over

FEW = ClosedCrowd(agents=4, turns=5)
WAY_S = FEW.way_s
ONE = ClosedCrowd(agents=1, turns=3, service_s=(2, 2), think_s=(1, 1))
GATEWAYS = {
    "nothing": Gateway,
    "a window": lambda: Gateway([Rule(Window(6, 10))]),
    "a bucket": lambda: Gateway([Rule(Bucket(60, 60, size=1))]),
    "a cap that moves": lambda: capped(2, 1),
    "chance": lambda: Gateway(chances=[Chance(0.3, OVERLOADED), Chance(0.1, RESET, late=True)]),
    "a neighbour": lambda: Gateway([Rule(Window(6, 10))], neighbour=GatewayNeighbour(0.2)),
}


def capped(slots: int, later: int) -> Gateway:
    cap = Cap(slots)
    return Gateway([Rule(cap, OVERLOADED)], changes=[(5.0, cap, later)])


@over("name", GATEWAYS)
def test_every_turn_is_delivered_once(name):
    for run in (
        Scheduled(GATEWAYS[name](), FEW, seed="1").run(),
        *(Oracle(GATEWAYS[name](), FEW, seed="1", order=order).run() for order in Order),
    ):
        assert (run.delivered, run.lost, run.agents) == (20, 0, 4)
        assert run.attempts == run.delivered + run.refused + run.struck


@over("name", GATEWAYS)
def test_the_oracle_is_refused_by_chance_alone(name):
    run = Oracle(GATEWAYS[name](), FEW, seed="2", order=Order.LEFT).run()
    assert run.refused == 0
    assert (run.struck > 0) == (name == "chance")


def test_a_free_agent_takes_its_turns_and_the_way():
    for run in compare(lambda _: Gateway(), ONE, seed=0):
        assert run.time_s == pytest.approx(3 * (1 + 2 + 2 * WAY_S))


def test_the_oracle_sends_the_instant_at_which_it_passes():
    wide = ClosedCrowd(agents=5, turns=1, service_s=(2, 2), think_s=(1, 1))
    spaced = Oracle(Gateway([Rule(Bucket(60, 60, size=1))]), wide, seed="0", order=Order.OLDEST).run()
    assert spaced.time_s == pytest.approx(1 + WAY_S + 4 + 2 + WAY_S)
    halved = Oracle(Gateway([Rule(Cap(2))]), wide, seed="0", order=Order.OLDEST).run()
    assert halved.time_s == pytest.approx(1 + WAY_S + 3 * 2 + WAY_S)
    # Nothing runs on the way there, and one alone while two answers are on their way back.
    assert halved.used == pytest.approx((4 + WAY_S / 2) / (4 + 2 * WAY_S))


def test_both_meet_the_same_strokes():
    mine, oracle = compare(lambda _: Gateway(chances=[Chance(0.3, OVERLOADED)]), FEW, seed=3)
    assert mine.struck == oracle.struck > 0


def test_the_neighbours_calls_pass_first():
    alone = Oracle(Gateway([Rule(Window(6, 10))]), FEW, seed="1", order=Order.LEFT).run()
    beside = Oracle(GATEWAYS["a neighbour"](), FEW, seed="1", order=Order.LEFT).run()
    assert alone.time_s > 30  # 20 of 6 in 10 s
    assert beside.time_s > 40  # 20 of 4 in 10 s


def test_agents_may_begin_one_after_the_other():
    late = ClosedCrowd(agents=9, turns=1, service_s=(2, 2), think_s=(0, 0), starts_s=60)
    for run in compare(lambda _: Gateway(), late, seed=0):
        assert 30 < run.time_s < 62 + 1
        assert run.delivered == 9


def test_who_is_out_of_patience_is_lost():
    hasty = ClosedCrowd(agents=3, turns=1, patience_s=30)
    run = Scheduled(Gateway([Rule(Window(2, 100))]), hasty, seed="0").run()
    assert (run.delivered, run.lost) == (2, 1)


def test_who_still_runs_when_the_time_is_over_is_lost():
    run = Scheduled(Gateway(), ONE, seed="0").run(until=4)
    assert (run.delivered, run.lost) == (1, 1)


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    first, again, other = (Scheduled(capped(2, 1), FEW, seed=seed).run() for seed in ("1", "1", "2"))
    assert first == again != other


def test_some_answers_may_take_long_and_some_ways():
    plain, slow = (ClosedCrowd(agents=9, turns=9, long_share=share) for share in (0.0, 0.5))
    runs = [Oracle(Gateway(), crowd, seed="0", order=Order.LEFT).run() for crowd in (plain, slow)]
    assert runs[0].longest_s < 3.1
    assert 10 < runs[1].longest_s < 30.1
    jittery, oracle = compare(lambda _: Gateway(), ClosedCrowd(agents=1, turns=9, jitter_s=0.5), seed=0)
    assert 0 < jittery.time_s - oracle.time_s < 9 * 0.5
