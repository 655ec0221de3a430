"""What a run is measured by: its books, bounds, idle time and expectations."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.events import BreakerChanged
from hivemind_addon.kernel.values.snapshot import BreakerState
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import Demand, Dimension, PoolKey
from hivemind_addon.sim.actor import Actor, SimUpstream
from hivemind_addon.sim.bound import Bound, Ideal, Spent, input_cost, lower_bound, lower_bound_of_models
from hivemind_addon.sim.call import AnswerEnding, SimAnswer, SimRequestFacts
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.idle import IdleMeter
from hivemind_addon.sim.limits import Limit, LimitKind, ModelScope
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.provider import ProviderOutage, ProviderSettings, SimProvider
from hivemind_addon.sim.result import CrowdResult, Result, RunLedger
from hivemind_addon.sim.workload import Crowd, Neighbour, PlannedTurn, RefusedForGood, Scenario, Site
from hivemind_addon.sim.world import run
from tests.cases import each
from tests.sim.samples import REPLY

CROWD = CrowdResult(4, 1, 10, waits_s=(4.0, 1.0, 3.0, 2.0), ended_s=(5.0, 7.0), halfway_turns=(2, 2, 2, 2))
RESULT = Result(
    10.0, Bound(8.0, "a limit"), 12, Counter({200: 12}), {"agent": CROWD}, Counter(), 5.0, 4.0, 0.0, 0, 0, 0, 5.0
)


def test_a_wait_is_that_of_a_share_of_the_requests():
    assert [CROWD.wait_s(share) for share in (0.25, 0.5, 0.95)] == [1.0, 2.0, 4.0]
    assert replace(CROWD, waits_s=()).wait_s(0.5) == 0.0


@each(("turns", "index"), [((3, 3, 3), 1.0), ((6, 0, 0), 1 / 3), ((0, 0), 0.0), ((), 0.0)])
def test_fairness_is_jains_index_of_the_turns_done_at_half_time(turns, index):
    run = replace(RESULT, crowds={"agent": replace(CROWD, halfway_turns=turns)})
    assert run.fairness == pytest.approx(index)


def test_fairness_is_that_of_the_crowd_that_is_worst_off():
    unequal = replace(CROWD, halfway_turns=(4, 0))
    assert replace(RESULT, crowds={"one": CROWD, "other": unequal}).fairness == 0.5


def test_ratios():
    assert (RESULT.stretch, RESULT.shared_stretch, RESULT.cost_ratio) == (1.25, 2.0, 1.25)
    assert replace(RESULT, ideal_cost=0.0).cost_ratio == 1.0
    assert (RESULT.agents, RESULT.lost, RESULT.turns_a_minute) == (4, 1, 60.0)


# Ledger ---------------------------------------------------------------------------------------------------------------


POOL = PoolKey("api.sim", "key-sim", "sim-1")
CROWD_LEDGER = Crowd("agent", 2, 1)


class Books:
    """A ledger of two agents and what it needs."""

    def __init__(self, crowd: Crowd = CROWD_LEDGER, **settings: object) -> None:
        self.scenario = Scenario("books", (crowd,), ProviderSettings(**settings))
        self.own = SimUpstream(Site(self.scenario.provider, pool=POOL), random.Random(0), None)
        self.other = SimUpstream(Site(self.scenario.provider, "other", POOL), random.Random(0), None)
        self.ledger = RunLedger(self.scenario, own=self.own, upstreams=(self.own, self.other))
        self.agents = [self.agent(crowd, number) for number in range(2)]

    def agent(self, crowd: Crowd, number: int) -> Actor:
        name = f"{crowd.name}-{number}"
        rng = random.Random(number)
        turn = PlannedTurn(think_s=0.0, latency_s=1.0, generation_s=1.0, prompt_tokens=100, output_tokens=10)
        return Actor(number, name, name, crowd, self.own, iter(()), rng, turn=turn)

    def result(self, now: float):
        return self.ledger.result(self.agents, now)


def answered(request_id: str, *, ending: AnswerEnding = AnswerEnding.COMPLETED, status: int = 200) -> SimAnswer:
    return SimAnswer(request_id, 1, "org", "agent", "model", status, (), ending)


def test_a_cap_is_used_by_so_much_as_calls_were_in_flight_beneath_it():
    books = Books(concurrency=2)
    books.ledger.call_began(books.own, 0.0)
    books.ledger.call_began(books.other, 0.0)  # not under this cap
    books.ledger.move_cap(1, 10.0)  # 10 of 20 seconds so far
    books.ledger.call_began(books.own, 10.0)  # two, of which the cap counts one: 10 of 10
    books.ledger.call_ended(books.own, 20.0)
    books.ledger.call_ended(books.own, 20.0)
    assert books.result(30.0).cap_used == pytest.approx(20 / 40)
    assert Books().result(30.0).cap_used == 0.0


def test_the_breaker_counts_as_opened_when_it_was_closed_before():
    books = Books()
    for state in (BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.OPEN, BreakerState.CLOSED, BreakerState.OPEN):
        books.ledger.breaker_changed(BreakerChanged(at=0.0, pool=POOL, state=state.value, reason=""))
    assert books.result(1.0).breaker_opened == 2


def test_what_gave_no_answer_is_billed_in_vain():
    books = Books()
    one, other = books.agents
    books.ledger.book_attempt(one, one.upstream, REPLY, REPLY.output_tokens, is_whole=True)
    books.ledger.book_attempt(other, other.upstream, REPLY, 3, is_whole=False)
    assert one.in_vain == Spend()
    assert other.in_vain == other.billed
    assert other.billed.tokens == REPLY.prompt_tokens + 3
    assert books.own.taken["sim-1"].waste == {
        Dimension.REQUESTS: 1,
        Dimension.INPUT_TOKENS: REPLY.input_tokens,
        Dimension.OUTPUT_TOKENS: 3,
    }
    result = books.result(1.0)
    assert (result.billed, result.wasted) == (one.billed + other.billed, other.billed)
    assert result.cost == pytest.approx(2 * (REPLY.input_tokens + 0.1 * REPLY.cached_tokens))


def test_a_lane_is_held_from_an_attempts_begin_to_its_end_and_ten_times_the_usual_is_a_zombie():
    books = Books(Crowd("agent", 2, 1, latency_s=1.0, output_tokens=(10, 10), tokens_per_s=9.0))  # two seconds usually
    one, other = books.agents
    books.ledger.attempt_sent("a", one, 0.0)
    books.ledger.attempt_sent("b", other, 0.0)
    books.ledger.attempt_over("a", 20.0)
    one.turns_s.append((5.0, 2.0))
    result = books.result(21.0)  # the other still runs
    assert (result.held_s, result.served_s, result.wasted_lane_s) == (41.0, 2.0, 39.0)
    assert result.zombies == 1


def test_who_is_stopped_by_its_budget_is_neither_lost_nor_done_and_its_tokens_are_in_vain():
    books = Books(Crowd("agent", 2, 1, budget_tokens=2 * REPLY.prompt_tokens))
    for agent in books.agents:
        books.ledger.book_attempt(agent, agent.upstream, REPLY, 0, is_whole=True)
        agent.ended_at = 5.0
    books.agents[0].is_stopped = True
    result = books.result(9.0)
    assert (result.lost, result.stopped, result.crowds["agent"].ended_s) == (0, 1, (5.0,))
    assert (result.overspent, result.wasted) == (0.5, books.agents[0].billed)


def test_a_turn_counts_with_its_own_provider_as_it_would_be_with_an_ideal_cache():
    books = Books(Crowd("agent", 2, 1, shared_tokens=1000, caches=True))
    for agent in books.agents:
        books.ledger.book_turn(agent, agent.upstream, agent.turn)
    assert books.result(1.0).ideal_cost == pytest.approx(1.25 * 1100 + 0.1 * 1000 + 1.25 * 100)
    assert books.own.taken["sim-1"].units[Dimension.INPUT_TOKENS] == 1100 + 100
    assert not books.other.taken


def test_the_dead_are_lost_and_so_is_who_has_not_ended():
    books = Books()
    books.agents[0].ended_at, books.agents[0].death = 5.0, "status 500"
    result = books.result(9.0)
    assert (result.lost, result.deaths, result.makespan_s) == (2, {"status 500": 1}, 9.0)


def test_poisoned_agents_are_in_no_figure():
    books = Books(Crowd("agent", 2, 1, refused=RefusedForGood()))
    books.ledger.book_attempt(books.agents[0], books.own, REPLY, 3, is_whole=False)
    books.agents[0].ended_at, books.agents[0].death = 5.0, "status 500"
    result = books.result(9.0)
    assert (result.agents, result.lost, result.makespan_s, result.billed) == (0, 0, 9.0, Spend())
    assert result.deaths == {}


def test_each_call_of_a_neighbour_may_refuse_one_attempt_while_own_calls_leave_a_slot():
    books = Books(concurrency=2)
    ledger, own = books.ledger, books.own
    refused = answered("mine", ending=AnswerEnding.OVERLOADED, status=529)
    ledger.attempt_answered(refused, own, 1.0)  # nobody else is there: whatever it was, it was no neighbour
    ledger.neighbour_called(answered("a"), own)
    ledger.call_began(own, 2.0)
    ledger.attempt_answered(refused, own, 2.0)
    ledger.attempt_answered(refused, own, 3.0)  # now it is known
    ledger.neighbour_called(answered("b"), own)
    ledger.call_began(own, 4.0)
    ledger.attempt_answered(refused, own, 4.0)  # own calls take both
    ledger.neighbour_ended(answered("b"), own)
    ledger.call_ended(own, 5.0)
    ledger.attempt_answered(refused, own, 5.0)  # over: nothing is left to meet
    result = books.result(6.0)
    assert (result.refused, result.unforeseen) == (5, 1)


def test_what_a_neighbour_takes_counts_only_in_the_bound_that_is_shared_with_it():
    limit = Limit(Dimension.REQUESTS, 1, 10.0, LimitKind.WINDOW)
    books = Books(limits=(limit,))
    for agent in books.agents:
        books.ledger.book_turn(agent, agent.upstream, agent.turn)
    for name in "abc":
        books.ledger.neighbour_called(answered(name), books.own)
    result = books.result(1.0)
    assert result.neighbour_calls == 3
    assert result.shared_bound_s > result.bound.bound_s > 0
    books = Books(concurrency=1)
    books.ledger.neighbour_ended(answered("a"), books.own)  # refused: it held no slot
    books.ledger.neighbour_ended(replace(answered("b"), reply=REPLY, latency_s=50.0), books.own)
    assert books.result(60.0).shared_bound_s == 50.0


# Bound ----------------------------------------------------------------------------------------------------------------


REQUESTS, OUTPUT = Dimension.REQUESTS, Dimension.OUTPUT_TOKENS


def spent(units=None, *, path_s=0.0, service_s=0.0):
    return Spent(units=units or {}, longest_path_s=path_s, service_s=service_s)


def test_nothing_is_faster_than_the_longest_conversation():
    bound = lower_bound(spent(path_s=9), [], concurrency=None)
    assert (bound.bound_s, bound.why) == (9, "the longest conversation")


def test_service_time_is_shared_by_the_slots():
    bound = lower_bound(spent(path_s=9, service_s=100), [], concurrency=5)
    assert (bound.bound_s, bound.why) == (20, "5 slots")


@each(("units", "bound_s"), [(10, 0), (30, 20), (35, 25)])
def test_a_bucket_begins_full_and_then_refills(units, bound_s):
    limit = Limit(REQUESTS, 10, 10, LimitKind.BUCKET)
    assert lower_bound(spent({REQUESTS: units}), [limit], concurrency=1).bound_s == bound_s


@each(("units", "bound_s"), [(10, 0), (11, 10), (30, 20), (31, 30)])
def test_a_window_gives_its_whole_limit_at_each_beginning(units, bound_s):
    limit = Limit(REQUESTS, 10, 10, LimitKind.WINDOW)
    assert lower_bound(spent({REQUESTS: units}), [limit], concurrency=1).bound_s == bound_s


def test_output_of_the_last_calls_may_be_charged_beyond_the_limit():
    limit = Limit(OUTPUT, 10, 10, LimitKind.BUCKET)
    assert lower_bound(spent({OUTPUT: 30}), [limit], concurrency=None).bound_s == 20
    assert lower_bound(spent({OUTPUT: 30}), [limit], concurrency=None, late_units=5).bound_s == 15


@each("kind", LimitKind)
@each("units", [1, 7, 10, 23, 40])
def test_the_greediest_caller_reaches_the_bound_and_never_beats_it(kind, units):
    """The provider's own allowance, asked for one unit after the other, each as early as it fits."""
    limit = Limit(REQUESTS, 10, 10, kind)
    now, allowance = 0.0, limit.allowance(0.0)
    for _ in range(units):
        now += allowance.fits_in_s(1, now)
        allowance.take(1, now)
    assert math.isclose(lower_bound(spent({REQUESTS: units}), [limit], concurrency=None).bound_s, now, abs_tol=1e-4)


BUCKET = Limit(Dimension.REQUESTS, 10, 10.0, LimitKind.BUCKET)
WINDOW = Limit(Dimension.REQUESTS, 10, 10.0, LimitKind.WINDOW)


def of_requests(units, limit, outages=()):
    spent = Spent(units={Dimension.REQUESTS: units}, longest_path_s=0.0, service_s=0.0)
    return lower_bound(spent, [limit], concurrency=None, outages=outages).bound_s


@each(
    ("limit", "units", "outage", "bound_s"),
    [
        (BUCKET, 15, (20.0, 30.0), 5.0),
        # 10 at once and 5 by 5 s; the bucket is full again at the end of the outage.
        (BUCKET, 20, (5.0, 25.0), 25.0),
        (BUCKET, 28, (5.0, 25.0), 28.0),
        (BUCKET, 15, (0.0, 20.0), 25.0),
        (WINDOW, 15, (12.0, 14.0), 10.0),
        (WINDOW, 15, (8.0, 14.0), 14.0),
        (WINDOW, 15, (5.0, 25.0), 25.0),
        (WINDOW, 25, (5.0, 25.0), 30.0),
    ],
)
def test_an_outage_lets_nothing_through_and_replenishes_limits(limit, units, outage, bound_s):
    assert of_requests(units, limit, [outage]) == pytest.approx(bound_s)


def test_what_is_left_at_the_last_reset_still_has_to_be_said():
    # Four agents, four turns each of 1 s of thinking and 2 s of service: six of the sixteen calls go after 10 s, so
    # one agent has two of them left.
    spent = Spent(units={Dimension.REQUESTS: 16}, longest_path_s=12.0, service_s=0.0, turns_s=[[(1.0, 2.0)] * 4] * 4)
    bound = lower_bound(spent, [WINDOW], concurrency=None)
    assert bound.bound_s == pytest.approx(10 + 2 + 1 + 2)
    assert bound.why == "the last conversations"


def test_an_agents_turns_alone_are_no_more_than_its_conversation():
    spent = Spent(units={Dimension.REQUESTS: 4}, longest_path_s=12.0, service_s=0.0, turns_s=[[(1.0, 2.0)] * 4])
    assert lower_bound(spent, [WINDOW], concurrency=None).bound_s == 12.0


@each(
    ("scope", "slots", "bound_s"),
    [
        # 30 calls of three models: 10 a minute for all of them, for two families (20 and 10 calls), for each model.
        (ModelScope.KEY, ModelScope.MODEL, 120),
        (ModelScope.FAMILY, ModelScope.MODEL, 60),
        (ModelScope.MODEL, ModelScope.MODEL, 40),
        (ModelScope.MODEL, ModelScope.FAMILY, 80),
        (ModelScope.MODEL, ModelScope.KEY, 120),
    ],
)
def test_models_that_share_a_limit_or_slots_are_bound_together(scope, slots, bound_s):
    settings = ProviderSettings(
        limits=(Limit(REQUESTS, 10, 60, LimitKind.WINDOW, scope=scope),),
        families=(("a", "b"),),
        concurrency=1,
        concurrency_scope=slots,
    )
    one = spent({REQUESTS: 10}, service_s=40)
    bound = lower_bound_of_models({"a": one, "b": one, "c": one}, settings, concurrency=settings.concurrency)
    assert bound.bound_s == bound_s


# Ideal ----------------------------------------------------------------------------------------------------------------


CROWD_IDEAL = Crowd("c", 2, shared_tokens=1000, caches=True)


def test_the_shared_instructions_are_written_once_and_a_conversation_is_read_from_then_on():
    ideal = Ideal()
    taken = [
        ideal.book(CROWD_IDEAL, prompt_tokens=tokens, marked=marked, output_tokens=10)[Dimension.INPUT_TOKENS]
        for tokens, marked in ((1500, 0), (1600, 0), (1700, 1500))
    ]
    assert taken == [1500, 600, 200]
    assert ideal.cost == pytest.approx((1500 + 600 + 200) * 1.25 + (1000 + 1500) * 0.1)


def test_each_crowd_has_instructions_of_its_own():
    ideal = Ideal()
    other = Crowd("other", 1, shared_tokens=1000, caches=True)
    for crowd in (CROWD_IDEAL, other):
        assert ideal.book(crowd, prompt_tokens=1500, marked=0, output_tokens=1)[Dimension.INPUT_TOKENS] == 1500


def test_who_does_not_cache_pays_for_all_of_it():
    ideal = Ideal()
    taken = ideal.book(Crowd("plain", 1, shared_tokens=1000), prompt_tokens=1500, marked=1200, output_tokens=10)
    assert taken == {
        Dimension.REQUESTS: 1,
        Dimension.INPUT_TOKENS: 1500,
        Dimension.OUTPUT_TOKENS: 10,
        Dimension.TOTAL_TOKENS: 1510,
    }
    assert ideal.cost == 1500


def test_what_is_read_from_a_cache_costs_a_tenth_and_what_is_written_a_quarter_more():
    assert input_cost(uncached_tokens=100, written_tokens=100, cached_tokens=100) == pytest.approx(100 + 125 + 10)


# Idle -----------------------------------------------------------------------------------------------------------------


REQUEST = SimRequestFacts(dialect=SimDialect.MESSAGES, credential="sk-sim-a", input_tokens=100)
DEMAND = Demand(input_tokens=100, output_tokens=50, total_tokens=150)
REQUESTS_IDLE, OUTPUT_IDLE = Dimension.REQUESTS, Dimension.OUTPUT_TOKENS


def at_provider(**settings):
    provider = SimProvider(ProviderSettings(**settings), random.Random(0))
    meter = IdleMeter(provider, coarse_tokens=0)
    return provider, meter, meter.keep(REQUEST, DEMAND)


def test_who_waits_before_a_provider_without_limits_waits_for_nothing():
    _, meter, kept = at_provider()
    meter.sent(10)
    meter.pass_time(10, 35, waiting=[kept], in_flight=[])
    meter.pass_time(35, 40, waiting=[kept], in_flight=[])
    assert meter.longest_s == 30


def test_an_attempt_ends_it_and_where_nobody_waits_there_is_none():
    _, meter, kept = at_provider()
    meter.pass_time(0, 10, waiting=[kept], in_flight=[])
    meter.sent(10)
    meter.pass_time(10, 15, waiting=[kept], in_flight=[])
    meter.pass_time(15, 100, waiting=[], in_flight=[kept])
    meter.pass_time(100, 101, waiting=[kept], in_flight=[])
    assert meter.longest_s == 10


@each(("kind", "longest_s"), [(LimitKind.BUCKET, 70), (LimitKind.WINDOW, 40)])
def test_while_a_limit_is_used_up_nobody_waits_for_nothing(kind, longest_s):
    """Two requests a minute: a bucket has the next after 30 s, a window after 60."""
    provider, meter, kept = at_provider(limits=(Limit(REQUESTS_IDLE, 2, 60, kind),))
    for _ in range(2):
        provider.end(0, provider.begin(0, REQUEST))
    meter.sent(0)
    meter.pass_time(0, 100, waiting=[kept], in_flight=[])
    assert meter.longest_s == pytest.approx(longest_s)


def test_a_full_cap_keeps_everybody_and_a_free_slot_nobody():
    provider, meter, kept = at_provider(concurrency=1)
    answer = provider.begin(0, REQUEST)
    meter.pass_time(0, 50, waiting=[kept], in_flight=[kept])
    assert meter.longest_s == 0
    provider.end(50, answer)
    meter.pass_time(50, 75, waiting=[kept], in_flight=[])
    assert meter.longest_s == 25


def test_an_outage_is_no_idleness_and_ends_the_one_before_it():
    provider, meter, kept = at_provider(outages=(ProviderOutage(20, 80),))
    provider.end(0, provider.begin(0, REQUEST))
    meter.pass_time(0, 110, waiting=[kept], in_flight=[])
    assert meter.longest_s == 30
    meter.pass_time(110, 115, waiting=[kept], in_flight=[])
    assert meter.longest_s == 35


def test_what_open_calls_will_be_charged_is_not_there():
    """50 of 100 tokens are promised: 50 are left, which is just enough for one, and not for a longer one."""
    provider, meter, kept = at_provider(limits=(Limit(OUTPUT_IDLE, 100, 60, LimitKind.WINDOW),))
    provider.begin(0, REQUEST)
    longer = meter.keep(REQUEST, Demand(output_tokens=51))
    meter.pass_time(0, 30, waiting=[longer], in_flight=[kept])
    assert meter.longest_s == 0
    meter.pass_time(30, 50, waiting=[kept], in_flight=[kept])
    assert meter.longest_s == 20


def test_what_rounded_headers_hide_is_not_there():
    provider = SimProvider(ProviderSettings(limits=(Limit(OUTPUT_IDLE, 5000, 60, LimitKind.WINDOW),)), random.Random(0))
    meter = IdleMeter(provider, coarse_tokens=1000)
    answer = provider.begin(0, REQUEST)
    provider.end(0, answer, output_tokens=4000)
    meter.pass_time(0, 59, waiting=[meter.keep(REQUEST, Demand(output_tokens=1))], in_flight=[])
    assert meter.longest_s == 0


def test_what_is_left_may_be_kept_for_one_that_needs_more():
    provider, meter, kept = at_provider(limits=(Limit(Dimension.INPUT_TOKENS, 1000, 100, LimitKind.BUCKET),))
    provider.end(0, provider.begin(0, SimRequestFacts(SimDialect.MESSAGES, "sk-sim-a", input_tokens=800)))
    large = meter.keep(SimRequestFacts(SimDialect.MESSAGES, "sk-sim-b", input_tokens=600), Demand(input_tokens=600))
    meter.pass_time(0, 50, waiting=[kept, large], in_flight=[])
    assert meter.longest_s == pytest.approx(10)


def test_one_ticket_may_back_off_while_others_are_served_and_two_may_not():
    _, meter, kept = at_provider()
    others = [meter.keep(REQUEST, DEMAND), meter.keep(REQUEST, DEMAND)]
    others[0].backs_off_until = others[1].backs_off_until = 40
    meter.pass_time(0, 40, waiting=others[:1], in_flight=[kept])
    assert meter.longest_s == 0
    meter.pass_time(40, 45, waiting=others[:1], in_flight=[kept])
    assert meter.longest_s == 5
    meter.sent(45)
    others[0].backs_off_until = others[1].backs_off_until = 90
    meter.pass_time(45, 70, waiting=others, in_flight=[kept])
    assert meter.longest_s == 25
    meter.sent(70)
    meter.pass_time(70, 96, waiting=others[:1], in_flight=[])
    assert meter.longest_s == 26


# In runs ---------------------------------------------------------------------------------------------------------------


class Sleepy(Scheduler):
    """Sleeps between two instants, whoever waits."""

    is_asleep = False

    def poll(self, now):
        self.is_asleep = 10 <= now < 70
        return [] if self.is_asleep else super().poll(now)

    def next_wakeup(self):
        return 70.0 if self.is_asleep else super().next_wakeup()


SLEEPY = Policy("sleepy", "sleeps a minute", lambda rng: Sleepy(rng=rng))
CHAT = Scenario("chat", (Crowd("agent", 4, 30, latency_s=1.0, timeout_s=600),), ProviderSettings())


def test_a_policy_that_sleeps_is_caught():
    assert run(CHAT, seed=0).idle_s < 2
    assert run(CHAT, seed=0, policy=SLEEPY).idle_s == pytest.approx(59, abs=1.5)


@each(
    "provider",
    [
        ProviderSettings(limits=(Limit(REQUESTS_IDLE, 20, 60, LimitKind.WINDOW),)),
        ProviderSettings(limits=(Limit(REQUESTS_IDLE, 1, 30, LimitKind.BUCKET),)),
        ProviderSettings(outages=(ProviderOutage(5, 60),)),
    ],
)
def test_one_that_is_kept_by_the_provider_is_not(provider):
    crowd = Crowd("agent", 4, 10, latency_s=1.0, timeout_s=3600)
    result = run(Scenario("kept", (crowd,), provider), seed=0)
    assert result.lost == 0
    assert result.makespan_s > 60
    assert result.idle_s < 15


def test_what_a_neighbour_takes_is_not_there():
    """It leaves nothing most of the time; what is refused tells that it was so."""
    limits = (Limit(REQUESTS_IDLE, 1, 30, LimitKind.BUCKET),)
    crowd = Crowd("agent", 1, 3, latency_s=1.0, timeout_s=3600)
    neighbour = Neighbour(calls_per_s=1.0)
    result = run(Scenario("taken", (crowd,), ProviderSettings(limits=limits), neighbours=(neighbour,)), seed=0)
    assert result.refused > 0
    assert result.idle_s < 6


def test_nobody_keeps_anybody_where_nobody_admits():
    assert run(CHAT, seed=0, policy=Policy.SDK).idle_s == 0


def test_a_refusal_is_a_limits_or_the_caps_no_faults_and_no_outages():
    crowd = Crowd("agent", 4, 10, latency_s=1.0, timeout_s=3600)
    chance = run(Scenario("chance", (crowd,), ProviderSettings(faults={"429": 0.3, "529": 0.2})), seed=0)
    assert chance.statuses[429] > 0
    assert chance.refused == 0
    down = run(Scenario("down", (crowd,), ProviderSettings(outages=(ProviderOutage(0, 30),))), seed=0)
    assert down.statuses[529] > 0
    assert down.refused == 0
    capped = run(Scenario("capped", (crowd,), ProviderSettings(concurrency=1)), seed=0)
    assert capped.refused == capped.statuses[529] > 0


def test_a_run_has_the_end_and_the_attempts_of_who_finishes():
    scenario = Scenario("two", (Crowd("a", 2, 3), Crowd("bad", 1, 3, refused=RefusedForGood())), ProviderSettings())
    result = run(scenario, seed=0)
    assert {name: attempts for name, (_, attempts) in result.finished.items()} == {"a-0": 3, "a-1": 3}
    assert max(ended_s for ended_s, _ in result.finished.values()) == result.makespan_s
