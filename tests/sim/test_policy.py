"""Who decides: the scheduler, the scheduler without its parts, what the field does, and nobody."""

import pickle
import random
from dataclasses import replace

import pytest

from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.decision import Backoff, Finished, GiveUp
from hivemind_addon.kernel.values.ticket import AttemptResult, Demand, Dimension, Outcome, OutcomeKind, PoolKey, Ticket
from hivemind_addon.sim.ablation import Primitive
from hivemind_addon.sim.aimd_pause import aimd_pause
from hivemind_addon.sim.library import case_named, cases
from hivemind_addon.sim.limits import Limit, LimitKind
from hivemind_addon.sim.policy import COMPARED, Policy, UnknownPolicy, only, policy_named, without
from hivemind_addon.sim.provider import ProviderOutage, ProviderSettings
from hivemind_addon.sim.workload import Crowd, Scenario
from hivemind_addon.sim.world import World, run
from tests.cases import each


@each(
    "policy",
    [
        *COMPARED,
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


def test_who_admits_calls_is_scheduled():
    assert [policy.name for policy in COMPARED if policy.is_scheduled] == ["aimd-pause", "fifo", "hivemind"]
    assert repr(Policy.AIMD_PAUSE.admission(random.Random(0))) == "<QueueAdmission 0 tickets in 0 pools>"


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


# Aimd pause -----------------------------------------------------------------------------------------------------------


POOL = PoolKey("api.sim", "key", "sim-1")
OK = Outcome(OutcomeKind.SUCCESS, "status 200", status=200)
BUSY = Outcome(OutcomeKind.OVERLOADED, "status 529", status=529, retryable=True)


def throttled(after_s):
    return Outcome(OutcomeKind.THROTTLED, "status 429", status=429, retryable=True, retry_after_s=after_s)


def ticket(name, pool=POOL):
    return Ticket(
        id=name,
        pool=pool,
        agent="a",
        session="a",
        model="sim-1",
        demand=Demand(),
        arrived_at=0,
        deadline_at=600,
        shed_at=590,
    )


@pytest.fixture
def field():
    return aimd_pause(random.Random(0))


def submit(field, *names, now=0.0):
    for name in names:
        field.submit(ticket(name), PoolSettings(), now)


def sent(field, now):
    return [admitted.attempt for admitted in field.poll(now)]


def test_five_go_at_once_and_the_next_when_one_is_over(field):
    submit(field, *"abcdefg")
    reservations = sent(field, 0)
    assert [attempt.ticket.id for attempt in reservations] == list("abcde")
    assert isinstance(field.settle(reservations[0], AttemptResult(OK), 1.0), Finished)
    assert [attempt.ticket.id for attempt in sent(field, 1.0)] == ["f"]


def test_a_refusal_halves_what_may_go_once_a_round(field):
    submit(field, *"abcdefghij")
    for attempt in sent(field, 0):
        assert isinstance(field.settle(attempt, AttemptResult(BUSY), 1.0), Backoff)
    assert len(sent(field, 1.5)) == 2


def test_nobody_goes_while_a_pause_lasts(field):
    submit(field, "a", "b")
    first, second = sent(field, 0)
    field.settle(first, AttemptResult(throttled(20.0)), 1.0)
    field.settle(second, AttemptResult(OK), 1.0)
    submit(field, "c", now=1.0)
    assert sent(field, 20.9) == []
    assert field.next_wakeup() == 21.0
    assert [attempt.ticket.id for attempt in sent(field, 21.0)] == ["c", "a"]


def test_the_fourth_failure_is_the_last(field):
    submit(field, "a")
    now, verdicts = 0.0, []
    for _ in range(4):
        (attempt,) = sent(field, now)
        verdicts.append(field.settle(attempt, AttemptResult(BUSY), now))
        now += 20
    assert [type(verdict) for verdict in verdicts] == [Backoff, Backoff, Backoff, GiveUp]
    assert field.is_idle


def test_what_waiting_cannot_cure_is_given_up_at_once(field):
    submit(field, "a")
    (attempt,) = sent(field, 0)
    wrong = Outcome(OutcomeKind.IGNORED, "status 400", status=400)
    assert isinstance(field.settle(attempt, AttemptResult(wrong), 0.1), GiveUp)


def test_a_client_that_goes_leaves_nothing_behind_while_it_waits_or_backs_off(field):
    submit(field, *"abcdef")
    reservations = sent(field, 0)
    assert field.cancel("f", 1.0)
    field.settle(reservations[0], AttemptResult(BUSY), 1.0)
    assert field.cancel("a", 1.5)
    assert not field.cancel("b", 1.5), "it is in flight"
    for attempt in reservations[1:]:
        field.settle(attempt, AttemptResult(OK), 2.0)
    assert sent(field, 30.0) == []
    assert field.is_idle
    assert field.next_wakeup() is None
    ends = {event.ticket_id: event.end for event in field.drain_events() if hasattr(event, "end")}
    assert ends == {"a": "cancelled", "f": "cancelled"} | dict.fromkeys("bcde", "delivered")


def test_pools_do_not_wait_for_each_other(field):
    submit(field, *"abcde")
    field.submit(ticket("x", PoolKey("other", "key", "sim-1")), PoolSettings(), 0)
    assert len(sent(field, 0)) == 6
