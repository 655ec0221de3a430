"""One provider limit domain: its meters, concurrency limit, breaker, pause and queue.

The pool puts the rooms together and decides nothing that belongs to one of them. A ticket goes when it is the next
in order and all of these let it: the breaker, the pause that a refusal asked for, the concurrency limit, every meter.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from hivemind_addon.core.aimd import AimdLimit, ConcurrencySettings
from hivemind_addon.core.backoffs import Backoffs
from hivemind_addon.core.brake import Brake
from hivemind_addon.core.breaker import Breaker, BreakerSettings, BreakerState
from hivemind_addon.core.budget import Budgets
from hivemind_addon.core.comeback import Comebacks
from hivemind_addon.core.command import Cancel
from hivemind_addon.core.cost import ServiceTime, dominant_s, reading_s
from hivemind_addon.core.decision import Admitted, Backoff, Finished, GiveUp, Reason, Refused, Shed, Verdict
from hivemind_addon.core.events import (
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    BreakerChanged,
    ConcurrencyChanged,
    Event,
    Held,
    MeterLearned,
    PoolBlocked,
    Superseded,
    TicketEnded,
    WallHit,
    WallOpened,
    WindowUsed,
)
from hivemind_addon.core.fair_queue import FairQueue, OrderSettings
from hivemind_addon.core.flights import Flight, Flights
from hivemind_addon.core.forecast import Outlook
from hivemind_addon.core.lanes import Place
from hivemind_addon.core.learned import LearnedPool
from hivemind_addon.core.meters import Meters
from hivemind_addon.core.orders import Orders
from hivemind_addon.core.retry import RetryPolicy, decide, last_moment
from hivemind_addon.core.snapshot import PoolView, TicketView
from hivemind_addon.core.spend import Shortage
from hivemind_addon.core.ticket import (
    ContractError,
    Demand,
    Dimension,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Reservation,
    Ticket,
    Usage,
)
from hivemind_addon.core.wall import Closure, Wall
from hivemind_addon.core.windows import Windows

_NEVER = float("inf")
_SOONEST_COME_BACK_S = 1.0
_MOST_ENDING_S = 5.0
"""So long a ticket waits for the end of an attempt that it supersedes."""
_LAST_CHANCE_S = 10.0
"""So shortly before it would be shed a ticket goes before others."""
_LAST_SHARE = 0.1
"""Or where less than this share of its patience would be left after the next window's turn."""
_LONG_WAIT = 0.4
"""Of its patience, at least."""
_FAILURES = (OutcomeKind.FAILED, OutcomeKind.OVERLOADED, OutcomeKind.THROTTLED)
_SURE_S = 0.25
"""How long after the instant at which it fits a ticket has surely gone, if it goes at all."""
_HURRIED_S = 2.0
"""With less time than this after a window's turn there may be no second try."""
_SURE_SERVICES = 1.5
"""In so many mean times an answer comes, mostly."""
_SCARCE = 2
"""A limit is scarce that has not so many times what all who wait want: some will need it twice."""
_TIMER_STEP_S = 0.001
"""No wakeup is closer than this: timers are no finer."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a profile says about its pools."""

    concurrency: ConcurrencySettings = field(default_factory=ConcurrencySettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    order: OrderSettings = field(default_factory=OrderSettings)


@dataclass(frozen=True, slots=True)
class _Gate:
    """What keeps a ticket from going."""

    reason: Reason
    opens_at: float
    """Infinite: when another attempt ends."""


class Pool:
    """Only the scheduler calls it. After any call, `poll` it, then wake it again at `wakeup_at`."""

    def __init__(
        self,
        *,
        key: PoolKey,
        settings: PoolSettings,
        rng: random.Random,
        emit: Callable[[Event], None],
        budgets: Budgets | None = None,
        orders: Orders | None = None,
    ) -> None:
        self.key = key
        self.account_name: str | None = None
        self.bypassing = 0
        self.wakeup_at: float | None = None
        """When the last poll wants the next one, if nothing happens before."""
        self._settings = settings
        self._rng = rng
        self._emit = emit
        self._budgets = budgets or Budgets(emit=emit)
        self._orders = orders or Orders()
        self.paused = self._orders.is_paused(key)
        """By a person."""
        self._cap = self._orders.cap_of(key)
        self._queue = FairQueue(
            settings.order,
            cost_s=self._cost_s,
            saved_s=lambda tokens: reading_s(tokens, self._meters),
        )
        self._service = ServiceTime()
        self._flights = Flights()
        self._meters = Meters()
        self._aimd = AimdLimit(settings.concurrency)
        self._breaker = Breaker(settings.breaker, rng=rng)
        self._brake = Brake(rng=rng)
        self._wall = Wall()
        self._windows = Windows()
        self._comebacks = Comebacks()
        self._backoffs = Backoffs()
        self._successors: dict[str, str] = {}
        """Tickets that wait for the end of another one's attempt, by that one."""
        self._stamp = 0
        self._to_announce: list[str] = []
        """Tickets whose wait began since the last poll."""
        self._probe_choice: str | None = None

    def __repr__(self) -> str:
        return f"<Pool {self.key} {self.in_flight}/{self.limit} in flight, {len(self._queue)} queued>"

    @property
    def in_flight(self) -> int:
        """Attempts upstream, bypassing ones counted."""
        return len(self._flights) + self.bypassing

    @property
    def limit(self) -> int:
        """The concurrency limit: what was learned, or less where a person said so."""
        return self._aimd.limit if self._cap is None else min(self._aimd.limit, self._cap)

    @property
    def is_capped(self) -> bool:
        """Whether it is a person that holds the limit down: what fills it proves nothing about a higher one."""
        return self._cap is not None and self._aimd.limit >= self._cap

    def submit(self, ticket: Ticket, now: float) -> Reservation | None:
        """Queue a new ticket; one that comes back has its old place. An attempt that it supersedes is to be ended."""
        place = Place(ticket=ticket, wait_began_at=ticket.arrived_at, standing=self._comebacks.claim(ticket, now))
        if self._service.is_known:
            place.shed_at = last_moment(ticket, self._service.mean_s)
        place.priority = self._orders.priority_of(ticket.agent, ticket.priority)
        old = self._superseded_by(ticket, now)
        if old is not None:
            self._successors[old.ticket.id] = ticket.id
            place.not_before = now + _MOST_ENDING_S
            self._emit(Superseded(at=now, ticket_id=old.ticket.id, pool=self.key, by_ticket_id=ticket.id))
        self._queue.append(place, now)
        self._to_announce.append(ticket.id)
        return old

    def cancel(self, ticket_id: str, now: float) -> bool:
        """Take a queued ticket out, whose client went."""
        place = self._take_out(ticket_id, now)
        if place is None:
            return False
        self._comebacks.keep(place.ticket, place.standing, now)
        self._end_ticket(place, now, end="cancelled", reason="client went")
        return True

    def call_off(self, ticket_id: str, now: float) -> Refused | Reservation | None:
        """A person wants a ticket to end: a queued one is refused; an attempt in flight is to be ended.

        None: it is neither.
        """
        if place := self._take_out(ticket_id, now):
            self._end_ticket(place, now, end="cancelled", reason="cancelled by a person")
            return Refused(ticket=place.ticket, cause=Cancel(ticket_id))
        flight = self._flights.of_ticket(ticket_id)
        return None if flight is None else flight.reservation

    def obey(self, now: float) -> None:
        """Persons' orders have changed."""
        limit = self.limit
        self.paused = self._orders.is_paused(self.key)
        self._cap = self._orders.cap_of(self.key)
        if self.limit != limit:
            self._emit(ConcurrencyChanged(at=now, pool=self.key, limit=self.limit, reason="a person said so"))
        for place in self._queue:
            priority = self._orders.priority_of(place.ticket.agent, place.ticket.priority)
            if priority is not place.priority:
                self._queue.reclass(place, priority, now)

    def _take_out(self, ticket_id: str, now: float) -> Place | None:
        place = self._queue.remove(ticket_id, now)
        if place is not None:
            self._backoffs.discard(ticket_id)
            self._end_wait(place, now)
        return place

    def expedite(self, ticket_id: str, now: float) -> bool:
        """Move a queued ticket to the front."""
        return self._queue.expedite(ticket_id, now)

    def look_again(self, ticket_id: str, now: float) -> None:
        """A ticket that waited for its budget may fit into it now; it has its old place."""
        place = self._queue.get(ticket_id)
        if place is not None and place.not_before == _NEVER:
            self._make_due(place, now, now)

    def clock_jumped(self, delta_s: float, now: float) -> None:
        """So much time passed for the provider while everything here slept.

        Deadlines stay: the clients slept as well, and their clocks stood as still as ours.
        """
        self._aimd.clock_jumped(delta_s)
        self._aimd.rest()
        self._breaker.clock_jumped(delta_s)
        self._brake.clock_jumped(delta_s)
        self._wall.clock_jumped(delta_s)
        self._windows.clock_jumped(delta_s)
        self._meters.clock_jumped(delta_s)
        for place in self._backoffs:
            if now < place.not_before < _NEVER:
                self._make_due(place, place.not_before - delta_s, now)

    @property
    def learned(self) -> LearnedPool:
        """What outlives a run."""
        return LearnedPool(
            key=self.key,
            ceiling=self._aimd.ceiling,
            pace_per_s=self._brake.pace.rate,
            quota=self._brake.quota.limit,
            quota_window_s=self._brake.quota.window_s,
            meters=self._meters.learned,
        )

    def resume(self, learned: LearnedPool, now: float) -> None:
        """Begin with what an earlier run has learned, before the first ticket."""
        if learned.ceiling is not None:
            self._aimd.resume(learned.ceiling)
        if learned.pace_per_s is not None:
            self._brake.pace.resume(learned.pace_per_s)
        if learned.quota is not None:
            self._brake.quota.resume(limit=learned.quota, window_s=learned.quota_window_s)
        self._meters.resume(learned.meters, now)

    def absorb(self, other: "Pool", now: float) -> None:
        """Take over all that another pool has, which proved to be of the same account."""
        self._meters.absorb(other._meters, self._flights, now)  # noqa: SLF001  its own kind
        for flight in other._flights:  # noqa: SLF001
            self._stamp += 1
            # Its breaker is not ours: here it is an attempt like others.
            moved = replace(flight, stamp=self._stamp, is_probe=False)
            self._flights.add(moved)
            self._meters.adopt(moved, now)
        self._queue.absorb(other._queue, [flight.place for flight in other._flights], now)  # noqa: SLF001
        self._aimd.absorb(other._aimd)  # noqa: SLF001
        self._brake.absorb(other._brake)  # noqa: SLF001
        self._wall.absorb(other._wall)  # noqa: SLF001
        self._windows.absorb(other._windows)  # noqa: SLF001
        self._comebacks.absorb(other._comebacks)  # noqa: SLF001
        self._backoffs.absorb(other._backoffs)  # noqa: SLF001
        self._successors |= other._successors  # noqa: SLF001
        self._to_announce += other._to_announce  # noqa: SLF001

    # Step 4: who goes now, who is refused

    def poll(self, now: float, *, stopping: bool) -> list[Admitted | Shed | Refused]:
        """Admit, shed and refuse what is due."""
        decisions: list[Admitted | Shed | Refused] = []
        if not self._queue:
            self._to_announce.clear()
            self.wakeup_at = None
            return decisions
        if stopping:
            decisions.extend(
                self._shed(place, now, Reason.STOPPING, _SOONEST_COME_BACK_S) for place in self._queue.in_order()
            )
        if closure := self._wall.stands(now):
            decisions.extend(self._refuse_at_wall(place, closure, now) for place in self._queue.in_order())
        while place := self._queue.first_to_shed(now):
            if not self._hold_on(place, now):
                decisions.append(self._shed(place, now, Reason.DEADLINE, self._come_back_s(place, now)))
        decisions.extend(self._refuse_unfunded(now))
        self._queue.wake(now)
        gate: _Gate | None = None
        while (place := self._next(now)) and not (gate := self._gate(place.ticket, now)):
            short = self._budgets.reserve(place.ticket, now)
            if short is None:
                decisions.append(self._admit(place, now))
            elif not short.may_pass:
                decisions.append(self._refuse(place, short, now))
            elif place.not_before == _NEVER:
                self._probe_choice = None
                gate = _Gate(Reason.FUNDS, _NEVER)
                break
            else:
                self._wait_for_funds(place, short, now)
        self._announce(place, gate, now)
        self.wakeup_at = self._wakeup_at(gate, now)
        return decisions

    # Step 6: a response's head arrived

    def observe(self, reservation: Reservation, hints: Hints, now: float, *, answered: bool) -> None:
        """Let the meters learn, and the prompt cache. An attempt that has ended already teaches nothing."""
        flight = self._flights.of(reservation)
        if flight is None:
            return
        self._note_windows(hints, now)
        if answered:
            self._queue.began(flight.place, sent_at=reservation.admitted_at, now=now)
            self._pass_wall(reservation.ticket.id, now)
        for reading in hints.readings:
            if meter := self._meters.learn(reading, flight, self._flights, now):
                self._emit(
                    MeterLearned(
                        at=now,
                        pool=self.key,
                        meter=meter.name,
                        kind=meter.kind.value,
                        limit=meter.limit,
                        window_s=meter.window_s,
                        dimension=meter.dimension,
                    )
                )

    # Step 9: an attempt ended

    def settle(
        self,
        reservation: Reservation,
        outcome: Outcome,
        now: float,
        *,
        usage: Usage | None,
        charged: Demand | None,
        client_saw_bytes: bool,
        stopping: bool,
    ) -> Verdict:
        """End an attempt and judge what follows."""
        flight = self._flights.of(reservation)
        if flight is None:
            raise ContractError(f"{reservation.ticket.id}: attempt {reservation.attempt} was settled already")
        self._flights.remove(flight)
        self._let_successor_go(reservation.ticket.id, now)
        place = flight.place
        self._stamp += 1
        # One that was cut off without a word may have been charged though refusals are not.
        failed = outcome.status is not None and outcome.kind in _FAILURES
        self._meters.settle(flight, settled_stamp=self._stamp, charged=charged, failed=failed, now=now)
        place.wait_began_at = now
        if outcome.kind is OutcomeKind.SUCCESS:
            self._service.succeeded(max(0.0, now - reservation.admitted_at))
            self._queue.began(place, sent_at=reservation.admitted_at, now=now)
        answered = outcome.kind is OutcomeKind.SUCCESS or outcome.status is None or outcome.status < 400
        self._queue.settle(place, self._took_s(flight, outcome, charged, now), now, answered=answered)
        self._emit(
            AttemptEnded(
                at=now,
                ticket_id=place.ticket.id,
                pool=self.key,
                attempt=reservation.attempt,
                outcome=outcome,
                usage=usage,
                duration_s=max(0.0, now - reservation.admitted_at),
            )
        )
        self._teach(flight, outcome, now)
        self._meet_wall(reservation.ticket.id, outcome, now)
        match outcome.kind:
            case OutcomeKind.SUCCESS:
                self._end_ticket(place, now, end="delivered", reason=outcome.reason)
                return Finished()
            case OutcomeKind.CANCELLED:
                self._end_ticket(place, now, end="cancelled", reason=outcome.reason)
                return Finished()
        provider_down = self._breaker.state is not BreakerState.CLOSED
        place.history = place.history.ended(outcome, provider_down=provider_down)
        verdict = decide(
            self._settings.retry,
            place.history,
            outcome,
            now,
            self._rng,
            # Who has been tried already is tried as long as an answer can come in time.
            shed_at=max(place.shed_at, self._hopeless_at(place.ticket)),
            pool_ready_at=max(self._brake.pause.until, self._breaker.passes_at if provider_down else now),
            provider_down=provider_down,
            stopping=stopping,
            client_saw_bytes=client_saw_bytes,
        )
        if isinstance(verdict, GiveUp):
            self._end_ticket(place, now, end="gave up", reason=verdict.reason.value, last_outcome=outcome.reason)
        else:
            self._put_back(place, verdict, now)
        return verdict

    def view(self, now: float, *, most_queued: int | None = None) -> PoolView:
        """The pool at one instant, with at most so many of those that wait; None: all of them."""
        return PoolView(
            key=self.key,
            account_name=self.account_name,
            in_flight=self.in_flight,
            bypassing=self.bypassing,
            limit=self.limit,
            queued=len(self._queue),
            breaker=self._breaker.state.value,
            blocked_for_s=max(0.0, self._brake.pause.until - now),
            meters=self._meters.views(now),
            tickets=(*self._view_flights(), *self._view_queue(now, most_queued)),
            wall=self._wall.view(now),
            windows=self._windows.views(now),
            paused=self.paused,
            cap=self._cap,
            learned=self.learned.views,
            breaker_tries_in_s=(
                max(0.0, self._breaker.passes_at - now) if self._breaker.state is BreakerState.OPEN else None
            ),
        )

    def _cost_s(self, demand: Demand) -> float:
        """Seconds of the bottleneck that an attempt is expected to take."""
        cost_s = dominant_s(demand, self._meters, service_s=self._service.mean_s, slots=self.limit)
        return max(cost_s, self._brake.attempt_s)

    def _demand(self, ticket: Ticket, now: float) -> Demand:
        """What an attempt that goes now is expected to take."""
        if ticket.cold_tokens and self._queue.is_cold(ticket, now):
            return ticket.cold_demand
        return ticket.demand

    def _took_s(self, flight: Flight, outcome: Outcome, charged: Demand | None, now: float) -> float:
        """Seconds of the bottleneck that an attempt took."""
        took = charged
        if took is None:
            refused = outcome.kind in (OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED, OutcomeKind.FAILED)
            took = Demand(requests=0) if refused else flight.demand
        held_s = max(0.0, now - flight.reservation.admitted_at)
        cost_s = dominant_s(took, self._meters, service_s=held_s, slots=self.limit)
        return max(cost_s, self._brake.attempt_s) if took.requests else cost_s

    def _next(self, now: float) -> Place | None:
        """Who goes next: the head, or while the provider is down the one who probes."""
        if self._breaker.passes_at == -_NEVER:
            return self._last_chance(now) or self._queue.head()
        if self._breaker.passes_at > now:
            return self._queue.head() or self._queue.soonest()
        chosen = self._queue.get(self._probe_choice) if self._probe_choice else None
        if chosen is None:
            # A ticket that backs off probes only when nobody else is there: a pool never waits for its tickets.
            others = self._queue.head_of_others(self._breaker.last_probe_session)
            chosen = others or self._queue.head() or self._queue.soonest()
            self._probe_choice = chosen.ticket.id if chosen else None
        return chosen

    def _gate(self, ticket: Ticket, now: float) -> _Gate | None:
        if self.paused:
            return _Gate(Reason.PAUSED, _NEVER)
        if self._breaker.passes_at > now:
            return _Gate(Reason.BREAKER, self._breaker.passes_at)
        if self._wall.passes_at > now:
            return _Gate(Reason.WALL, self._wall.passes_at)
        is_paused = self._brake.pause.until > now
        if self.in_flight >= self.limit:
            # It looks back at each window when it is over, even where nothing can go.
            self._brake.quota.roll(now)
            return _Gate(Reason.BLOCKED if is_paused else Reason.CONCURRENCY, _NEVER)
        fits_at = self._fits_at(ticket, now)
        # One that cannot wait so long tries whether the window has turned before: alone, for it may be refused.
        if fits_at > now and not self._flights and fits_at + _HURRIED_S > self._hopeless_at(ticket):
            fits_at = self._fits_at(ticket, now, hurried=True)
        if is_paused:
            return _Gate(Reason.BLOCKED, max(self._brake.pause.until, fits_at))
        return _Gate(Reason.METER, fits_at) if fits_at > now else None

    def _fits_at(self, ticket: Ticket, now: float, *, hurried: bool = False) -> float:
        """When quota, pace and all meters have room for a ticket, if nothing else changes."""
        kept = self._backoffs.kept_of_quota(self._brake.quota, ticket, now)
        demand = self._demand(ticket, now)
        metered_at = self._meters.fits_at(demand, ticket, self._backoffs, now, hurried=hurried)
        return max(self._brake.passes_at(now, kept=kept), metered_at)

    def _admit(self, place: Place, now: float) -> Admitted:
        ticket = place.ticket
        demand = self._demand(ticket, now)
        self._queue.admit(place, now)
        self._backoffs.discard(ticket.id)
        self._stamp += 1
        place.history = place.history.started()
        reservation = Reservation(ticket=ticket, attempt=place.history.attempts, admitted_at=now)
        self._meters.reserve(demand, stamp=self._stamp, now=now)
        self._brake.sent(now)
        self._wall.sent(ticket.id)
        is_probe = self._breaker.state is not BreakerState.CLOSED
        in_flight = self.in_flight + 1
        self._flights.add(
            Flight(
                place=place,
                reservation=reservation,
                demand=demand,
                stamp=self._stamp,
                in_flight=in_flight,
                fills_limit=self._aimd.fills(in_flight) and not self.is_capped,
                is_probe=is_probe,
            )
        )
        waited_s = self._end_wait(place, now)
        if is_probe:
            self._probe_choice = None
            before = self._breaker.state
            self._breaker.probe_started(ticket.session, now)
            self._emit_breaker(before, "probe sent", now)
        self._emit(
            AttemptStarted(
                at=now,
                ticket_id=ticket.id,
                pool=self.key,
                attempt=reservation.attempt,
                waited_s=waited_s,
                in_flight=in_flight,
            )
        )
        return Admitted(reservation)

    def _shed(self, place: Place, now: float, reason: Reason, come_back_s: float) -> Shed:
        self._take_out(place.ticket.id, now)
        self._comebacks.keep(place.ticket, place.standing, now)
        self._end_ticket(place, now, end="shed", reason=reason.value)
        return Shed(ticket=place.ticket, reason=reason, come_back_s=come_back_s)

    def _refuse_unfunded(self, now: float) -> list[Refused]:
        """Whoever begins to wait (backed-off tickets too) hears at once that its budget is spent."""
        refused = []
        for ticket_id in self._to_announce:
            place = self._queue.get(ticket_id)
            short = self._budgets.shortage(place.ticket, now) if place else None
            if place and short and not short.may_pass:
                refused.append(self._refuse(place, short, now))
        return refused

    def _refuse(self, place: Place, short: Shortage, now: float) -> Refused:
        self._take_out(place.ticket.id, now)
        self._end_ticket(place, now, end="refused", reason=f"{Reason.BUDGET.value}: {short.budget.holder}")
        return Refused(ticket=place.ticket, cause=short)

    def _refuse_at_wall(self, place: Place, closure: Closure, now: float) -> Refused:
        self._take_out(place.ticket.id, now)
        self._end_ticket(place, now, end="refused", reason=f"{Reason.WALL.value}: {closure.reason}")
        return Refused(ticket=place.ticket, cause=closure)

    def _meet_wall(self, ticket_id: str, outcome: Outcome, now: float) -> None:
        """An attempt's end may be the wall, or prove it open."""
        if outcome.kind is OutcomeKind.SUCCESS:
            self._pass_wall(ticket_id, now)
        if outcome.wall_s is not None and self._wall.hit(outcome.reason, outcome.wall_s, now):
            closure = self._wall.stands(now)
            until = now if closure is None else closure.until
            self._emit(WallHit(at=now, pool=self.key, until=until, reason=outcome.reason))
        self._wall.ended(ticket_id)

    def _pass_wall(self, ticket_id: str, now: float) -> None:
        if self._wall.answered(ticket_id):
            self._emit(WallOpened(at=now, pool=self.key))

    def _note_windows(self, hints: Hints, now: float) -> None:
        for reading in hints.windows:
            if self._windows.learn(reading, now):
                self._emit(
                    WindowUsed(
                        at=now,
                        pool=self.key,
                        window=reading.window,
                        used=reading.used,
                        status=reading.status,
                        resets_in_s=reading.resets_in_s,
                    )
                )

    def _wait_for_funds(self, place: Place, short: Shortage, now: float) -> None:
        """Out of the others' way, at its own place, until an attempt of the same budget ends."""
        self._queue.remove(place.ticket.id, now)
        self._queue.put_back(place, _NEVER, now)
        self._probe_choice = None
        self._budgets.wait(place.ticket, short, now)

    def _come_back_s(self, place: Place, now: float) -> float:
        gate = self._gate(place.ticket, now)
        fits_at = now if gate is None or gate.opens_at == _NEVER else gate.opens_at
        due_at = now if place.not_before == _NEVER else place.not_before
        return max(_SOONEST_COME_BACK_S, fits_at - now, due_at - now)

    def _announce(self, head: Place | None, gate: _Gate | None, now: float) -> None:
        """One Held for each wait that did not end in the poll after its beginning."""
        for ticket_id in self._to_announce:
            place = self._queue.get(ticket_id)
            if place is not None:
                self._emit(
                    Held(
                        at=now,
                        ticket_id=ticket_id,
                        pool=self.key,
                        reason=self._reason(place, head, gate, now),
                        # Exact for a new ticket; one that came back is somewhere before the end.
                        position=1 if place is head else len(self._queue),
                    )
                )
        self._to_announce.clear()

    def _reason(self, place: Place, head: Place | None, gate: _Gate | None, now: float) -> Reason:
        if self.paused:
            return Reason.PAUSED
        if place.not_before == _NEVER:
            return Reason.FUNDS
        if place.not_before > now:
            return Reason.BACKOFF
        if passed := self._queue.why_passed(place):
            return passed
        if gate is None or (place is not head and gate.reason is Reason.METER):
            return Reason.ORDER
        return gate.reason

    def _wakeup_at(self, gate: _Gate | None, now: float) -> float | None:
        at = min(self._queue.next_shed_at(), self._queue.next_due_at(), gate.opens_at if gate else _NEVER)
        return None if at == _NEVER else max(at, now + _TIMER_STEP_S)

    def _last_chance(self, now: float) -> Place | None:
        """One that would be shed before there is room again, or very soon, and has waited for long.

        Only where a limit has not enough for all; and it pays for what it takes like any other.
        """
        if not self._meters and self._brake.is_off:
            return None
        place = self._queue.first_to_shed(_NEVER)
        if place is None or place.not_before > now:
            return None
        ticket = place.ticket
        # Asked before the meters: most polls end here.
        patience_s = place.shed_at - ticket.arrived_at
        if now - ticket.arrived_at < _LONG_WAIT * patience_s or self._queue.why_passed(place):
            return None
        turns_at = (self._brake.quota.turns_at(now), self._meters.next_window_at(now))
        soonest_at = min((at for at in turns_at if at is not None), default=now)
        if place.shed_at > max(now + _LAST_CHANCE_S, soonest_at + _LAST_SHARE * patience_s):
            return None
        wanted = _SCARCE * len(self._queue)
        is_scarce = not self._brake.is_off or self._meters.are_scarce(ticket.demand, wanted, now)
        return place if is_scarce else None

    def _hold_on(self, place: Place, now: float) -> bool:
        """Keep one beyond its time where there will surely be room, and an answer, before its client gives up."""
        ticket = place.ticket
        gate = self._gate(ticket, now)
        opens_at = now if gate is None else gate.opens_at
        if self.in_flight >= self.limit and not self.paused:
            opens_at = now + self._service.mean_s / self.limit
        shed_at = max(opens_at, place.not_before) + _SURE_S
        if shed_at > self._hopeless_at(ticket):
            return False
        self._queue.remove(ticket.id, now)
        place.shed_at = shed_at
        self._queue.put_back(place, place.not_before, now)
        return True

    def _hopeless_at(self, ticket: Ticket) -> float:
        """From when on no answer would come in time; what its own `shed_at` says where nothing was measured yet."""
        if not self._service.is_known:
            return ticket.shed_at
        return ticket.deadline_at - _SURE_SERVICES * self._service.mean_s

    def _superseded_by(self, ticket: Ticket, now: float) -> Reservation | None:
        """The attempt of an earlier ticket for the same request, whose client has given up by now."""
        for flight in self._flights.alike(ticket):
            if now >= flight.place.shed_at and flight.reservation.ticket.id not in self._successors:
                return flight.reservation
        return None

    def _let_successor_go(self, ticket_id: str, now: float) -> None:
        place = self._queue.get(self._successors.pop(ticket_id, ""))
        if place is not None:
            self._make_due(place, now, now)

    def _make_due(self, place: Place, not_before: float, now: float) -> None:
        self._queue.remove(place.ticket.id, now)
        self._queue.put_back(place, not_before, now)

    def _teach(self, flight: Flight, outcome: Outcome, now: float) -> None:
        """Concurrency limit, breaker and pause learn from an attempt's end."""
        admitted_at = flight.reservation.admitted_at
        limit = self.limit
        if outcome.kind is OutcomeKind.SUCCESS:
            filled = flight.fills_limit and not self.is_capped
            self._aimd.success(in_flight=flight.in_flight, filled=filled, admitted_at=admitted_at, now=now)
            self._brake.succeeded(admitted_at=admitted_at, now=now)
        elif outcome.kind is OutcomeKind.OVERLOADED:
            self._aimd.overload(in_flight=flight.in_flight, admitted_at=admitted_at, now=now)
            if outcome.status is not None:
                self._brake.overloaded(admitted_at=admitted_at)
        elif outcome.kind is OutcomeKind.THROTTLED:
            self._refused(flight, outcome, now)
        before = self._breaker.state
        changed = self._breaker.attempt_ended(
            outcome.kind,
            session=flight.reservation.ticket.session,
            probe=flight.is_probe,
            admitted_at=admitted_at,
            now=now,
            unreached=outcome.unreached,
        )
        if changed:
            if self._breaker.state is BreakerState.CLOSED:
                self._aimd.recover()
            self._emit_breaker(before, outcome.reason, now)
        if self.limit != limit:
            self._emit(ConcurrencyChanged(at=now, pool=self.key, limit=self.limit, reason=outcome.reason))

    def _emit_breaker(self, before: BreakerState, reason: str, now: float) -> None:
        state = self._breaker.state.value
        self._emit(BreakerChanged(at=now, pool=self.key, state=state, reason=reason, before=before.value))

    def _refused(self, flight: Flight, outcome: Outcome, now: float) -> None:
        lesson = self._brake.refused(
            admitted_at=flight.reservation.admitted_at,
            retry_after_s=outcome.retry_after_s,
            explained=self._meters.explain(flight.demand, now),
            now=now,
        )
        if lesson.paused:
            self._emit(PoolBlocked(at=now, pool=self.key, until=self._brake.pause.until, reason=outcome.reason))
        if lesson.paced and self._brake.pace.rate is not None:
            self._emit(
                MeterLearned(
                    at=now,
                    pool=self.key,
                    meter="pace",
                    kind="per second",
                    limit=self._brake.pace.rate,
                    window_s=1.0,
                    dimension=Dimension.REQUESTS,
                )
            )
        if lesson.quota and self._brake.quota.limit is not None:
            kind = f"per {self._brake.quota.window_s:.0f} s"
            self._emit(
                MeterLearned(
                    at=now,
                    pool=self.key,
                    meter="quota",
                    kind=kind,
                    limit=self._brake.quota.limit,
                    window_s=self._brake.quota.window_s,
                    dimension=Dimension.REQUESTS,
                )
            )

    def _put_back(self, place: Place, backoff: Backoff, now: float) -> None:
        place.priority = self._orders.priority_of(place.ticket.agent, place.ticket.priority)
        place.weigh()
        self._queue.put_back(place, backoff.until, now)
        self._backoffs.add(place)
        self._to_announce.append(place.ticket.id)
        self._emit(
            BackedOff(
                at=now,
                ticket_id=place.ticket.id,
                pool=self.key,
                attempt=place.history.attempts,
                until=backoff.until,
                reason=backoff.reason,
            )
        )

    def _end_wait(self, place: Place, now: float) -> float:
        waited_s = max(0.0, now - place.wait_began_at)
        place.waited_s += waited_s
        return waited_s

    def _end_ticket(self, place: Place, now: float, *, end: str, reason: str, last_outcome: str = "") -> None:
        self._emit(
            TicketEnded(
                at=now,
                ticket_id=place.ticket.id,
                pool=self.key,
                end=end,
                reason=reason,
                attempts=place.history.attempts,
                ambiguous_resends=place.history.ambiguous_resends,
                waited_s=place.waited_s,
                last_outcome=last_outcome,
            )
        )

    def _view_flights(self) -> list[TicketView]:
        return [
            TicketView(
                ticket=_as_served(flight.place),
                state="in flight",
                reason="",
                position=0,
                attempts=flight.reservation.attempt,
                waited_s=flight.place.waited_s,
            )
            for flight in self._flights
        ]

    def _view_queue(self, now: float, most: int | None) -> list[TicketView]:
        head = self._queue.head()
        gate = self._gate(head.ticket, now) if head else None
        places = self._queue.in_order()[:most]
        starts_at = self._starts_at(places, now)
        return [
            TicketView(
                ticket=_as_served(place),
                state="backing off" if place.not_before > now else "queued",
                reason=self._reason(place, head, gate, now).value,
                position=position,
                attempts=place.history.attempts,
                waited_s=place.waited_s + max(0.0, now - place.wait_began_at),
                starts_in_s=None if (at := starts_at.get(place.ticket.id)) is None else max(0.0, at - now),
            )
            for position, place in enumerate(places, start=1)
        ]

    def _starts_at(self, places: list[Place], now: float) -> dict[str, float]:
        """When they are likely to go; those that nothing tells of are left out."""
        if self.paused:
            return {}
        gain, most = self._aimd.growth
        flights_s = [now - flight.reservation.admitted_at for flight in self._flights]
        outlook = Outlook(
            now=now,
            limit=self.limit,
            growth=(gain, most if self._cap is None else min(most, self._cap)),
            service_s=self._service.mean_s if self._service.is_known else None,
            running_s=[*flights_s, *(0.0 for _ in range(self.bypassing))],
            meters=self._meters,
            brake=self._brake,
            probes_at=max(self._breaker.passes_at, self._wall.passes_at),
        )
        return outlook.starts_at(place for place in places if self._queue.why_passed(place) is not Reason.FAN_OUT)


def _as_served(place: Place) -> Ticket:
    """The ticket, in the class that counts."""
    ticket = place.ticket
    return ticket if place.priority is ticket.priority else replace(ticket, priority=place.priority)
