"""How the rooms of one pool work together; each room's own rules are in its own test file."""

import pytest
from msgspec.structs import replace

from hivemind_addon.core.aimd import ConcurrencySettings
from hivemind_addon.core.breaker import BreakerSettings
from hivemind_addon.core.decision import Backoff, GiveUp, Reason
from hivemind_addon.core.events import (
    BreakerChanged,
    ConcurrencyChanged,
    Held,
    MeterLearned,
    PoolBlocked,
    Superseded,
)
from hivemind_addon.core.pool import PoolSettings
from hivemind_addon.core.ticket import Demand, Dimension, Reading
from tests.core.samples import (
    CANCELLED,
    FAILED,
    IGNORED,
    OVERLOADED,
    POOL,
    SUCCESS,
    THROTTLED,
    Bench,
    after,
    requests_reading,
    ticket,
)


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

    def test_success_raises_the_limit_and_overload_lowers_it(self):
        bench = Bench(slots=4)
        bench.submit("a", "b")
        bench.settle("b", SUCCESS)
        assert bench.pool.limit == 5
        bench.settle("a", OVERLOADED)
        assert bench.pool.limit == 1
        assert [event.limit for event in bench.of(ConcurrencyChanged)] == [5, 1]

    def test_a_rate_limit_never_moves_it(self):
        bench = Bench(slots=4)
        bench.submit("a", "b", "c")
        for name in "abc":
            bench.settle(name, THROTTLED)
        assert bench.pool.limit == 4
        assert bench.pool.breaker == "closed"


class TestMeters:
    def test_the_exact_instant_is_waited_for(self):
        bench = Bench()
        bench.submit("a")
        bench.observe("a", requests_reading(limit=60, remaining=0, reset_in_s=60))
        assert bench.submit("b") == []
        assert bench.scheduler.next_wakeup() == pytest.approx(1)
        assert bench.advance(0.99) == []
        assert bench.advance(0.01) == ["b"]

    def test_a_large_ticket_at_the_head_is_not_passed_by_small_ones(self):
        bench = Bench()
        bench.submit("a")
        bench.observe("a", requests_reading(limit=60, remaining=10, reset_in_s=50))
        assert bench.submit("large", demand=Demand(requests=20)) == []
        assert bench.submit("small") == []
        assert [event.reason for event in bench.of(Held)] == [Reason.METER, Reason.ORDER]
        assert bench.advance(10) == ["large"]

    def test_a_refusal_that_the_meters_explain_blocks_nothing_else(self):
        bench = Bench()
        bench.submit("a")
        bench.observe("a", requests_reading(limit=60, remaining=0, reset_in_s=60))
        assert isinstance(bench.settle("a", THROTTLED), Backoff)
        assert bench.of(PoolBlocked) == []
        assert bench.scheduler.next_wakeup() == pytest.approx(1)

    def test_a_meter_is_announced_once_and_again_when_it_changes(self):
        bench = Bench()
        bench.submit("a", "b", "c")
        bench.observe("a", requests_reading(limit=60, remaining=58, reset_in_s=50))
        bench.observe("b", requests_reading(limit=60, remaining=57, reset_in_s=50))
        bench.observe("c", requests_reading(limit=30, remaining=27, reset_in_s=50))
        assert [(event.kind, event.limit) for event in bench.of(MeterLearned)] == [("window", 60), ("window", 30)]

    def test_the_view_shows_what_may_still_be_taken(self):
        bench = Bench()
        bench.submit("a", "b")
        bench.observe("a", requests_reading(limit=60, remaining=30, reset_in_s=30))
        (meter,) = bench.pool.meters
        assert (meter.name, meter.kind, meter.limit, meter.level) == ("requests", "bucket", 60, 29)
        assert meter.full_in_s == pytest.approx(31)


class TestPause:
    def test_everybody_waits_as_long_as_the_provider_said(self):
        bench = Bench()
        bench.submit("a")
        verdict = bench.settle("a", after(THROTTLED, 5))
        assert bench.submit("b") == []
        assert bench.pool.blocked_for_s == pytest.approx(verdict.until)
        assert 5.05 <= bench.scheduler.next_wakeup() <= 5.25
        assert bench.advance_to_wakeup() == ["a"]
        assert [event.reason for event in bench.of(Held)] == [Reason.BACKOFF, Reason.BLOCKED]

    def test_after_a_refusal_that_nothing_explains_they_go_one_by_one(self):
        bench = Bench(slots=8)
        bench.submit("a", "b", "c", "d")
        bench.settle("a", THROTTLED)
        assert [(event.meter, event.limit) for event in bench.of(MeterLearned)] == [("pace", 2)]
        bench.submit("e")
        sent = [(ticket_id, bench.now) for _ in range(2) for ticket_id in bench.advance_to_wakeup()]
        assert sorted(ticket_id for ticket_id, _ in sent) == ["a", "e"]
        assert [at for _, at in sent] == pytest.approx([0.5, 1.0])


class TestBreaker:
    def outage(self, bench: Bench, *ticket_ids: str) -> None:
        bench.submit(*ticket_ids)
        for ticket_id in ticket_ids:
            assert isinstance(bench.settle(ticket_id, FAILED), Backoff)
        assert bench.pool.breaker == "open"

    def settings(self, failures: int = 2) -> PoolSettings:
        return PoolSettings(
            concurrency=ConcurrencySettings(initial=8), breaker=BreakerSettings(failures_to_open=failures)
        )

    def test_it_holds_everybody_and_then_sends_one(self):
        bench = Bench(settings=self.settings())
        self.outage(bench, "a", "b")
        assert bench.submit("c", "d") == []
        assert bench.of(Held)[-1].reason is Reason.BREAKER
        assert bench.advance_to_wakeup() == []  # the first failure's own backoff
        probes = bench.advance_to_wakeup()
        assert len(probes) == 1
        assert bench.pool.breaker == "half-open"
        assert bench.advance(100) == []

    def test_each_probe_is_another_sessions(self):
        bench = Bench(settings=self.settings())
        self.outage(bench, "a", "b")
        probed = []
        while len(probed) < 4:
            for ticket_id in bench.advance_to_wakeup():
                probed.append(ticket_id)
                bench.settle(ticket_id, FAILED)
        assert probed in (["a", "b", "a", "b"], ["b", "a", "b", "a"])

    def test_the_only_ticket_probes_although_it_backs_off(self):
        bench = Bench(settings=self.settings())
        bench.submit("a", "b")
        bench.settle("a", after(FAILED, 300))
        bench.settle("b", after(FAILED, 200))
        assert bench.advance_to_wakeup() == ["b"]
        assert bench.now < 2

    def test_a_probe_that_succeeds_lets_two_go(self):
        bench = Bench(settings=self.settings())
        self.outage(bench, "a", "b")
        bench.submit("c", "d", "e")
        while not (probe := bench.advance_to_wakeup()):
            pass
        bench.settle(probe[0], SUCCESS)
        assert bench.pool.breaker == "closed"
        assert len(bench.running) == 2
        assert [event.state for event in bench.of(BreakerChanged)] == ["open", "half-open", "closed"]

    def test_a_rate_limit_proves_the_provider_alive(self):
        bench = Bench(settings=self.settings())
        self.outage(bench, "a", "b")
        while not (probe := bench.advance_to_wakeup()):
            pass
        bench.settle(probe[0], after(THROTTLED, 5))
        assert bench.pool.breaker == "closed"
        assert bench.running == {}

    def test_a_cancelled_probe_makes_room_for_the_next_at_once(self):
        bench = Bench(settings=self.settings())
        self.outage(bench, "a", "b")
        bench.submit("c")
        while not (probe := bench.advance_to_wakeup()):
            pass
        bench.settle(probe[0], CANCELLED)
        assert len(bench.running) == 1
        assert bench.pool.breaker == "half-open"

    def test_an_outage_spends_no_ticket(self):
        bench = Bench(settings=self.settings())
        bench.submit("a", "b", patience_s=1e6)
        bench.settle("a", FAILED)
        bench.settle("b", FAILED)
        for _ in range(60):
            for ticket_id in bench.advance_to_wakeup():
                assert isinstance(bench.settle(ticket_id, FAILED), Backoff)

    def test_a_failing_ticket_ends_while_others_succeed(self):
        bench = Bench(settings=self.settings(failures=6))
        bench.submit("bad", patience_s=1e6)
        verdicts = []
        while "bad" in bench.running:
            verdicts.append(bench.settle("bad", FAILED))
            bench.submit(f"good{len(verdicts)}")
            bench.settle(f"good{len(verdicts)}")
            while isinstance(verdicts[-1], Backoff) and "bad" not in bench.running:
                bench.advance_to_wakeup()
        assert verdicts[-1] == GiveUp(Reason.SPENT_ATTEMPTS)
        assert len(verdicts) == 10


class TestShed:
    def test_a_held_ticket_is_shed_when_its_time_has_come(self):
        bench = Bench(slots=1)
        bench.submit("a", "b", patience_s=30)
        bench.advance(29.9)
        assert bench.shed == []
        bench.advance_to_wakeup()
        (shed,) = bench.shed
        assert (shed.ticket.id, shed.reason, bench.now) == ("b", Reason.DEADLINE, 30)
        assert shed.come_back_s == 1

    def test_it_is_told_when_it_would_fit(self):
        bench = Bench()
        bench.submit("a")
        bench.observe("a", requests_reading(limit=60, remaining=59, reset_in_s=50))
        bench.observe("a", requests_reading(limit=60, remaining=0, reset_in_s=50))
        bench.submit("b", patience_s=20)
        bench.advance(20)
        assert bench.shed[0].come_back_s == pytest.approx(30.1)

    def test_a_ticket_that_backs_off_past_its_time_is_shed_in_time(self):
        bench = Bench()
        bench.submit("a", patience_s=30)
        assert bench.settle("a", after(FAILED, 100)).until == 100
        bench.advance_to_wakeup()
        assert bench.now == 30
        assert bench.shed[0].come_back_s == 70


class TestReservation:
    """A window of sixty; `late` backs off and is due in it."""

    def bench(self, *, left: int, late: int = 1, back_in_s: float = 10, limit: int = 20) -> Bench:
        bench = Bench(slots=50)
        names = [f"late{n}" for n in range(late)]
        bench.submit(*names, "teller")
        bench.observe("teller", requests_reading(limit=limit, remaining=left, reset_in_s=30))
        bench.settle("teller")
        for name in names:
            bench.settle(name, after(FAILED, back_in_s))
        return bench

    def test_a_unit_is_kept_for_one_that_will_be_due_in_the_window(self):
        bench = self.bench(left=2)
        assert bench.submit("a", "b") == ["a"]
        assert bench.advance(10) == ["late0"]
        assert bench.advance_to_wakeup() == ["b"]
        assert bench.now == pytest.approx(30.1)

    def test_none_is_kept_for_one_that_will_be_due_after_it(self):
        bench = self.bench(left=2, back_in_s=35)
        assert bench.submit("a", "b") == ["a", "b"]

    def test_at_most_half_of_the_window_is_kept(self):
        bench = self.bench(left=5, late=5, limit=8)
        assert bench.submit("a", "b", "c") == ["a"]

    def test_a_kept_unit_is_free_as_soon_as_nobody_comes_for_it(self):
        bench = self.bench(left=1)
        assert bench.submit("a") == []
        assert bench.scheduler.cancel("late0", bench.now)
        assert bench.poll() == ["a"]

    def test_a_bucket_keeps_nothing(self):
        bench = Bench(slots=50)
        bench.submit("late", "teller")
        bench.observe("teller", requests_reading(limit=60, remaining=1, reset_in_s=59))
        bench.settle("late", after(FAILED, 10))
        assert bench.submit("a") == ["a"]


class TestLastChance:
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

    def test_one_whose_client_is_about_to_go_tries_whether_a_told_reset_was_rounded_up(self):
        bench = self.spent()
        bench.advance(1)
        bench.settle("teller")
        bench.submit("dying", "next", patience_s=51)
        assert bench.advance(54.5 - bench.now) == ["dying"]
        bench.observe("dying", requests_reading(limit=20, remaining=19, reset_in_s=60.5))
        assert "next" in bench.running

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


class TestComeback:
    def test_a_request_that_was_shed_gets_its_old_place(self):
        bench = Bench(slots=1)
        same = {"session": "s", "patience_s": 30.0, "request_hash": "h"}
        bench.submit("running")
        bench.submit("first", **same)
        bench.submit("later", session="s", patience_s=600)
        bench.advance(30)
        assert [shed.ticket.id for shed in bench.shed] == ["first"]
        bench.submit("again", **same)
        bench.settle("running")
        assert list(bench.running)[:1] == ["again"]

    def test_so_does_one_whose_client_went_and_sends_it_again(self):
        bench = Bench(slots=1)
        same = {"session": "s", "request_hash": "h"}
        bench.submit("running")
        bench.submit("first", **same)
        bench.submit("later", session="s")
        assert bench.scheduler.cancel("first", bench.now)
        bench.submit("again", **same)
        bench.settle("running")
        assert list(bench.running)[:1] == ["again"]

    def test_an_attempt_that_still_runs_for_it_is_ended_first(self):
        bench = Bench(slots=4)
        same = {"session": "s", "patience_s": 30.0, "request_hash": "h"}
        bench.submit("old", **same)
        bench.advance(31)
        assert bench.submit("new", **same) == []
        (old,) = bench.scheduler.drain_superseded()
        assert old.ticket.id == "old"
        assert [event.by_ticket_id for event in bench.of(Superseded)] == ["new"]
        bench.settle("old", CANCELLED)
        assert "new" in bench.running
        assert bench.scheduler.drain_superseded() == []

    def test_one_that_nobody_ends_is_waited_for_only_shortly(self):
        bench = Bench(slots=4)
        same = {"session": "s", "patience_s": 30.0, "request_hash": "h"}
        bench.submit("old", **same)
        bench.advance(31)
        bench.submit("new", **same)
        assert bench.advance(5) == ["new"]

    def test_the_same_request_twice_at_one_time_is_nobodys_comeback(self):
        bench = Bench(slots=4)
        assert bench.submit("one", "two", session="s", request_hash="h") == ["one", "two"]
        assert bench.scheduler.drain_superseded() == []


class TestHeld:
    def test_once_for_each_wait_with_its_place(self):
        bench = Bench(slots=1)
        bench.submit("a", "b", "c")
        bench.advance(1)
        assert [(event.ticket_id, event.reason, event.position) for event in bench.of(Held)] == [
            ("b", Reason.CONCURRENCY, 1),
            ("c", Reason.CONCURRENCY, 2),
        ]
        bench.settle("a", FAILED)
        assert [(event.ticket_id, event.reason) for event in bench.of(Held)[2:]] == [("a", Reason.BACKOFF)]

    def test_never_for_a_ticket_that_goes_at_once(self):
        bench = Bench()
        bench.submit("a")
        assert bench.of(Held) == []


def test_the_view_lists_every_ticket_with_its_state_and_place():
    bench = Bench(slots=2)
    bench.submit("a", "b", "c", "d")
    bench.settle("a", after(FAILED, 100))
    seen = [(view.ticket.id, view.state, view.position) for view in bench.pool.tickets]
    assert seen == [("b", "in flight", 0), ("c", "in flight", 0), ("a", "backing off", 1), ("d", "queued", 2)]
    assert [view.reason for view in bench.pool.tickets][2:] == ["backing off", "concurrency limit"]
