"""What attempts teach a pool of its provider, and what it may send by that."""

import random

import pytest

from hivemind_addon.kernel.limits.breaker import BreakerSettings
from hivemind_addon.kernel.limits.capacity import Capacity
from hivemind_addon.kernel.limits.sharing import Sharing
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.order.entry import Attempt, QueueEntry
from hivemind_addon.kernel.overrides import Overrides
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.retry import History
from hivemind_addon.kernel.values.command import ForeseeWait, SetLimit
from hivemind_addon.kernel.values.events import ConcurrencyChanged, Event, MaximumReached, MeterLearned
from hivemind_addon.kernel.values.ticket import AttemptResult, Demand
from hivemind_addon.proxy.api.pool_words import with_words
from hivemind_addon.proxy.api.replies import wait_view
from tests.kernel.samples import (
    CANCELLED,
    CUT,
    FAILED,
    IGNORED,
    OVERLOADED,
    POOL,
    SUCCESS,
    THROTTLED,
    Bench,
    after,
    hints,
    requests_reading,
    ticket,
)


def capacity(*, slots: int = 4, overrides: Overrides | None = None, told: list[Event] | None = None) -> Capacity:
    return Capacity(
        key=POOL,
        concurrency=ConcurrencySettings(initial=slots),
        breaker=BreakerSettings(),
        overrides=overrides or Overrides(),
        rng=random.Random(0),
        emit=([] if told is None else told).append,
        sharing=Sharing(),
    )


def send(one: Capacity, name: str, now: float = 0.0) -> Attempt:
    made = ticket(name, session=name)
    return one.reserve(QueueEntry(ticket=made, wait_began_at=0.0, history=History(attempts=1)), made.demand, now)


def tell(one: Capacity, attempt: Attempt, now: float = 0.0) -> None:
    """Sixty requests a minute, one a second."""
    one.hear(hints(requests_reading(limit=60, remaining=59, reset_in_s=1)), attempt, now, answered=True)


class TestConcurrency:
    def test_no_more_go_than_there_are_slots(self):
        bench = Bench(slots=2)
        assert bench.submit("a", "b", "c") == ["a", "b"]
        bench.settle("a", IGNORED)
        assert "c" in bench.running

    def test_bypassing_attempts_count_as_in_flight(self):
        bench = Bench(slots=2)
        bench.scheduler.bypass(POOL, 1)
        assert bench.submit("a", "b") == ["a"]
        assert bench.pool.in_flight == 2
        bench.scheduler.bypass(POOL, -1)
        assert bench.poll() == ["b"]

    def test_each_one_that_passes_where_all_slots_are_used_adds_one_and_overloads_lower_it(self):
        bench = Bench(settings=PoolSettings(concurrency=ConcurrencySettings(initial=4)))
        bench.submit(*"abcdef")
        assert len(bench.running) == 4
        bench.settle("d", SUCCESS)
        assert bench.pool.limit == 5
        for name in ("f", "e"):
            bench.settle(name, OVERLOADED)
        assert bench.pool.limit == 4
        assert bench.of(ConcurrencyChanged)[-1].limit == 4

    def test_a_rate_limit_never_moves_it(self):
        bench = Bench(slots=4)
        bench.submit("a", "b", "c")
        for name in "abc":
            bench.settle(name, THROTTLED)
        assert bench.pool.limit == 4
        assert bench.pool.breaker == "closed"


class TestMaximum:
    """A setting of ours keeps attempts from going that nothing shows the provider to refuse."""

    def test_every_ticket_that_waits_for_it_says_so_and_how_to_raise_it(self):
        bench = Bench(settings=PoolSettings(concurrency=ConcurrencySettings(2, 2, maximum_from="the key")))
        bench.submit("a")
        assert (bench.pool.maximum_from, bench.of(MaximumReached)) == ("", [])
        bench.submit(*"bcd")
        assert bench.pool.maximum_from == "the key"
        assert [one.why for one in with_words(bench.pool).tickets if one.why] == [
            "concurrency limit: 2 of 2 in flight, our maximum",
            "concurrency limit: 2 of 2 in flight, our maximum, after 1 other",
        ]
        (wait,) = bench.scheduler.command(ForeseeWait("new"), bench.now).waits
        assert wait_view(wait).why == "concurrency limit: 2 of 2 in flight, our maximum, after 2 others"

    def test_it_is_an_event_once_and_again_when_the_profile_changes(self):
        bench = Bench(slots=1)
        bench.submit(*"abc")
        bench.settle("a", SUCCESS)
        (event,) = bench.of(MaximumReached)
        assert (event.limit, event.maximum_from) == (1, "concurrency.maximum")
        raised = PoolSettings(concurrency=ConcurrencySettings(initial=1, maximum=2))
        bench.scheduler.configure(lambda *_: raised, bench.now)
        bench.poll()
        bench.submit("d", "e")
        assert bench.pool.limit in (1, 2)
        while bench.pool.limit < 2:
            bench.advance(1)
        bench.submit("f", "g")
        assert [one.limit for one in bench.of(MaximumReached)] == [1, 2]

    def test_a_limit_that_grows_was_learned_or_a_person_set_is_none(self):
        bench = Bench(settings=PoolSettings(concurrency=ConcurrencySettings(initial=1)))
        bench.submit(*"abc")
        assert bench.pool.in_flight == bench.pool.limit
        assert bench.pool.maximum_from == ""
        bench = Bench(slots=4)
        bench.scheduler.command(SetLimit(2), bench.now)
        bench.submit(*"abc")
        assert (bench.pool.in_flight, bench.pool.maximum_from) == (2, "")
        assert bench.of(MaximumReached) == []


def test_a_meter_is_announced_once_and_again_when_it_changes():
    bench = Bench()
    bench.submit("a", "b", "c")
    bench.observe("a", requests_reading(limit=60, remaining=58, reset_in_s=50))
    bench.observe("b", requests_reading(limit=60, remaining=57, reset_in_s=50))
    bench.observe("c", requests_reading(limit=30, remaining=27, reset_in_s=50))
    assert [(event.kind, event.limit) for event in bench.of(MeterLearned)] == [("window", 60), ("window", 30)]


class TestCap:
    def test_a_persons_limit_counts_where_it_is_lower_and_is_told(self):
        overrides, told = Overrides(), []
        one = capacity(slots=4, overrides=overrides, told=told)
        for cap in (2, 9, None):
            overrides.cap("*", cap)
            one.apply_overrides(1.0)
        assert [event.limit for event in told] == [2, 4]
        assert (one.limit, one.cap) == (4, None)

    def test_what_fills_it_proves_nothing_about_a_higher_one(self):
        overrides = Overrides()
        overrides.cap("*", 2)
        one = capacity(slots=4, overrides=overrides)
        for attempt in [send(one, "a"), send(one, "b")]:
            one.settle(attempt, AttemptResult(SUCCESS), 1.0)
            one.learn(attempt, AttemptResult(SUCCESS), 1.0)
        overrides.cap("*", None)
        one.apply_overrides(1.0)
        assert one.limit == 4


class TestTook:
    """Of sixty a minute, with four slots."""

    @pytest.mark.parametrize(
        ("outcome", "charged", "held_s", "took_s"),
        [
            (SUCCESS, None, 2, 1.0),
            (SUCCESS, None, 20, 5.0),
            (SUCCESS, Demand(requests=3), 2, 3.0),
            (THROTTLED, None, 2, 0.5),
            (CUT, None, 2, 0.5),
            (CANCELLED, None, 2, 1.0),
        ],
        ids=[
            "its unit",
            "its slot",
            "what is charged",
            "no unit when refused",
            "none when cut",
            "its unit when called off",
        ],
    )
    def test_an_attempt_takes_most_of(self, outcome, charged, held_s, took_s):
        one = capacity()
        tell(one, send(one, "teller"))
        attempt = send(one, "a", now=1.0)
        assert one.settle(attempt, AttemptResult(outcome, charged=charged), 1.0 + held_s) == took_s


def test_an_attempt_that_is_settled_holds_nothing():
    one = capacity()
    attempt = send(one, "a")
    tell(one, attempt)
    one.settle(attempt, AttemptResult(SUCCESS), 1.0)
    assert one.in_flight == 0
    assert [meter.reserved for meter in one.meters] == [0]


def test_an_answer_is_hopeless_when_one_and_a_half_mean_times_are_not_left():
    one = capacity()
    waiting = ticket("t", patience_s=20)
    assert one.hopeless_at(waiting) == waiting.shed_at == 20
    one.settle(send(one, "a"), AttemptResult(SUCCESS), 2.0)
    assert one.hopeless_at(waiting) == waiting.deadline_at - 3 == 22


def test_what_was_learned_is_known_from_the_beginning_the_next_time():
    one = capacity(slots=8)
    flights = [send(one, name) for name in "abcdefg"]
    tell(one, flights[0])
    refusals = [after(THROTTLED, 30)] * 4
    for attempt, outcome in zip(flights, (SUCCESS, SUCCESS, SUCCESS, *refusals), strict=True):
        one.settle(attempt, AttemptResult(outcome), 1.0)
        one.learn(attempt, AttemptResult(outcome), 1.0)
    assert one.learned.throttles is not None
    assert len(one.learned.meters) == 1
    fresh = capacity(slots=8)
    fresh.resume(one.learned, 0.0)
    assert fresh.learned == one.learned


def test_a_long_announced_wait_is_tested_at_growing_distances_until_a_late_refusal_proves_the_wait():
    one, now, tried_at = capacity(slots=8), 0.0, []
    while now < 400:
        attempt = send(one, f"t{now}", now=now)
        outcome = after(THROTTLED, 400 - now)
        one.settle(attempt, AttemptResult(outcome), now + 0.1)
        one.learn(attempt, AttemptResult(outcome), now + 0.1)
        tried_at.append(now)
        now = max(now + 1, one.announced_until(attempt.demand, now + 0.1))
    assert [round(at, -1) for at in tried_at] == [0, 0, 50, 100, 200]


def test_what_another_pool_of_the_account_has_in_flight_is_settled_here():
    one, other = capacity(), capacity()
    tell(one, send(one, "a"))
    attempt = send(other, "b")
    (entry,) = other.flights
    one.take_over(entry, 1.0)
    assert one.in_flight == 2
    (meter,) = one.meters
    assert meter.reserved == 2
    one.settle(attempt, AttemptResult(SUCCESS), 2.0)
    assert meter.reserved == 1


def test_a_probe_of_another_pools_breaker_is_none_of_ours():
    one, other = capacity(), capacity()
    while not other.is_provider_down:
        for name in "ab":
            attempt = send(other, name)
            other.settle(attempt, AttemptResult(FAILED), 0.0)
            other.learn(attempt, AttemptResult(FAILED), 0.0)
    probe = send(other, "c", now=60.0)
    assert probe.is_probe
    (entry,) = other.flights
    one.take_over(entry, 60.0)
    assert not probe.is_probe
