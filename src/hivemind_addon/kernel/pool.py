"""A pool: one set of provider limits, the tickets that wait for them, and each ticket's way from submit to end.

    fair_queue.py   the waiting tickets, in order ────────┐
                                                          ├─► selector.py   the next ticket, and the gate that holds it
    capacity.py     the limits, the attempts in flight ───┘

The pool asks the selector for the next ticket, and admits, sheds, refuses, retries and ends tickets. The capacity
learns from the attempts.

**Requests that come back** keep their positions. A shed ticket's client is asked to come back, and most clients do,
with the same request under a new ticket. So do clients whose own patience ended (Claude Code: after three minutes, see
docs/endurance.md). The new ticket takes the old ticket's position, once each, within ten minutes. If the old ticket's
attempt still runs although the client gave up, the attempt is superseded: the new ticket waits for the attempt's end.
"""

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from hivemind_addon.kernel.budget import Budgets, actual_usage
from hivemind_addon.kernel.forecast import Callers, foresee, view_pool
from hivemind_addon.kernel.limits.breaker import BreakerSettings
from hivemind_addon.kernel.limits.capacity import Capacity
from hivemind_addon.kernel.limits.machine import MachineSettings
from hivemind_addon.kernel.limits.sharing import Sharing
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.limits.stated_limits import StatedLimit
from hivemind_addon.kernel.order.entry import EntryState, QueueEntry
from hivemind_addon.kernel.order.fair_queue import FairQueue, OrderSettings
from hivemind_addon.kernel.order.selector import SOONEST_COME_BACK_S, Gate, Reservation, Selector
from hivemind_addon.kernel.overrides import Overrides
from hivemind_addon.kernel.retry import History, Patience, RetryPolicy, judge, last_moment, step_s
from hivemind_addon.kernel.values.command import Cancel, ForeseeWait, Foresight
from hivemind_addon.kernel.values.decision import ActiveBlock, Admitted, Backoff, Finished, GiveUp, Refused, Shed
from hivemind_addon.kernel.values.events import (
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    Event,
    Held,
    Moved,
    Superseded,
    TicketEnded,
    WaitOverruled,
)
from hivemind_addon.kernel.values.snapshot import BreakerState, PoolView
from hivemind_addon.kernel.values.spend import Shortage, Spend
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    ContractError,
    Demand,
    Hints,
    OutcomeKind,
    PoolKey,
    Reason,
    Ticket,
)

_KEPT_FOR_S = 600.0


class KeptPositions:
    """The ended entries of one pool whose positions are kept, the oldest first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], list[tuple[float, QueueEntry]]] = {}
        """Agent and request → the end of the keeping, and the entry."""

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def keep(self, entry: QueueEntry, now: float) -> None:
        """Keep the position of a ticket that was shed, or whose client left."""
        self._forget(now)
        ticket = entry.ticket
        if ticket.request_hash:
            kept = self._kept.pop((ticket.agent, ticket.request_hash), [])
            self._kept[ticket.agent, ticket.request_hash] = [*kept, (now + _KEPT_FOR_S, entry)]

    def claim(self, ticket: Ticket, now: float) -> QueueEntry | None:
        """The entry of an earlier ticket for the same request; None: there is none."""
        if not self._kept:
            return None
        self._forget(now)
        kept = self._kept.get((ticket.agent, ticket.request_hash))
        return kept.pop(0)[1] if kept else None

    def _forget(self, now: float) -> None:
        while self._kept:
            (name, kept) = next(iter(self._kept.items()))
            while kept and kept[0][0] <= now:
                kept.pop(0)
            if kept:
                return
            del self._kept[name]


_NEVER = float("inf")
_TELLING = (OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED)
_LEAST_DEMAND = Demand()
_MOST_ENDING_S = 5.0
"""A ticket waits at most this long for the end of a superseded attempt."""
_TIMER_STEP_S = 0.001
"""The resolution of timers: no wakeup is sooner."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The settings of a profile for each of its pools."""

    profile: str = ""
    """The name of the profile."""
    concurrency: ConcurrencySettings = field(default_factory=ConcurrencySettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    order: OrderSettings = field(default_factory=OrderSettings)
    stated: tuple[StatedLimit, ...] = ()
    machine: MachineSettings | None = None
    infers: bool = True
    """Whether refusals teach limits that no header reports."""
    backfills: bool = True
    """Whether tickets may go before the first ticket while a limit holds that."""


class PoolTold(Struct, frozen=True):
    """The state of a pool for a process that has clients of the pool, while another process decides."""

    key: PoolKey
    profile: str
    limit: int
    """The concurrency limit."""
    in_flight: int
    """Bypassing attempts included."""
    provider_down: bool
    nobody_answered: bool
    """Several failures in a row all belong to one session, and nothing shows the cause."""


class Pool:
    """Called by the scheduler only. After any call, `poll` the pool, then wake the pool at `wakeup_at`."""

    def __init__(
        self,
        *,
        key: PoolKey,
        settings: PoolSettings,
        rng: random.Random,
        emit: Callable[[Event], None],
        budgets: Budgets,
        overrides: Overrides,
        sharing: Sharing,
        patience: Patience,
    ) -> None:
        """`sharing` belongs to the pools of the account; `budgets`, `overrides` and `patience` to all pools."""
        self.account_name: str | None = None
        self.wakeup_at: float | None = None
        """When to poll again if nothing happens before."""
        self.settings = settings
        self._rng = rng
        self._emit = emit
        self._budgets = budgets
        self._overrides = overrides
        self._patience = patience
        self.capacity = Capacity(
            key=key,
            concurrency=settings.concurrency,
            breaker=settings.breaker,
            overrides=self._overrides,
            rng=rng,
            emit=emit,
            sharing=sharing,
            infers=settings.infers,
        )
        self.capacity.state(settings.stated)
        sharing.serve_on(settings.machine)
        self.queue = FairQueue(
            settings.order, cost_s=self.capacity.cost_s, saved_s=self.capacity.saved_s, common=sharing.order
        )
        self._selector = Selector(queue=self.queue, capacity=self.capacity, backfills=settings.backfills)
        self.callers = Callers()
        self._kept_positions = KeptPositions()
        self._successors: dict[str, str] = {}
        """Ticket of a superseded attempt → the new ticket for the same request, which waits for the attempt's end."""
        self._to_announce: list[str] = []
        """Tickets whose wait began since the last poll."""
        self.review = False
        """The next poll checks the budgets of all waiting tickets, not only of new ones: a person changed budgets."""
        self._next: QueueEntry | None = None
        self.gate: Gate | None = None
        """The next ticket and its gate, as of the last poll. Read only."""
        self._look_at = _NEVER
        """When a ticket may go before the next ticket, as of the last poll."""
        self._block: ActiveBlock | None = None
        """The account block for which all waiting tickets were checked."""

    def __repr__(self) -> str:
        return f"<Pool {self.key}, {len(self.queue)} queued>"

    @property
    def key(self) -> PoolKey:
        """The account and model group of the limits, as far as known."""
        return self.capacity.key

    @property
    def told(self) -> PoolTold:
        """The state for other processes."""
        capacity = self.capacity
        return PoolTold(
            key=capacity.key,
            profile=self.settings.profile,
            limit=capacity.limit,
            in_flight=capacity.in_flight,
            provider_down=capacity.is_provider_down,
            nobody_answered=capacity.breaker.is_one_sessions,
        )

    def configure(self, settings: PoolSettings, now: float) -> None:
        """Apply a changed profile; learned limits stay within the new bounds."""
        self.settings = settings
        self.capacity.configure(settings.concurrency, settings.breaker, now)
        self.capacity.state(settings.stated)
        self.capacity.sharing.serve_on(settings.machine)
        self.queue.configure(settings.order)

    def rename(self, key: PoolKey, sharing: Sharing, now: float) -> None:
        """Move the pool to another account, which proved to be the same and has no such pool."""
        self.capacity.key = key
        self.capacity.move(sharing, now)
        sharing.serve_on(self.settings.machine)
        self.queue.common = sharing.order

    def submit(
        self, ticket: Ticket, now: float, *, history: History | None = None, not_before: float = -_NEVER
    ) -> Attempt | None:
        """Queue a new ticket; a request that comes back gets the old position. Returns the superseded attempt, to end.

        `history`: the attempts of a ticket that waited at another process, which sets the age.
        """
        entry = self._new_entry(ticket)
        if history is not None:
            entry.history, entry.since, entry.not_before = history, ticket.arrived_at, not_before
            if history.attempts:
                entry.wait_began_at = now
        if (left := self._kept_positions.claim(ticket, now)) is not None:
            entry.come_back_for(left)
            self._patience.shed(left.ticket, came_back=True)
        old = self._supersede(ticket, now)
        if old is not None:
            entry.not_before = max(entry.not_before, now + _MOST_ENDING_S)
            old.shows_patience = False  # the client left earlier, at an unknown time
            self._emit(Superseded(at=now, ticket_id=old.ticket.id, pool=self.key, by_ticket_id=ticket.id))
        self.queue.append(entry, now)
        self._to_announce.append(ticket.id)
        return None if old is None else old.attempt

    def _supersede(self, ticket: Ticket, now: float) -> QueueEntry | None:
        """The entry with the attempt that a new ticket supersedes, as its client gave up; None: there is none."""
        for entry in self.capacity.flights.alike(ticket):
            if now >= entry.ticket.shed_at and entry.ticket.id not in self._successors:
                self._successors[entry.ticket.id] = ticket.id
                return entry
        return None

    def take_in_flight(
        self, ticket: Ticket, demand: Demand, history: History, admitted_at: float, now: float
    ) -> Attempt:
        """Count an attempt that another process admitted, whatever is free; `history` includes this start."""
        entry = self._new_entry(ticket)
        entry.history, entry.since = history, ticket.arrived_at
        if history.attempts > 1:
            entry.wait_began_at = admitted_at
        attempt = self.capacity.take_in_flight(entry, demand, admitted_at, now)
        self.queue.adopt(entry, self.capacity.cost_s(demand), now)
        self._note_started(entry, attempt, now)
        return attempt

    def _new_entry(self, ticket: Ticket) -> QueueEntry:
        """The entry of a ticket that is new here and not queued yet."""
        self.callers.called(ticket)
        ticket = self._patience.believed(ticket)
        if self.capacity.service.is_known:
            ticket = replace(ticket, shed_at=last_moment(ticket, self.capacity.service.mean_s))
        entry = QueueEntry(ticket=ticket, wait_began_at=ticket.arrived_at)
        entry.history = History(rebuffs=int(self.capacity.lack_ends))
        entry.priority = self._overrides.priority_of(ticket.agent, ticket.priority)
        return entry

    def cancel(self, ticket_id: str, now: float, *, is_proxys: bool) -> bool:
        """End a queued ticket whose client, or the client's proxy, left. The position is kept: the client may return.

        False: the ticket does not wait here.
        """
        entry = self._take_out(ticket_id, now)
        if entry is None:
            return False
        self._kept_positions.keep(entry, now)
        if not is_proxys:
            self._client_left(entry, now)
        self._end_ticket(entry, now, end="cancelled", reason="its proxy went" if is_proxys else "client went")
        return True

    def call_off(self, ticket_id: str, now: float) -> Refused | Attempt | None:
        """End a ticket for a person: a queued ticket is refused; an attempt in flight is returned, to end.

        None: the ticket is neither queued nor in flight.
        """
        if entry := self._take_out(ticket_id, now):
            self._end_ticket(entry, now, end="cancelled", reason="cancelled by a person")
            return Refused(ticket=entry.ticket, cause=Cancel(ticket_id))
        flying = self.capacity.flights.by_ticket.get(ticket_id)
        if flying is None:
            return None
        flying.shows_patience = False
        return flying.attempt

    def apply_overrides(self, now: float) -> None:
        """Apply changed overrides."""
        self.capacity.apply_overrides(now)
        for entry in self.queue:
            priority = self._overrides.priority_of(entry.ticket.agent, entry.ticket.priority)
            if priority is not entry.priority:
                self.queue.reclass(entry, priority, now)

    def _take_out(self, ticket_id: str, now: float) -> QueueEntry | None:
        entry = self.queue.remove(ticket_id)
        if entry is not None:
            entry.end_wait(now)
        return entry

    def look_again(self, ticket_id: str, now: float) -> None:
        """Queue a ticket again, at the old position, whose budget may have room now."""
        entry = self.queue.entries.get(ticket_id)
        if entry is not None and entry.state is EntryState.UNFUNDED:
            self.queue.move(entry, now, now)

    def answered_s(self, now: float) -> float | None:
        """Seconds since the last answer to a pool with the same limits; None: there was none."""
        went_at = self.capacity.share.went_at
        return None if went_at == -_NEVER else now - went_at

    def wake_up(self, slept_s: float, now: float) -> None:
        """Note that the machine and all clients slept until now."""
        self.capacity.wake_up()
        for entry in self.capacity.flights:
            entry.wake_up(slept_s)
        self.queue.wake_up(slept_s, now)

    def take_over(self, other: "Pool", now: float) -> list[QueueEntry]:
        """Take over the contents of a pool that proved to be this pool, and is not used again. Returns all entries.

        Equal tickets go behind this pool's own.
        """
        learned, waiting, in_flight = other.capacity.learned, other.queue.take_all(), list(other.capacity.flights)
        for entry in in_flight:
            other.queue.common.gone(entry)
        other.capacity.move(None, now)
        self.capacity.learn_from(learned, now)
        for entry in in_flight:
            self.capacity.take_over(entry, now)
            self.queue.adopt(entry, entry.charged_s, now)
        for entry in waiting:
            self.callers.called(entry.ticket)
            self.queue.append(entry, now)
        unannounced = set(other._to_announce)  # noqa: SLF001  its own kind
        self._to_announce += [entry.ticket.id for entry in waiting if entry.ticket.id in unannounced]
        return waiting + in_flight

    # Moves between equal pools --------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether no ticket waits."""
        return not self.queue.entries

    @property
    def is_at_rest(self) -> bool:
        """Whether a poll has nothing to do here: no ticket waits, and no probe is in flight."""
        return not (self.queue.entries or self.capacity.breaker.state is BreakerState.HALF_OPEN)

    @property
    def is_hungry(self) -> bool:
        """Whether none of the pool's own tickets could have gone in the last poll."""
        return self._next is None

    def opens_at(self, now: float) -> float:
        """When the pool sends again; infinite: when a person resumes the pool, or after the answer to a probe."""
        if self.capacity.paused:
            return _NEVER
        return max(now, self.capacity.breaker.passes_at, self.capacity.account_block.ends_at(now))

    @property
    def is_shut(self) -> bool:
        """Whether the provider is down, the account blocked or the pool paused: at most a probe goes."""
        capacity = self.capacity
        return capacity.paused or capacity.is_provider_down or capacity.account_block.passes_at > -_NEVER

    def is_blocked(self, now: float) -> bool:
        """Whether an account block stands."""
        return self.capacity.account_block.stands(now) is not None

    def room_at(self, ticket: Ticket, now: float) -> float:
        """When a ticket could go as the next; infinite: at another attempt's end, or when a person acts."""
        gate = self._selector.gate(ticket, now)
        return now if gate is None else gate.opens_at

    def release(self, entry: QueueEntry) -> None:
        """Hand a waiting ticket to an equal pool."""
        ticket_id = entry.ticket.id
        self.queue.take(entry)
        if ticket_id in self._to_announce:
            self._to_announce.remove(ticket_id)

    def receive(self, entry: QueueEntry, now: float) -> None:
        """Take a waiting ticket of an equal pool. The ticket is due at once: a backoff concerns the other pool."""
        left, ticket = entry.ticket.pool, replace(entry.ticket, pool=self.key)
        entry.ticket, entry.not_before = ticket, -_NEVER
        self.callers.called(ticket)
        self.queue.append(entry, now)
        self._to_announce.append(ticket.id)
        self._emit(Moved(at=now, ticket_id=ticket.id, pool=self.key, left=left))

    # Step 4: tickets are admitted, shed or refused

    def begin_poll(self, now: float, *, stopping: bool) -> list[Admitted | Shed | Refused]:
        """Shed and refuse the tickets that are due. Then call `next_key` and `step`, and `end_poll`."""
        decisions: list[Admitted | Shed | Refused] = []
        if not self.queue.entries:
            self.review = False
            return decisions
        if stopping:
            decisions.extend(
                self._shed(entry, now, Reason.STOPPING, SOONEST_COME_BACK_S) for entry in self.queue.in_order()
            )
        if closure := self.capacity.account_block.stands(now):
            decisions.extend(self._refuse(entry, closure, now) for entry in self._doomed_by(closure, now))
        while entry := self.queue.first_to_shed(now):
            decisions.append(self._shed(entry, now, Reason.DEADLINE, self._selector.come_back_s(entry, now)))
        decisions.extend(self._refuse_unfunded(now))
        self.queue.wake(now)
        return decisions

    def _doomed_by(self, block: ActiveBlock, now: float) -> list[QueueEntry]:
        """The entries whose clients will have left at a block's end. If a probe is due, an entry stays for that."""
        asked = self._to_announce if block is self._block else list(self.queue.entries)
        self._block = block
        entries = [entry for ticket_id in asked if (entry := self.queue.entries.get(ticket_id))]
        doomed = [
            entry
            for entry in entries
            if not block.is_end_told
            or block.until >= max(entry.ticket.shed_at, self.capacity.hopeless_at(entry.ticket))
        ]
        looks = self.capacity.account_block.passes_at <= now and len(doomed) == len(self.queue)
        return sorted(doomed, key=lambda entry: entry.order)[looks:]

    def next_key(self, now: float) -> tuple[bool, float, float, float] | None:
        """The sort key of the next ticket among the account's pools; None: no ticket waits.

        A refused ticket that may be refused again comes last: another pool's ticket tests the limit that they share.
        """
        entry = self._next = self._selector.next(now)
        self.gate = None
        if entry is None:
            return None
        key, machine = self.queue.common.key(entry), self.capacity.sharing.machine
        lag_s = 0.0 if machine is None else machine.lag_s(self.capacity.flights, now)
        return (self._selector.may_refuse_again(entry, now), key[0] + lag_s, *key[1:])

    def step(self, reservations: list[Reservation], now: float) -> list[Admitted | Refused] | None:
        """Admit or refuse the next ticket, or another that delays no reservation; None: all have to wait.

        `reservations`: of the account's pools. The next ticket's is added if a limit holds the ticket.
        """
        entry, selector = self._next, self._selector
        assert entry is not None, "it was looked for"
        gate = self.gate = selector.gate(entry.ticket, now)
        self._look_at = _NEVER
        if gate is not None:
            reservation = selector.reservation(entry, gate, now)
            if gate.holds_one or reservation.machine is not None:
                entry.promised_at = reservation.promised_at
                reservations.append(reservation)
            return self._backfill(reservations, now) if gate.holds_one else None
        demand = selector.demand(entry.ticket, now)
        if any(reservation.is_delayed(demand, self.capacity, now) for reservation in reservations):
            self.gate = Gate(Reason.ORDER, _NEVER)
            return self._backfill(reservations, now)
        return self._take(entry, now)

    def _backfill(self, reservations: list[Reservation], now: float) -> list[Admitted | Refused] | None:
        entry, self._look_at = self._selector.backfill(reservations, now) if self.settings.backfills else (None, _NEVER)
        return None if entry is None or self._look_at > now else self._take(entry, now)

    def _take(self, entry: QueueEntry, now: float) -> list[Admitted | Refused]:
        short = self._budgets.reserve(entry.ticket, now)
        if short is None:
            return [self._admit(entry, now)]
        if not short.may_pass:
            return [self._refuse(entry, short, now)]
        # Others pass until an attempt of the same budget ends; the ticket keeps the position.
        self.queue.move(entry, _NEVER, now)
        self._selector.choose_anew()
        self._budgets.wait(entry.ticket, short, now)
        return []

    def is_near(self, demand: Demand, times: int, now: float) -> bool:
        """Whether less is left than this many times a demand, in addition to the waiting tickets."""
        return self.capacity.is_near(demand, times + len(self.queue.entries), now)

    def end_poll(self, now: float) -> None:
        """Announce the waits that began, and set the next wakeup."""
        self._announce(self._next, self.gate, now)
        if self.gate is not None and self.gate.reason is Reason.CONCURRENCY:
            self.capacity.tell_maximum(now)
        self.wakeup_at = self._wakeup_at(self.gate, now)

    # Step 6: a response's head arrived

    def observe(self, attempt: Attempt, hints: Hints, now: float, *, answered: bool) -> None:
        """Learn from the head of a response; an ended attempt teaches nothing."""
        entry = self.capacity.flights.of(attempt)
        if entry is None:
            return
        if answered:
            self.capacity.share.went_at = now
            self._client_stayed(entry, now)
            self.queue.began(entry, sent_at=attempt.admitted_at, now=now)
        self.capacity.hear(hints, attempt, now, answered=answered)
        self._bring_forward(now)

    # Step 9: an attempt ended

    def settle(
        self,
        attempt: Attempt,
        result: AttemptResult,
        spend: Spend,
        now: float,
        *,
        stopping: bool,
        judged: Finished | Backoff | GiveUp | None = None,
    ) -> Finished | Backoff | GiveUp:
        """End an attempt and judge how the ticket continues, or apply the verdict `judged` of the client's process.

        With a job the attempt leaves the pool, but the end is not emitted: the attempt ends with the job.
        """
        capacity, queue, outcome = self.capacity, self.queue, result.outcome
        entry = capacity.flights.of(attempt)
        if entry is None:
            raise ContractError(f"{attempt.ticket.id}: attempt {attempt.number} was settled already")
        if successor := queue.entries.get(self._successors.pop(attempt.ticket.id, "")):
            queue.move(successor, now, now)
        took_s = capacity.settle(attempt, result, now)
        entry.wait_began_at = now
        if outcome.kind is OutcomeKind.SUCCESS:
            capacity.share.went_at = now
            queue.began(entry, sent_at=attempt.admitted_at, now=now)
        answered = outcome.kind is OutcomeKind.SUCCESS or outcome.status is None or outcome.status < 400
        usage = result.usage if outcome.kind is OutcomeKind.SUCCESS else None
        queue.settle(entry, took_s, now, answered=answered, usage=usage)
        if result.job is None:
            usage, duration_s = actual_usage(entry.ticket, result), max(0.0, now - attempt.admitted_at)
            ticket_id, number = entry.ticket.id, attempt.number
            self._emit(AttemptEnded(now, ticket_id, capacity.key, number, outcome, usage, duration_s, spend))
        owner = capacity.learn(attempt, result, now)
        self._bring_forward(now)
        if outcome.kind is OutcomeKind.SUCCESS and judged is None:
            self._finish(entry, result, now)
            return Finished()
        entry.history, verdict = judge(
            self.settings.retry,
            entry.history,
            result,
            now,
            self._rng,
            owner=owner,
            # After a first attempt the ticket is retried as long as an answer can come in time.
            shed_at=max(entry.ticket.shed_at, capacity.hopeless_at(entry.ticket)),
            provider_down=capacity.is_provider_down,
            nobody_answered=capacity.breaker.is_one_sessions,
            believes_told=capacity.believes_told(outcome.kind, attempt.demand),
            stopping=stopping,
        )
        if judged is not None:
            verdict = judged
        match verdict:
            case Finished():
                self._finish(entry, result, now)
            case GiveUp(reason):
                capacity.lack_ends |= outcome.lacks_end
                end = "shed" if reason is Reason.ANEW else "gave up"
                goes_on = result.job is not None
                self._end_ticket(entry, now, end=end, reason=reason.value, last_outcome=outcome.reason, goes_on=goes_on)
            case Backoff():
                self._put_back(entry, verdict, now)
            case _:
                assert_never(verdict)
        return verdict

    def _finish(self, entry: QueueEntry, result: AttemptResult, now: float) -> None:
        """End a ticket whose client has the answer, or left."""
        outcome, end = result.outcome, "cancelled"
        if outcome.kind is OutcomeKind.SUCCESS:
            self._client_stayed(entry, now)
            end = "delivered"
        elif not result.client_saw_bytes:
            self._client_left(entry, now)
        self._end_ticket(entry, now, end=end, reason=outcome.reason, goes_on=result.job is not None)

    def view_in_parts(
        self, clock: Callable[[], float], *, most_queued: int | None = None
    ) -> Generator[None, None, PoolView]:
        """The pool at one instant, with at most `most_queued` waiting tickets (None: all).

        Only the order is worked out before, in parts; tickets that arrive meanwhile are left out.
        """
        order = [] if most_queued == 0 else (yield from self.queue.in_order_in_parts())
        now = clock()
        view = view_pool(self._selector, self.queue, now, order=order, most=most_queued, short=self._budgets.foresee)
        return replace(view, account_name=self.account_name)

    def foresee(self, asked: ForeseeWait, now: float) -> Foresight:
        """When a call would go that the agent made now."""
        ticket = self.callers.next_call(asked, self.key, now)
        guest = QueueEntry(ticket=ticket, wait_began_at=now)
        guest.priority = self._overrides.priority_of(ticket.agent, ticket.priority)
        short = self._budgets.foresee(ticket, now)
        return foresee(guest, short, queue=self.queue, selector=self._selector, now=now)

    def _admit(self, entry: QueueEntry, now: float) -> Admitted:
        ticket, selector, share = entry.ticket, self._selector, self.capacity.share
        demand, advised = selector.demand(ticket, now), selector.advised(ticket, now)
        is_overruled = advised.opens_at > now
        if is_overruled:
            idle_s = now - (now if selector.idle_since is None else selector.idle_since)
            self._emit(WaitOverruled(at=now, ticket_id=ticket.id, pool=self.key, idle_s=idle_s, reason=advised.reason))
        if is_overruled or ticket not in self.capacity.refused:
            selector.idle_since = share.went_at = now
        self.queue.admit(entry, now)
        entry.history = entry.history.started()
        attempt = self.capacity.reserve(entry, demand, now)
        if attempt.is_probe:
            self._selector.choose_anew()
        self._note_started(entry, attempt, now)
        return Admitted(attempt)

    def _note_started(self, entry: QueueEntry, attempt: Attempt, now: float) -> None:
        waited_s = entry.end_wait(attempt.admitted_at)
        self._emit(AttemptStarted(now, entry.ticket.id, self.key, attempt.number, waited_s, attempt.in_flight))

    def _shed(self, entry: QueueEntry, now: float, reason: Reason, come_back_s: float) -> Shed:
        self._take_out(entry.ticket.id, now)
        self._kept_positions.keep(entry, now)
        self._client_stayed(entry, now)
        if reason is Reason.DEADLINE:
            self._patience.shed(entry.ticket)
        self._end_ticket(entry, now, end="shed", reason=reason.value)
        return Shed(ticket=entry.ticket, reason=reason, come_back_s=come_back_s)

    def _refuse_unfunded(self, now: float) -> list[Refused]:
        """Refuse tickets that begin to wait, also after a backoff, for a spent budget."""
        refused = []
        asked = [entry.ticket.id for entry in self.queue] if self.review else self._to_announce
        self.review = False
        for ticket_id in asked:
            entry = self.queue.entries.get(ticket_id)
            short = self._budgets.shortage(entry.ticket, now) if entry else None
            if entry and short and not short.may_pass:
                refused.append(self._refuse(entry, short, now))
        return refused

    def _refuse(self, entry: QueueEntry, cause: Shortage | ActiveBlock, now: float) -> Refused:
        match cause:
            case Shortage(budget=budget):
                reason = f"{Reason.BUDGET.value}: {budget.holder}"
            case ActiveBlock(reason=why):
                reason = f"{cause.why.value}: {why}"
            case _:
                assert_never(cause)
        self._take_out(entry.ticket.id, now)
        self._end_ticket(entry, now, end="refused", reason=reason)
        return Refused(ticket=entry.ticket, cause=cause)

    def _announce(self, head: QueueEntry | None, gate: Gate | None, now: float) -> None:
        """Emit Held once for each wait that lasted beyond the first poll."""
        for ticket_id in self._to_announce:
            entry = self.queue.entries.get(ticket_id)
            if entry is not None:
                # Exact for a new ticket; a request that came back is somewhere before the end.
                position = 1 if entry is head else len(self.queue)
                self._emit(Held(now, ticket_id, self.key, self._selector.reason(entry, gate, now), position))
        self._to_announce.clear()

    def _wakeup_at(self, gate: Gate | None, now: float) -> float | None:
        opens_at = gate.opens_at if gate else _NEVER
        if gate and gate.reason is not Reason.PAUSED:
            opens_at = min(opens_at, self._selector.late_at(now), self._look_at)
        at = min(self.queue.changes_at(), opens_at)
        return None if at == _NEVER else max(at, now + _TIMER_STEP_S)

    def _client_left(self, entry: QueueEntry, now: float) -> None:
        """Learn from a client that left without a byte."""
        if entry.shows_patience:
            self._patience.left(entry.ticket, now - entry.ticket.arrived_at)

    def _client_stayed(self, entry: QueueEntry, now: float) -> None:
        """Learn from a client that waited until the first byte."""
        if entry.shows_patience:
            entry.shows_patience = False
            self._patience.stayed(entry.ticket, now - entry.ticket.arrived_at)

    def _bring_forward(self, now: float) -> None:
        """Requeue tickets whose retry-after proved too long by the attempts of others."""
        believes = self.capacity.believes_told
        if all(believes(kind, _LEAST_DEMAND) for kind in _TELLING):
            return
        for entry in [*self.queue]:
            if entry.not_before > now + _TIMER_STEP_S and entry.state is EntryState.BACKING_OFF:
                kind = OutcomeKind.THROTTLED if entry.history.throttled else OutcomeKind.OVERLOADED
                after_step = max(now, entry.wait_began_at + step_s(self.settings.retry, entry.history))
                if after_step < entry.not_before and not believes(kind, entry.ticket.demand):
                    self.queue.move(entry, after_step, now)

    def _put_back(self, entry: QueueEntry, backoff: Backoff, now: float) -> None:
        ticket = entry.ticket
        entry.priority = self._overrides.priority_of(ticket.agent, ticket.priority)
        entry.weigh()
        self.queue.put_back(entry, backoff.until, now)
        self._to_announce.append(ticket.id)
        self._emit(BackedOff(now, ticket.id, self.key, entry.history.attempts, backoff.until, backoff.reason))

    def _end_ticket(
        self, entry: QueueEntry, now: float, *, end: str, reason: str, last_outcome: str = "", goes_on: bool = False
    ) -> None:
        if entry.state is not EntryState.ENDED:
            self.queue.end(entry)
        if goes_on:  # the end of the job ends the ticket
            return
        ticket_id, attempts, resends = entry.ticket.id, entry.history.attempts, entry.history.ambiguous_resends
        self._emit(TicketEnded(now, ticket_id, self.key, end, reason, attempts, resends, entry.waited_s, last_outcome))
