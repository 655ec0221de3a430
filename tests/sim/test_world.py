"""Virtual time: agents, upstreams, what is due when, and what comes of a run."""

import random
from dataclasses import replace

import msgspec
import pytest

from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.events import AttemptStarted
from hivemind_addon.kernel.values.spend import Price, Spend
from hivemind_addon.kernel.values.ticket import Demand, Dimension, PoolKey, Ticket, Usage
from hivemind_addon.sim.actor import USUAL_PRICE, Actor, SdkBackoff, SimUpstream, bill_of
from hivemind_addon.sim.agenda import Agenda
from hivemind_addon.sim.dialect import Reply, SimDialect
from hivemind_addon.sim.faults import NAMED, ErrorStatus, Hangup, NoHead
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.limits import Limit, LimitKind, Prefix
from hivemind_addon.sim.policy import COMPARED, Policy
from hivemind_addon.sim.provider import ProviderOutage, ProviderSettings
from hivemind_addon.sim.workload import (
    DAY_S,
    Crowd,
    Neighbour,
    PlannedTurn,
    RefusedForGood,
    Scenario,
    ScriptedCall,
    ScriptedFault,
    Site,
)
from hivemind_addon.sim.world import World, run
from tests.cases import each

STRESS = cases()["stress"].scenario
FAN_OUT = cases()["fan-out"].scenario
SMALL = Scenario("small", (Crowd("agent", 3, 4, latency_s=1.0, latency_sigma=0.0),), ProviderSettings())


@each("policy", COMPARED)
def test_one_seed_gives_one_result(policy):
    assert run(STRESS, seed=3, policy=policy) == run(STRESS, seed=3, policy=policy)


@each(("works_on", "overloaded"), [(False, False), (True, True)])
def test_a_call_whose_client_left_holds_a_slot_if_the_provider_works_on(works_on, overloaded):
    provider = ProviderSettings(concurrency=1, works_on=works_on)
    crowds = (
        Crowd("leaves", 1, 1, think_s=(0, 0), latency_s=30, timeout_s=10),
        Crowd("comes", 1, 1, think_s=(15, 15), timeout_s=5),
    )
    result = run(Scenario("x", crowds, provider), seed=0, policy=Policy.DIRECT)
    assert (result.statuses[529] > 0) == overloaded
    assert result.crowds["comes"].lost == overloaded


def test_other_seeds_give_other_results():
    assert run(STRESS, seed=1) != run(STRESS, seed=2)


@each("policy", COMPARED)
def test_where_nothing_is_in_the_way_the_longest_conversation_is_the_makespan(policy):
    result = run(SMALL, seed=0, policy=policy)
    assert result.lost == 0
    assert result.attempts == 12
    assert result.statuses == {200: 12}
    assert result.bound.why == "the longest conversation"
    assert result.makespan_s == pytest.approx(result.bound.bound_s)
    assert result.cost == result.ideal_cost > 0


@each("policy", [Policy.HIVEMIND, Policy.FIFO])
def test_the_provider_and_the_scheduler_agree_at_the_end(policy):
    world = World(STRESS, seed=5, policy=policy)
    result = world.run()
    truth, counters = world.provider.truth(), world.scheduler.snapshot(world.now).counters
    assert not isinstance(world.scheduler, Scheduler) or world.scheduler.is_idle
    assert truth.in_flight == 0
    assert truth.attempts == counters.attempts == result.attempts
    assert truth.completed == counters.delivered


def test_direct_agents_die_of_the_first_refusal_and_sdk_agents_of_the_third():
    walled = replace(SMALL, provider=ProviderSettings(outages=(ProviderOutage(0, 3600),)))
    assert run(walled, seed=0, policy=Policy.DIRECT).attempts == 3
    assert run(walled, seed=0, policy=Policy.SDK).attempts == 9
    assert run(walled, seed=0, policy=Policy.SDK).lost == 3


def test_a_client_that_times_out_leaves_nothing_behind():
    impatient = replace(SMALL, crowds=(replace(SMALL.crowds[0], timeout_s=0.5),))
    world = World(impatient, seed=0)
    result = world.run()
    assert result.lost == 3
    assert result.deaths == {"timeout": 3}
    assert not isinstance(world.scheduler, Scheduler) or world.scheduler.is_idle
    assert world.provider.truth().in_flight == 0


def test_a_shed_client_comes_back_when_its_policy_has_re_sends():
    crowd = replace(SMALL.crowds[0], timeout_s=30, retries=5)
    walled = replace(SMALL, crowds=(crowd,), provider=ProviderSettings(outages=(ProviderOutage(0, 60),)))
    result = run(walled, seed=0)
    assert result.sheds > 0
    assert result.lost == 0
    assert run(replace(walled, crowds=(replace(crowd, retries=0),)), seed=0).lost == 3


def test_what_never_answers_is_closed_by_the_watchdog_and_tried_again():
    crowd = Crowd("agent", 5, 3, streamed=True, timeout_s=600, output_tokens=(60, 60), tokens_per_s=60)
    hanging = Scenario("hanging", (crowd,), ProviderSettings(faults={"hang": 0.3}))
    world = World(hanging, seed=2)
    result = world.run()
    assert result.lost == 0
    assert result.attempts > 15
    assert world.provider.truth().in_flight == 0
    assert 120 < result.makespan_s < 600


def test_a_run_that_is_cut_loses_nobody_who_still_works():
    endless = replace(SMALL, crowds=(replace(SMALL.crowds[0], turns=None),), duration_s=60)
    result = run(endless, seed=0)
    assert result.makespan_s == 60
    assert result.lost == 0
    assert result.crowds["agent"].turns_done > 60


def test_a_shared_prefix_is_paid_for_once_in_the_ideal_and_read_from_the_cache_in_truth():
    result = run(FAN_OUT, seed=0)
    assert 1.0 <= result.cost / result.ideal_cost < 1.2


@each("cut_resets", [True, False])
def test_nobody_comes_before_a_window_that_is_told_in_whole_seconds(cut_resets):
    limits = (Limit(Dimension.REQUESTS, 20, 60, kind=LimitKind.WINDOW),)
    settings = ProviderSettings(limits=limits, cut_resets=cut_resets)
    result = run(Scenario("x", (Crowd("agent", 10, 12, timeout_s=1200, latency_s=0.3),), settings), seed=0)
    assert result.refused == 0
    assert result.makespan_s < 1.01 * result.bound.bound_s


def test_calls_in_flight_are_measured_against_the_cap_of_their_time():
    crowd = Crowd("agent", 4, latency_s=1.0, think_s=(0, 0), output_tokens=(61, 61), tokens_per_s=60)
    capped = Scenario("capped", (crowd,), ProviderSettings(concurrency=4), duration_s=200, caps=((100.0, 8),))
    used = run(capped, seed=0).cap_used
    # Four of four for half of the time, four of eight for the other: 8 of 12.
    assert used == pytest.approx(8 / 12, abs=0.03)


# What the keys of crowds and neighbours mean ---------------------------------------------------------------------------


def arrivals(crowds, *, seed=0, policy=Policy.DIRECT, provider=SMALL.provider, **scenario):
    """The requests that come to the provider, with their instants; and what comes of the run."""
    world, seen = World(Scenario("x", crowds, provider, **scenario), seed=seed, policy=policy), []
    begin = world.provider.begin

    def begins(now, request):
        seen.append((now, request))
        return begin(now, request)

    world.provider.begin = begins
    return seen, world.run()


def one(**keys):
    return (Crowd("agent", 1, keys.pop("turns", 4), latency_s=1.0, latency_sigma=0.0, **keys),)


def hours_of(seen):
    return [(now / 3600) % 24 for now, _ in seen]


@each(
    ("crowds", "more", "holds"),
    [
        (one(starts_s=(7,), think_s=(2,)), {}, lambda seen: [round(now) for now, _ in seen] == [9, 12, 15, 18]),
        (
            one(calls_per_turn=(3,), think_s=(2,)),
            {},
            lambda seen: [round(now) for now, _ in seen] == [2, 2, 2, 5, 5, 5, 8, 8, 8, 11, 11, 11],
        ),
        (
            one(prompt_tokens=(10, 20, 4000), opening_tokens=(1,), remembers=False, turns=60),
            {},
            lambda seen: {request.input_tokens for _, request in seen} == {11, 21, 4001},
        ),
        (one(max_tokens=8000), {}, lambda seen: [request.max_tokens for _, request in seen] == [8000] * 4),
        (one(), {}, lambda seen: [request.max_tokens for _, request in seen] == [51] * 4),
        (
            one(output_tokens=(100,), calls_per_turn=(2,), prompt_tokens=(10,), opening_tokens=(5,), turns=2),
            {},
            lambda seen: [request.input_tokens for _, request in seen] == [15, 15, 235, 235],
        ),
        (
            one(hours=(9, 17), turns=None, think_s=(600,), starts_s=(0, 60)),
            {"duration_s": 3 * DAY_S},
            lambda seen: all(9 <= hour < 17.02 for hour in hours_of(seen)) and len(seen) == 3 * 47,
        ),
        (
            one(hours=(22, 30), turns=5, opening_tokens=(7,), prompt_tokens=(1,), output_tokens=(1,)),
            {"duration_s": 2 * DAY_S},
            # At midnight, which is in its hours, and at ten in the evening, each time from the opening on.
            lambda seen: (
                [request.input_tokens for _, request in seen] == [8, 10, 12, 14, 16] * 3
                and sorted({int(hour) for hour in hours_of(seen)}) == [0, 22]
            ),
        ),
        (
            one(think_s=(10,), turns=200),
            {"way_s": 0.5, "way_jitter_s": 3.0},
            lambda seen: 0.4 < min(ways(seen)) < 0.7 and 3.2 < max(ways(seen)) < 3.6,
        ),
    ],
)
def test_requests_come_as_the_keys_of_their_crowd_say(crowds, more, holds):
    seen, result = arrivals(crowds, **more)
    assert holds(seen), [(round(now, 1), request.input_tokens, request.max_tokens) for now, request in seen[:20]]
    assert result.lost == 0
    assert result.turns_done == len(seen)


def ways(seen):
    """How long each request was on its way, of an agent that thinks for 10 s and gets its answer in a second."""
    way_s, asked_at = [], 10.0
    for now, _ in seen:
        way_s.append(now - asked_at)
        asked_at = now + 1.0 + 0.5 + 10.0
    return way_s


@each("policy", [Policy.DIRECT, Policy.SDK, Policy.FIFO, Policy.HIVEMIND])
def test_a_turn_of_several_calls_is_over_with_the_last_answer(policy):
    crowd = Crowd("agent", 4, 6, calls_per_turn=(2, 5), latency_s=2.0, latency_sigma=1.0)
    seen, result = arrivals((crowd,), policy=policy)
    assert result.lost == 0
    assert result.wanted == result.attempts == result.turns_done == len(seen) > 4 * 6 * 2
    assert result.makespan_s == pytest.approx(result.bound.bound_s, rel=0.01)


@each("policy", COMPARED)
def test_who_dies_of_one_of_several_calls_takes_the_others_back(policy):
    crowd = Crowd("agent", 3, 4, calls_per_turn=(4,), latency_s=5.0, timeout_s=8.0)
    world = World(Scenario("x", (crowd,), ProviderSettings(concurrency=2)), seed=1, policy=policy)
    assert world.run().lost == 3
    assert world.provider.truth().in_flight == 0
    assert not isinstance(world.scheduler, Scheduler) or world.scheduler.is_idle


@each(("status", "policy"), [(400, Policy.HIVEMIND), (413, Policy.HIVEMIND), (429, Policy.DIRECT), (500, Policy.SDK)])
def test_what_is_refused_for_good_is_its_requests_end_and_not_its_agents(status, policy):
    crowd = Crowd(
        "agent", 10, 40, latency_s=0.1, refused=RefusedForGood(share=0.2, status=status, words="no such tool")
    )
    _, result = arrivals((crowd,), policy=policy)
    bad = result.wanted - result.turns_done
    assert result.lost == 0
    assert result.wanted == 10 * 40
    assert 0.1 < bad / result.wanted < 0.3
    assert result.statuses[status] == (1 + 2 * (policy == Policy.SDK)) * bad
    assert result.refused == 0


def test_whom_no_provider_answers_is_in_no_figure():
    bad = Crowd("bad", 1, 3, timeout_s=600, refused=RefusedForGood(status=500))
    _, result = arrivals((Crowd("healthy", 2, 3, timeout_s=600), bad), policy=Policy.HIVEMIND)
    assert (result.lost, result.agents) == (0, 2)
    assert result.statuses[500] >= 3


@each(
    ("neighbour", "spans"),
    [
        (Neighbour(2.0), [(0, 600)]),
        (Neighbour(2.0, from_s=100, to_s=200), [(100, 200)]),
        (Neighbour(2.0, from_s=50, to_s=100, every_s=200), [(50, 100), (250, 300), (450, 500)]),
        (Neighbour(2.0, from_s=50, to_s=100, every_s=200, waits=True), [(50, 100), (250, 300), (450, 500)]),
        (Neighbour(2.0, to_s=300, site="other"), []),
    ],
)
def test_neighbours_come_and_go(neighbour, spans):
    patient = Crowd("agent", 1, 1, think_s=(600,))
    seen, result = arrivals((patient,), neighbours=(neighbour,), sites=(replace(MESSAGES, name="other"),))
    calls = [now for now, request in seen if request.credential == "sk-sim-neighbour"]
    assert [[from_s <= now <= to_s for from_s, to_s in spans].count(True) for now in calls] == [1] * len(calls)
    assert all(any(from_s <= now <= from_s + 10 for now in calls) for from_s, _ in spans)
    offered_s = sum(to_s - from_s for from_s, to_s in spans) if spans else 300
    assert result.neighbour_calls == pytest.approx(2.0 * offered_s, rel=0.2)


@each("waits", [False, True])
def test_a_neighbour_that_waits_takes_the_room_of_all_others_and_is_never_refused(waits):
    limits = (Limit(Dimension.REQUESTS, 30, 60, kind=LimitKind.WINDOW),)
    provider = ProviderSettings(limits=limits, concurrency=2, rate_limit_headers=False)
    neighbour = Neighbour(0.25, latency_s=20.0, to_s=120, waits=waits)
    seen, result = arrivals(
        (Crowd("agent", 3, 20, timeout_s=900),), policy=Policy.HIVEMIND, provider=provider, neighbours=(neighbour,)
    )
    tried = sum(request.credential == "sk-sim-neighbour" for _, request in seen)
    assert (tried == result.neighbour_calls) == waits
    assert result.lost == 0
    # Two slots for 20 s each: some 30 calls keep them for five minutes.
    assert (result.makespan_s > 300) == waits


CHAT = Site(ProviderSettings(), "chat", PoolKey("api.chat", "key", "gpt"), profile="openai", dialect=SimDialect.CHAT)
MESSAGES = Site(ProviderSettings(), "messages", PoolKey("api.messages", "key", "claude"))


def scripted(name, *after, site=MESSAGES, think_s=1.0, service_s=2.0, agent="a", **how):
    ticket = Ticket(
        id=name,
        pool=site.pool,
        agent=agent,
        session=agent,
        model="m",
        demand=Demand(input_tokens=100, output_tokens=10, total_tokens=110),
        arrived_at=0,
        deadline_at=600,
        shed_at=590,
    )
    turn = PlannedTurn(think_s=think_s, latency_s=service_s, generation_s=0, prompt_tokens=100, output_tokens=10)
    return ScriptedCall(ticket, turn, after=after, **how)


def fails(status, after_s=0.5):
    return ScriptedFault(ErrorStatus(status), after_s)


def script(*calls, sites=(MESSAGES,)):
    return Scenario("script", (), ProviderSettings(), sites=sites, script=calls, way_s=0.0)


@each("policy", COMPARED)
def test_a_scripted_call_comes_its_think_time_after_the_last_one_that_it_follows(policy):
    calls = (
        scripted("lead"),
        scripted("left", "lead", service_s=5),
        scripted("right", "lead"),
        scripted("join", "left", "right"),
    )
    result = run(script(*calls), seed=0, policy=policy)
    assert [(call.asked_at, call.ended_at) for call in result.script] == [(1, 3), (4, 9), (4, 6), (10, 12)]
    assert result.makespan_s == result.bound.bound_s == 12
    assert result.lost == 0


def test_what_follows_a_scripted_call_that_failed_is_never_asked():
    calls = scripted("bad", faults=(fails(400),)), scripted("next", "bad"), scripted("other", agent="b")
    result = run(script(*calls), seed=0)
    assert [call.death is None for call in result.script] == [False, False, True]
    assert result.script[1].asked_at is None
    assert (result.agents, result.lost) == (2, 1)


def test_a_failure_that_its_agent_survived_holds_nothing_up():
    result = run(script(scripted("bad", faults=(fails(400),), is_vital=False), scripted("next", "bad")), seed=0)
    assert result.lost == 0
    assert result.script[1].death is None


def test_faults_of_a_script_meet_its_first_attempts():
    call = scripted("call", faults=(fails(500), fails(529)))
    assert run(script(call), seed=0).statuses == {500: 1, 529: 1, 200: 1}
    alone = run(script(call), seed=0, policy=Policy.DIRECT)
    assert alone.lost == 1
    assert alone.script[0].ended_at == 1.5


def test_a_scripted_call_is_billed_for_what_it_took():
    call = scripted("call", faults=(ScriptedFault(NoHead(Hangup.RESET), 1.0),))
    call = replace(call, ticket=msgspec.structs.replace(call.ticket, price=Price(1_000_000, 0, 0, 5_000_000)))
    (result,) = run(script(call), seed=0).script
    assert result.in_vain == Spend(tokens=100, micro_usd=100)
    assert result.billed == result.in_vain + Spend(tokens=110, micro_usd=150)


def test_sites_have_limits_of_their_own():
    slow = replace(CHAT, provider=ProviderSettings(limits=(Limit(Dimension.REQUESTS, 1, 60),)))
    calls = [scripted(f"{site.name}-{n}", site=site, agent=f"{n}") for site in (MESSAGES, slow) for n in range(3)]
    heard = []
    world = World(script(*calls, sites=(MESSAGES, slow)), seed=0, listen=heard.append)
    result = world.run()
    ends_s = [call.ended_at for call in result.script]
    assert ends_s[:4] == [3, 3, 3, 3]
    assert 63 <= ends_s[4] < 66
    assert 123 <= ends_s[5] < 132
    assert result.bound.why == "the last conversations"
    assert {event.pool for event in heard if isinstance(event, AttemptStarted)} == {MESSAGES.pool, slow.pool}


def test_a_head_without_content_does_not_lengthen_its_clients_patience():
    """The proxy keeps such a head back: the client still waits for its first byte, and may be served once more."""
    crowd = replace(SMALL.crowds[0], agents=1, turns=1, streamed=True, timeout_s=30, latency_s=4.0)
    world = World(replace(SMALL, crowds=(crowd,)), seed=0)
    world.provider.script("sk-sim-agent-0", (NAMED["head-then-reset"],), then=NAMED["hang"])
    assert world.run().deaths == {"timeout": 1}
    assert world.now == pytest.approx(30, abs=1)


# Agenda ---------------------------------------------------------------------------------------------------------------


def test_deeds_are_done_at_their_instants_and_those_of_one_instant_in_the_order_in_which_they_were_put_down():
    agenda, done = Agenda(), []
    agenda.at(2.0, done.append, "second")
    agenda.after(2.0, done.append, "third")
    agenda.at(1.0, done.append, "first")
    while agenda.step():
        pass
    assert done == ["first", "second", "third"]
    assert agenda.now == 2.0


def test_nothing_is_done_before_it_is_due():
    agenda, done = Agenda(), []
    agenda.after(5.0, done.append, "later")
    assert agenda.step(4.9, before=lambda instant: done.append(f"until {instant}"))
    assert (done, agenda.now) == (["until 4.9"], 4.9)
    assert not agenda.step(until=4.95)
    assert agenda.step(5.0)
    assert not agenda.step()
    assert done == ["until 4.9", "later"]


def test_what_should_have_been_done_before_is_due_now():
    agenda = Agenda()
    agenda.now = 7.0
    agenda.at(3.0, print)
    assert agenda.first_at == 7.0


def test_a_delay_counts_from_now():
    agenda = Agenda()
    agenda.now = 7.0
    agenda.after(3.0, print)
    assert agenda.first_at == 10.0


# Actor ----------------------------------------------------------------------------------------------------------------


def actor(**crowd):
    site = SimUpstream(Site(ProviderSettings(), pool=PoolKey("x", "y", "z")), random.Random(0), None)
    made = Actor(0, "a-0", "a-0", Crowd("a", 1, 2, **crowd), site, iter(()), random.Random(0))
    made.turn = PlannedTurn(think_s=0, latency_s=1, generation_s=0, prompt_tokens=100, output_tokens=10)
    made.number = 2
    return made


def test_a_prompt_is_all_that_was_said_and_what_is_new():
    talker = actor(shared_tokens=1000)
    talker.said = 500
    assert talker.prompt_tokens(talker.turn) == 1600


def test_marks_go_from_the_shared_prefix_to_the_present_request():
    talker = actor(shared_tokens=1000, caches=True)
    talker.said, talker.marked = 500, 1200
    assert talker.prefixes(talker.turn) == (Prefix("a", 1000), Prefix("a-0 1", 1200), Prefix("a-0 2", 1600))
    assert actor().prefixes(talker.turn) == ()


def test_output_is_guessed_high_at_first_and_closer_with_each_answer():
    talker = actor()
    assert talker.likely_output_tokens == talker.upstream.profile.charge.default_output_tokens
    guesses = []
    for _ in range(20):
        talker.learn(100)
        guesses.append(talker.likely_output_tokens)
    assert guesses[0] == 200
    assert 100 <= guesses[-1] < 105


def test_a_retry_after_is_obeyed_up_to_a_minute():
    rng = random.Random(1)
    assert SdkBackoff().wait_s(0, 7.0, rng) == 7.0
    assert SdkBackoff().wait_s(0, 60.0, rng) == 60.0
    for useless in (None, 0.0, -3.0, 61.0, float("nan"), float("inf")):
        assert SdkBackoff().wait_s(0, useless, rng) <= SdkBackoff().first_s


def test_backoff_doubles_up_to_its_maximum_with_a_quarter_of_jitter():
    for retry, most in enumerate((0.5, 1, 2, 4, 8, 8)):
        waits = [SdkBackoff().wait_s(retry, None, random.Random(seed)) for seed in range(50)]
        assert 0.75 * most <= min(waits) < max(waits) <= most


# Upstream -------------------------------------------------------------------------------------------------------------


POOL = PoolKey("x.sim", "key", "sim-1")
USAGE = Usage(input_tokens=100, cache_read_tokens=900, output_tokens=50)


def upstream(settings=None, **site):
    return SimUpstream(Site(ProviderSettings(), "x", POOL, **site), random.Random(0), settings)


def test_the_profile_says_what_a_limit_counts():
    reserved = Demand(input_tokens=1, output_tokens=4096, total_tokens=1)
    assert upstream().charged(USAGE, reserved) == Demand(input_tokens=100, output_tokens=50, total_tokens=150)
    openai = upstream(profile="openai", dialect=SimDialect.CHAT).charged(USAGE, reserved)
    assert openai.input_tokens == 1000, "cached tokens count there"


def test_a_model_waits_where_the_profiles_groups_put_it():
    assert upstream().pool_of("sim-1") is POOL
    assert upstream().pool_of("claude-opus-4-5") == PoolKey("x.sim", "key", "claude-opus-4*")
    assert upstream().pool_of("other") == PoolKey("x.sim", "key", "other")


def test_settings_of_the_scenario_go_before_the_profiles():
    mine = PoolSettings()
    assert upstream(mine).pool_settings is mine
    assert upstream().pool_settings == upstream().profile.pool_settings


def test_a_bill_knows_caches():
    reply = Reply(
        dialect=SimDialect.MESSAGES,
        request_id="id",
        attempt=1,
        digest="",
        model="sim-1",
        input_tokens=1_000_000,
        cached_tokens=1_000_000,
        written_tokens=1_000_000,
        output_tokens=5,
        tokens_per_delta=1,
        truncated=False,
        include_usage=False,
    )
    bill = bill_of(reply, output_tokens=1_000_000, price=USUAL_PRICE)
    assert bill.tokens == 4_000_000
    assert bill.micro_usd == (3 + 3.75 + 0.3 + 15) * 1_000_000
    unpriced = bill_of(reply, output_tokens=1_000_000, price=None)
    assert (unpriced.tokens, unpriced.micro_usd) == (4_000_000, 0)
