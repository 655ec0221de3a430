"""How a pool looks from outside."""

import pytest

from hivemind_addon.api.command import Pause, SetPriority
from hivemind_addon.api.ticket import Priority
from tests.core.samples import FAILED, Bench, after, brittle, requests_reading


def test_the_view_shows_what_may_still_be_taken():
    bench = Bench()
    bench.submit("a", "b")
    bench.observe("a", requests_reading(limit=60, remaining=30, reset_in_s=30))
    (meter,) = bench.pool.meters
    assert (meter.name, meter.kind, meter.limit, meter.level) == ("requests", "bucket", 60, 29)
    assert meter.full_in_s == pytest.approx(31)


def test_the_view_lists_every_ticket_with_its_state_and_place():
    bench = Bench(slots=2)
    bench.submit("a", "b", "c", "d")
    bench.settle("a", after(FAILED, 100))
    seen = [(view.ticket.id, view.state, view.position) for view in bench.pool.tickets]
    assert seen == [("b", "in flight", 0), ("c", "in flight", 0), ("a", "backing off", 1), ("d", "queued", 2)]
    assert [view.reason for view in bench.pool.tickets][2:] == ["backing off", "concurrency limit"]


def test_of_those_that_wait_only_the_next_ones_are_shown_and_the_others_counted():
    bench = Bench(slots=1)
    bench.submit("a", "b", "c", "d")
    (pool,) = bench.scheduler.snapshot(bench.now, most_queued=2).pools
    assert [view.ticket.id for view in pool.tickets] == ["a", "b", "c"]
    assert pool.queued == 3


def test_a_ticket_is_shown_in_the_class_that_a_person_put_it_in():
    bench = Bench(slots=1)
    bench.submit("a", "b")
    bench.scheduler.command(SetPriority("b", Priority.LOW), bench.now)
    assert [view.ticket.priority for view in bench.pool.tickets] == [Priority.NORMAL, Priority.LOW]


def test_nobody_is_told_a_start_while_a_person_lets_nothing_go():
    bench = Bench(slots=1)
    bench.submit("first")
    bench.advance(4)
    bench.settle("first")
    bench.submit("a", "b", "c")
    assert [view.starts_in_s for view in bench.pool.tickets] == [None, 4, 8]
    bench.scheduler.command(Pause(), bench.now)
    assert [view.starts_in_s for view in bench.pool.tickets] == [None, None, None]
    assert bench.pool.paused


def test_an_open_breaker_says_when_it_tries():
    bench = Bench(settings=brittle())
    bench.outage("a", "b")
    tries_in_s = bench.pool.breaker_tries_in_s
    assert tries_in_s is not None
    assert tries_in_s > 0
    while not bench.advance_to_wakeup():
        pass
    assert bench.pool.breaker == "half-open"
    assert bench.pool.breaker_tries_in_s is None
