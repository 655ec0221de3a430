import gc
import random
from dataclasses import replace

import pytest

from hivemind_addon.core.decision import Backoff, Finished, GiveUp, Reason
from hivemind_addon.core.events import (
    AccountNamed,
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    GuardTripped,
    Held,
    OddityNoted,
    Submitted,
    TicketEnded,
)
from hivemind_addon.core.pool import PoolSettings
from hivemind_addon.core.scheduler import Scheduler
from hivemind_addon.core.ticket import ContractError, Hints, PoolKey, Usage
from tests.core.samples import (
    CANCELLED,
    CUT,
    FAILED,
    IGNORED,
    POOL,
    SUCCESS,
    THROTTLED,
    Bench,
    requests_reading,
    ticket,
)


class TestLife:
    def test_submit_admit_settle_is_the_whole_story(self):
        bench = Bench()
        bench.submit("a")
        bench.now = 2
        assert bench.settle("a", SUCCESS, usage=Usage(input_tokens=5, output_tokens=7)) == Finished()
        assert [type(event) for event in bench.events] == [
            Submitted,
            AttemptStarted,
            AttemptEnded,
            TicketEnded,
        ]
        assert bench.events[2].duration_s == 2
        assert bench.events[-1].end == "delivered"

    def test_a_failed_ticket_comes_back_as_its_next_attempt(self):
        bench = Bench()
        bench.submit("a")
        assert isinstance(bench.settle("a", FAILED), Backoff)
        bench.advance_to_wakeup()
        assert bench.running["a"].attempt == 2
        started = bench.of(AttemptStarted)[-1]
        assert started.waited_s == pytest.approx(bench.now)
        assert len(bench.of(BackedOff)) == 1

    def test_a_ticket_that_backs_off_keeps_its_place(self):
        bench = Bench(slots=1)
        bench.submit("a", "b", "c")
        bench.settle("a", FAILED)
        assert "b" in bench.running
        bench.now = 5
        bench.settle("b", IGNORED)
        assert "a" in bench.running

    def test_give_up_ends_it(self):
        bench = Bench()
        bench.submit("a")
        assert bench.settle("a", FAILED, client_saw_bytes=True) == GiveUp(Reason.DELIVERED_BYTES)
        assert bench.of(TicketEnded)[0].end == "gave up"
        assert bench.scheduler.is_idle

    def test_a_cancelled_attempt_ends_it(self):
        bench = Bench()
        bench.submit("a")
        assert bench.settle("a", CANCELLED) == Finished()
        assert bench.of(TicketEnded)[0].end == "cancelled"

    def test_waits_are_summed_up(self):
        bench = Bench(slots=1)
        bench.submit("a", "b")
        bench.now = 3
        bench.settle("a", IGNORED)
        bench.now = 4
        bench.settle("b", FAILED)
        bench.now = 10
        bench.poll()
        bench.settle("b")
        assert bench.of(TicketEnded)[-1].waited_s == 9


class TestContract:
    def test_an_id_that_is_known_is_refused(self):
        bench = Bench()
        bench.submit("a")
        with pytest.raises(ContractError):
            bench.submit("a")

    def test_an_id_may_be_used_again_after_its_end(self):
        bench = Bench()
        bench.submit("a")
        bench.settle("a")
        assert bench.submit("a") == ["a"]

    def test_settling_twice_is_refused(self):
        bench = Bench()
        bench.submit("a")
        reservation = bench.running["a"]
        bench.settle("a", FAILED)
        with pytest.raises(ContractError):
            bench.scheduler.settle(reservation, SUCCESS, 1)
        bench.advance(5)
        with pytest.raises(ContractError):
            bench.scheduler.settle(reservation, SUCCESS, 5)
        bench.settle("a")
        with pytest.raises(ContractError):
            bench.scheduler.settle(reservation, SUCCESS, 5)

    def test_more_bypasses_ended_than_began_are_refused(self):
        with pytest.raises(ContractError):
            Bench().scheduler.bypass(POOL, -1)

    def test_observing_a_settled_attempt_teaches_nothing(self):
        bench = Bench()
        bench.submit("a")
        reservation = bench.running["a"]
        bench.settle("a")
        bench.scheduler.observe(reservation, Hints(readings=(requests_reading(remaining=0, reset_in_s=60),)), 0)
        assert bench.pool.meters == ()


class TestCancel:
    def test_a_queued_ticket_can_be_cancelled(self):
        bench = Bench(slots=1)
        bench.submit("a", "b")
        assert bench.scheduler.cancel("b", 0)
        bench.poll()
        assert bench.of(TicketEnded)[0].ticket_id == "b"
        assert bench.pool.queued == 0

    def test_one_in_flight_or_unknown_cannot(self):
        bench = Bench()
        bench.submit("a")
        assert not bench.scheduler.cancel("a", 0)
        assert not bench.scheduler.cancel("x", 0)


class TestExpedite:
    def test_an_expedited_ticket_is_next(self):
        bench = Bench(slots=1)
        bench.submit("a", "b", "c")
        assert bench.scheduler.expedite("c", 0)
        assert bench.poll() == []
        bench.settle("a", IGNORED)
        assert set(bench.running) == {"c"}

    def test_only_queued_ones_can_be(self):
        bench = Bench()
        bench.submit("a")
        assert not bench.scheduler.expedite("a", 0)
        assert not bench.scheduler.expedite("x", 0)


class TestClose:
    def test_everything_queued_is_shed_in_order_and_so_is_what_comes_later(self):
        bench = Bench(slots=1)
        bench.submit("a", "b", "c")
        bench.scheduler.close(0)
        bench.poll()
        bench.submit("d")
        assert [(shed.ticket.id, shed.reason, shed.come_back_s) for shed in bench.shed] == [
            (name, Reason.STOPPING, 1.0) for name in "bcd"
        ]
        assert bench.scheduler.snapshot(0).stopping

    def test_running_attempts_end_as_they_do_but_are_not_tried_again(self):
        bench = Bench()
        bench.submit("a", "b")
        bench.scheduler.close(0)
        assert bench.settle("a", FAILED) == GiveUp(Reason.STOPPING)
        assert bench.settle("b", SUCCESS) == Finished()
        assert bench.scheduler.is_idle


class TestPools:
    def test_they_do_not_hinder_each_other(self):
        bench = Bench(slots=1)
        other = replace(POOL, model_group="other")
        bench.submit("a", "b")
        assert bench.submit("c", "d", pool=other) == ["c"]
        assert [view.in_flight for view in bench.scheduler.snapshot(0).pools] == [1, 1]

    def test_the_next_wakeup_is_the_earliest_of_all(self):
        bench = Bench()
        bench.submit("a", patience_s=100)
        bench.settle("a", replace(FAILED, retry_after_s=50))
        bench.submit("b", pool=replace(POOL, model_group="other"))
        bench.settle("b", replace(FAILED, retry_after_s=40))
        assert bench.scheduler.next_wakeup() == 40

    def test_an_unknown_pool_has_a_limit_of_one(self):
        bench = Bench(slots=7)
        assert bench.scheduler.limit_of(POOL) == 1
        bench.submit("a")
        assert bench.scheduler.limit_of(POOL) == 7


class TestAccounts:
    def key(self, account: str, group: str = "m") -> PoolKey:
        return PoolKey(host="api.test", account=account, model_group=group)

    def test_a_second_key_of_one_organisation_uses_the_account_of_the_first(self):
        bench = Bench()
        bench.submit("a", pool=self.key("key-1"))
        bench.submit("b", pool=self.key("key-2"))
        bench.observe("a", account="org")
        bench.observe("b", account="org")
        assert bench.scheduler.account_of("key-1") == "key-1"
        assert bench.scheduler.account_of("key-2") == "key-1"
        assert bench.scheduler.account_of("key-3") == "key-3"

    def test_another_organisation_is_another_account(self):
        bench = Bench()
        bench.submit("a", pool=self.key("key-1"))
        bench.submit("b", pool=self.key("key-2"))
        bench.observe("a", account="org")
        bench.observe("b", account="other")
        assert bench.scheduler.account_of("key-2") == "key-2"

    def test_a_name_is_announced_once_per_pool(self):
        bench = Bench()
        bench.submit("a")
        bench.observe("a", account="org")
        bench.observe("a", account="org")
        bench.observe("a", account="renamed")
        assert [event.name for event in bench.of(AccountNamed)] == ["org"]
        assert bench.pool.account_name == "org"

    def test_names_that_change_make_no_circle(self):
        bench = Bench()
        bench.submit("a", pool=self.key("key-1"))
        bench.submit("b", pool=self.key("key-2"))
        bench.observe("a", account="x")
        bench.observe("b", account="y")
        bench.observe("a", account="y")
        bench.observe("b", account="x")
        assert bench.scheduler.account_of("key-1") == "key-1"
        assert bench.scheduler.account_of("key-2") == "key-2"


class TestTotals:
    def test_the_counters_tell_what_happened(self):
        bench = Bench(slots=1)
        bench.submit("a", "b", "c", patience_s=100)
        bench.settle("a", CUT)
        bench.advance(1)
        bench.settle("b", SUCCESS, usage=Usage(input_tokens=5, cache_read_tokens=10, output_tokens=7))
        bench.settle("a", THROTTLED)
        bench.settle("c", FAILED, client_saw_bytes=True)
        bench.scheduler.cancel("a", bench.now)
        bench.scheduler.note(GuardTripped(at=1, ticket_id=None, where="here", error="E"))
        counters = bench.scheduler.snapshot(bench.now).counters
        assert (counters.tickets, counters.delivered, counters.gave_up, counters.cancelled) == (3, 1, 1, 1)
        assert (counters.attempts, counters.retries, counters.throttled) == (4, 1, 1)
        assert (counters.ambiguous_resends, counters.guard_trips) == (1, 1)
        assert (counters.input_tokens, counters.output_tokens) == (15, 7)

    def test_what_a_provider_said_oddly_is_noted(self):
        bench = Bench()
        bench.submit("a")
        bench.scheduler.observe(bench.running["a"], Hints(oddities=("reset: soon",)), 0)
        bench.poll()
        assert [(event.ticket_id, event.what) for event in bench.of(OddityNoted)] == [("a", "reset: soon")]

    def test_events_are_handed_out_once(self):
        bench = Bench()
        bench.submit("a")
        assert bench.scheduler.drain_events() == []


def test_a_poll_with_nothing_new_changes_nothing():
    bench = Bench(slots=1)
    bench.submit("a", "b")
    before = bench.scheduler.snapshot(0)
    assert bench.poll() == []
    assert bench.scheduler.snapshot(0) == before
    assert len(bench.of(Held)) == 1


def test_ended_tickets_leave_no_trace():
    scheduler = Scheduler(rng=random.Random(1))
    settings = PoolSettings()
    sizes = []
    for n in range(3000):
        now = n * 0.1
        scheduler.submit(ticket(f"t{n}", session=f"s{n}", at=now), settings, now)
        (admitted,) = scheduler.poll(now)
        scheduler.observe(admitted.reservation, Hints(readings=(requests_reading(limit=1e6, remaining=1e5),)), now)
        scheduler.settle(admitted.reservation, SUCCESS, now)
        scheduler.poll(now)
        scheduler.drain_events()
        if n in (100, 2999):
            sizes.append(_reachable(scheduler))
    assert sizes[0] == sizes[1]
    assert scheduler.next_wakeup() is None


def _reachable(root: object) -> int:
    """How many objects of the core can be reached."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type) or callable(thing):
            continue
        if not type(thing).__module__.startswith(("hivemind_addon", "builtins", "collections")):
            continue
        seen[id(thing)] = thing
        waiting.extend(gc.get_referents(thing))
    return sum(not isinstance(thing, int | float | str) for thing in seen.values())
