"""A pool that stands still only because of what it has learned goes on all the same."""

from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.values.command import Pause
from hivemind_addon.kernel.values.events import WaitOverruled
from hivemind_addon.kernel.values.ticket import Reason
from tests.kernel.samples import SUCCESS, THROTTLED, Bench, after, requests_reading


def believing(amount: float = 2.0, window_s: float = 300.0) -> Bench:
    """An earlier run has learned that so many requests pass in so much time; that is true no more. All are used."""
    bench = Bench(slots=4)
    bench.submit("t0")
    bench.settle("t0")
    (pool,) = bench.scheduler._pools.values()
    pool.capacity.throttles.resume(HiddenLimit(0, amount, window_s), bench.now)
    for number in range(1, round(amount)):
        bench.submit(f"used{number}")
        bench.settle(f"used{number}")
    return bench


def overruled(bench: Bench) -> list[tuple[float, str]]:
    return [(event.at, event.ticket_id) for event in bench.of(WaitOverruled)]


def test_one_goes_when_nothing_else_went_for_long():
    bench = believing()
    bench.submit("a", "b")
    assert not bench.running
    while not bench.running:
        bench.advance_to_wakeup()
    assert bench.now == 16.0
    (event,) = bench.of(WaitOverruled)
    assert (event.ticket_id, event.idle_s, event.reason) == ("a", 16.0, Reason.BLOCKED)
    assert bench.scheduler.snapshot(bench.now).counters.waits_overruled == 1


def test_a_pool_that_was_idle_waits_anew_for_each_that_comes():
    bench = believing()
    bench.advance(5)
    bench.submit("a")
    while not bench.running:
        bench.advance_to_wakeup()
    assert overruled(bench) == [(21.0, "a")]


def test_what_passes_ends_the_belief():
    bench = believing()
    bench.submit(*(f"t{number}" for number in range(1, 8)))
    done = 0
    while done < 7:
        for name in tuple(bench.running):
            bench.advance(0.5)
            bench.settle(name)
            done += 1
        if not bench.running and done < 7:
            bench.advance_to_wakeup()
    assert bench.now < 30


def test_not_against_what_a_header_announced():
    bench = Bench(slots=4)
    bench.submit("a")
    bench.observe("a", requests_reading(limit=2, remaining=0, reset_in_s=30))
    bench.settle("a")
    bench.submit("b")
    while not bench.running:
        bench.advance_to_wakeup()
    assert bench.now >= 30
    assert not overruled(bench)


def test_not_against_a_person():
    bench = believing()
    bench.scheduler.command(Pause("*"), bench.now)
    bench.submit("a", patience_s=200.0)
    bench.advance(199)
    assert not bench.running


def test_not_against_a_wait_that_was_told():
    bench = Bench(slots=4)
    bench.submit("first", "second", "third")
    for name in ("first", "second", "third"):
        bench.settle(name, after(THROTTLED, 50.0))
    bench.submit("a")
    while not bench.running:
        bench.advance_to_wakeup()
    assert not overruled(bench)


def test_not_while_all_slots_are_taken():
    bench = Bench(slots=1)
    bench.submit("a", "b")
    bench.advance(100)
    assert set(bench.running) == {"a"}
    bench.settle("a", SUCCESS)
    assert set(bench.running) == {"b"}
    assert not overruled(bench)
