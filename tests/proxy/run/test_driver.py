import asyncio
import json
import logging
import random

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import Cancel, Pause, Resume, SetPriority
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, Refused, Shed
from hivemind_addon.kernel.values.events import AttemptStarted, GuardTripped, MachineSlept, Submitted, TicketEnded
from hivemind_addon.kernel.values.spend import AccountState, Budget, Period, Scope, Spend
from hivemind_addon.kernel.values.ticket import AttemptResult, ContractError, Outcome, OutcomeKind, Priority, Reason
from hivemind_addon.proxy.run.driver import Cancelled, Driver, Pulse
from hivemind_addon.proxy.system.clock import SystemClock
from tests.conftest import FakeClock
from tests.kernel.samples import FAILED, IGNORED, POOL, SUCCESS, after, hints, requests_reading, ticket


class Desk:
    """A driver with one slot, on a clock that only the test moves."""

    def __init__(self, clock: FakeClock, slots: int = 1) -> None:
        self.clock = clock
        self.events: list = []
        self.settings = PoolSettings(concurrency=ConcurrencySettings(initial=slots, maximum=slots))
        scheduler = Scheduler(rng=random.Random(1))
        self.driver = Driver(scheduler=scheduler, clock=clock, observers=[self.events.append])

    def submit(self, *ticket_ids: str, patience_s: float = 600) -> None:
        for ticket_id in ticket_ids:
            made = ticket(ticket_id, at=self.clock.now, patience_s=patience_s)
            self.driver.submit(made, self.settings)

    async def admit(self, ticket_id: str):
        answer = await self.driver.wait(ticket_id)
        assert isinstance(answer, Admitted)
        return answer.attempt

    async def hold(self, ticket_id: str, **more) -> asyncio.Task:
        """Somebody who waits, and has begun to."""
        task = asyncio.create_task(self.driver.wait(ticket_id, **more))
        await breathe()
        assert not task.done()
        return task

    @property
    def in_flight(self) -> int:
        return self.driver.snapshot().pools[0].in_flight

    @property
    def queued(self) -> int:
        return self.driver.snapshot().pools[0].queued


async def breathe() -> None:
    """Let everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)  # noqa: TID251  no time passes


@pytest.fixture
def desk(clock: FakeClock) -> Desk:
    return Desk(clock)


class TestWait:
    async def test_a_free_slot_is_there_at_once(self, desk):
        desk.submit("a")
        assert (await desk.admit("a")).number == 1

    async def test_the_next_one_goes_when_a_slot_gets_free(self, desk):
        desk.submit("a", "b")
        first = await desk.admit("a")
        waiter = await desk.hold("b")
        assert desk.driver.settle(first, AttemptResult(IGNORED))
        assert isinstance(await waiter, Admitted)

    async def test_a_backed_off_ticket_waits_again(self, desk):
        desk.submit("a")
        assert isinstance(desk.driver.settle(await desk.admit("a"), AttemptResult(FAILED)), Backoff)
        waiter = await desk.hold("a")
        desk.clock.advance(1)
        desk.driver.tick()
        assert (await waiter).attempt.number == 2

    async def test_a_ticket_is_shed_when_its_time_has_come(self, desk):
        desk.submit("a", "b", patience_s=30)
        waiter = await desk.hold("b")
        desk.clock.advance(30)
        desk.driver.tick()
        assert (await waiter).reason is Reason.DEADLINE

    async def test_an_unknown_ticket_is_over(self, desk):
        assert await desk.driver.wait("x") == Cancelled()

    async def test_two_cannot_wait_for_one_ticket(self, desk):
        desk.submit("a", "b")
        waiter = await desk.hold("b")
        with pytest.raises(ContractError):
            await desk.driver.wait("b")
        assert desk.driver.cancel("b")
        assert await waiter == Cancelled()

    async def test_a_header_can_hold_the_next(self, desk):
        desk.submit("a")
        attempt = await desk.admit("a")
        told = requests_reading(limit=60, remaining=0, reset_in_s=60)
        desk.driver.observe(attempt, hints(told))
        desk.driver.settle(attempt, AttemptResult(SUCCESS))
        desk.submit("b")
        waiter = await desk.hold("b")
        desk.clock.advance(1.001)
        desk.driver.tick()
        assert isinstance(await waiter, Admitted)


class TestPulse:
    async def test_the_instant_comes_first(self, desk):
        desk.submit("a", "b")
        waiter = await desk.hold("b", until_at=desk.clock.now + 10)
        desk.clock.advance(9.9)
        desk.driver.tick()
        await breathe()
        assert not waiter.done()
        desk.clock.advance(0.1)
        desk.driver.tick()
        assert await waiter == Pulse()
        assert desk.queued == 1

    async def test_a_decision_comes_before_the_instant(self, desk):
        desk.submit("a", "b")
        waiter = await desk.hold("b", until_at=desk.clock.now + 10)
        desk.driver.settle(await desk.admit("a"), AttemptResult(SUCCESS))
        desk.clock.advance(10)
        desk.driver.tick()
        assert isinstance(await waiter, Admitted)
        assert desk.driver._pulses.first is None

    async def test_a_decision_between_two_waits_is_kept(self, desk):
        desk.submit("a", "b")
        waiter = await desk.hold("b", until_at=desk.clock.now + 1)
        desk.clock.advance(1)
        desk.driver.tick()
        assert await waiter == Pulse()
        desk.driver.settle(await desk.admit("a"), AttemptResult(SUCCESS))
        assert isinstance(await desk.driver.wait("b"), Admitted)

    async def test_an_instant_of_the_past_pulses_at_once(self, desk):
        desk.submit("a", "b")
        assert await desk.driver.wait("b", until_at=desk.clock.now - 1) == Pulse()

    async def test_the_real_clock_pulses_by_itself(self):
        clock = SystemClock()
        desk = Desk(clock)  # type: ignore[arg-type]
        for ticket_id in "ab":
            desk.driver.submit(ticket(ticket_id, at=clock.monotonic()), desk.settings)
        assert await asyncio.wait_for(desk.driver.wait("b", until_at=clock.monotonic() + 0.02), 120) == Pulse()


class TestCommand:
    async def test_it_takes_effect_at_once(self, desk):
        desk.submit("a", "b")
        assert desk.driver.command(Pause()).done
        desk.driver.settle(await desk.admit("a"), AttemptResult(SUCCESS))
        waiter = await desk.hold("b")
        desk.driver.command(Resume())
        assert (await waiter).attempt.ticket.id == "b"

    async def test_who_waits_hears_that_a_person_cancelled_it(self, desk):
        desk.submit("a", "b")
        waiter = await desk.hold("b")
        assert desk.driver.command(Cancel("b")).done
        refused = await waiter
        assert isinstance(refused, Refused)
        assert refused.cause == Cancel("b")
        assert not desk.driver.command(Cancel("b")).done
        assert desk.driver.decision("b") == Cancelled()

    async def test_an_admission_that_nobody_has_fetched_is_taken_back(self, desk):
        desk.submit("a", "b")
        called_off = []
        desk.driver.call_off = called_off.append
        assert desk.driver.command(Cancel("a")).done
        assert called_off == []
        assert isinstance(await desk.driver.wait("a"), Refused)
        assert isinstance(await desk.driver.wait("b"), Admitted), "its slot is free"
        assert [event.reason for event in desk.events if isinstance(event, TicketEnded)] == ["cancelled by a person"]

    async def test_a_running_attempt_is_ended_from_outside(self, desk):
        desk.submit("a", "b")
        attempt = await desk.admit("a")
        gone = Outcome(OutcomeKind.CANCELLED, "cancelled by a person")
        desk.driver.call_off = lambda one: desk.driver.settle(one, AttemptResult(gone))
        assert desk.driver.command(Cancel("a")).done
        assert isinstance(await desk.driver.wait("b"), Admitted)
        with pytest.raises(ContractError):
            desk.driver.settle(attempt, AttemptResult(gone))


class TestNobodyTakesIt:
    async def test_a_cancelled_waiter_cancels_its_ticket(self, desk):
        desk.submit("a", "b")
        waiter = await desk.hold("b")
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert desk.queued == 0
        assert desk.events[-1].end == "cancelled"

    async def test_an_admission_in_the_tick_of_the_cancel_keeps_no_slot(self, desk):
        desk.submit("a", "b", "c")
        waiter = await desk.hold("b")
        desk.driver.settle(await desk.admit("a"), AttemptResult(IGNORED))
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert [event.ticket_id for event in desk.events if isinstance(event, AttemptStarted)] == ["a", "b", "c"]
        assert (await desk.admit("c")).ticket.id == "c"
        assert desk.in_flight == 1

    async def test_a_dropped_coroutine_keeps_no_slot(self, desk):
        desk.submit("a", "b")
        waiting = desk.driver.wait("b")
        waiting.send(None)
        desk.driver.settle(await desk.admit("a"), AttemptResult(IGNORED))
        waiting.close()
        assert desk.in_flight == desk.queued == 0

    async def test_an_admission_that_was_never_waited_for_can_be_cancelled(self, desk):
        desk.submit("a")
        assert desk.driver.cancel("a")
        assert desk.in_flight == 0
        assert await desk.driver.wait("a") == Cancelled()

    async def test_what_is_in_flight_cannot_be_cancelled(self, desk):
        desk.submit("a")
        attempt = await desk.admit("a")
        assert not desk.driver.cancel("a")
        assert desk.driver.settle(attempt, AttemptResult(SUCCESS)) == Finished()

    async def test_a_shed_ticket_cannot_be_cancelled(self, desk):
        desk.submit("a", "b")
        desk.driver.close()
        assert not desk.driver.cancel("b")

    async def test_desks_are_empty_in_the_end(self, desk):
        for n in range(50):
            desk.submit(f"t{n}")
            desk.driver.settle(await desk.admit(f"t{n}"), AttemptResult(SUCCESS))
        assert desk.driver._waiters == {}


class TestClose:
    async def test_held_ones_are_shed_at_once(self, desk):
        desk.submit("a", "b")
        waiter = await desk.hold("b")
        desk.driver.close()
        assert (await waiter).reason is Reason.STOPPING
        desk.submit("c")
        assert isinstance(await desk.driver.wait("c"), Shed)

    async def test_drained_waits_for_the_last_attempt(self, desk):
        desk.submit("a")
        attempt = await desk.admit("a")
        drained = asyncio.create_task(desk.driver.drained(60))
        await breathe()
        assert not drained.done()
        desk.driver.settle(attempt, AttemptResult(SUCCESS))
        assert await drained is True
        assert await desk.driver.drained(0) is True

    async def test_drained_gives_up_in_time(self, desk):
        desk.submit("a")
        assert await desk.driver.drained(0.01) is False
        assert desk.driver._drained == []

    async def test_bypassing_attempts_count(self, desk):
        desk.driver.bypass(POOL, 1)
        assert await desk.driver.drained(0) is False
        desk.driver.bypass(POOL, -1)
        assert await desk.driver.drained(0) is True


class TestClocks:
    @pytest.fixture
    async def waiting(self, desk) -> Desk:
        """A ticket that waits for a window's end in half a minute."""
        desk.submit("a")
        told = [requests_reading(limit=60, remaining=left, reset_in_s=30) for left in (59, 0)]
        attempt = await desk.admit("a")
        for reading in told:
            desk.driver.observe(attempt, hints(reading))
        desk.driver.settle(attempt, AttemptResult(IGNORED))
        desk.submit("b")
        return desk

    @pytest.mark.parametrize("slept_s", [3600.0, 8 * 3600.0])
    async def test_a_sleep_turns_the_window_and_sheds_nobody(self, waiting, slept_s):
        waiting.clock.sleep(slept_s)
        waiting.driver.tick()
        assert isinstance(waiting.driver.decision("b"), Admitted)
        assert [event.slept_s for event in waiting.events if isinstance(event, MachineSlept)] == [
            pytest.approx(slept_s)
        ]

    async def test_the_first_call_after_a_sleep_is_of_somebody_who_was_awake(self, waiting):
        """Only who waited through it is shed as much later."""
        waiting.clock.sleep(3600.0)
        waiting.submit("c", patience_s=60)
        assert isinstance(waiting.driver.decision("b"), Admitted)
        waiting.clock.advance(61.0)
        waiting.driver.tick()
        assert isinstance(waiting.driver.decision("c"), Shed)
        (held,) = [event for event in waiting.events if isinstance(event, TicketEnded) and event.ticket_id == "c"]
        assert held.waited_s == 61.0

    async def test_short_sleeps_add_up(self, waiting):
        for _ in range(6):
            waiting.clock.sleep(0.9)
            waiting.clock.advance(0.2)
            waiting.driver.tick()
        assert sum(event.slept_s for event in waiting.events if isinstance(event, MachineSlept)) == pytest.approx(5.4)

    @pytest.mark.parametrize(("moves", "left_s"), [("sleep", 1800.0), ("set", 3600.0)])
    async def test_a_budgets_hour_passes_in_a_sleep_and_not_when_the_clock_is_set(self, desk, moves, left_s):
        budget = Budget(Scope.AGENT, "a", Period.HOUR, tokens=1000)
        desk.driver.restore({}, [AccountState(budget, 0.0, Spend(10), Spend())])
        getattr(desk.clock, moves)(1800.0)
        desk.driver.tick()
        (view,) = desk.driver.snapshot().budgets
        assert view.renews_in_s == left_s

    async def test_a_priority_for_a_while_goes_on_in_the_next_process_for_what_is_left(self, desk, clock):
        assert desk.driver.command(SetPriority("a", Priority.LOW, for_s=3600.0)).done
        kept = json.loads(json.dumps(desk.driver.export()))
        clock.sleep(600.0)
        after = Desk(clock)
        after.driver.restore(kept, [])
        (view,) = after.driver.snapshot().priorities
        assert (view.agent, view.ends_in_s) == ("a", 3000.0)

    @pytest.mark.parametrize("delta_s", [-3600.0, 3600.0])
    async def test_a_wall_clock_that_is_set_changes_nothing(self, waiting, delta_s):
        waiting.clock.set(delta_s)
        waiting.driver.tick()
        assert waiting.driver.decision("b") is None
        waiting.clock.advance(30.2)
        waiting.driver.tick()
        assert isinstance(waiting.driver.decision("b"), Admitted)
        assert not [event for event in waiting.events if isinstance(event, MachineSlept)]


class TestSuperseded:
    async def test_the_attempt_of_a_request_that_came_back_is_ended_once(self, desk):
        ended = []
        desk.driver.end_attempt = ended.append
        old = replace(ticket("old", at=desk.clock.now, patience_s=30), request_hash="h")
        desk.driver.submit(old, desk.settings)
        attempt = await desk.admit("old")
        desk.clock.advance(31)
        desk.driver.submit(replace(old, id="new", shed_at=desk.clock.now + 30), desk.settings)
        assert ended == [attempt]
        desk.driver.settle(attempt, AttemptResult(IGNORED))
        assert (await desk.admit("new")).number == 1
        assert len(ended) == 1


class TestTimer:
    @pytest.fixture
    async def still_loop(self, monkeypatch):
        """An event loop whose own time stands still."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now)
        return loop

    async def test_there_is_one_and_it_is_armed_for_the_next_wakeup(self, desk, still_loop):
        desk.submit("a")
        desk.driver.settle(await desk.admit("a"), AttemptResult(after(FAILED, 100)))
        desk.submit("b", patience_s=5)
        await desk.admit("b")
        desk.submit("c", patience_s=10)
        assert desk.driver._timer.when() - still_loop.time() == pytest.approx(10)

    async def test_a_far_one_is_looked_at_in_between_for_it_stands_still_in_a_sleep(self, desk, still_loop):
        desk.submit("a", "b", patience_s=3600)
        assert desk.driver._timer.when() - still_loop.time() == pytest.approx(15)

    async def test_it_is_moved_only_when_something_is_due_sooner(self, desk, still_loop):
        desk.submit("a")
        attempt = await desk.admit("a")
        desk.submit("b", patience_s=10)
        armed = desk.driver._timer
        desk.submit("c", patience_s=12)
        assert desk.driver.cancel("b")
        assert desk.driver._timer is armed, "it rings in vain, and looks then"
        desk.clock.advance(10)
        desk.driver._on_timer()
        assert desk.driver._timer.when() - still_loop.time() == pytest.approx(2)
        desk.submit("d", patience_s=1)
        assert desk.driver._timer.when() - still_loop.time() == pytest.approx(1)
        desk.driver.settle(attempt, AttemptResult(SUCCESS))

    async def test_a_request_that_nobody_keeps_makes_no_task_no_future_and_no_timer(self, desk, monkeypatch):
        loop, made = asyncio.get_running_loop(), []
        for name in ("create_task", "create_future", "call_soon", "call_later", "call_at"):
            monkeypatch.setattr(loop, name, lambda *_, name=name, **__: made.append(name))
        for ticket_id in ("a", "b", "c"):
            desk.submit(ticket_id)
            admitted = desk.driver.decision(ticket_id)
            assert isinstance(admitted, Admitted)
            desk.driver.observe(admitted.attempt, hints(requests_reading(remaining=40, reset_in_s=60)))
            assert desk.driver.settle(admitted.attempt, AttemptResult(SUCCESS)) == Finished()
        monkeypatch.undo()
        assert made == []

    async def test_nothing_to_wait_for_needs_no_timer(self, desk):
        desk.submit("a")
        desk.driver.settle(await desk.admit("a"), AttemptResult(SUCCESS))
        assert desk.driver._timer is None

    async def test_the_real_clock_admits_by_itself(self):
        clock = SystemClock()
        desk = Desk(clock)  # type: ignore[arg-type]
        desk.driver.submit(ticket("a", at=clock.monotonic()), desk.settings)
        desk.driver.settle(await desk.admit("a"), AttemptResult(after(FAILED, 0.01)))
        assert (await asyncio.wait_for(desk.admit("a"), 120)).number == 2

    async def test_a_failing_turn_of_the_timer_is_reported_and_tried_again(self, desk, monkeypatch):
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        desk.submit("a", "b")

        def fail(now):
            raise RuntimeError("ours")

        with monkeypatch.context() as patch:
            patch.setattr(desk.driver._scheduler, "poll", fail)
            desk.driver._arm_at(desk.clock.now)
            while not reported:
                await breathe()
        assert str(reported[0]) == "ours"
        assert desk.driver._timer.when() > asyncio.get_running_loop().time()

    async def test_what_the_core_raises_reaches_the_caller(self, desk):
        desk.submit("a")
        with pytest.raises(ContractError):
            desk.submit("a")


class TestObservers:
    async def test_they_hear_of_everything_in_order(self, desk):
        desk.submit("a")
        desk.driver.settle(await desk.admit("a"), AttemptResult(SUCCESS))
        assert [type(event) for event in desk.events][:2] == [Submitted, AttemptStarted]
        assert isinstance(desk.events[-1], TicketEnded)

    async def test_one_that_raises_is_logged_once_and_left_out(self, desk, caplog):
        def broken(event):
            raise RuntimeError("observer")

        desk.driver._observers.insert(0, broken)
        with caplog.at_level(logging.ERROR):
            desk.submit("a")
            desk.driver.settle(await desk.admit("a"), AttemptResult(SUCCESS))
        assert len(caplog.records) == 1
        assert isinstance(desk.events[-1], TicketEnded)

    async def test_one_that_calls_back_does_not_mix_up_the_order(self, desk):
        def curious(event):
            if isinstance(event, Submitted) and event.ticket.id == "a":
                desk.submit("b")

        desk.driver._observers.insert(0, curious)
        desk.submit("a")
        names = [(type(e).__name__, getattr(e, "ticket_id", None) or e.ticket.id) for e in desk.events]
        assert names[:3] == [("Submitted", "a"), ("AttemptStarted", "a"), ("Submitted", "b")]

    async def test_one_hears_only_of_what_it_names_until_it_names_something_else(self, desk):
        class Choosy:
            hears = frozenset({TicketEnded})

            def __call__(self, event):
                heard.append(type(event))

        heard, choosy = [], Choosy()
        desk.driver.listen(choosy)
        desk.submit("a")
        desk.driver.settle(await desk.admit("a"), AttemptResult(SUCCESS))
        assert heard == [TicketEnded]
        choosy.hears = None
        desk.driver.ask_observers()
        desk.submit("b")
        assert heard == [TicketEnded, Submitted, AttemptStarted]
        desk.driver.unlisten(choosy)
        desk.submit("c")
        assert len(heard) == 3

    async def test_events_of_the_outside_are_passed_on(self, desk):
        event = GuardTripped(at=1, ticket_id=None, where="hook", error="E")
        desk.driver.note(event)
        assert desk.events == [event]
        assert desk.driver.snapshot().counters.guard_trips == 1


class TestPassingThrough:
    async def test_limit_and_account_are_the_schedulers(self, desk):
        desk.submit("a")
        assert desk.driver.limit_of(POOL) == 1
        assert desk.driver.account_of("key") == "key"
