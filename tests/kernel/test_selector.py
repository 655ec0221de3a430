"""Who goes next in a pool, and what keeps it from going."""

import random

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.limits.breaker import BreakerSettings
from hivemind_addon.kernel.limits.capacity import Capacity
from hivemind_addon.kernel.limits.sharing import Sharing
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.limits.stated_limits import StatedLimit
from hivemind_addon.kernel.order.entry import Attempt, QueueEntry
from hivemind_addon.kernel.order.fair_queue import FairQueue, OrderSettings
from hivemind_addon.kernel.order.selector import Gate, Selector
from hivemind_addon.kernel.order.shares import StartTimes
from hivemind_addon.kernel.overrides import Overrides
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.retry import History
from hivemind_addon.kernel.values.command import MoveToFront
from hivemind_addon.kernel.values.decision import Backoff, GiveUp
from hivemind_addon.kernel.values.events import Held
from hivemind_addon.kernel.values.ticket import AttemptResult, Demand, Dimension, Reading, Reason
from tests.kernel.samples import (
    CANCELLED,
    FAILED,
    POOL,
    SUCCESS,
    THROTTLED,
    Bench,
    after,
    brittle,
    hints,
    requests_reading,
    ticket,
)


class Waiting:
    """A turn whose queue is empty: whoever asks holds its place in hand."""

    def __init__(self, *, slots: int = 1) -> None:
        self.overrides = Overrides()
        self.capacity = Capacity(
            key=POOL,
            concurrency=ConcurrencySettings(initial=slots, maximum=slots),
            breaker=BreakerSettings(),
            overrides=self.overrides,
            rng=random.Random(0),
            emit=lambda _: None,
            sharing=Sharing(),
        )
        queue = FairQueue(
            OrderSettings(), cost_s=self.capacity.cost_s, saved_s=self.capacity.saved_s, common=StartTimes()
        )
        self.selector = Selector(queue=queue, capacity=self.capacity)

    def place(self, ticket_id: str = "t", *, patience_s: float = 600.0) -> QueueEntry:
        return QueueEntry(
            ticket=ticket(ticket_id, patience_s=patience_s), wait_began_at=0.0, history=History(attempts=1)
        )

    def send(self, ticket_id: str, now: float = 0.0) -> Attempt:
        return self.capacity.reserve(self.place(ticket_id), Demand(), now)

    def pause(self, *, paused: bool) -> None:
        self.overrides.pause("*", paused=paused)
        self.capacity.apply_overrides(0.0)


def test_the_first_that_stops_it_is_its_gate():
    waiting = Waiting()
    attempt = waiting.send("a")
    waiting.capacity.account_block.hit("spent", 100, 0.0)
    waiting.pause(paused=True)
    mine = ticket("t")

    def reason(now: float = 0.0) -> Reason | None:
        gate = waiting.selector.gate(mine, now)
        return gate and gate.reason

    assert reason() is Reason.PAUSED
    waiting.pause(paused=False)
    assert waiting.selector.gate(mine, 0.0) == Gate(Reason.ACCOUNT_BLOCK, 100)
    assert reason(100) is Reason.CONCURRENCY
    waiting.capacity.settle(attempt, AttemptResult(SUCCESS), 100)
    assert reason(100) is None


def test_one_that_is_shed_is_told_when_it_is_due_again_or_to_come_at_once():
    waiting = Waiting()
    place = waiting.place()
    assert waiting.selector.come_back_s(place, 10.0) == 1
    place.not_before = 40.0
    assert waiting.selector.come_back_s(place, 10.0) == 30


class TestTrial:
    """One call of a limit of two has failed, and nobody said whether it was charged."""

    def failed(self) -> Waiting:
        waiting = Waiting(slots=4)
        first, second = waiting.send("a"), waiting.send("b")
        told = requests_reading(limit=2, remaining=1, reset_in_s=55)
        waiting.capacity.hear(hints(told), first, 0.0, answered=True)
        waiting.capacity.settle(first, AttemptResult(SUCCESS, charged=Demand()), 1.0)
        assert waiting.selector.advised(ticket("t"), 1.0) == Gate(Reason.METER, pytest.approx(55.1))
        waiting.capacity.settle(second, AttemptResult(FAILED), 1.0)
        waiting.capacity.learn(second, AttemptResult(FAILED), 1.0)
        return waiting

    def test_one_goes_to_find_it_out_when_nothing_has_gone_for_long(self):
        waiting = self.failed()
        waiting.selector.idle_since = 1.0
        assert waiting.selector.gate(ticket("t"), 1.0) == Gate(Reason.METER, 17.0)

    def test_no_other_goes_once_a_header_tells(self):
        waiting = self.failed()
        trial = waiting.send("t", 1.0)
        told = requests_reading(limit=2, remaining=0, reset_in_s=54)
        waiting.capacity.hear(hints(told), trial, 1.0, answered=False)
        waiting.capacity.settle(trial, AttemptResult(THROTTLED, charged=Demand(requests=0)), 1.0)
        assert waiting.selector.gate(ticket("t"), 1.0) == Gate(Reason.METER, pytest.approx(55.1))


class TestMeters:
    def test_the_exact_instant_is_waited_for(self):
        bench = Bench()
        bench.submit("a")
        bench.observe("a", requests_reading(limit=60, remaining=0, reset_in_s=60))
        assert bench.submit("b") == []
        assert bench.scheduler.next_wakeup() == pytest.approx(1)
        assert bench.advance(0.99) == []
        assert bench.advance(0.01) == ["b"]


INPUT = Dimension.INPUT_TOKENS


class TestBackfill:
    """Of a limit of a million tokens a tenth is left when a ticket comes first that needs nearly all."""

    def reserved(self, *, slots: int = 50, reset_in_s: float = 150.0) -> Bench:
        bench = Bench(slots=slots)
        bench.submit("teller")
        bench.observe("teller", Reading("input", INPUT, 300.0, limit=1e6, remaining=1e5, reset_in_s=reset_in_s))
        bench.submit("large", demand=Demand(input_tokens=950_000))
        bench.scheduler.command(MoveToFront("large"), bench.now)
        return bench

    def pass_by(self, bench: Bench, tokens: int, until: float) -> int:
        """Small tickets come every second and end at once. Returns the number of those that went before the large."""
        served = 0
        while "large" not in bench.running:
            assert bench.now < until
            bench.submit(f"small{bench.now}", demand=Demand(input_tokens=tokens), patience_s=600)
            bench.advance(1)
            for name in bench.running.keys() - {"teller", "large"}:
                bench.settle(name)
                served += 1
        return served

    def test_units_of_a_window_that_expire_delay_nobody(self):
        assert self.pass_by(self.reserved(), 200, until=152) >= 149

    def test_a_small_one_passes_however_many_large_ones_are_before(self):
        bench = self.reserved()
        assert bench.submit(*(f"large{number}" for number in range(100)), demand=Demand(input_tokens=900_000)) == []
        assert bench.submit("small", demand=Demand(input_tokens=200)) == ["small"]

    def test_a_bucket_fills_for_the_first_and_others_lengthen_its_wait_by_a_tenth(self):
        bench = self.reserved(reset_in_s=270.0)
        waits_s = 850_000 / 1e6 * 300
        served = self.pass_by(bench, 10_000, until=1.1 * waits_s + 2)
        assert 0 < served < 0.1 * waits_s / 3 + 2, "each lengthens it by 3 s"

    @pytest.mark.parametrize("taken_by_others", [False, True])
    def test_the_last_slot_is_kept_as_long_as_the_promise_holds(self, taken_by_others):
        bench = self.reserved(slots=2)
        bench.advance(20)
        bench.settle("teller")
        bench.advance(125)
        other = replace(POOL, model_group="other")
        bench.submit("running", pool=other)
        assert bench.submit("waits", pool=other) == [], "an answer takes 10 s at first, and the large one goes in 5"
        if taken_by_others:
            read = Reading("input", INPUT, 300.0, limit=1e6, remaining=1e5, reset_in_s=300.0)
            bench.observe("running", read)
            assert "waits" in bench.running, "its wait is no fault of ours"

    def test_a_demand_above_the_whole_limit_waits_little_longer_for_small_ones_in_flight(self):
        bench = Bench(slots=50)
        bench.submit("teller")
        bench.observe("teller", Reading("input", INPUT, 300.0, limit=1e6, remaining=1e5, reset_in_s=270.0))
        bench.settle("teller")
        bench.submit("large", demand=Demand(input_tokens=1_200_000))
        served = 0
        while "large" not in bench.running:
            assert bench.now < 1.1 * 270 + 5
            bench.submit(f"small{bench.now}", demand=Demand(input_tokens=2_000), patience_s=600)
            for name in bench.running.keys() - {"large"}:
                if bench.running[name].admitted_at <= bench.now - 3:
                    bench.settle(name)
                    served += 1
            bench.advance(1)
        assert served > 20

    def test_later_tickets_have_a_claim_on_the_rest_of_a_young_window(self):
        bench = self.reserved()
        assert bench.submit("most", demand=Demand(input_tokens=60_000)) == [], "half of the window has passed"
        assert bench.submit("some", demand=Demand(input_tokens=9_000)) == ["some"]
        bench.advance(70)
        assert "most" in bench.running

    def test_the_last_slot_is_for_the_first_unless_it_is_free_again_in_time(self):
        bench = self.reserved(slots=2)
        assert bench.submit("small", demand=Demand(input_tokens=200)) == ["small"], "an answer takes 10 s at first"
        bench.advance(20)
        bench.settle("small")
        bench.advance(120)
        assert bench.submit("late", demand=Demand(input_tokens=200)) == []
        assert bench.advance(11) == ["large"]

    def test_nobody_passes_where_a_request_is_what_lacks(self):
        bench = Bench()
        bench.submit("a")
        bench.observe("a", requests_reading(limit=60, remaining=0, reset_in_s=60))
        bench.submit("large", demand=Demand(input_tokens=950_000))
        assert bench.submit("small") == []
        assert [event.reason for event in bench.of(Held)] == [Reason.METER, Reason.METER]
        assert bench.advance(1) == ["large"]

    def test_a_ticket_of_another_model_keeps_the_reservation_on_a_limit_that_both_share(self):
        bench = self.reserved(reset_in_s=270.0)
        other = replace(POOL, model_group="other")
        bench.submit("told", pool=other)
        bench.observe("told", Reading("input", INPUT, 300.0, limit=1e6, remaining=1e5, reset_in_s=270.0))
        assert bench.submit("big", pool=other, demand=Demand(input_tokens=90_000)) == []
        assert bench.submit("tiny", pool=other, demand=Demand(input_tokens=100)) == ["tiny"]


class TestProbes:
    def test_it_holds_everybody_and_then_sends_one(self):
        bench = Bench(settings=brittle())
        bench.outage("a", "b")
        assert bench.submit("c", "d") == []
        assert bench.of(Held)[-1].reason is Reason.BREAKER
        assert bench.advance_to_wakeup() == []  # the first failure's own backoff
        probes = bench.advance_to_wakeup()
        assert len(probes) == 1
        assert bench.pool.breaker == "half-open"
        assert bench.advance(0.9) == []
        assert bench.advance(0.2) != [], "the probe lives: so does the provider"

    def test_each_probe_is_another_sessions(self):
        bench = Bench(settings=brittle())
        bench.outage("a", "b")
        probed = []
        while len(probed) < 4:
            for ticket_id in bench.advance_to_wakeup():
                probed.append(ticket_id)
                bench.settle(ticket_id, FAILED)
        assert probed in (["a", "b", "a", "b"], ["b", "a", "b", "a"])

    def test_the_only_ticket_probes_although_it_backs_off(self):
        bench = Bench(settings=brittle())
        bench.submit("a", "b")
        bench.settle("a", after(FAILED, 300))
        bench.settle("b", after(FAILED, 200))
        assert bench.advance_to_wakeup() == ["b"]
        assert bench.now < 2

    def test_a_cancelled_probe_makes_room_for_the_next_at_once(self):
        bench = Bench(settings=brittle())
        bench.outage("a", "b")
        bench.submit("c")
        while not (probe := bench.advance_to_wakeup()):
            pass
        bench.settle(probe[0], CANCELLED)
        assert len(bench.running) == 1
        assert bench.pool.breaker == "half-open"


class TestLate:
    def spent(self) -> Bench:
        """A window that is used up, and turns after 55 s."""
        bench = Bench(slots=50)
        bench.submit("teller")
        bench.observe("teller", requests_reading(limit=20, remaining=19, reset_in_s=55))
        bench.observe("teller", requests_reading(limit=20, remaining=0, reset_in_s=55))
        return bench

    @pytest.mark.parametrize("patience_s", [50, 58], ids=["cannot outlive the turn", "would hardly outlive it"])
    def test_the_last_unit_is_for_the_one_that_has_waited_long_and(self, patience_s):
        bench = self.spent()
        bench.submit("patient", patience_s=600)
        bench.submit("dying", patience_s=patience_s)
        bench.advance(30)
        bench.observe("teller", requests_reading(limit=20, remaining=1, reset_in_s=25))
        assert set(bench.running) == {"teller", "dying"}

    def test_a_bucket_fills_in_time_for_a_large_one_and_the_small_ones_stand_back(self):
        bench = Bench(slots=50)
        bench.submit("teller")
        bucket = Reading("input", Dimension.INPUT_TOKENS, 60.0, limit=1e6, remaining=0, reset_in_s=60.0)
        bench.observe("teller", bucket)
        bench.submit("large", demand=Demand(input_tokens=800_000), patience_s=120)
        number = served = 0
        while "large" not in bench.running:
            number += 1
            bench.submit(f"small{number}", demand=Demand(input_tokens=8_000), patience_s=300)
            bench.scheduler.command(MoveToFront(f"small{number}"), bench.now)
            bench.advance(0.5)
            for name in bench.running.keys() - {"teller", "large"}:
                bench.settle(name)
                served += 1
            assert bench.now < 90, "it has to be answered before 125"
        assert served > 30, "and they need not stand back from the first"

    def test_one_whose_client_is_about_to_go_tries_whether_the_window_has_turned(self):
        bench = self.spent()
        bench.advance(1)
        bench.settle("teller")
        bench.submit("dying", "next", patience_s=51)
        assert bench.advance(54.75 - bench.now) == ["dying"], "half a second before it is shed"
        bench.observe("dying", requests_reading(limit=20, remaining=19, reset_in_s=60.5))
        assert "next" in bench.running

    def test_no_try_breaks_a_limit_that_the_profile_states(self):
        slots, stated = ConcurrencySettings(4, 4), (StatedLimit("points", 1, 10),)
        bench = Bench(settings=PoolSettings(concurrency=slots, stated=stated))
        bench.submit("a")
        bench.advance(1)
        bench.settle("a")
        bench.submit("dying", patience_s=4.2)
        while not bench.shed:
            assert bench.advance_to_wakeup() == []
        assert 8.7 < bench.now < 10, "the limit has room again after 10.25 s"

    def test_who_failed_is_tried_again_as_long_as_an_answer_can_come_in_time(self):
        bench = Bench()
        bench.submit("quick")
        bench.advance(0.2)
        bench.settle("quick")
        bench.submit("a", patience_s=10)
        bench.advance(12)
        verdict = bench.settle("a", FAILED)
        assert isinstance(verdict, Backoff)
        assert bench.advance_to_wakeup() == ["a"]
        bench.advance(2.9)
        assert isinstance(bench.settle("a", FAILED), GiveUp)


class TestCold:
    def bench(self) -> Bench:
        bench = Bench(slots=50)
        bench.submit("first", session="s", demand=Demand(input_tokens=50_000, total_tokens=50_000))
        reading = Reading("input", Dimension.INPUT_TOKENS, window_s=60, limit=100_000, remaining=40_000, reset_in_s=36)
        bench.observe("first", reading)
        bench.settle("first")
        return bench

    def go_on(self, bench: Bench) -> list[str]:
        small = Demand(input_tokens=1_000, total_tokens=1_000)
        known = replace(ticket("second", session="s", at=bench.now, demand=small), cached_tokens=50_000)
        bench.scheduler.submit(replace(known, cold_tokens=50_000), bench.settings, bench.now)
        return bench.poll()

    def test_a_conversation_that_is_still_cached_needs_room_for_what_is_new(self):
        assert self.go_on(self.bench()) == ["second"]

    def test_one_that_has_lapsed_needs_room_for_all_of_it(self):
        bench = self.bench()
        bench.advance(400)
        other = Demand(input_tokens=60_000, total_tokens=60_000)
        assert bench.submit("other", demand=other) == ["other"]
        assert self.go_on(bench) == []
        assert bench.scheduler.next_wakeup() == pytest.approx(bench.now + 11_000 / 100_000 * 60, rel=0.01)

    def test_its_charge_takes_the_place_of_what_was_reserved(self):
        bench = self.bench()
        bench.advance(400)
        self.go_on(bench)
        bench.settle("second", charged=Demand(input_tokens=1_000, total_tokens=1_000))
        assert bench.pool.meters[0].level == 99_000
