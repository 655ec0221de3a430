"""asyncio meets the core: one waiter a ticket, one timer, and observers that hear of every event.

After each call into the core the driver takes one turn: poll, wake whom a decision concerns, hand events to the
observers, re-arm the one timer. It moves values and decides nothing.

A decision waits in its ticket's desk until `wait` fetches it. Whoever stops waiting (its task is cancelled, or it
calls `cancel`) gives the decision back: an admission that nobody takes is settled as cancelled and keeps no slot.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from hivemind_addon.kernel.heap import KeyedHeap
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.retry import Admitted, Backoff, Refused, Shed, Verdict
from hivemind_addon.kernel.values.command import Cancel, CommandReply, SchedulerCommand
from hivemind_addon.kernel.values.events import Event, OrderEvent
from hivemind_addon.kernel.values.snapshot import Snapshot
from hivemind_addon.kernel.values.spend import AccountState
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    ContractError,
    Demand,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Ticket,
)
from hivemind_addon.proxy.api.pool_words import with_words
from hivemind_addon.proxy.api.replies import person_acted, reply
from hivemind_addon.proxy.run.driven import DrivenScheduler
from hivemind_addon.proxy.system.clock import Clock

_logger = logging.getLogger(__name__)

_NEVER = float("inf")
_SLEEP_S = 1.0
"""A shorter sleep of the machine is none: the two clocks are not read at one instant."""
_LONGEST_TIMER_S = 15.0
_AFTER_FAILURE_S = 1.0
"""When the timer's own turn fails, the next one is tried after this time."""

CANCELLED_BY_PERSON = "cancelled by a person"
"""The reason of an attempt's end."""

Observer = Callable[[Event], None]
"""Hears of events, in order, on the event loop: of those whose classes its attribute `hears` names, of all where that
is None or not there. One that raises is not called again."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The ticket was cancelled while it was queued, or it is not known (any more)."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The instant that `wait` was given has come; the ticket is as it was."""


Awaited = Admitted | Shed | Refused | Cancelled | Pulse
"""What `Driver.wait` answers."""


class _Waiter:
    """Where one ticket's decision is left and fetched."""

    __slots__ = ("decision", "failure", "wake")

    def __init__(self) -> None:
        self.decision: Admitted | Shed | Refused | Cancelled | None = None
        self.failure: Exception | None = None
        """What the core raised while this ticket was queued: the one who waits has a guard, the timer has none."""
        self.wake: asyncio.Future[None] | None = None
        """Only while somebody waits."""

    def ring(self) -> None:
        """Wake the one who waits, if anybody does."""
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


class Driver:
    """Runs a scheduler on the running event loop. Not thread-safe: call it on the loop only.

    What the core raises (ContractError, or a defect of ours) goes to the caller.
    """

    def __init__(
        self,
        *,
        scheduler: DrivenScheduler,
        clock: Clock,
        observers: Iterable[Observer] = (),
        end_attempt: Callable[[Attempt], None] | None = None,
        call_off: Callable[[Attempt], None] | None = None,
    ) -> None:
        """Both end a running attempt and settle it.

        `end_attempt`: its client has come back with the same request; `call_off`: a person has cancelled it, and its
        client is to hear that.
        """
        self.clock = clock
        self.end_attempt = end_attempt
        self.call_off = call_off
        self._scheduler = scheduler
        self._looked_at = clock.monotonic()
        self._asleep_s = self._looked_at - clock.awake()
        self._observers = list(observers)
        self._hearers: dict[type[Event], tuple[Observer, ...]] = {}
        """Who hears of an event, by its class, once it is asked for."""
        self._waiters: dict[str, _Waiter] = {}
        self._pulses: KeyedHeap[str] = KeyedHeap()
        """Who wants to be woken at an instant."""
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0
        """When the timer rings: never later than anything is due, and perhaps in vain."""
        self._delivering = False
        self._drained: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        return f"<Driver of {self._scheduler!r}, {len(self._waiters)} desks>"

    def listen(self, observer: Observer) -> None:
        """Let it hear of events from now on, until `unlisten`."""
        self._observers = [*self._observers, observer]
        self.ask_observers()

    def unlisten(self, observer: Observer) -> None:
        """Let it hear no more; it need not have heard."""
        self._observers = [other for other in self._observers if other is not observer]
        self.ask_observers()

    def ask_observers(self) -> None:
        """What some of them hear has changed."""
        self._hearers = {}

    def must_count(self, ticket: Ticket) -> bool:
        """Whether the tokens of a ticket that is to be submitted have to be counted: else its demand may be rough."""
        return self._scheduler.must_count(ticket, self._now())

    def submit(self, ticket: Ticket, settings: PoolSettings) -> None:
        """Queue a ticket; then `wait` for it, or `cancel` it."""
        now = self._now()
        self._scheduler.submit(ticket, settings, now)
        self._waiters[ticket.id] = _Waiter()
        self.tick(now)

    def decision(self, ticket_id: str) -> Awaited | None:
        """The ticket's next decision if it is there already; None: `wait` for it."""
        desk = self._waiters.get(ticket_id)
        return Cancelled() if desk is None else self._fetch(ticket_id, desk)

    async def wait(self, ticket_id: str, *, until_at: float | None = None) -> Awaited:
        """Wait for the ticket's next decision, one waiter at a time.

        After Admitted, settle; after a Backoff from `settle`, wait again. After Pulse (`until_at`, a monotonic
        instant, has come) the ticket is still queued: wait again or cancel it. Cancelling the task that waits cancels
        the ticket.
        """
        desk = self._waiters.get(ticket_id)
        if desk is None:
            return Cancelled()
        if desk.wake is not None:
            raise ContractError(f"{ticket_id}: two wait for one ticket")
        if (answer := self._fetch(ticket_id, desk)) is not None:
            return answer
        desk.wake = asyncio.get_running_loop().create_future()
        if until_at is not None:
            self._pulses.put(ticket_id, until_at)
            self._arm()
        try:
            await desk.wake
        except BaseException:
            # Also when the loop drops this coroutine: nobody will come for the decision.
            if self._waiters.get(ticket_id) is desk:
                self.cancel(ticket_id)
            raise
        finally:
            desk.wake = None
            if self._waiters.get(ticket_id) is desk:
                self._pulses.drop(ticket_id)
        # Only a decision or the instant rings.
        return self._fetch(ticket_id, desk) or Pulse()

    def settle(self, attempt: Attempt, result: AttemptResult) -> Verdict:
        """End an attempt, exactly once. After a Backoff, `wait` for the same ticket again, or `cancel` it."""
        now = self._now()
        verdict = self._scheduler.settle(attempt, result, now)
        if isinstance(verdict, Backoff):
            self._waiters[attempt.ticket.id] = _Waiter()
        self.tick(now)
        return verdict

    def observe(self, attempt: Attempt, hints: Hints, *, answered: bool = True) -> None:
        """A response's head arrived; `answered`: of an answer, and no refusal."""
        now = self._now()
        self._scheduler.observe(attempt, hints, now, answered=answered)
        self.tick(now)

    def cancel(self, ticket_id: str) -> bool:
        """The client went. True when the ticket was queued, or admitted without anybody having fetched that.

        False when it is in flight (settle it) or over.
        """
        desk = self._waiters.pop(ticket_id, None)
        if desk is None:
            return False
        self._pulses.drop(ticket_id)
        now = self._now()
        match desk.decision:
            case Admitted(attempt):
                gone = Outcome(kind=OutcomeKind.CANCELLED, reason="client went before it was sent")
                self._scheduler.settle(attempt, AttemptResult(gone, charged=Demand(requests=0)), now)
                cancelled = True
            case None:
                cancelled = self._scheduler.cancel(ticket_id, now)
            case _:
                cancelled = False
        desk.decision = Cancelled()
        desk.ring()
        self.tick()
        return cancelled

    def command(self, command: SchedulerCommand) -> CommandReply:
        """Do what a person asks, at once."""
        now = self._now()
        result = self._scheduler.command(command, now)
        self.tick()
        return reply(command, result)

    def configure(self, settings_of: Callable[[PoolKey, str], PoolSettings | None]) -> None:
        """Profiles were changed. `settings_of`: a pool and its profile's name → what counts; None: as it was."""
        self._scheduler.configure(settings_of, self._now())
        self.tick()

    def close(self) -> None:
        """Admit nothing more; whatever is queued, or submitted from now on, is shed at once."""
        self._scheduler.close(self._now())
        self.tick()

    def bypass(self, key: PoolKey, change: int) -> None:
        """Attempts that go past the scheduler begin (+1) or end (-1)."""
        self._scheduler.bypass(key, change)
        self.tick()

    def note(self, event: Event) -> None:
        """Tell the observers of something outside the core."""
        self._scheduler.note(event)
        self.tick()

    def limit_of(self, key: PoolKey) -> int:
        """The pool's last concurrency limit; 1 when the pool is unknown."""
        return self._scheduler.limit_of(key)

    def account_of(self, credential: str) -> str:
        """The account to use for a credential's hash."""
        return self._scheduler.account_of(credential)

    def export(self) -> dict[str, object]:
        """What should outlive this process, as plain JSON values by name, made anew."""
        return {
            "learned": self._scheduler.export(),
            "orders": self._scheduler.export_overrides(self.clock.monotonic(), self.clock.wall()),
        }

    def restore(self, kept: Mapping[str, object], standings: Sequence[AccountState]) -> None:
        """Take over, once, what was exported, and what an earlier process has spent, as far as it can be understood."""
        now = self._now()
        if "learned" in kept:
            self._scheduler.restore(kept["learned"], now)
        if "orders" in kept:
            self._scheduler.restore_overrides(kept["orders"], now, self.clock.wall())
        self._scheduler.restore_budgets(standings, now)
        self.tick()

    def count_in(self, standings: Sequence[AccountState]) -> None:
        """Add what was spent in the present periods of budgets before these were set."""
        self._scheduler.count_in(standings, self._now())
        self.tick()

    def snapshot(self, *, most_queued: int | None = None) -> Snapshot:
        """Everything now; of the tickets that wait at most so many of each pool, the next ones."""
        snapshot = self._scheduler.snapshot(self.clock.monotonic(), most_queued=most_queued)
        return replace(snapshot, pools=tuple(map(with_words, snapshot.pools)))

    def snapshot_in_parts(self, *, most_queued: int | None = None) -> Generator[None, None, Snapshot]:
        """The same, a pool at a time: the loop may turn in between."""
        snapshot = yield from self._scheduler.snapshot_in_parts(self.clock.monotonic, most_queued=most_queued)
        pools = []
        for pool in snapshot.pools:
            pools.append(with_words(pool))
            yield
        return replace(snapshot, pools=tuple(pools))

    async def drained(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or in flight. False when `timeout_s` came first."""
        if self._scheduler.is_idle:
            return True
        idle = asyncio.get_running_loop().create_future()
        self._drained.append(idle)
        try:
            done, _ = await asyncio.wait([idle], timeout=timeout_s)
        finally:
            self._drained.remove(idle)
        return bool(done)

    def tick(self, now: float | None = None) -> None:
        """Take one turn. The timer and every call do it, which has read the clock; so does a test that has moved it.

        What the core raises goes to everybody who waits, too: none may hang on a scheduler that has failed.
        """
        try:
            now = self._now() if now is None else now
            for attempt in self._scheduler.drain_cancelled():
                self._call_off(attempt, now)
            for decision in self._scheduler.poll(now):
                self._leave(decision)
        except Exception as error:
            for desk in self._waiters.values():
                desk.failure = error
                desk.ring()
            raise
        while self._pulses.first_key <= now and (ticket_id := self._pulses.first) is not None:
            self._pulses.drop(ticket_id)
            self._waiters[ticket_id].ring()
        if self._drained and self._scheduler.is_idle:
            for idle in self._drained:
                if not idle.done():
                    idle.set_result(None)
        self._deliver()
        self._arm()
        for attempt in self._scheduler.drain_superseded():
            if self.end_attempt is not None:
                self.end_attempt(attempt)

    def _call_off(self, attempt: Attempt, now: float) -> None:
        """End an attempt that a person has cancelled; one whose admission nobody has fetched yet was never sent."""
        ticket = attempt.ticket
        desk = self._waiters.get(ticket.id)
        if desk is not None and isinstance(desk.decision, Admitted):
            outcome = Outcome(OutcomeKind.CANCELLED, CANCELLED_BY_PERSON)
            self._scheduler.settle(attempt, AttemptResult(outcome, charged=Demand(requests=0)), now)
            desk.decision = Refused(ticket=ticket, cause=Cancel(ticket.id))
        elif self.call_off is not None:
            self.call_off(attempt)

    def _now(self) -> float:
        """The time, for every call into the core: it hears first of a sleep of the machine since the last one.

        Else what comes after the sleep would be taken for something that slept as well.
        """
        now = self.clock.monotonic()
        if now - self._looked_at > _SLEEP_S:
            asleep_s = now - self.clock.awake()
            slept_s = asleep_s - self._asleep_s
            if slept_s > _SLEEP_S:
                self._asleep_s = asleep_s
                self._looked_at = now
                self._scheduler.wake_up(slept_s, now)
        self._looked_at = now
        return now

    def _fetch(self, ticket_id: str, desk: _Waiter) -> Awaited | None:
        if desk.failure is not None:
            raise desk.failure
        if desk.decision is not None:
            # A cancelled ticket's desk is gone already, and its id may be in use again.
            if self._waiters.get(ticket_id) is desk:
                if self._pulses.first is not None:
                    self._pulses.drop(ticket_id)
                del self._waiters[ticket_id]
            return desk.decision
        return None

    def _leave(self, decision: Admitted | Shed | Refused) -> None:
        ticket = decision.attempt.ticket if isinstance(decision, Admitted) else decision.ticket
        desk = self._waiters[ticket.id]
        desk.decision = decision
        if desk.wake is not None:
            desk.ring()

    def _deliver(self) -> None:
        if self._delivering:
            # An observer called us: its own loop hands these out, in order.
            return
        self._delivering = True
        try:
            while events := self._scheduler.drain_events():
                for noted in events:
                    event = person_acted(noted) if isinstance(noted, OrderEvent) else noted
                    hearers = self._hearers.get(type(event))
                    for observer in self._hearers_of(type(event)) if hearers is None else hearers:
                        try:
                            observer(event)
                        except Exception:
                            _logger.exception("observer %r failed and is not called again", observer)
                            self.unlisten(observer)  # a new tuple: this loop goes on over the old one
        finally:
            self._delivering = False

    def _hearers_of(self, kind: type[Event]) -> tuple[Observer, ...]:
        asked = ((observer, getattr(observer, "hears", None)) for observer in self._observers)
        hearers = tuple(observer for observer, hears in asked if hears is None or kind in hears)
        self._hearers[kind] = hearers
        return hearers

    def _arm(self) -> None:
        """Have the timer ring when something is due. One that rings sooner looks then how long is left."""
        wakeup_at = self._scheduler.next_wakeup()
        if wakeup_at is None or self._pulses.first_key < wakeup_at:
            wakeup_at = self._pulses.first_key
        if wakeup_at == _NEVER or (self._timer is not None and self._rings_at <= wakeup_at):
            return
        # A timer stands still while the machine sleeps, so a far one is looked at in between.
        self._arm_at(min(wakeup_at, self.clock.monotonic() + _LONGEST_TIMER_S))

    def _arm_at(self, rings_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._rings_at = rings_at
        self._timer = loop.call_at(loop.time() + max(0.0, rings_at - self.clock.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self.tick()
        except Exception:
            # Nobody called who could guard it: asyncio reports it, and the queue must not stand still for it.
            if self._timer is None:
                self._arm_at(self.clock.monotonic() + _AFTER_FAILURE_S)
            raise
