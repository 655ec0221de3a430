"""Who decides: the scheduler, the scheduler without its parts, what the field does, and nobody."""

import pickle
from dataclasses import replace

import pytest

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.ablation import Primitive
from hivemind_addon.sim.library import case_named, cases
from hivemind_addon.sim.limits import Limit, LimitKind
from hivemind_addon.sim.policy import NAMED, Policy, only, policy_named, without
from hivemind_addon.sim.policy_file import UnknownPolicy
from hivemind_addon.sim.provider import ProviderOutage, ProviderSettings
from hivemind_addon.sim.workload import Crowd, Scenario
from hivemind_addon.sim.world import World, run
from tests.cases import each


@each(
    "policy",
    [
        *NAMED,
        *map(without, Primitive),
        *map(only, Primitive),
        only(),
        without(Primitive.RETRY, Primitive.METERS),
    ],
)
def test_every_policy_is_known_by_its_name_and_travels_by_it(policy):
    assert policy_named(policy.name) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert policy.about


def test_two_primitives_have_one_name_whatever_their_order():
    one, other = Primitive.METERS, Primitive.RETRY
    assert without(one, other) == without(other, one) == policy_named("hivemind-without-retry+meters")
    assert without(one, other).name == "hivemind-without-meters+retry"


@each(
    ("name", "words"),
    [
        ("best", "no policy 'best'; there are direct, sdk-retry"),
        ("only-magic", "no primitive 'magic'; there are meters, hidden-limits"),
        ("hivemind-without-", "no primitive ''"),
    ],
)
def test_an_unknown_name_is_told_with_those_that_there_are(name, words):
    with pytest.raises(UnknownPolicy, match=words):
        policy_named(name)


# Ablation -------------------------------------------------------------------------------------------------------------


STRESS, REPLAY = cases()["stress"], cases()["replay-11"]


def test_without_nothing_it_is_the_scheduler():
    for kind in LimitKind:
        assert run(STRESS.at(kind), seed=1, policy=without()) == run(STRESS.at(kind), seed=1)


@each("primitive", Primitive)
def test_whatever_is_missing_every_ticket_ends_and_nothing_stays_open(primitive):
    for case in ("bursts", "fan-out", "mixed-providers"):
        world = World(cases()[case].scenario, seed=2, policy=without(primitive))
        world.run()
        assert world.scheduler.is_idle
        assert world.provider.truth().in_flight == 0


def test_without_meters_the_provider_refuses_what_they_would_have_held():
    scenario = cases()["micro-20"].at(LimitKind.BUCKET)
    assert run(scenario, seed=0).statuses[429] == 0
    assert run(scenario, seed=0, policy=without(Primitive.METERS)).statuses[429] > 0


def test_unless_refusals_teach_a_hidden_limit_is_run_into_again_and_again():
    scenario = cases()["bursts"].scenario
    taught, untaught = run(scenario, seed=0), run(scenario, seed=0, policy=without(Primitive.HIDDEN_LIMITS))
    assert untaught.statuses[429] > 5 * taught.statuses[429]


def test_unless_refusals_teach_a_cap_is_run_into_again_and_again():
    scenario = Scenario("cap", (Crowd("agent", 30, 2, latency_s=5),), ProviderSettings(concurrency=3))
    taught, untaught = run(scenario, seed=0), run(scenario, seed=0, policy=without(Primitive.HIDDEN_LIMITS))
    assert untaught.statuses[529] > 3 * taught.statuses[529]


def test_without_a_breaker_nobody_is_parked_in_an_outage():
    scenario = cases()["incident"].scenario
    alone = run(scenario, seed=0, policy=without(Primitive.BREAKER))
    assert alone.breaker_opened == 0
    assert run(scenario, seed=0).breaker_opened == 1


def test_without_retries_the_first_failure_reaches_the_agent():
    result = run(REPLAY.scenario, seed=0, policy=without(Primitive.RETRY))
    assert result.lost > 5
    assert "502" in str(result.deaths)


def test_without_an_order_the_first_to_come_goes_first():
    first = Crowd("first", 1, 1, starts_s=(0, 0), think_s=(0, 0))
    greedy = Crowd("greedy", 8, 1, per_session=8, starts_s=(1, 1), think_s=(0, 0))
    late = Crowd("late", 1, 1, starts_s=(2, 2), think_s=(0, 0))
    provider = ProviderSettings(limits=(Limit(Dimension.REQUESTS, 1, 10.0),))
    scenario = Scenario("queue", tuple(replace(crowd, timeout_s=600) for crowd in (first, greedy, late)), provider)
    fair, arrival = run(scenario, seed=0), run(scenario, seed=0, policy=without(Primitive.ORDER))
    assert fair.crowds["late"].ended_s[0] < max(fair.crowds["greedy"].ended_s)
    assert arrival.crowds["late"].ended_s[0] > max(arrival.crowds["greedy"].ended_s)


def test_without_a_leader_a_fan_out_writes_its_prefix_several_times():
    scenario = cases()["fan-out"].scenario
    assert run(scenario, seed=0).cost_ratio < 1.01 < run(scenario, seed=0, policy=without(Primitive.CACHE)).cost_ratio


def test_without_come_backs_clients_are_held_until_they_go():
    crowd = Crowd("agent", 3, 1, timeout_s=30, retries=5)
    scenario = Scenario("wall", (crowd,), ProviderSettings(outages=(ProviderOutage(0, 60),)))
    assert run(scenario, seed=0).sheds > 0
    assert run(scenario, seed=0, policy=without(Primitive.COMEBACK)).sheds == 0


def test_without_a_watchdog_what_hangs_is_waited_for():
    crowd = Crowd("agent", 3, 2, streamed=True, timeout_s=600)
    scenario = Scenario("hang", (crowd,), ProviderSettings(faults={"hang": 0.5}))
    assert run(scenario, seed=3).lost == 0
    assert run(scenario, seed=3, policy=without(Primitive.WATCHDOG)).lost > 0


def test_nothing_alone_does_no_better_than_agents_on_their_own():
    scenario = REPLAY.at(LimitKind.BUCKET)
    assert run(scenario, seed=0, policy=only()).statuses == run(scenario, seed=0, policy=Policy.DIRECT).statuses


@each("kind", list(LimitKind))
def test_backfilling_is_what_saves_those_who_do_not_say_how_long_they_wait(kind):
    def lost(policy):
        case = case_named("silent-patience")
        return sum(run(case.at(kind, headers=True), seed=seed, policy=policy).lost for seed in range(2))

    assert lost(without(Primitive.BACKFILLING)) > lost(Policy.HIVEMIND)


def test_without_budgets_loops_take_the_day_from_those_who_work():
    scenario = cases()["budgets"].scenario
    kept, spent = run(scenario, seed=0), run(scenario, seed=0, policy=without(Primitive.BUDGETS))
    assert (kept.lost, kept.stopped) == (0, 4)
    assert 0.9 < kept.overspent <= 1.05
    assert spent.crowds["worker"].lost > 6
    assert (spent.stopped, spent.overspent > 1.3) == (0, True)


def test_without_priorities_who_is_in_a_hurry_waits_with_the_batch():
    scenario = cases()["priorities"].scenario
    first, alike = run(scenario, seed=0), run(scenario, seed=0, policy=without(Primitive.PRIORITY))
    assert first.crowds["person"].wait_s(0.95) < 0.4 * alike.crowds["person"].wait_s(0.95)
