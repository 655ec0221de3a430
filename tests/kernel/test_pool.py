"""What becomes of a ticket in its pool, whose rooms have test files of their own."""

import pytest

from hivemind_addon.kernel.values.decision import Backoff, GiveUp
from hivemind_addon.kernel.values.events import BreakerChanged, Held, MeterLearned, PoolBlocked, Superseded
from hivemind_addon.kernel.values.ticket import Demand, Reason
from tests.kernel.samples import (
    CANCELLED,
    FAILED,
    OVERLOADED,
    SUCCESS,
    THROTTLED,
    Bench,
    after,
    brittle,
    requests_reading,
)


class TestMeters:
    def test_a_refusal_that_the_meters_explain_blocks_nothing_else(self):
        bench = Bench()
        bench.submit("a")
        bench.observe("a", requests_reading(limit=60, remaining=0, reset_in_s=60))
        assert isinstance(bench.settle("a", THROTTLED), Backoff)
        assert bench.of(PoolBlocked) == []
        assert 0 < bench.scheduler.next_wakeup() <= 0.2
        assert bench.advance_to_wakeup() == []
        assert bench.scheduler.next_wakeup() == pytest.approx(1)


class TestPause:
    def test_everybody_waits_as_long_as_the_provider_said(self):
        bench = Bench(slots=8)
        bench.submit(*"abcd")
        for ticket_id in "abcd":
            verdict = bench.settle(ticket_id, after(THROTTLED, 20))
        assert len(bench.submit(*"efgh")) <= 1, "one may go at once, to see"
        assert bench.pool.blocked_for_s == pytest.approx(verdict.until)
        assert bench.of(Held)[-1].reason is Reason.BLOCKED
        while not (sent := bench.advance_to_wakeup()):
            pass
        assert bench.now <= 20
        assert 1 <= len(sent) <= 2, "few go first, to see: the probe was not refused"

    @pytest.mark.parametrize("refusal", [THROTTLED, OVERLOADED])
    def test_nobody_waits_for_an_instant_before_which_others_pass(self, refusal):
        bench = Bench(slots=8)
        bench.submit(*"abcdefgh")
        for ticket_id in "bcdefgh":
            bench.settle(ticket_id)
        assert bench.settle("a", after(refusal, 60)).until == 60
        bench.advance(1)
        bench.submit("later")
        while "later" not in bench.running:
            bench.advance_to_wakeup()
        bench.settle("later")
        assert "a" in bench.running
        assert bench.now < 5
        assert bench.settle("a", after(refusal, 60)).until < bench.now + 2, "nor for the next one that is told"

    def test_a_large_one_waits_as_told_though_a_small_one_passes(self):
        bench = Bench(slots=8)
        bench.submit("large", demand=Demand(input_tokens=9_000, total_tokens=9_000))
        assert bench.settle("large", after(OVERLOADED, 60)).until == 60
        bench.advance(1)
        bench.submit("small", demand=Demand(input_tokens=10, total_tokens=10))
        bench.settle("small")
        assert "large" not in bench.running

    def test_after_a_refusal_that_nothing_explains_they_go_one_by_one(self):
        bench = Bench(slots=8)
        bench.submit("a", "b", "c", "d")
        bench.settle("a", THROTTLED)
        bench.settle("b", THROTTLED)
        assert [event.meter for event in bench.of(MeterLearned)] == ["hidden limit"]
        bench.submit("e", "f")
        sent_at = []
        while len(sent_at) < 4:
            sent_at += [bench.now for _ in bench.advance_to_wakeup()]
        assert len(set(sent_at)) == 4
        assert sent_at[-1] < 10


class TestBreaker:
    def test_after_an_outage_half_of_what_was_proved_goes_at_once(self):
        bench = Bench(settings=brittle())
        bench.outage("a", "b")
        bench.submit("c", "d", "e")
        while not (probe := bench.advance_to_wakeup()):
            pass
        bench.settle(probe[0], SUCCESS)
        assert bench.pool.breaker == "closed"
        assert len(bench.running) == 4
        assert [event.state for event in bench.of(BreakerChanged)] == ["open", "half-open", "closed"]

    def test_a_rate_limit_proves_the_provider_alive(self):
        bench = Bench(settings=brittle())
        bench.outage("a", "b")
        while not (probe := bench.advance_to_wakeup()):
            pass
        bench.settle(probe[0], after(THROTTLED, 5))
        assert bench.pool.breaker == "closed"

    def test_an_outage_spends_no_ticket(self):
        bench = Bench(settings=brittle())
        bench.submit("a", "b", patience_s=1e6)
        bench.settle("a", FAILED)
        bench.settle("b", FAILED)
        for _ in range(60):
            for ticket_id in bench.advance_to_wakeup():
                assert isinstance(bench.settle(ticket_id, FAILED), Backoff)

    def test_a_failing_ticket_ends_while_others_succeed(self):
        bench = Bench(settings=brittle(failures=6))
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
