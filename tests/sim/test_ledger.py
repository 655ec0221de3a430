import random

import pytest

from hivemind_addon.api.events import BreakerChanged
from hivemind_addon.api.snapshot import BreakerState
from hivemind_addon.api.spend import Spend
from hivemind_addon.api.ticket import Dimension, PoolKey
from hivemind_addon.lab.sim.actor import Actor, SimUpstream
from hivemind_addon.lab.sim.call import AnswerEnding, SimAnswer
from hivemind_addon.lab.sim.limits import Limit, LimitKind
from hivemind_addon.lab.sim.provider import ProviderSettings
from hivemind_addon.lab.sim.result import RunLedger
from hivemind_addon.lab.sim.workload import Crowd, PlannedTurn, Scenario, Site
from tests.sim.dialect.samples import REPLY

POOL = PoolKey("api.sim", "key-sim", "sim-1")
CROWD = Crowd("agent", 2, 1)


class Books:
    """A ledger of two agents and what it needs."""

    def __init__(self, crowd: Crowd = CROWD, **settings: object) -> None:
        self.scenario = Scenario("books", (crowd,), ProviderSettings(**settings))
        self.own = SimUpstream(Site("", POOL, self.scenario.provider), random.Random(0), None)
        self.other = SimUpstream(Site("other", POOL, self.scenario.provider), random.Random(0), None)
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
    books.ledger.book_attempt(one, REPLY, REPLY.output_tokens, is_whole=True)
    books.ledger.book_attempt(other, REPLY, 3, is_whole=False)
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


def test_a_turn_counts_with_its_own_provider_as_it_would_be_with_an_ideal_cache():
    books = Books(Crowd("agent", 2, 1, shared_tokens=1000, caches=True))
    for agent in books.agents:
        books.ledger.book_turn(agent)
    assert books.result(1.0).ideal_cost == pytest.approx(1.25 * 1100 + 0.1 * 1000 + 1.25 * 100)
    assert books.own.taken["sim-1"].units[Dimension.INPUT_TOKENS] == 1100 + 100
    assert not books.other.taken


def test_the_dead_are_lost_and_so_is_who_has_not_ended():
    books = Books()
    books.agents[0].ended_at, books.agents[0].death = 5.0, "status 500"
    result = books.result(9.0)
    assert (result.lost, result.deaths, result.makespan_s) == (2, {"status 500": 1}, 5.0)


def test_poisoned_agents_are_in_no_figure():
    books = Books(Crowd("agent", 2, 1, poisoned=True))
    books.ledger.book_attempt(books.agents[0], REPLY, 3, is_whole=False)
    books.agents[0].ended_at, books.agents[0].death = 5.0, "status 500"
    result = books.result(9.0)
    assert (result.agents, result.lost, result.makespan_s, result.billed) == (0, 0, 9.0, Spend())
    assert result.deaths == {}


def test_each_call_of_a_neighbour_may_refuse_one_attempt_while_own_calls_leave_a_slot():
    books = Books(concurrency=2)
    ledger, own = books.ledger, books.own
    refused = answered("mine", ending=AnswerEnding.OVERLOADED, status=529)
    ledger.attempt_answered(refused, own, 1.0)  # nobody else is there: whatever it was, it was no neighbour
    ledger.neighbour_called(answered("a"))
    ledger.call_began(own, 2.0)
    ledger.attempt_answered(refused, own, 2.0)
    ledger.attempt_answered(refused, own, 3.0)  # now it is known
    ledger.neighbour_called(answered("b"))
    ledger.call_began(own, 4.0)
    ledger.attempt_answered(refused, own, 4.0)  # own calls take both
    ledger.neighbour_ended(answered("b"))
    ledger.call_ended(own, 5.0)
    ledger.attempt_answered(refused, own, 5.0)  # over: nothing is left to meet
    result = books.result(6.0)
    assert (result.refused, result.unforeseen) == (5, 1)


def test_what_a_neighbour_takes_counts_only_in_the_bound_that_is_shared_with_it():
    limit = Limit(Dimension.REQUESTS, 1, 10.0, LimitKind.WINDOW)
    books = Books(limits=(limit,))
    for agent in books.agents:
        books.ledger.book_turn(agent)
    for name in "abc":
        books.ledger.neighbour_called(answered(name))
    result = books.result(1.0)
    assert result.neighbour_calls == 3
    assert result.shared_bound_s > result.bound.bound_s > 0
