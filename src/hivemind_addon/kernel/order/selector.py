"""Selects the ticket of a pool that goes next, and names the gate that keeps this ticket.

The next ticket is the first in the queue's order, with three exceptions. While the provider is down, the probe is next.
A ticket that would be shed before more room comes goes ahead after a long wait. Where an attempt may be refused, a
ticket that was not refused before replaces a ticket that was.

The gate of a ticket is the later of two:

    trusted   what people, headers and confirmed announcements say, an account block, the breaker, slots: no time limit
    advised   what is inferred from refusals or assumed of charges: expires when nothing went for a while

The gate holds all tickets: no ticket passes the next one. Each poll selects again.
"""

from collections.abc import Iterable
from copy import copy
from operator import itemgetter

from msgspec import Struct

from hivemind_addon.kernel.limits.capacity import Capacity
from hivemind_addon.kernel.order.entry import EntryState, QueueEntry
from hivemind_addon.kernel.order.fair_queue import FairQueue
from hivemind_addon.kernel.values.snapshot import BreakerState
from hivemind_addon.kernel.values.ticket import Demand, Reason, Ticket

_NEVER = float("inf")
SOONEST_COME_BACK_S = 1.0
"""The least time for which a client that is sent away is asked to stay away."""
_LAST_CHANCE_S = 10.0
"""A ticket goes ahead this shortly before the shed time."""
_LAST_SHARE = 0.1
"""A ticket also goes ahead if less than this share of the patience would be left after the next window's turn."""
_LONG_WAIT = 0.4
"""The least share of the patience that such a ticket has waited."""
_LARGE = 0.1
"""A bucket starts to fill in time for a ticket if filling takes more than this share of the ticket's patience."""
_SURE_S = 0.25
"""A ticket that fits at an instant has surely gone after this time, if the ticket goes at all."""
_HURRIED_S = 2.0
"""With less time than this after a window's turn there may be no second try."""
_HURRY_S = 1.6
"""A ticket that cannot wait may try this long before the assumed turn of a window, which may be a second late."""
_SCARCE = 2
"""A limit is scarce if less is left than this many times the need of all waiting tickets: some make two attempts."""


class Gate(Struct, frozen=True):
    """The thing that keeps a ticket from going."""

    reason: Reason
    opens_at: float
    """Infinite: at the end of another attempt, or when a person acts."""


_PATIENCE_S = 16.0
"""Advice expires when nothing was sent or answered for this time; no divisor of a minute."""


def _latest(*gates: tuple[float, Reason]) -> Gate:
    opens_at, reason = max(gates, key=itemgetter(0))
    return Gate(reason, opens_at)


class Selector:
    """Reads the queue and the capacity, and changes neither."""

    def __init__(self, *, queue: FairQueue, capacity: Capacity) -> None:
        self._queue = queue
        self.capacity = capacity
        """The limits of the pool. Read only."""
        self.idle_since: float | None = None
        """Since when tickets are due while nothing goes; None: no ticket is due."""
        self._probe: str | None = None
        """The ticket that probes next; the same ticket until the probe goes or cannot go."""

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
            entry = self.last_chance(head, now) or head
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

    def likely_next(self, order: Iterable[QueueEntry], now: float) -> tuple[QueueEntry | None, Gate | None]:
        """The ticket that will go next, of waiting tickets in this order, and the present gate. Ask a glance.

        Chooses no probe; an open breaker's probe is named ahead of time.
        """
        queue, breaker = self._queue, self.capacity.breaker
        first = next((entry for entry in order if entry.not_before <= now and queue.why_passed(entry) is None), None)
        if breaker.state is not BreakerState.CLOSED:
            probe = queue.entries.get(self._probe) if self._probe else None
            entry = probe or self._other_probe() or first or queue.soonest()
        else:
            entry = self.last_chance(first, now) or first
            entry = None if entry is None else self._unless_refused(entry, now)
            refused = self.capacity.refused
            gate = self.gate(entry.ticket, now) if entry is not None and entry.ticket in refused else None
            if gate is not None and gate.opens_at >= self.expires_at(now):  # a fresh ticket goes first then
                entry = queue.head_where(lambda ticket: ticket not in refused) or entry
        return entry, self.gate(entry.ticket, now) if entry else None

    def choose_anew(self) -> None:
        """Forget the ticket that probes next, because the probe went or cannot go."""
        self._probe = None

    def last_chance(self, head: QueueEntry | None, now: float) -> QueueEntry | None:
        """A ticket that would be shed before there is room again, or very soon, and has waited for long.

        Only where a limit has not enough for all tickets, or where the head waits for more than is left and this ticket
        fits. The ticket pays for the units like any other. A bucket that has to fill for the ticket starts in time.
        """
        entry = self._queue.first_to_leave()
        if entry is None or entry.not_before > now:
            return None
        ticket, meters = entry.ticket, self.capacity.meters
        is_hidden = self.capacity.is_rate_hidden
        if not meters and not is_hidden:
            return None
        ends_at = min(entry.shed_at, entry.leaves_at)
        patience_s, waited_s = ends_at - ticket.arrived_at, now - ticket.arrived_at
        # Checked before the limits: most polls end here. No bucket takes longer to fill than a window.
        longest_s = max((meter.window_s for meter in meters), default=0.0)
        if waited_s + longest_s < _LONG_WAIT * patience_s or self._queue.why_passed(entry):
            return None
        demand = self.demand(ticket, now)
        fills_at, margin_s, filling_s = now, _LAST_CHANCE_S, meters.filling_s(demand, now)
        if filling_s > _LARGE * patience_s:
            # A large request also takes long to answer.
            fills_at, margin_s = meters.fills_at(demand, now), max(_LAST_CHANCE_S, filling_s)
        if fills_at - ticket.arrived_at < _LONG_WAIT * patience_s:
            return None
        turns_at = (meters.next_window_at(now), *(hidden.turns_at(now) for hidden in self.capacity.hidden))
        soonest_at = min((at for at in turns_at if at is not None), default=now)
        if ends_at > max(fills_at + margin_s, soonest_at + _LAST_SHARE * patience_s):
            return None
        wanted = _SCARCE * len(self._queue)
        if is_hidden or meters.are_scarce(ticket.demand, wanted, now) or fills_at > now:
            return entry
        # The ticket fits now, but not together with the head.
        if head is None or meters.explain(demand, now):
            return None
        return entry if meters.explain(demand.plus(self.demand(head.ticket, now)), now) else None

    def last_chance_at(self, now: float) -> float:
        """When the ticket that ends first may get a last chance; infinite: already asked, or no limit holds tickets."""
        entry = self._queue.first_to_leave()
        has_limits = self.capacity.meters.by_name or self.capacity.is_rate_hidden
        at = _NEVER if entry is None or not has_limits else min(entry.shed_at, entry.leaves_at) - _LAST_CHANCE_S
        return at if at > now else _NEVER

    def gate(self, ticket: Ticket, now: float) -> Gate | None:
        """The gate that holds a ticket now, by trusted rules or by advice that has not expired; None: it may go."""
        trusted = self.trusted(ticket, now)
        advised = trusted if trusted.opens_at == _NEVER else self.advised(ticket, now)
        if advised.opens_at <= trusted.opens_at:
            return trusted if trusted.opens_at > now else None
        opens_at = max(trusted.opens_at, min(advised.opens_at, self.expires_at(now)))
        return Gate(advised.reason, opens_at) if opens_at > now else None

    def trusted(self, ticket: Ticket, now: float) -> Gate:
        """What people, headers and announcements say: may hold a ticket without a time limit."""
        capacity = self.capacity
        if capacity.paused:
            return Gate(Reason.PAUSED, _NEVER)
        if capacity.breaker.passes_at > now:
            return Gate(Reason.BREAKER, capacity.breaker.passes_at)
        block = capacity.account_block
        if block.closure is not None and block.passes_at > now:
            return Gate(block.closure.why, block.passes_at)
        told_at = self._meters_at(ticket, now, hoped=True)
        return _latest(
            (max(told_at, capacity.stated_until(ticket, now)), Reason.METER),
            (capacity.announced_until(self.demand(ticket, now), now), Reason.BLOCKED),
            (capacity.slot_at(now), Reason.CONCURRENCY),
        )

    def advised(self, ticket: Ticket, now: float) -> Gate:
        """What is inferred from refusals and assumed of charges: holds a ticket until the advice expires."""
        capacity, demand = self.capacity, self.demand(ticket, now)
        return _latest(
            (self._meters_at(ticket, now), Reason.METER),
            (capacity.throttled_until(demand, now), Reason.BLOCKED),
            (capacity.overloaded_until(demand, now), Reason.CONCURRENCY),
        )

    def expires_at(self, now: float) -> float:
        """When advice alone holds no ticket any more, as nothing went although a slot is free; infinite: none is."""
        capacity = self.capacity
        idle_since = now if self.idle_since is None else self.idle_since
        return _NEVER if capacity.is_full else max(idle_since, capacity.share.went_at) + _PATIENCE_S

    def _meters_at(self, ticket: Ticket, now: float, *, hoped: bool = False) -> float:
        capacity = self.capacity
        fits_at = capacity.meters.fits_at(self.demand(ticket, now), now, hoped=hoped)
        # A ticket that cannot wait tries a little earlier: alone, since a refusal is possible.
        if fits_at > now and not capacity.flights and fits_at + _HURRIED_S > capacity.hopeless_at(ticket):
            return max(now, fits_at - _HURRY_S)
        return fits_at

    def demand(self, ticket: Ticket, now: float) -> Demand:
        """The expected demand of an attempt that goes now."""
        if ticket.cold_tokens and self._queue.is_cold(ticket, now):
            return ticket.cold_demand
        return ticket.demand

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

    def worth_holding_until(self, entry: QueueEntry, now: float) -> float | None:
        """How long past its shed time to keep a ticket that will surely find room and an answer; None: not sure."""
        capacity, gate = self.capacity, self.gate(entry.ticket, now)
        opens_at = now if gate is None else gate.opens_at
        if capacity.is_full and not capacity.paused:
            opens_at = now + capacity.service.mean_s / capacity.limit
        until = max(opens_at, entry.not_before) + _SURE_S
        return None if until > capacity.hopeless_at(entry.ticket) else until
