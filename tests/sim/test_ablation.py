"""Taking one thing away takes that away, and nothing else."""

from dataclasses import replace

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim.ablation import Primitive
from hivemind_addon.lab.sim.library import case_named, cases
from hivemind_addon.lab.sim.limits import Limit, LimitKind
from hivemind_addon.lab.sim.policy import Policy, only, without
from hivemind_addon.lab.sim.provider import ProviderSettings, ProviderWall
from hivemind_addon.lab.sim.workload import Crowd, Scenario
from hivemind_addon.lab.sim.world import World, run
from tests.cases import over

STRESS, REPLAY = cases()["stress"], cases()["replay-11"]


def test_without_nothing_it_is_the_scheduler():
    for kind in LimitKind:
        assert run(STRESS.at(kind), seed=1, policy=without()) == run(STRESS.at(kind), seed=1)


@over("primitive", Primitive)
def test_whatever_is_missing_every_ticket_ends_and_nothing_stays_open(primitive):
    for case in ("stress", "bursts", "fan-out", "mixed-providers"):
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
    scenario = Scenario("wall", (crowd,), ProviderSettings(walls=(ProviderWall(0, 60),)))
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


@over("kind", list(LimitKind))
def test_last_chance_is_what_saves_those_who_do_not_say_how_long_they_wait(kind):
    def lost(policy):
        case = case_named("silent-patience")
        return sum(run(case.at(kind, headers=True), seed=seed, policy=policy).lost for seed in range(2))

    assert lost(without(Primitive.LAST_CHANCE)) > lost(Policy.HIVEMIND)
