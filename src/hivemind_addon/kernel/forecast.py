"""Forecasts when each waiting ticket is likely to go, from the present limits and queue, for views.

The forecast plays the rule of `selector.py` forward on simplified limits. Each ticket in the queue's order takes a slot
and its demand of every limit at the first instant at which all are free. While a window or a bucket holds a ticket,
those behind that fit go before, as far as the ticket's slack allows. A slot is free again after the mean service time.
Future arrivals and the lessons of future attempts are unknown.

**A call not made yet** is seated as a guest in the queue's order, and viewed like a waiting ticket.
`Callers` describes an agent's next call by the last calls.
"""

import heapq
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from hivemind_addon.kernel.limits.capacity import Capacity
from hivemind_addon.kernel.order.entry import QueueEntry
from hivemind_addon.kernel.order.fair_queue import FairQueue
from hivemind_addon.kernel.order.selector import LOOK_AT, SLACK, Selector
from hivemind_addon.kernel.values.command import ForeseeWait, Foresight
from hivemind_addon.kernel.values.snapshot import (
    CONCURRENCY,
    BreakerState,
    LimitNeed,
    PoolView,
    RequestState,
    TicketView,
)
from hivemind_addon.kernel.values.spend import Shortage
from hivemind_addon.kernel.values.ticket import CallKind, Demand, Dimension, PoolKey, Reason, Ticket

_NEVER = float("inf")
_LEAST_LEFT = 0.25
"""An attempt that has run for longer than the mean is expected to run for this part of the mean more."""
_MOST_RESERVATIONS = 50
"""The tickets behind later reservations keep their places: a view of many tickets takes milliseconds."""


@dataclass(slots=True)
class Supply:
    """The future units of one limit. Ask and take in the order of time."""

    name: str
    """For people."""
    dimension: Dimension
    limit: float
    level: float
    """At the instant `at`."""
    at: float
    per_s: float = 0.0
    """The refill rate of a bucket."""
    turns_at: float = _NEVER
    """The end of a window."""
    window_s: float = _NEVER

    def fits_at(self, demand: Demand, at: float) -> float:
        """The first instant from `at` on with enough units, or with the whole limit if the demand is larger."""
        missing = min(demand.of(self.dimension), self.limit) - self._level_at(at)
        if missing <= 0:
            return at
        return at + missing / self.per_s if self.per_s > 0 else self.turns_at

    def take(self, demand: Demand, at: float) -> None:
        """Take units at an instant."""
        self.level = self._level_at(at) - demand.of(self.dimension)
        self.at = max(at, self.at)
        if at >= self.turns_at:
            self.turns_at += self.window_s * (1 + (at - self.turns_at) // self.window_s)

    def _level_at(self, at: float) -> float:
        if at >= self.turns_at:
            return self.limit
        return min(self.limit, self.level + self.per_s * max(0.0, at - self.at))


class ForecastSlots:
    """The slots for attempts in flight, and when they are free again. Ask and take in the order of time."""

    name = CONCURRENCY

    def __init__(self, limit: int, service_s: float | None, ran_s: Iterable[float] = (), now: float = 0.0) -> None:
        """`service_s`: mean service time (None: unknown); `ran_s`: how long the attempts have been in flight."""
        self._limit = limit
        self._service_s = mean_s = _NEVER if service_s is None else service_s
        self._ends = sorted(
            now + (_NEVER if mean_s == _NEVER else max(mean_s - s, _LEAST_LEFT * mean_s)) for s in ran_s
        )
        """A list that never changes, so that copies may share it."""

    def fits_at(self, _: Demand, at: float) -> float:
        """The first instant from `at` on with a free slot; infinite: unknown."""
        # After a cut of the limit several attempts have to end.
        surplus = len(self._ends) - self._limit
        return at if surplus < 0 else max(at, self._ends[surplus])

    def take(self, _: Demand, at: float) -> None:
        """Start an attempt."""
        ends = self._ends[bisect_right(self._ends, at) :]
        insort(ends, at + self._service_s)
        self._ends = ends


def _limits(capacity: Capacity, now: float) -> list[Supply]:
    """All limits of a pool, except for slots; those that no header reports, as buckets."""
    supplies = []
    for meter in capacity.meters:
        supply = Supply(meter.name, meter.dimension, meter.limit, meter.level(now), now)
        if (turns_at := meter.window_ends_at(now)) is None:
            supply.per_s = meter.limit / meter.window_s - meter.others_per_s(now)
        else:
            supply.turns_at, supply.window_s = turns_at, meter.window_s
        supplies.append(supply)
    for hidden in capacity.hidden:
        if (limit := hidden.limit) is not None and limit.window_s is not None:
            per_s = limit.amount / limit.window_s
            # There is room for one attempt when the limit opens.
            level = 1.0 - max(0.0, hidden.opens_at(Demand(), 0, now) - now) * per_s
            supplies.append(Supply(limit.dimension.value, limit.dimension, limit.amount, level, now, per_s))
    stated = capacity.sharing.stated
    for one in stated.of(capacity.key.model_group):
        level, per_s = stated.as_bucket(one, now), one.amount / one.per_s
        supplies.append(Supply(one.limit, Dimension.REQUESTS, one.amount, level, now, per_s))
    return supplies


class Foretold(NamedTuple):
    """When a ticket is likely to go."""

    at: float
    by: str
    """The limit that the ticket, or a ticket ahead, waits for: a limit's name; empty: none."""


class Forecast:
    """The play: `of` has the likely starts of tickets by id, in this order; unknown starts are left out."""

    def __init__(self, limits: Sequence[Supply | ForecastSlots], *, first_at: float, others_at: float) -> None:
        """`first_at`: when the first ticket may go; `others_at`: when the later ones may."""
        self.of: dict[str, Foretold] = {}
        self._limits = limits
        self._at = Foretold(first_at, "")
        self._others_at = others_at
        self._reservations = 0

    def play(self, entries: Iterable[QueueEntry]) -> dict[str, Foretold]:
        """Play the tickets in the queue's order."""
        ready = deque(entries)
        later: list[tuple[float, int, QueueEntry]] = []
        while ready or later:
            if later and (not ready or later[0][0] <= self._at.at):
                entry = heapq.heappop(later)[2]
            else:
                entry = ready.popleft()
                if entry.not_before > self._at.at:
                    heapq.heappush(later, (entry.not_before, -len(ready), entry))
                    continue
            start = self._start(entry)
            if start.by != CONCURRENCY and start.at > self._at.at and self._reservations < _MOST_RESERVATIONS:
                self._reservations += 1
                self._backfill(entry, start.at, ready)
                start = self._start(entry)
            if start.at == _NEVER:
                break
            self._go(entry, start)
        return self.of

    def _start(self, entry: QueueEntry) -> Foretold:
        """The first instant at which all limits admit a ticket, and the limit that comes last."""
        at, by = max(self._at.at, entry.not_before), self._at.by
        for limit in self._limits:
            if at < _NEVER and (fits_at := limit.fits_at(entry.ticket.demand, at)) > at:
                at, by = fits_at, limit.name
        return Foretold(at, by)

    def _backfill(self, held: QueueEntry, held_until: float, ready: deque[QueueEntry]) -> None:
        """Let tickets behind a held ticket go before, as far as the slack allows."""
        until, stay = held_until + SLACK * (held_until - self._at.at), []
        for _ in range(min(len(ready), LOOK_AT)):
            entry = ready.popleft()
            start, before = self._start(entry), (self._at, self._limits)
            if entry.not_before <= self._at.at and start.at < held_until:
                self._limits = [copy(limit) for limit in self._limits]
                self._go(entry, start)
                if self._start(held).at <= until:
                    continue
                del self.of[entry.ticket.id]
                self._at, self._limits = before
            stay.append(entry)
        ready.extendleft(reversed(stay))

    def _go(self, entry: QueueEntry, start: Foretold) -> None:
        self.of[entry.ticket.id] = start
        for limit in self._limits:
            limit.take(entry.ticket.demand, start.at)
        self._at = Foretold(max(start.at, self._others_at), start.by)


def foretell(capacity: Capacity, entries: Iterable[QueueEntry], now: float) -> dict[str, Foretold]:
    """When tickets, in this order, are likely to go."""
    if capacity.paused:
        return {}
    service_s = capacity.service.mean_s if capacity.service.is_known else None
    # A shared limit counts the attempts of all pools of the account.
    users = capacity.share.members
    ran_s = [now - attempt.admitted_at for user in users for attempt in user.flights.attempts]
    slots = ForecastSlots(capacity.limit, service_s, ran_s + [0.0] * sum(user.bypassing for user in users), now)
    first_at = others_at = max(now, *(hidden.closed_until for hidden in capacity.hidden))
    probes_at = max(capacity.breaker.passes_at, capacity.account_block.ends_at(now))
    if probes_at > -_NEVER:  # a probe goes first, the others wait for the answer; infinite: the probe is in flight
        answer_s = _NEVER if service_s is None else service_s
        is_sent = probes_at == _NEVER
        first_at = max(first_at, now + answer_s if is_sent else probes_at)
        others_at = first_at if is_sent else first_at + answer_s
    return Forecast([slots, *_limits(capacity, now)], first_at=first_at, others_at=others_at).play(entries)


def view_pool(
    selector: Selector,
    queue: FairQueue,
    now: float,
    *,
    order: Sequence[QueueEntry],
    most: int | None,
    short: Callable[[Ticket, float], Shortage | None],
) -> PoolView:
    """The view of a pool. `order`: waiting tickets, of which `most` are shown; `short`: a ticket's shortage."""
    capacity, breaker = selector.capacity, selector.capacity.breaker
    in_flight = (
        TicketView(_as_served(entry), RequestState.IN_FLIGHT, "", 0, entry.history.attempts, entry.waited_s)
        for entry in capacity.flights
    )
    return PoolView(
        key=capacity.key,
        account_name=None,
        in_flight=capacity.in_flight,
        bypassing=capacity.bypassing,
        limit=capacity.limit,
        queued=len(queue),
        breaker=breaker.state.value,
        blocked_for_s=max(0.0, capacity.hidden[0].closed_until - now),
        meters=(*capacity.meters.views(now), *capacity.stated_views(now)),
        tickets=(*in_flight, *_waiting(queue, selector.glance(now), now, order, most, short)),
        account_block=capacity.account_block.view(now),
        windows=capacity.windows.views(now),
        paused=capacity.paused,
        cap=capacity.cap,
        learned=capacity.learned.views(*(hidden.view(now) for hidden in capacity.hidden)),
        breaker_tries_in_s=max(0.0, breaker.passes_at - now) if breaker.state is BreakerState.OPEN else None,
        sharing=capacity.share.words if len(capacity.sharing.members) > 1 else "",
        longest_wait_s=max((_waited_s(entry, now) for entry in queue), default=0.0),
        maximum_from=capacity.maximum_from,
    )


_BY_LIMITS = (Reason.METER, Reason.ORDER, Reason.CONCURRENCY, Reason.BLOCKED)
"""Reasons to wait for a limit, directly or behind others."""


def _waiting(
    queue: FairQueue,
    glance: Selector,
    now: float,
    order: Sequence[QueueEntry],
    most: int | None,
    short: Callable[[Ticket, float], Shortage | None],
) -> Iterator[TicketView]:
    """In the likely order of the starts."""
    entries = order[:most]
    if not entries:
        return
    capacity = glance.capacity
    following, gate = glance.likely_next(order, now)
    if following is not None and following is not entries[0]:
        entries = [following, *(entry for entry in entries if entry is not following)]
    starts = foretell(capacity, (entry for entry in entries if queue.why_passed(entry) is not Reason.FAN_OUT), now)
    place_of = {ticket_id: place for place, ticket_id in enumerate(starts)}
    supplies = {supply.name: supply for supply in _limits(capacity, now)}
    waiting_for: Counter[str] = Counter()
    ordered = sorted(entries, key=lambda entry: place_of.get(entry.ticket.id, len(place_of)))
    for position, entry in enumerate(ordered, start=1):
        ticket = entry.ticket
        foretold, reason, limit = starts.get(ticket.id), glance.reason(entry, gate, now), None
        if reason in _BY_LIMITS:
            demand = glance.demand(ticket, now)
            by = foretold.by if foretold else CONCURRENCY if reason is Reason.CONCURRENCY else ""
            if not by and reason is Reason.METER:
                by = capacity.meters.last_to_fit(demand, now)
            if by == CONCURRENCY:
                free = max(0.0, capacity.free_slots)
                limit = LimitNeed(by, 1, free, capacity.limit, waiting_for[by], capacity.maximum_from)
            elif supply := supplies.get(by):
                needs, left = demand.of(supply.dimension), max(0.0, supply.level)
                limit = LimitNeed(by, needs, left, supply.limit, waiting_for[by])
            waiting_for[by] += 1
        missing = short(ticket, now) if reason is Reason.FUNDS else None
        yield TicketView(
            ticket=_as_served(entry),
            state=RequestState.BACKING_OFF if entry.not_before > now else RequestState.QUEUED,
            reason=reason.value,
            position=position,
            attempts=entry.history.attempts,
            waited_s=_waited_s(entry, now),
            starts_in_s=None
            if foretold is None
            else max(0.0, foretold.at - now, queue.cache.opens_at(ticket, now) - now),
            limit=limit,
            budget=None if missing is None else missing.budget,
        )


def _waited_s(entry: QueueEntry, now: float) -> float:
    return entry.waited_s + max(0.0, now - entry.wait_began_at)


def _as_served(entry: QueueEntry) -> Ticket:
    """The ticket with the class in which the queue serves it."""
    ticket = entry.ticket
    return ticket if entry.priority is ticket.priority else replace(ticket, priority=entry.priority)


def foresee(
    guest: QueueEntry, short: Shortage | None, *, queue: FairQueue, selector: Selector, now: float
) -> Foresight:
    """Foresee the wait of a call. `guest`: the call's ticket, not in this pool; `short`: the call's shortage."""
    glance, pool = selector.glance(now), selector.capacity.key
    if closure := glance.capacity.account_block.stands(now):
        return Foresight(pool, closure.until - now, 0, closure.why, block_reason=closure.reason)
    if short is not None and not short.may_pass:
        return Foresight(pool, short.renews_in_s, 0, Reason.BUDGET, budget=short.budget)
    queue.seat(guest, now)
    views = _waiting(queue, glance, now, queue.in_order(guest), None, lambda *_: None)
    view = next(view for view in views if view.ticket.id == guest.ticket.id)
    before = view.position - 1
    if short is not None:
        return Foresight(pool, None, before, Reason.FUNDS, budget=short.budget)
    if glance.gate(guest.ticket, now) is None and (not before or view.starts_in_s == 0):
        return Foresight(pool, 0.0, 0)
    return Foresight(pool, view.starts_in_s, before, Reason(view.reason), view.limit)


_MOST = 500
"""The most sessions to remember of each pool: the newest."""


class Callers:
    """The last ticket of each session, the newest last. Auxiliary calls (titles) are left out."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], Ticket] = {}

    def called(self, ticket: Ticket) -> None:
        """Note a new ticket. Called for every request, so the next call is worked out only in `next_call`."""
        if ticket.kind is CallKind.AUXILIARY:
            return
        session = (ticket.agent, ticket.session)
        self._last.pop(session, None)
        self._last[session] = ticket
        if len(self._last) > _MOST:
            del self._last[next(iter(self._last))]

    @property
    def agents(self) -> dict[str, str]:
        """The remembered callers, each with the group."""
        return {ticket.agent: ticket.group for ticket in self._last.values()}

    def called_at(self, agent: str) -> float | None:
        """When an agent's last call came; None: no call is remembered."""
        last = self._last_of(agent)
        return None if last is None else last.arrived_at

    def next_call(self, asked: ForeseeWait, pool: PoolKey, now: float) -> Ticket:
        """The ticket that an agent would submit now, like the session's, the agent's or anybody's last call."""
        agent, session = asked.agent, asked.session
        last = self._last_of(agent)
        if known := self._last.get((agent, session)) if session else last:
            made = known
        elif last:
            # A new session has no cached conversation and no parent.
            made = replace(last, session=session, cached_tokens=0, cold_tokens=0, kind=CallKind.TURN, parent_session="")
        else:
            others = next(reversed(self._last.values()), None)
            model, demand = (others.model, others.demand) if others else ("", Demand())
            made = Ticket("", pool, agent, session or agent, model, demand, now, _NEVER, _NEVER)
        demand = made.demand
        if asked.input_tokens or asked.output_tokens:
            into, out = asked.input_tokens or demand.input_tokens, asked.output_tokens or demand.output_tokens
            demand = replace(demand, input_tokens=into, output_tokens=out, total_tokens=into + out)
        return replace(made, id="", arrived_at=now, deadline_at=_NEVER, shed_at=_NEVER, request_hash="", demand=demand)

    def _last_of(self, agent: str) -> Ticket | None:
        return next((ticket for (name, _), ticket in reversed(self._last.items()) if name == agent), None)
