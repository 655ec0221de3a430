"""Runs the scheduler on asyncio: one waiter per ticket, one timer, and observers that receive the events.

After each call into the scheduler the driver takes a turn: poll, wake the waiters of decided tickets, hand events to
the observers, re-arm the timer. The driver moves values and decides nothing.

A decision stays with the ticket's waiter until `wait` fetches the decision. When a caller stops waiting (the task is
cancelled, or calls `cancel`), an admission that was not fetched is settled as cancelled and keeps no slot.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from hivemind_addon.kernel.heap import KeyedHeap
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.command import Cancel, SchedulerCommand
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Refused, Shed, Verdict
from hivemind_addon.kernel.values.events import Event, OrderEvent
from hivemind_addon.kernel.values.snapshot import Snapshot
from hivemind_addon.kernel.values.spend import AccountState, Shortage
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    ContractError,
    Demand,
    Hints,
    Job,
    Outcome,
    OutcomeKind,
    PoolKey,
    Ticket,
)
from hivemind_addon.proxy.api.command import CommandReply
from hivemind_addon.proxy.api.pool_words import with_words
from hivemind_addon.proxy.api.replies import person_acted, reply
from hivemind_addon.proxy.run.driven import DrivenScheduler
from hivemind_addon.proxy.system.clock import Clock

_logger = logging.getLogger(__name__)

_NEVER = float("inf")
_SLEEP_S = 1.0
"""Shorter sleeps of the machine are ignored: the two clocks are not read at one instant."""
_LONGEST_TIMER_S = 15.0
_AFTER_FAILURE_S = 1.0
"""Delay until the next turn after a turn of the timer has failed."""

CANCELLED_BY_PERSON = "cancelled by a person"
"""The reason for the end of an attempt."""

Observer = Callable[[Event], None]
"""Receives events in order, on the event loop: the classes in the attribute `hears`, or all events without that
attribute or with None. An observer that raises is not called again."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The ticket was cancelled while queued, or is not known (any more)."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The instant given to `wait` has come; the ticket is unchanged."""


Awaited = Admitted | Shed | Refused | Cancelled | Pulse
"""The results of `Driver.wait`."""


class _Waiter:
    """Holds the decision on a ticket until a caller fetches the decision."""

    __slots__ = ("decision", "failure", "wake")

    def __init__(self) -> None:
        self.decision: Admitted | Shed | Refused | Cancelled | None = None
        self.failure: Exception | None = None
        """An exception of the scheduler while the ticket was queued: the waiting caller has a guard, the timer none."""
        self.wake: asyncio.Future[None] | None = None
        """Set only while a caller waits."""

    def ring(self) -> None:
        """Wake the caller that waits, if there is a caller."""
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


class Driver:
    """Runs a scheduler on the running event loop. Not thread-safe: call the driver on the loop only.

    Exceptions of the scheduler (ContractError, or a defect of ours) go to the caller.
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
        """Both functions end a running attempt and settle it.

        `end_attempt`: the client has come back with the same request. `call_off`: a person has cancelled the attempt,
        and the client gets a message.
        """
        self.clock = clock
        self.end_attempt = end_attempt
        self.call_off = call_off
        self._scheduler = scheduler
        self._looked_at = clock.monotonic()
        self._asleep_s = self._looked_at - clock.awake()
        self._observers = list(observers)
        self._hearers: dict[type[Event], tuple[Observer, ...]] = {}
        """Class of event → observers that receive the event; filled on demand."""
        self._waiters: dict[str, _Waiter] = {}
        self._pulses: KeyedHeap[str] = KeyedHeap()
        """Tickets whose waiters want to wake at an instant."""
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0
        """When the timer rings: never later than the next thing due, perhaps too early."""
        self._delivering = False
        self._drained: list[asyncio.Future[None]] = []

    def listen(self, observer: Observer) -> None:
        """Send events to this observer from now on, until `unlisten`."""
        self._observers = [*self._observers, observer]
        self.ask_observers()

    def unlisten(self, observer: Observer) -> None:
        """Send no more events to this observer, which may be unknown here."""
        self._observers = [other for other in self._observers if other is not observer]
        self.ask_observers()

    def ask_observers(self) -> None:
        """Ask again which events each observer wants: the answers have changed."""
        self._hearers = {}

    def must_count(self, ticket: Ticket) -> bool:
        """Whether the tokens of a ticket must be counted before the submit; False: a rough demand is enough."""
        return self._scheduler.must_count(ticket, self._now())

    def submit(self, ticket: Ticket, settings: PoolSettings) -> None:
        """Queue a ticket; then `wait` for the decision, or `cancel` the ticket."""
        now = self._now()
        self._scheduler.submit(ticket, settings, now)
        self._waiters[ticket.id] = _Waiter()
        self.tick(now)

    def decision(self, ticket_id: str) -> Awaited | None:
        """The ticket's next decision, if made already; None: `wait` for the decision."""
        desk = self._waiters.get(ticket_id)
        return Cancelled() if desk is None else self._fetch(ticket_id, desk)

    async def wait(self, ticket_id: str, *, until_at: float | None = None) -> Awaited:
        """Wait for the ticket's next decision. Only one caller may wait at a time.

        After Admitted, settle; after a Backoff from `settle`, wait again. After Pulse (`until_at`, a monotonic instant,
        has come) the ticket is still queued: wait again or cancel it. Cancelling the task that waits cancels the
        ticket.
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
            # Also when the loop drops this coroutine: then no caller comes for the decision.
            if self._waiters.get(ticket_id) is desk:
                self.cancel(ticket_id)
            raise
        finally:
            desk.wake = None
            if self._waiters.get(ticket_id) is desk:
                self._pulses.drop(ticket_id)
        # Only a decision or the instant wakes the waiter.
        return self._fetch(ticket_id, desk) or Pulse()

    def settle(self, attempt: Attempt, result: AttemptResult) -> Verdict:
        """End an attempt, exactly once. After a Backoff, `wait` for the same ticket again, or `cancel` the ticket."""
        now = self._now()
        verdict = self._scheduler.settle(attempt, result, now)
        if isinstance(verdict, Backoff):
            self._waiters[attempt.ticket.id] = _Waiter()
        self.tick(now)
        return verdict

    def observe(self, attempt: Attempt, hints: Hints, *, answered: bool = True) -> None:
        """The head of a response arrived. `answered`: the head of an answer, not of a refusal."""
        now = self._now()
        self._scheduler.observe(attempt, hints, now, answered=answered)
        self.tick(now)

    def cancel(self, ticket_id: str) -> bool:
        """Cancel a ticket whose client is gone. True: the ticket was queued, or the admission was never fetched.

        False: the ticket is in flight (settle it) or over.
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

    def shortage(self, ticket: Ticket) -> Shortage | None:
        """The shortage that a hypothetical ticket would meet; None: no shortage is known."""
        return self._scheduler.shortage(ticket, self._now())

    def has_job(self, name: str) -> bool:
        """Whether a job runs: work at a provider that outlives its request."""
        return self._scheduler.has_job(name)

    def adopt(self, ticket: Ticket, job: Job) -> None:
        """Count a job whose request was not scheduled."""
        self._scheduler.adopt(ticket, job, self._now())
        self.tick()

    def end_job(self, name: str, result: AttemptResult) -> None:
        """The end of a job was seen; counts once, however often it is seen."""
        self._scheduler.end_job(name, result, self._now())
        self.tick()

    def command(self, command: SchedulerCommand) -> CommandReply:
        """Carry out a person's command, at once."""
        now = self._now()
        result = self._scheduler.command(command, now)
        self.tick()
        return reply(command, result)

    def configure(self, settings_of: Callable[[PoolKey, str], PoolSettings | None]) -> None:
        """Apply changed profiles. `settings_of`: pool and name of the profile → new settings; None: no change."""
        self._scheduler.configure(settings_of, self._now())
        self.tick()

    def close(self) -> None:
        """Admit nothing more. Every ticket in the queue or submitted from now on is shed at once."""
        self._scheduler.close(self._now())
        self.tick()

    def bypass(self, key: PoolKey, change: int) -> None:
        """Attempts that bypass the scheduler begin (+1) or end (-1)."""
        self._scheduler.bypass(key, change)
        self.tick()

    def note(self, event: Event) -> None:
        """Send the observers an event from outside the scheduler."""
        self._scheduler.note(event)
        self.tick()

    def limit_of(self, key: PoolKey) -> int:
        """The pool's last concurrency limit; 1 when the pool is unknown."""
        return self._scheduler.limit_of(key)

    def account_of(self, credential: str) -> str:
        """The account to use for the hash of a credential."""
        return self._scheduler.account_of(credential)

    def export(self) -> dict[str, object]:
        """The state that should outlive this process, as new plain JSON values by name."""
        now, wall = self.clock.monotonic(), self.clock.wall()
        return {
            "learned": self._scheduler.export(now, wall),
            "orders": self._scheduler.export_overrides(now, wall),
            "jobs": self._scheduler.export_jobs(now, wall),
        }

    def restore(self, kept: Mapping[str, object], standings: Sequence[AccountState]) -> None:
        """Take over exported state once, and the spend of an earlier process, as far as both can be understood."""
        now = self._now()
        if "learned" in kept:
            self._scheduler.restore(kept["learned"], now, self.clock.wall())
        if "orders" in kept:
            self._scheduler.restore_overrides(kept["orders"], now, self.clock.wall())
        self._scheduler.restore_budgets(standings, now)
        if "jobs" in kept:
            self._scheduler.restore_jobs(kept["jobs"], now, self.clock.wall())
        self.tick()

    def count_in(self, standings: Sequence[AccountState]) -> None:
        """Add the money spent in the present periods of budgets before these budgets were set."""
        self._scheduler.count_in(standings, self._now())
        self.tick()

    def snapshot(self, *, most_queued: int | None = None) -> Snapshot:
        """The whole state now, with at most `most_queued` waiting tickets of each pool, the next ones first."""
        snapshot = self._scheduler.snapshot(self.clock.monotonic(), most_queued=most_queued)
        return replace(snapshot, pools=tuple(map(with_words, snapshot.pools)))

    def snapshot_in_parts(self, *, most_queued: int | None = None) -> Generator[None, None, Snapshot]:
        """The same as `snapshot`, a pool per step: the loop may turn in between."""
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
        """Take a turn. The timer and every call do this, having read the clock; tests that moved the clock do, too.

        An exception of the scheduler also goes to every waiting caller, so that none hangs on a failed scheduler.
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
        """End an attempt that a person cancelled. An attempt whose admission was not fetched was never sent."""
        ticket = attempt.ticket
        desk = self._waiters.get(ticket.id)
        if desk is not None and isinstance(desk.decision, Admitted):
            outcome = Outcome(OutcomeKind.CANCELLED, CANCELLED_BY_PERSON)
            self._scheduler.settle(attempt, AttemptResult(outcome, charged=Demand(requests=0)), now)
            desk.decision = Refused(ticket=ticket, cause=Cancel(ticket.id))
        elif self.call_off is not None:
            self.call_off(attempt)

    def _now(self) -> float:
        """The time for a call into the scheduler, after reporting any sleep of the machine since the last call.

        Otherwise the scheduler would assume that things which come after the sleep had slept, too.
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
            # The waiter of a cancelled ticket is gone already, and the id may be in use again.
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
            # An observer called us: the outer loop delivers these events, in order.
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
                            self.unlisten(observer)  # a new tuple: this loop goes on over the old tuple
        finally:
            self._delivering = False

    def _hearers_of(self, kind: type[Event]) -> tuple[Observer, ...]:
        asked = ((observer, getattr(observer, "hears", None)) for observer in self._observers)
        hearers = tuple(observer for observer, hears in asked if hears is None or kind in hears)
        self._hearers[kind] = hearers
        return hearers

    def _arm(self) -> None:
        """Let the timer ring when something is due. A timer that rings sooner checks the time left and re-arms."""
        wakeup_at = self._scheduler.next_wakeup()
        if wakeup_at is None or self._pulses.first_key < wakeup_at:
            wakeup_at = self._pulses.first_key
        if wakeup_at == _NEVER or (self._timer is not None and self._rings_at <= wakeup_at):
            return
        # A timer stands still while the machine sleeps, so a distant timer is checked in between.
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
            # No caller can guard this turn: asyncio reports the error, and the queue must not stop for that.
            if self._timer is None:
                self._arm_at(self.clock.monotonic() + _AFTER_FAILURE_S)
            raise
