"""Selects the tickets of a pool that go next: backfilling with deadlines, as batch schedulers do.

**The rule.** The first ticket in the queue's order has a reservation: the instant at which its limits will admit it.
Another ticket goes before if it fits now and the reservation does not move beyond its slack. Units of a fixed window
that end with the window before the reservation delay nobody. Of a young window a ticket takes a part only, as tickets
that come later have a claim on the rest.

**Deadlines.** A ticket whose client may leave soon has the reservation in place of the first ticket, from `need / rate`
before the latest start on, unless the first ticket would be lost by it. A ticket that would be held until it is lost
tries shortly before, alone, unless a header says that the limit has no room: a refusal costs no more than the loss.

**The bound.** All who go before a reservation lengthen its wait by at most a tenth of the wait when it was made. A
ticket becomes the first after a bounded time (`fair_queue.py`), so every wait is bounded, and agents pay for all they
get, so shares are fair over time.

**Source.** EASY backfilling: only the first job has a reservation (Lifka 1995; Mu'alem and Feitelson 2001); slack:
Talby and Feitelson 1999.

Two other rules change who is first. While the provider is down, the probe is. Where an attempt may be refused, a ticket
that was not refused before replaces a ticket that was.

The gate of a ticket is the later of two:

    trusted   what people, headers and confirmed announcements say, an account block, the breaker, slots: no time limit
    advised   what is inferred from refusals or assumed of charges: expires when nothing went for a while
"""

from collections.abc import Sequence
from copy import copy
from itertools import chain, islice
from operator import itemgetter

from msgspec import Struct

from hivemind_addon.kernel.limits.capacity import Capacity
from hivemind_addon.kernel.limits.machine import ModelMachine
from hivemind_addon.kernel.order.entry import EntryState, QueueEntry
from hivemind_addon.kernel.order.fair_queue import FairQueue
from hivemind_addon.kernel.values.snapshot import BreakerState
from hivemind_addon.kernel.values.ticket import Demand, Reason, Ticket

_NEVER = float("inf")
SOONEST_COME_BACK_S = 1.0
"""The least time for which a client that is sent away is asked to stay away."""
SLACK = 0.1
"""The most that others may lengthen the wait of a reservation, as a share of the wait when the reservation was made."""
LOOK_AT = 32
"""The most tickets asked whether they may go before a reservation, beside the smallest."""
_LATE_S = 10.0
"""A ticket is late if its client may leave within this time after the limits admit the ticket."""
_LAST_SHARE = 0.1
"""A ticket is also late if less than this share of the patience would be left after the next window's turn."""
_LONG_WAIT = 0.4
"""The least share of the patience that a late ticket has waited."""
_LAST_TRY_S = 0.5
"""A ticket that a limit would hold until it is lost may try this long before."""
_EARLY_S = 1.6
"""So much earlier than a header reports may a window turn: instants are rounded, and the gate is careful."""
_NOTHING = Demand(requests=0)


class Gate(Struct, frozen=True):
    """The thing that keeps a ticket from going."""

    reason: Reason
    opens_at: float
    """Infinite: at the end of another attempt, or when a person acts."""

    @property
    def holds_one(self) -> bool:
        """Whether other tickets of the pool may pass, which need less. An inferred limit is too vague for that."""
        return self.reason is Reason.METER


class Reservation(Struct, frozen=True):
    """The instant at which the limits admit the first ticket of a pool, and how far others may move it."""

    capacity: Capacity
    demand: Demand
    at: float
    until: float
    """The reservation is kept if the ticket fits until then."""
    promised_at: float
    """The latest instant, by all reservations of the ticket so far, to which others may move the reservation."""
    machine: ModelMachine | None = None
    """The machine that the ticket's model waits for: no other model may use it before."""

    def is_delayed(self, by: Demand, capacity: Capacity, now: float) -> bool:
        """Whether the ticket would miss the reservation if another ticket of the pool with this capacity went now."""
        own = self.capacity
        if self.machine is not None and self.machine is capacity.sharing.machine:
            return True
        if own.share is capacity.share:
            # A reservation that moved beyond its promise, by others than us, keeps no slot free.
            is_over = now + capacity.service.mean_s <= self.at
            if capacity.free_slots < 2 and not is_over and self.at <= self.promised_at:
                return True
        return own.meters.fits_after(self.demand, by, capacity.meters, now) > self.until


_PATIENCE_S, _PATIENCE, _MOST_PATIENCE_S = 16.0, 1 / 8, 600.0
"""Advice expires when nothing was sent or answered for this time (no divisor of a minute), and for this share of the
time for which every attempt was refused, but never later than the last."""


def _latest(*gates: tuple[float, Reason]) -> Gate:
    opens_at, reason = max(gates, key=itemgetter(0))
    return Gate(reason, opens_at)


class Selector:
    """Reads the queue and the capacity, and changes neither."""

    def __init__(self, *, queue: FairQueue, capacity: Capacity, backfills: bool = True) -> None:
        self._queue, self._backfills = queue, backfills
        self.capacity = capacity
        """The limits of the pool. Read only."""
        self.idle_since: float | None = None
        """Since when tickets are due while nothing goes; None: no ticket is due."""
        self._probe: str | None = None
        """The ticket that probes next; the same ticket until the probe goes or cannot go."""
        self._late = ""
        """The last ticket that was late: it stays late while others change what its limits admit."""

    def next(self, now: float) -> QueueEntry | None:
        """The next ticket: the head, or the probe while the provider is down."""
        self.capacity.look_at_probe(now)
        entry = self._next(now) if self._queue.entries else None
        if entry is None or self.idle_since is None:
            self.idle_since = None if entry is None else now
        return entry

    def _next(self, now: float) -> QueueEntry | None:
        queue, breaker = self._queue, self.capacity.breaker
        if breaker.passes_at == -_NEVER:
            head = queue.head()
            entry = self._late_ticket(head, now) or head
            return entry if entry is None else self._unless_refused(entry, now)
        if breaker.passes_at > now:
            return queue.head() or queue.soonest()
        chosen = queue.entries.get(self._probe) if self._probe else None
        if chosen is None:
            # A ticket in backoff probes only if no other ticket waits: a pool never waits for a ticket.
            chosen = self._other_probe() or queue.head() or queue.soonest()
            self._probe = chosen.ticket.id if chosen else None
        return chosen

    def _other_probe(self) -> QueueEntry | None:
        """The first ticket of another session than the last probe's, not refused before where possible."""
        last, refused = self.capacity.breaker.last_probe_session, self.capacity.overloaded
        fresh = self._queue.head_where(lambda ticket: ticket.session != last and ticket not in refused)
        return fresh or self._queue.head_where(lambda ticket: ticket.session != last)

    def _unless_refused(self, entry: QueueEntry, now: float) -> QueueEntry:
        """The next ticket, or, if that was refused and may be again, the first ticket that was not refused.

        The result of a probe shows a limit only if the request itself is not the cause of the refusal.
        """
        refused = self.capacity.refused
        if entry.ticket not in refused:
            return entry
        if self.expires_at(now) > now and (not self.may_refuse_again(entry, now) or self.gate(entry.ticket, now)):
            return entry
        fresh = self._queue.head_where(lambda ticket: ticket not in refused)
        return entry if fresh is None or self.trusted(fresh.ticket, now).opens_at > now else fresh

    def may_refuse_again(self, entry: QueueEntry, now: float) -> bool:
        """Whether a ticket was refused, and an attempt now would test the limit inferred from refusals."""
        capacity, ticket = self.capacity, entry.ticket
        return ticket in capacity.refused and capacity.is_probe(self.demand(ticket, now), now)

    def glance(self, now: float) -> "Selector":
        """A copy for views: no question to the copy or to its capacity changes anything."""
        seen = copy(self)
        seen.capacity = self.capacity.glance(now)
        return seen

    def likely_next(self, order: Sequence[QueueEntry], now: float) -> tuple[QueueEntry | None, Gate | None]:
        """The ticket that will go next, of waiting tickets in this order, and the present gate. Ask a glance.

        Chooses no probe; an open breaker's probe is named ahead of time.
        """
        queue, breaker = self._queue, self.capacity.breaker
        first = next((entry for entry in order if entry.not_before <= now and queue.why_passed(entry) is None), None)
        if breaker.state is not BreakerState.CLOSED:
            probe = queue.entries.get(self._probe) if self._probe else None
            entry = probe or self._other_probe() or first or queue.soonest()
        else:
            entry = self._late_ticket(first, now) or first
            entry = None if entry is None else self._unless_refused(entry, now)
            refused = self.capacity.refused
            gate = self.gate(entry.ticket, now) if entry is not None and entry.ticket in refused else None
            if gate is not None and gate.opens_at >= self.expires_at(now):  # a fresh ticket goes first then
                entry = queue.head_where(lambda ticket: ticket not in refused) or entry
        return entry, self.gate(entry.ticket, now) if entry else None

    def choose_anew(self) -> None:
        """Forget the ticket that probes next, because the probe went or cannot go."""
        self._probe = None

    def _late_ticket(self, head: QueueEntry | None, now: float) -> QueueEntry | None:
        """The ticket that is shed first, if the ticket is late and the head is not lost by it."""
        entry = self._queue.first_to_shed() if self._backfills else None
        if entry is None or entry is head or entry.not_before > now or self._queue.why_passed(entry):
            return None
        ticket, capacity, meters = entry.ticket, self.capacity, self.capacity.meters
        ends_at, demand = min(ticket.shed_at, capacity.hopeless_at(ticket)), self.demand(ticket, now)
        patience_s, fits_at = ends_at - ticket.arrived_at, meters.fits_at(demand, now)
        if fits_at > ends_at:
            return entry if fits_at > now and self.gate(ticket, now) is None else None
        if fits_at - ticket.arrived_at < _LONG_WAIT * patience_s:
            return None
        turns = (meters.next_window_at(now), *(hidden.turns_at(now) for hidden in capacity.hidden))
        turns_at = min((at for at in turns if at is not None), default=-_NEVER)
        # A large request also takes long to answer.
        margin_s = max(_LATE_S, meters.filling_s(demand, now))
        is_early = ends_at > max(fits_at + margin_s, turns_at + _LAST_SHARE * patience_s)
        if (is_early and ticket.id != self._late) or (head is not None and self._is_lost(head, demand, now)):
            return None
        self._late = ticket.id
        return entry

    def _is_lost(self, entry: QueueEntry, by: Demand, now: float) -> bool:
        """Whether a ticket would be lost if another ticket went before."""
        meters, demand = self.capacity.meters, self.demand(entry.ticket, now)
        return meters.fits_at(demand, now) <= entry.ticket.shed_at < meters.fits_after(demand, by, meters, now)

    def late_at(self, now: float) -> float:
        """When the ticket that is shed first may be late; infinite: already asked, or no limit holds tickets."""
        entry = self._queue.first_to_shed() if self.capacity.meters.by_name or self.capacity.is_rate_hidden else None
        at = _NEVER if entry is None else entry.ticket.shed_at - _LATE_S
        return at if at > now else _NEVER

    def reservation(self, entry: QueueEntry, gate: Gate, now: float) -> Reservation:
        """The reservation of a pool's first ticket, which this gate holds."""
        capacity, demand = self.capacity, self.demand(entry.ticket, now)
        at = capacity.meters.fits_after(demand, _NOTHING, capacity.meters, now)
        if gate.opens_at < _NEVER:
            at = max(at, gate.opens_at)
        promised_at = min(entry.promised_at, at + SLACK * (at - now))
        until = max(at, min(promised_at, entry.ticket.shed_at))
        machine = capacity.sharing.machine if gate.reason is Reason.CONCURRENCY else None
        if machine is not None and machine.opens_at(capacity.flights, now) <= now:
            machine = None
        return Reservation(capacity, demand, at, until, promised_at, machine)

    def backfill(self, reservations: Sequence[Reservation], now: float) -> tuple[QueueEntry | None, float]:
        """The ticket that may go soonest and delays no reservation, and when that may be; the first in order now.

        Without such a ticket: when to look again; infinite: after any change. If the smallest may not go, none may.
        """
        capacity, queue, soonest, at = self.capacity, self._queue, None, _NEVER
        smallest = queue.smallest()
        least = smallest.ticket.demand
        fits_at = max(
            capacity.meters.fits_at(least, now),
            capacity.meters.spare_at(least, now),
            capacity.announced_until(least, now),
            capacity.throttled_until(least, now),
            capacity.overloaded_until(least, now),
            capacity.slot_at(now),
        )
        if fits_at > now or any(reservation.is_delayed(least, capacity, now) for reservation in reservations):
            return None, fits_at if fits_at > now else _NEVER
        due = (smallest,) if smallest.state is EntryState.DUE else ()
        for entry in chain(islice(queue.due(), LOOK_AT), due):
            demand = self.demand(entry.ticket, now)
            if queue.why_passed(entry) or any(
                reservation.is_delayed(demand, capacity, now) for reservation in reservations
            ):
                continue
            gate = self.gate(entry.ticket, now)
            goes_at = max(capacity.meters.spare_at(demand, now), now if gate is None else gate.opens_at)
            if goes_at <= now:
                return entry, now
            if goes_at < at:
                soonest, at = entry, goes_at
        return soonest, at

    def gate(self, ticket: Ticket, now: float) -> Gate | None:
        """The gate that holds a ticket now, by trusted rules or by advice that has not expired; None: it may go."""
        capacity, trusted = self.capacity, self.trusted(ticket, now)
        advised = trusted if trusted.opens_at == _NEVER else self.advised(ticket, now)
        gate = trusted
        if advised.opens_at > trusted.opens_at:
            gate = Gate(advised.reason, max(trusted.opens_at, min(advised.opens_at, self.expires_at(now))))
        if gate.opens_at > now and gate.reason is Reason.METER and not capacity.flights:
            early_at = max(trusted.opens_at - _EARLY_S, capacity.stated_until(ticket, now))
            tries_at = max(min(capacity.hopeless_at(ticket), ticket.shed_at) - _LAST_TRY_S, early_at)
            if gate.opens_at > tries_at:
                gate = Gate(gate.reason, max(now, tries_at))
        return gate if gate.opens_at > now else None

    def trusted(self, ticket: Ticket, now: float) -> Gate:
        """What people, headers and announcements say: may hold a ticket without a time limit."""
        capacity, demand = self.capacity, self.demand(ticket, now)
        if capacity.paused:
            return Gate(Reason.PAUSED, _NEVER)
        if capacity.breaker.passes_at > now:
            return Gate(Reason.BREAKER, capacity.breaker.passes_at)
        block = capacity.account_block
        if block.closure is not None and block.passes_at > now:
            return Gate(block.closure.why, block.passes_at)
        told_at = capacity.meters.fits_at(demand, now, hoped=True)
        return _latest(
            (max(told_at, capacity.stated_until(ticket, now)), Reason.METER),
            (capacity.announced_until(demand, now), Reason.BLOCKED),
            (capacity.slot_at(now), Reason.CONCURRENCY),
        )

    def advised(self, ticket: Ticket, now: float) -> Gate:
        """What is inferred from refusals and assumed of charges: holds a ticket until the advice expires."""
        capacity, demand = self.capacity, self.demand(ticket, now)
        return _latest(
            (capacity.meters.fits_at(demand, now), Reason.METER),
            (capacity.throttled_until(demand, now), Reason.BLOCKED),
            (capacity.overloaded_until(demand, now), Reason.CONCURRENCY),
        )

    def expires_at(self, now: float) -> float:
        """When advice alone holds no ticket any more, as nothing went although a slot is free; infinite: none is."""
        capacity = self.capacity
        idle_since = now if self.idle_since is None else self.idle_since
        patience_s = max(_PATIENCE_S, _PATIENCE * max(hidden.retry_afters.row_s for hidden in capacity.hidden))
        since = max(idle_since, capacity.share.went_at)
        return _NEVER if capacity.is_full else since + min(patience_s, _MOST_PATIENCE_S)

    def demand(self, ticket: Ticket, now: float) -> Demand:
        """The expected demand of an attempt that goes now."""
        if not ticket.cold_tokens:
            return ticket.demand
        return ticket.demand_reading(self._queue.cache.warm_share(ticket, now))

    def reason(self, entry: QueueEntry, gate: Gate | None, now: float) -> Reason:
        """Why a ticket waits; `gate`: the gate of the next ticket."""
        if self.capacity.paused:
            return Reason.PAUSED
        if entry.state is EntryState.UNFUNDED:
            return Reason.FUNDS
        if entry.not_before > now:
            return Reason.BACKOFF
        if passed := self._queue.why_passed(entry):
            return passed
        return Reason.ORDER if gate is None else gate.reason

    def come_back_s(self, entry: QueueEntry, now: float) -> float:
        """Seconds after which a ticket that is shed now may find room."""
        gate = self.gate(entry.ticket, now)
        fits_at = now if gate is None or gate.opens_at == _NEVER else gate.opens_at
        due_at = now if entry.state is EntryState.UNFUNDED else entry.not_before
        return max(SOONEST_COME_BACK_S, fits_at - now, due_at - now)
