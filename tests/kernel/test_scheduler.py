import gc
import json
import random

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.limits.breaker import BreakerSettings
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.retry import RetryPolicy
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.sliced_work import whole
from hivemind_addon.kernel.values.decision import Backoff, Finished, GiveUp
from hivemind_addon.kernel.values.events import (
    AccountNamed,
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    ConcurrencyChanged,
    GuardTripped,
    Held,
    MachineSlept,
    OddityNoted,
    PoolsMerged,
    Submitted,
    TicketEnded,
)
from hivemind_addon.kernel.values.ticket import AttemptResult, ContractError, Hints, PoolKey, Reason, Usage
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
    requests_reading,
    ticket,
)


def test_sessions_that_come_and_go_leave_nothing_to_the_collector():
    bench = Bench(slots=2)
    gc.collect()
    gc.disable()
    try:
        for number in range(200):
            delivered, retried, cancelled, shed = (f"{kind}-{number}" for kind in ("ok", "again", "gone", "shed"))
            assert bench.submit(delivered, retried) == [delivered, retried]
            bench.submit(cancelled)
            bench.submit(shed, patience_s=1)
            assert bench.scheduler.cancel(cancelled, bench.now)
            bench.advance(6)
            assert len(bench.shed) == number + 1
            bench.settle(retried, FAILED)
            bench.settle(delivered)
            assert bench.advance(10) == [retried]
            bench.settle(retried)
        assert gc.collect() == 0
    finally:
        gc.enable()


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
        assert bench.running["a"].number == 2
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

    def test_what_may_not_be_sent_again_is_shed_where_waiting_would_cure_it(self):
        bench = Bench()
        bench.submit("a", "b", "c")
        assert bench.settle("a", FAILED, may_repeat=False) == GiveUp(Reason.ANEW)
        assert bench.settle("b", IGNORED, may_repeat=False) == GiveUp(Reason.NOT_RETRYABLE)
        assert bench.settle("c", FAILED, may_repeat=False, client_saw_bytes=True) == GiveUp(Reason.DELIVERED_BYTES)
        assert [ended.end for ended in bench.of(TicketEnded)] == ["shed", "gave up", "gave up"]
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
        attempt = bench.running["a"]
        bench.settle("a", FAILED)
        with pytest.raises(ContractError):
            bench.scheduler.settle(attempt, AttemptResult(SUCCESS), 1)
        bench.advance(5)
        with pytest.raises(ContractError):
            bench.scheduler.settle(attempt, AttemptResult(SUCCESS), 5)
        bench.settle("a")
        with pytest.raises(ContractError):
            bench.scheduler.settle(attempt, AttemptResult(SUCCESS), 5)

    def test_more_bypasses_ended_than_began_are_refused(self):
        with pytest.raises(ContractError):
            Bench().scheduler.bypass(POOL, -1)

    def test_observing_a_settled_attempt_teaches_nothing(self):
        bench = Bench()
        bench.submit("a")
        attempt = bench.running["a"]
        bench.settle("a")
        bench.scheduler.observe(attempt, Hints(readings=(requests_reading(remaining=0, reset_in_s=60),)), 0)
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
        other = replace(POOL, account="key-2")
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
        scheduler.observe(admitted.attempt, Hints(readings=(requests_reading(limit=1e6, remaining=1e5),)), now)
        scheduler.settle(admitted.attempt, AttemptResult(SUCCESS), now)
        scheduler.poll(now)
        scheduler.drain_events()
        if n in (1900, 2999):
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


class TestMerge:
    """Two keys of one organisation."""

    OTHER = replace(POOL, account="key-2")

    def bench(self, slots: int = 2) -> Bench:
        bench = Bench(slots=slots)
        bench.submit("a1", "a2")
        bench.submit("b1", "b2", pool=self.OTHER)
        bench.submit("a3")
        bench.now = 1
        bench.submit("b3", pool=self.OTHER)
        return bench

    def merge(self, bench: Bench) -> None:
        bench.observe("a1", account="org")
        bench.observe("b1", account="org")

    def test_everything_of_both_is_in_one_pool(self):
        bench = self.bench()
        self.merge(bench)
        assert bench.pool.key == POOL
        assert len(bench.scheduler.snapshot(bench.now).pools) == 1
        assert (bench.pool.in_flight, bench.pool.queued, bench.pool.limit) == (4, 2, 2)
        assert [event.merged for event in bench.of(PoolsMerged)] == [self.OTHER]

    def test_tickets_keep_their_ids_and_places(self):
        bench = self.bench()
        self.merge(bench)
        for ticket_id in ("a1", "b1", "b2"):
            bench.settle(ticket_id, IGNORED)
        assert "a3" in bench.running
        bench.settle("a2", IGNORED)
        assert sorted(bench.running) == ["a3", "b3"]
        bench.settle("a3")
        bench.settle("b3")
        assert bench.scheduler.is_idle
        assert sorted(event.ticket_id for event in bench.of(TicketEnded)) == ["a1", "a2", "a3", "b1", "b2", "b3"]

    def test_what_is_in_flight_is_taken_from_the_meters_of_both(self):
        bench = self.bench()
        bench.observe("a2", requests_reading(limit=60, remaining=30, reset_in_s=30))
        bench.observe("b2", requests_reading(limit=60, remaining=28, reset_in_s=32))
        self.merge(bench)
        (meter,) = bench.pool.meters
        assert meter.level == pytest.approx(28, abs=1), "the next header tells the rest"
        for ticket_id in ("a1", "a2", "b1", "b2"):
            bench.settle(ticket_id, IGNORED)
        for meter in bench.scheduler._pools[POOL].capacity.meters:
            assert meter.reserved == len(bench.running)

    def test_a_meter_that_only_the_other_knows_is_taken_over(self):
        bench = self.bench()
        bench.observe("b2", requests_reading(limit=60, remaining=28, reset_in_s=32))
        self.merge(bench)
        (meter,) = bench.pool.meters
        assert (meter.limit, meter.level) == (60, pytest.approx(56)), "all four attempts count"
        for ticket_id in ("a1", "a2", "b1", "b2"):
            bench.settle(ticket_id, IGNORED)
        for meter in bench.scheduler._pools[POOL].capacity.meters:
            assert meter.reserved == len(bench.running)

    def test_a_ticket_that_still_names_the_other_pool_joins_it(self):
        bench = self.bench()
        self.merge(bench)
        bench.submit("late", pool=self.OTHER)
        assert bench.pool.queued == 3
        bench.scheduler.bypass(self.OTHER, 1)
        assert bench.pool.bypassing == 1
        assert bench.scheduler.limit_of(self.OTHER) == bench.pool.limit

    def test_a_pool_whose_account_is_known_by_now_moves_alone(self):
        bench = Bench()
        bench.submit("a")
        bench.observe("a", account="org")
        bench.submit("b", pool=replace(self.OTHER, model_group="n"))
        bench.observe("b", account="org")
        keys = [view.key for view in bench.scheduler.snapshot(0).pools]
        assert keys == [POOL, replace(POOL, model_group="n")]
        bench.settle("b")
        bench.settle("a")
        assert bench.scheduler.is_idle

    def test_what_refusals_taught_one_is_known_to_both(self):
        bench = self.bench(slots=8)
        bench.submit(*(f"c{number}" for number in range(5)), pool=self.OTHER)
        for number in range(5):
            bench.settle(f"c{number}", replace(THROTTLED, retry_after_s=20))
        taught = next(pool.learned for pool in bench.scheduler.snapshot(bench.now).pools if pool.key == self.OTHER)
        self.merge(bench)
        assert [view.text for view in bench.pool.learned] == [view.text for view in taught] != []

    def test_a_probe_of_the_other_is_an_attempt_like_others(self):
        bench = Bench(settings=PoolSettings(breaker=BreakerSettings(failures_to_open=2)))
        bench.submit("a")
        bench.submit("b1", "b2", pool=self.OTHER)
        bench.settle("b1", FAILED)
        bench.settle("b2", FAILED)
        while not (probes := bench.advance_to_wakeup()):
            pass
        bench.observe("a", account="org")
        bench.observe(probes[0], account="org")
        assert bench.pool.breaker == "closed"
        assert isinstance(bench.settle(probes[0], FAILED), Backoff)


class TestSleep:
    def window(self, *, retry_after_s: float | None = None) -> Bench:
        """A window that turns in half a minute and is used up."""
        bench = Bench()
        bench.submit("a")
        bench.observe("a", requests_reading(limit=60, remaining=59, reset_in_s=30))
        bench.observe("a", requests_reading(limit=60, remaining=0, reset_in_s=30))
        bench.settle("a", replace(THROTTLED, retry_after_s=retry_after_s) if retry_after_s else SUCCESS)
        assert bench.submit("b") == []
        return bench

    def sleep(self, bench: Bench, slept_s: float) -> list[str]:
        bench.now += slept_s
        bench.scheduler.wake_up(slept_s, bench.now)
        return bench.poll()

    @pytest.mark.parametrize("slept_s", [60.0, 3600.0, 8 * 3600.0])
    def test_the_window_has_turned_and_nobody_is_shed(self, slept_s):
        bench = self.window()
        assert self.sleep(bench, slept_s) == ["b"]
        assert bench.shed == []
        assert [event.slept_s for event in bench.of(MachineSlept)] == [slept_s]

    def test_a_pause_and_a_backoff_are_over(self):
        bench = self.window(retry_after_s=500)
        assert sorted(self.sleep(bench, 3600)) == ["a", "b"]

    def test_all_start_small(self):
        bench = Bench(settings=PoolSettings(concurrency=ConcurrencySettings(initial=4)))
        bench.submit(*(f"t{n}" for n in range(40)))
        while bench.pool.limit <= 20:
            bench.advance_to_wakeup()
        self.sleep(bench, 3600)
        assert bench.pool.limit == 4

    def test_who_waits_is_shed_as_much_later_and_what_is_in_flight_took_no_longer(self):
        bench = Bench(slots=1)
        bench.submit("a", "b", patience_s=100)
        bench.now = 10
        self.sleep(bench, 3600)
        assert bench.shed == []
        bench.advance(5)
        bench.settle("a")
        (ended,) = bench.of(AttemptEnded)
        assert ended.duration_s == 15
        assert bench.running["b"].admitted_at == 3615
        assert [event.waited_s for event in bench.of(AttemptStarted)] == [0, 15]

    @pytest.mark.parametrize("slept_s", [6.0, 3600.0, 8 * 3600.0])
    def test_a_backoff_in_flight_and_queued_tickets_all_end(self, slept_s):
        bench = Bench(slots=2)
        bench.submit("a", "b", "c", "d")
        bench.settle("a", FAILED)
        self.sleep(bench, slept_s)
        for _ in range(10):
            for ticket_id in list(bench.running):
                bench.settle(ticket_id)
            if not bench.scheduler.is_idle and not bench.running:
                bench.advance_to_wakeup()
        assert bench.scheduler.is_idle
        assert [event.end for event in bench.of(TicketEnded)] == ["delivered"] * 4


class TestExport:
    def taught(self) -> Bench:
        bench = Bench(slots=3)
        bench.submit("a", "b", "c")
        bench.observe("a", requests_reading(limit=50, remaining=20, reset_in_s=50), account="org")
        bench.settle("a", THROTTLED)
        bench.settle("c", OVERLOADED)
        return bench

    def test_what_was_learned_is_there_again_in_the_next_run(self):
        saved = json.loads(json.dumps(self.taught().scheduler.export()))
        bench = Bench(slots=4)
        bench.scheduler.restore(saved, 0)
        bench.submit("a")
        (meter,) = bench.pool.meters
        assert (meter.name, meter.kind, meter.limit) == ("requests", "window", 50)
        assert bench.pool.learned
        assert json.loads(json.dumps(bench.scheduler.export())) == saved
        assert bench.of(OddityNoted) == []

    def test_accounts_are_known_again(self):
        bench = self.taught()
        bench.submit("other", pool=replace(POOL, account="key-2"))
        bench.observe("other", account="org")
        saved = json.loads(json.dumps(bench.scheduler.export()))
        fresh = Bench()
        fresh.scheduler.restore(saved, 0)
        assert fresh.scheduler.account_of("key-2") == "key-1"

    def test_what_is_not_used_in_a_run_is_not_lost(self):
        saved = json.loads(json.dumps(self.taught().scheduler.export()))
        bench = Bench()
        bench.scheduler.restore(saved, 0)
        assert json.loads(json.dumps(bench.scheduler.export())) == saved

    @pytest.mark.parametrize(
        "bad",
        [
            None,
            [],
            {},
            {"version": 2},
            {"version": 1},
            {"version": 1, "pools": [5], "accounts": [], "same_account": {}},
            {"version": 1, "pools": [], "accounts": [{}], "same_account": {}},
            {"version": 1, "pools": [], "accounts": [], "same_account": {"a": 5}},
        ],
    )
    def test_what_cannot_be_read_costs_an_oddity_and_nothing_else(self, bad):
        bench = Bench()
        bench.scheduler.restore(bad, 0)
        assert bench.submit("a") == ["a"]
        (oddity,) = bench.of(OddityNoted)
        assert oddity.what.startswith("saved state is not used: ")

    def test_accounts_that_point_in_circles_are_left_out(self):
        bench = Bench()
        circle = {"version": 1, "pools": [], "accounts": [], "same_account": {"a": "b", "b": "a", "c": "d"}}
        bench.scheduler.restore(circle, 0)
        assert [bench.scheduler.account_of(name) for name in "abc"] == ["a", "b", "d"]


def test_a_snapshot_can_be_kept_short():
    scheduler = Scheduler(rng=random.Random(1))
    for number in range(20):
        scheduler.submit(ticket(f"t{number}"), PoolSettings(), 0.0)
    scheduler.poll(0.0)
    (whole,), (short,) = scheduler.snapshot(0.0).pools, scheduler.snapshot(0.0, most_queued=3).pools
    assert short.queued == whole.queued > 3
    assert short.tickets == whole.tickets[: whole.in_flight + 3]


class TestSnapshotInParts:
    """What a report is made of, while others have the loop in between."""

    def three_pools(self):
        bench = Bench(slots=1)
        keys = [replace(POOL, account=f"key-{name}", model_group=name) for name in "abc"]
        for key in keys:
            bench.submit(*(f"{key.model_group}{number}" for number in range(3)), pool=key)
        return bench, keys

    def test_at_rest_it_is_the_snapshot(self):
        bench, _ = self.three_pools()
        for most in (0, 1, None):
            parts = bench.scheduler.snapshot_in_parts(lambda: bench.now, most_queued=most)
            assert whole(parts) == bench.scheduler.snapshot(bench.now, most_queued=most)

    def test_each_pool_is_told_as_it_was_before_a_change_or_as_it_is_after_it(self):
        said = set()
        for turns in range(20):
            bench, keys = self.three_pools()
            before = bench.scheduler.snapshot(bench.now).pools
            parts = bench.scheduler.snapshot_in_parts(lambda bench=bench: bench.now)
            for _ in range(turns):
                next(parts, None)
            for key in keys:
                bench.settle(f"{key.model_group}0", SUCCESS)
            after = bench.scheduler.snapshot(bench.now).pools
            snapshot = whole(parts)
            if snapshot is None:  # it was told whole before the change
                break
            told = snapshot.pools
            said.add(tuple("before" if one == old else "after" for one, old in zip(told, before, strict=True)))
            assert all(one in (old, new) for one, old, new in zip(told, before, after, strict=True))
        assert {("after",) * 3, ("before", "after", "after"), ("before", "before", "after")} <= said


class TestConfigure:
    """Profiles that are changed while their pools are in use."""

    def configure(self, bench, **changes):
        settings = PoolSettings(profile="edited", **changes)
        asked = []
        bench.scheduler.configure(lambda key, name: asked.append((key, name)) or settings, bench.now)
        bench.poll()
        return asked

    def test_who_waits_goes_by_the_new_limit_at_once(self):
        bench = Bench(slots=1)
        bench.submit("a", "b", "c")
        assert set(bench.running) == {"a"}
        assert self.configure(bench, concurrency=ConcurrencySettings(initial=3)) == [(POOL, "")]
        assert set(bench.running) == {"a", "b", "c"}
        assert [(event.limit, event.reason) for event in bench.of(ConcurrencyChanged)] == [(3, "the profile says so")]

    def test_the_retry_policy_of_what_runs_is_the_new_one(self):
        bench = Bench()
        bench.submit("a")
        self.configure(bench, retry=RetryPolicy(max_failures=1))
        assert bench.settle("a", FAILED) == GiveUp(Reason.SPENT_ATTEMPTS)

    def test_nobody_knows_better_so_all_stays(self):
        bench = Bench(slots=1)
        bench.submit("a", "b")
        bench.scheduler.configure(lambda *_: None, bench.now)
        assert bench.poll() == []
        assert set(bench.running) == {"a"}
