"""Which ticket of a pool goes next, and what keeps it from going.

The next one is the first in the queue's order, but for three: while the provider is down it is whoever probes; one that
would not live to see more room goes before others, once it has waited long; and where an attempt may be refused, one
that was not refused goes instead of one that was.

The next one goes when nothing stops it: a person's pause, the breaker, an account block, the concurrency limit, a pause
that the provider asked for, every meter. The first of these that does is its gate, and with it everybody's: nobody
passes the next one. Nothing is decided here for good; each poll asks anew.
"""

from collections.abc import Iterable
from copy import copy

from msgspec import Struct

from hivemind_addon.kernel.limits.capacity import Capacity
from hivemind_addon.kernel.limits.meters import Backoffs
from hivemind_addon.kernel.order.fair_queue import FairQueue
from hivemind_addon.kernel.order.lanes import EntryState, QueueEntry
from hivemind_addon.kernel.values.snapshot import BreakerState
from hivemind_addon.kernel.values.ticket import Attempt, Demand, Reason, Ticket

_NEVER = float("inf")
SOONEST_COME_BACK_S = 1.0
"""A client that is sent away is told to wait at least so long."""
_LAST_CHANCE_S = 10.0
"""So shortly before it would be shed a ticket goes before others."""
_LAST_SHARE = 0.1
"""Or where less than this share of its patience would be left after the next window's turn."""
_LONG_WAIT = 0.4
"""Of its patience, at least."""
_LARGE = 0.1
"""A bucket that takes more than this share of a ticket's patience to fill for it begins in time."""
_SURE_S = 0.25
"""How long after the instant at which it fits a ticket has surely gone, if it goes at all."""
_HURRIED_S = 2.0
"""With less time than this after a window's turn there may be no second try."""
_WORTH_A_TRIAL_S = 5.0
"""A longer wait for what may be there already is worth that one attempt may be refused."""
_SCARCE = 2
"""A limit is scarce that has not so many times what all who wait want: some will need it twice."""


class Gate(Struct, frozen=True):
    """What keeps a ticket from going."""

    reason: Reason
    opens_at: float
    """Infinite: when another attempt ends, or a person says so."""


_STUCK_S = 20.0
"""A pool that sends nothing for so long goes against what it has learned."""
_LEAST_STUCK_S = 1.25
_MOST_STUCK_S = 320.0
_NO_BACKOFFS = Backoffs()
_LEARNED = (Reason.METER, Reason.BLOCKED, Reason.CONCURRENCY)
"""Gates that may be shut by what was only learned."""


class Progress:
    """How long a pool may send nothing when only learned limits hold its tickets.

    The result of the overruling attempt moves the patience: a refusal triples it, up to `_MOST_STUCK_S`; an answer
    halves it, below `_STUCK_S` only after two answers in a row.
    """

    def __init__(self) -> None:
        self.patience_s = _STUCK_S
        self._stamp: int | None = None
        """Stamp of the overruling attempt, until its result is known."""
        self._passed_last = False

    def __repr__(self) -> str:
        return f"<Progress, {self.patience_s:g} s>"

    def sent(self, attempt: Attempt) -> None:
        """Note the overruling attempt."""
        self._stamp = attempt.stamp

    def heard(self, attempt: Attempt, *, refused: bool) -> None:
        """An attempt was answered or refused."""
        if attempt.stamp != self._stamp:
            return
        self._stamp = None
        if refused:
            self.patience_s = min(max(_STUCK_S, 3 * self.patience_s), _MOST_STUCK_S)
        else:
            least_s = _LEAST_STUCK_S if self._passed_last and self.patience_s <= _STUCK_S else _STUCK_S
            self.patience_s = max(least_s, self.patience_s / 2)
        self._passed_last = not refused


class Selector:
    """Asks the queue and the capacity, and takes nothing from either."""

    def __init__(self, *, queue: FairQueue, capacity: Capacity, backoffs: Backoffs) -> None:
        self._queue = queue
        self.capacity = capacity
        """What may be sent. Nobody changes it here."""
        self._backoffs = backoffs
        self._probe: str | None = None
        """The ticket that probes next: it stays the one while it is kept from going."""

    def __repr__(self) -> str:
        return f"<Selector of {self._queue!r}>"

    def goes_at_once(self, now: float) -> QueueEntry | None:
        """Who goes without more ado: it alone waits, and nothing is known that may keep it.

        Most tickets come when nobody waits. What `next`, `gate` and the poll say of all others holds for it, too.
        """
        entry, capacity = self._queue.only(now), self.capacity
        if entry is None or not capacity.is_free:
            return None
        if capacity.meters.by_name:
            ticket = entry.ticket
            if capacity.meters.fits_at(self.demand(ticket, now), ticket, self._backoffs, now) > now:
                return None
        return entry

    def next(self, now: float) -> QueueEntry | None:
        """Who goes next: the head, or while the provider is down the one who probes."""
        queue, breaker = self._queue, self.capacity.breaker
        self.capacity.look_at_probe(now)
        if breaker.passes_at == -_NEVER:
            head = queue.head()
            entry = self.last_chance(head, now) or head
            return entry if entry is None else self._unless_refused(entry, now)
        if breaker.passes_at > now:
            return queue.head() or queue.soonest()
        chosen = queue.get(self._probe) if self._probe else None
        if chosen is None:
            # A ticket that backs off probes only when nobody else is there: a pool never waits for its tickets.
            others = queue.head_where(lambda ticket: ticket.session != breaker.last_probe_session)
            chosen = others or queue.head() or queue.soonest()
            self._probe = chosen.ticket.id if chosen else None
        return chosen

    def _unless_refused(self, entry: QueueEntry, now: float) -> QueueEntry:
        """The next one; instead of one that would go, was refused, and may be again, the first that was not.

        What becomes of a probe tells of a limit only where the request is not itself the reason.
        """
        capacity, ticket = self.capacity, entry.ticket
        if ticket not in capacity.refused or self.gate(ticket, now):
            return entry
        return self.despite(entry, now) if capacity.is_probe(self.demand(ticket, now), now) else entry

    def glance(self, now: float) -> "Selector":
        """One to ask for a view: whatever is asked of it and its capacity, nothing changes by it."""
        seen = copy(self)
        seen.capacity = self.capacity.glance(now)
        return seen

    def likely_next(self, order: Iterable[QueueEntry], now: float) -> tuple[QueueEntry | None, Gate | None]:
        """Who of those that wait, in their order, will go next, and what keeps it from going now. Ask a glance.

        Nothing is chosen by it, and an open breaker's probe is told before its time.
        """
        queue, breaker = self._queue, self.capacity.breaker
        first = next((one for one in order if one.not_before <= now and queue.why_passed(one) is None), None)
        if breaker.state is not BreakerState.CLOSED:
            probe = queue.get(self._probe) if self._probe else None
            others = queue.head_where(lambda ticket: ticket.session != breaker.last_probe_session)
            entry = probe or others or first or queue.soonest()
        else:
            entry = self.last_chance(first, now) or first
            entry = None if entry is None else self._unless_refused(entry, now)
        return entry, self.gate(entry.ticket, now) if entry else None

    def choose_anew(self) -> None:
        """The one who probes has gone, or cannot: the next time it may be another one."""
        self._probe = None

    def last_chance(self, head: QueueEntry | None, now: float) -> QueueEntry | None:
        """One that would be shed before there is room again, or very soon, and has waited for long.

        Only where a limit has not enough for all, or where the head waits for more than there is and this one need
        not; and it pays for what it takes like any other. A bucket that has to fill for it begins in time.
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
        # Asked before the limits: most polls end here. No bucket takes longer to fill than its window.
        longest_s = max((meter.window_s for meter in meters), default=0.0)
        if waited_s + longest_s < _LONG_WAIT * patience_s or self._queue.why_passed(entry):
            return None
        demand = self.demand(ticket, now)
        fills_at, margin_s, filling_s = now, _LAST_CHANCE_S, meters.filling_s(demand, now)
        if filling_s > _LARGE * patience_s:
            # What takes long to fit takes long to be answered, too.
            fills_at, margin_s = meters.fills_at(demand, now), max(_LAST_CHANCE_S, filling_s)
        if fills_at - ticket.arrived_at < _LONG_WAIT * patience_s:
            return None
        turns_at = (meters.next_window_at(now), *(hidden.turns_at(now) for hidden in self.capacity.hidden))
        soonest_at = min((at for at in turns_at if at is not None), default=now)
        if ends_at > max(fills_at + margin_s, soonest_at + _LAST_SHARE * patience_s):
            return None
        wanted = _SCARCE * len(self._queue)
        is_scarce = is_hidden or meters.are_scarce(ticket.demand, wanted, now) or fills_at > now
        return entry if is_scarce or self._has_to_choose(demand, head, now) else None

    def last_chance_at(self, now: float) -> float:
        """When the one that ends first may get its last chance; infinite: it was asked, or nobody waits for a limit."""
        entry = self._queue.first_to_leave()
        has_limits = self.capacity.meters.by_name or self.capacity.is_rate_hidden
        at = _NEVER if entry is None or not has_limits else min(entry.shed_at, entry.leaves_at) - _LAST_CHANCE_S
        return at if at > now else _NEVER

    def _has_to_choose(self, demand: Demand, head: QueueEntry | None, now: float) -> bool:
        """Whether a demand fits now, but not beside the head's."""
        if head is None or self.capacity.meters.explain(demand, now):
            return False
        return self.capacity.meters.explain(demand.plus(self.demand(head.ticket, now)), now)

    def gate(self, ticket: Ticket, now: float) -> Gate | None:
        """What keeps a ticket from going now; None: nothing."""
        capacity = self.capacity
        if capacity.paused:
            return Gate(Reason.PAUSED, _NEVER)
        if capacity.breaker.passes_at > now:
            return Gate(Reason.BREAKER, capacity.breaker.passes_at)
        if capacity.account_block.passes_at > now:
            return Gate(Reason.ACCOUNT_BLOCK, capacity.account_block.passes_at)
        slot_at = capacity.slot_at(now)
        if slot_at == _NEVER:
            return Gate(Reason.CONCURRENCY, _NEVER)
        demand = self.demand(ticket, now)
        fits_at = capacity.meters.fits_at(demand, ticket, self._backoffs, now)
        # One that cannot wait so long tries whether the window has turned before: alone, for it may be refused.
        if fits_at > now and not capacity.flights and fits_at + _HURRIED_S > capacity.hopeless_at(ticket):
            fits_at = capacity.meters.fits_at(demand, ticket, self._backoffs, now, hurried=True)
        if fits_at > now + _WORTH_A_TRIAL_S and not capacity.flights:
            # Nobody is there whose answer would tell what the meters only assume.
            hoped_at = capacity.meters.fits_at(demand, ticket, self._backoffs, now, hoped=True)
            fits_at = min(fits_at, max(hoped_at, capacity.trial_at))
        if capacity.sharing.stated.limits:
            fits_at = max(fits_at, capacity.stated_until(ticket, now))
        throttled_until = capacity.throttled_until(demand, now)
        overloaded_until = capacity.overloaded_until(demand, now)
        opens_at = max(fits_at, throttled_until, overloaded_until, slot_at)
        if opens_at <= now:
            return None
        if opens_at == fits_at:
            return Gate(Reason.METER, opens_at)
        return Gate(Reason.BLOCKED if opens_at == throttled_until else Reason.CONCURRENCY, opens_at)

    def despite_at(self, ticket: Ticket, gate: Gate, stuck_at: float, now: float) -> float:
        """Monotonic instant at which a ticket goes although the gate is shut; infinite: the gate opens before.

        `stuck_at`: the instant at which the pool's patience ends.
        """
        if gate.reason not in _LEARNED or gate.opens_at <= stuck_at:
            return _NEVER
        at = max(stuck_at, self._announced_until(ticket, now))
        return at if at < gate.opens_at else _NEVER

    def despite(self, entry: QueueEntry, now: float) -> QueueEntry:
        """The ticket for an attempt that may be refused: the next, or the first that was not refused and may go."""
        refused = self.capacity.refused
        if entry.ticket not in refused:
            return entry
        fresh = self._queue.head_where(lambda ticket: ticket not in refused)
        return entry if fresh is None or self._announced_until(fresh.ticket, now) > now else fresh

    def _announced_until(self, ticket: Ticket, now: float) -> float:
        """Until when headers, orders or told waits hold a ticket; infinite: until an attempt ends or a person acts."""
        capacity = self.capacity
        if capacity.paused or capacity.is_full:
            return _NEVER
        return max(
            capacity.meters.fits_at(self.demand(ticket, now), ticket, _NO_BACKOFFS, now, hoped=True),
            capacity.breaker.passes_at,
            capacity.account_block.passes_at,
            capacity.slot_at(now),
            capacity.stated_until(ticket, now),
            *(hidden.told_until for hidden in capacity.hidden),
        )

    def demand(self, ticket: Ticket, now: float) -> Demand:
        """What an attempt that goes now is expected to take."""
        if ticket.cold_tokens and self._queue.is_cold(ticket, now):
            return ticket.cold_demand
        return ticket.demand

    def reason(self, entry: QueueEntry, gate: Gate | None, now: float) -> Reason:
        """Why a ticket waits, where `gate` keeps the next one from going."""
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
        """In what time one that is shed now may find room."""
        gate = self.gate(entry.ticket, now)
        fits_at = now if gate is None or gate.opens_at == _NEVER else gate.opens_at
        due_at = now if entry.state is EntryState.UNFUNDED else entry.not_before
        return max(SOONEST_COME_BACK_S, fits_at - now, due_at - now)

    def worth_holding_until(self, entry: QueueEntry, now: float) -> float | None:
        """Until when to keep one whose time has come: there will surely be room, and an answer before its client goes.

        None: that is not sure.
        """
        capacity, gate = self.capacity, self.gate(entry.ticket, now)
        opens_at = now if gate is None else gate.opens_at
        if capacity.is_full and not capacity.paused:
            opens_at = now + capacity.service.mean_s / capacity.limit
        until = max(opens_at, entry.not_before) + _SURE_S
        return None if until > capacity.hopeless_at(entry.ticket) else until
