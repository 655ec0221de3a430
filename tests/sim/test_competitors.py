"""Other people's schedulers: the numbers of each, one by one, on tickets that the test sends."""

import random
from dataclasses import replace

import msgspec.structs
import pytest

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, GiveUp, Shed
from hivemind_addon.kernel.values.ticket import (
    AttemptResult,
    Demand,
    Dimension,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Reading,
    Ticket,
)
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.policy import Policy, policy_named
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.workload import Crowd, Scenario
from hivemind_addon.sim.world import run
from tests.cases import each

AimdPause, AgentRmFifo, AgentRmMlfq, HivemindScheduler = (
    policy_named(name).admission for name in ("aimd-pause", "agentrm-fifo", "agentrm-mlfq", "hivemind-scheduler")
)
OK = Outcome(OutcomeKind.SUCCESS, "status 200", status=200)
BUSY = Outcome(OutcomeKind.OVERLOADED, "status 529", status=529, retryable=True)
WRONG = Outcome(OutcomeKind.IGNORED, "status 400", status=400)
RESET = Outcome(OutcomeKind.FAILED, "connection reset", retryable=True)


def throttled(after_s):
    return Outcome(OutcomeKind.THROTTLED, "status 429", status=429, retryable=True, retry_after_s=after_s)


class Driver:
    """Sends tickets of the agents that the first letters name, and settles attempts."""

    def __init__(self, made, settings=None):
        self.policy, self.settings, self.flying = made(random.Random(0)), settings or PoolSettings(), {}

    def submit(self, *names, now=0.0, host="api.sim", streamed=False):
        for name in names:
            self.policy.submit(
                Ticket(
                    id=name,
                    pool=PoolKey(host, "key", "sim-1"),
                    agent=name[0],
                    session=name[0],
                    model="sim-1",
                    demand=Demand(input_tokens=100),
                    arrived_at=now,
                    deadline_at=now + 600,
                    shed_at=now + 590,
                    streamed=streamed,
                ),
                self.settings,
                now,
            )

    def sent(self, now):
        decisions = self.policy.poll(now)
        self.shed = [(one.ticket.id, one.come_back_s) for one in decisions if isinstance(one, Shed)]
        went = {one.attempt.ticket.id: one.attempt for one in decisions if isinstance(one, Admitted)}
        self.flying |= went
        return [*went]

    def settle(self, name, outcome, now):
        return self.policy.settle(self.flying.pop(name), AttemptResult(outcome), now)

    def wakes(self):
        """Each later poll that the policy asks for, until a ticket goes."""
        while (at := self.policy.next_wakeup()) is not None:
            if went := self.sent(at):
                return at, went
        return None


@each("made", [AimdPause, AgentRmFifo, AgentRmMlfq, HivemindScheduler])
def test_five_go_at_once_in_the_order_of_arrival_and_the_next_when_one_is_over(made):
    field = Driver(made)
    field.submit(*"abcdefg")
    assert field.sent(0) == list("abcde")
    assert isinstance(field.settle("a", OK, 1.0), Finished)
    assert field.sent(1.0) == ["f"]
    assert field.policy.cancel("g", 2.0)
    assert not field.policy.cancel("g", 2.0)
    assert field.sent(2.0) == []
    assert [type(field.settle(name, OK, 3.0)) for name in "bcdef"] == [Finished] * 5
    assert field.wakes() is None


@each(("made", "most"), [(AimdPause, 2), (AgentRmFifo, 2), (AgentRmMlfq, 2), (HivemindScheduler, 5)])
def test_lanes_are_as_many_as_the_settings_allow(made, most):
    field = Driver(made, PoolSettings(concurrency=ConcurrencySettings(1, 2)))
    field.submit(*"abcdefgh")
    assert len(field.sent(0)) == most


@each(("made", "tries"), [(AimdPause, 4), (AgentRmFifo, 1), (AgentRmMlfq, 4), (HivemindScheduler, 4)])
def test_calls_are_tried_so_often_and_what_waiting_cannot_cure_once(made, tries):
    field = Driver(made)
    field.submit("a")
    field.sent(0)
    now, verdicts = 0.0, []
    while True:
        verdicts.append(field.settle("a", BUSY, now))
        if isinstance(verdicts[-1], GiveUp):
            break
        now, _ = field.wakes()
    assert len(verdicts) == tries
    field.submit("b", now=now)
    assert field.sent(now) == ["b"]
    assert isinstance(field.settle("b", WRONG, now), GiveUp)


def test_aimd_halves_once_a_round_and_nobody_goes_while_a_pause_lasts():
    field = Driver(AimdPause)
    field.submit(*"abcdefghij")
    for name in field.sent(0):
        assert isinstance(field.settle(name, BUSY, 1.0), Backoff)
    assert field.sent(1.5) == ["f", "g"]
    field.settle("f", throttled(20.0), 2.0)
    field.settle("g", OK, 2.0)
    assert field.sent(21.9) == []
    assert field.policy.next_wakeup() == 22.0
    assert field.sent(22.0)


@each("made", [AimdPause, AgentRmFifo])
def test_pools_do_not_wait_for_each_other(made):
    field = Driver(made)
    field.submit(*"abcde")
    field.submit("x", host="other")
    assert len(field.sent(0)) == 6


def test_the_feedback_queue_takes_the_agent_that_had_least_and_raises_all_after_a_hundred_calls():
    field = Driver(AgentRmMlfq, PoolSettings(concurrency=ConcurrencySettings(1, 1)))

    def taken(*names):
        field.submit(*names)
        order = []
        for _ in names:
            order += field.sent(0)
            field.settle(order[-1], OK, 0)
        return order

    assert taken("a1") == ["a1"]  # one call at the first level
    assert taken("a2", "b1") == ["b1", "a2"]  # a has one of two at the second, and b comes down
    assert taken("a3", "b2") == ["a3", "b2"]  # a has had both
    assert taken("a4", "b3") == ["b3", "a4"]
    for number in range(91):
        taken(f"a{number + 5}")
    assert taken("a98", "c1") == ["c1", "a98"]  # the hundredth call raises a
    assert taken("a99", "c2") == ["a99", "c2"]


# hivemind-scheduler 0.2.0 ----------------------------------------------------------------------------------------------


@pytest.fixture
def peer():
    return Driver(HivemindScheduler)


def test_a_slot_is_held_through_backoffs_and_errors_halve_each_time(peer):
    peer.submit(*"abcdef")
    peer.sent(0)
    assert isinstance(peer.settle("a", RESET, 0.1), Backoff)
    assert peer.sent(0.1) == []  # a holds the slot while it backs off
    peer.settle("b", OK, 0.2)
    assert peer.sent(0.2) == []  # 5 x 0.5 slots, of which four are taken


def test_slow_answers_lower_and_quick_answers_raise_the_slots_every_five_seconds(peer):
    peer.submit(*(f"{letter}{number}" for number in range(4) for letter in "abcde"))
    (first, *_) = peer.sent(0)
    peer.settle(first, OK, 3.0)  # slower than two seconds
    for name in [*peer.flying]:
        peer.settle(name, OK, 3.0)
    assert len(peer.sent(3.0)) == 2
    for name in [*peer.flying]:
        peer.settle(name, OK, 3.1)
    assert len(peer.sent(3.1)) == 2  # no change within five seconds
    for name in [*peer.flying]:
        peer.settle(name, OK, 9.0)
    assert len(peer.sent(9.0)) == 1


def test_a_streamed_request_is_not_sent_again(peer):
    peer.submit("a", streamed=True)
    peer.sent(0)
    assert isinstance(peer.settle("a", BUSY, 1.0), GiveUp)


def test_the_breaker_refuses_new_requests_for_ten_seconds_once_half_of_twenty_fail(peer):
    now, number = 0.0, 0
    while not peer.policy._policy._upstreams or not peer.policy._policy._upstreams["api.sim"].is_open(now):
        peer.submit(name := f"a{number}", now=now)
        peer.sent(now)
        peer.settle(name, BUSY, now)
        assert peer.policy.cancel(name, now)
        number, now = number + 1, now + 0.5
    assert number == 10  # an answer counts twice: its latency and its error
    peer.submit("b", now=now)
    assert peer.sent(now) == []
    assert peer.shed == [("b", 10.0)]
    peer.submit("c", now=now + 10)
    assert peer.sent(now + 10) == ["c"]


def test_a_slot_is_waited_for_two_minutes(peer):
    peer.submit(*"abcdef")
    peer.sent(0)
    assert peer.policy.next_wakeup() == 120.0
    peer.sent(120.0)
    assert peer.shed == [("f", 1.0)]


@each("what", ["requests", "tokens", "header", "retry-after"])
def test_its_limiter_holds_everybody(what):
    peer = Driver(HivemindScheduler)
    peer.submit("a")
    peer.sent(0)
    if what == "requests":
        for number in range(59):
            peer.settle(*peer.flying, OK, 0.1)
            peer.submit(f"b{number}", now=0.1)
            assert peer.sent(0.1)
        opens_at = 60.0
    elif what == "header":
        limit = Reading("requests", Dimension.REQUESTS, 60, limit=50, remaining=2, reset_in_s=30)
        peer.policy.observe(peer.flying["a"], Hints(readings=(limit,)), 0.1)
        opens_at = 30.1
    elif what == "retry-after":
        peer.policy.observe(peer.flying["a"], Hints(retry_after_s=9.0), 0.1, answered=False)
        opens_at = 9.1
    else:
        flying = peer.flying["a"]
        flying.ticket = msgspec.structs.replace(flying.ticket, demand=Demand(input_tokens=100_000))
        opens_at = 60.1
    peer.settle(*peer.flying, OK, 0.1)
    peer.submit("z", now=0.1)
    assert peer.sent(0.1) == []
    assert peer.wakes() == (pytest.approx(opens_at), ["z"])


# In the world ----------------------------------------------------------------------------------------------------------


HANGING = Scenario(
    "hanging",
    (Crowd("agent", 4, 3, latency_s=5, timeout_s=7200),),
    ProviderSettings(faults={"hang": 0.3}, hang_s=500),
)


def test_the_reaper_ends_what_is_silent_for_half_a_minute_and_the_baseline_waits():
    fifo, mlfq = (run(HANGING, seed=0, policy=policy_named(f"agentrm-{name}")) for name in ("fifo", "mlfq"))
    assert fifo.makespan_s > 500 > 3 * mlfq.makespan_s / 2
    stated = run(replace(HANGING, silent_s=5), seed=0, policy=policy_named("agentrm-mlfq"))
    assert stated.makespan_s < mlfq.makespan_s


def test_their_cascade_keeps_the_papers_order():
    scenario = cases()["agentrm-cascade"].scenario
    fifo, mlfq = (run(scenario, seed=0, policy=policy_named(f"agentrm-{name}")) for name in ("fifo", "mlfq"))
    assert mlfq.latency_s(0.95) < 0.3 * fifo.latency_s(0.95)
    assert (fifo.zombies > 10, mlfq.zombies) == (True, 0)


@each("policy", [policy_named(name) for name in ("aimd-pause", "hivemind-scheduler", "agentrm-fifo", "agentrm-mlfq")])
def test_every_ticket_ends_however_it_is_scheduled(policy):
    for case in ("bursts", "mixed-providers", "incident"):
        result = run(cases()[case].scenario, seed=1, policy=policy)
        assert sum(result.deaths.values()) == result.lost
        assert result == run(cases()[case].scenario, seed=1, policy=policy)


def test_two_policies_are_equal_by_name():
    assert policy_named("baseline") == Policy.BASELINE != Policy.HIVEMIND_SCHEDULER
