"""One provider limit domain: its meters, concurrency limit, breaker, pause and queue.

The pool puts the rooms together and decides nothing that belongs to one of them. A ticket goes when it is the next
in order and all of these let it: the breaker, the pause that a refusal asked for, the concurrency limit, every meter.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hivemind_addon.core.aimd import AimdLimit, ConcurrencySettings
from hivemind_addon.core.breaker import Breaker, BreakerSettings, BreakerState
from hivemind_addon.core.decision import Admitted, Backoff, Finished, GiveUp, Reason, Shed, Verdict
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
    TicketEnded,
)
from hivemind_addon.core.meter import Meter, is_usable
from hivemind_addon.core.pause import Pause
from hivemind_addon.core.queue import Place, Queue
from hivemind_addon.core.retry import RetryPolicy, decide
from hivemind_addon.core.snapshot import MeterView, PoolView, TicketView
from hivemind_addon.core.ticket import (
    ContractError,
    Demand,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Reservation,
    Ticket,
    Usage,
)

_NEVER = float("inf")
_SOONEST_COME_BACK_S = 1.0
_TIMER_STEP_S = 0.001
"""No wakeup is closer than this: timers are no finer."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a profile says about its pools."""

    concurrency: ConcurrencySettings = field(default_factory=ConcurrencySettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True, slots=True)
class _Flight:
    """One attempt upstream."""

    place: Place
    reservation: Reservation
    stamp: int
    """Counts the pool's admissions and settles: what a header can know."""
    fills_limit: bool
    is_probe: bool


@dataclass(frozen=True, slots=True)
class _Gate:
    """What keeps a ticket from going."""

    reason: Reason
    opens_at: float
    """Infinite: when another attempt ends."""


class Pool:
    """Only the scheduler calls it. After any call, `poll` it, then wake it again at `wakeup_at`."""

    def __init__(
        self, *, key: PoolKey, settings: PoolSettings, rng: random.Random, emit: Callable[[Event], None]
    ) -> None:
        self.key = key
        self.account_name: str | None = None
        self.bypassing = 0
        self.wakeup_at: float | None = None
        """When the last poll wants the next one, if nothing happens before."""
        self._settings = settings
        self._rng = rng
        self._emit = emit
        self._queue = Queue()
        self._flights: dict[str, _Flight] = {}
        self._meters: dict[str, Meter] = {}
        self._aimd = AimdLimit(settings.concurrency)
        self._breaker = Breaker(settings.breaker, rng=rng)
        self._pause = Pause(rng=rng)
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
        """The concurrency limit."""
        return self._aimd.limit

    def submit(self, ticket: Ticket) -> None:
        """Queue a new ticket."""
        self._queue.append(Place(ticket=ticket, wait_began_at=ticket.arrived_at))
        self._to_announce.append(ticket.id)

    def cancel(self, ticket_id: str, now: float) -> bool:
        """Take a queued ticket out."""
        place = self._queue.remove(ticket_id)
        if place is None:
            return False
        self._end_wait(place, now)
        self._end_ticket(place, now, end="cancelled", reason="client went")
        return True

    def expedite(self, ticket_id: str) -> bool:
        """Move a queued ticket to the front."""
        return self._queue.expedite(ticket_id)

    # Step 4: who goes now, who is refused

    def poll(self, now: float, *, stopping: bool) -> list[Admitted | Shed]:
        """Admit and shed what is due."""
        decisions: list[Admitted | Shed] = []
        if stopping:
            decisions.extend(
                self._shed(place, now, Reason.STOPPING, _SOONEST_COME_BACK_S) for place in self._queue.in_order()
            )
        while place := self._queue.first_to_shed(now):
            decisions.append(self._shed(place, now, Reason.DEADLINE, self._come_back_s(place, now)))
        self._queue.wake(now)
        gate: _Gate | None = None
        while (place := self._next(now)) and not (gate := self._gate(place.ticket, now)):
            decisions.append(self._admit(place, now))
        self._announce(place, gate, now)
        self.wakeup_at = self._wakeup_at(gate, now)
        return decisions

    # Step 6: a response's head arrived

    def observe(self, reservation: Reservation, hints: Hints, now: float) -> None:
        """Let the meters learn. An attempt that has ended already teaches nothing."""
        flight = self._flights.get(reservation.ticket.id)
        if flight is None or flight.reservation.attempt != reservation.attempt:
            return
        for reading in hints.readings:
            if not is_usable(reading):
                continue
            meter = self._meters.get(reading.meter)
            is_new = meter is None
            if meter is None:
                meter = Meter.of(reading, now)
                if meter is None:
                    continue
                self._meters[reading.meter] = meter
                self._adopt_flights(meter, now)
            if meter.learn(reading, stamp=flight.stamp, sent_at=reservation.admitted_at, now=now) or is_new:
                self._emit(
                    MeterLearned(at=now, pool=self.key, meter=meter.name, kind=meter.kind.value, limit=meter.limit)
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
        flight = self._flights.get(reservation.ticket.id)
        if flight is None or flight.reservation.attempt != reservation.attempt:
            raise ContractError(f"{reservation.ticket.id}: attempt {reservation.attempt} was settled already")
        del self._flights[reservation.ticket.id]
        place = flight.place
        self._stamp += 1
        for meter in self._meters.values():
            units = None if charged is None else charged.of(meter.dimension)
            meter.settle(stamp=flight.stamp, settled_stamp=self._stamp, charged=units, now=now)
        place.wait_began_at = now
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
        provider_down = self._breaker.state is not BreakerState.CLOSED
        place.history = place.history.ended(outcome, provider_down=provider_down)
        match outcome.kind:
            case OutcomeKind.SUCCESS:
                self._end_ticket(place, now, end="delivered", reason=outcome.reason)
                return Finished()
            case OutcomeKind.CANCELLED:
                self._end_ticket(place, now, end="cancelled", reason=outcome.reason)
                return Finished()
        verdict = decide(
            self._settings.retry,
            place.history,
            outcome,
            now,
            self._rng,
            shed_at=place.ticket.shed_at,
            pool_ready_at=max(self._pause.until, self._breaker.passes_at if provider_down else now),
            provider_down=provider_down,
            stopping=stopping,
            client_saw_bytes=client_saw_bytes,
        )
        if isinstance(verdict, GiveUp):
            self._end_ticket(place, now, end="gave up", reason=verdict.reason.value)
        else:
            self._put_back(place, verdict, now)
        return verdict

    def view(self, now: float) -> PoolView:
        """The pool at one instant."""
        return PoolView(
            key=self.key,
            account_name=self.account_name,
            in_flight=self.in_flight,
            bypassing=self.bypassing,
            limit=self.limit,
            queued=len(self._queue),
            breaker=self._breaker.state.value,
            blocked_for_s=max(0.0, self._pause.until - now),
            meters=tuple(
                MeterView(
                    name=meter.name,
                    kind=meter.kind.value,
                    limit=meter.limit,
                    level=max(0.0, meter.level(now)),
                    full_in_s=meter.full_in_s(now),
                )
                for meter in self._meters.values()
            ),
            tickets=(*self._view_flights(), *self._view_queue(now)),
        )

    def _next(self, now: float) -> Place | None:
        """Who goes next: the head, or while the provider is down the one who probes."""
        if self._breaker.passes_at == -_NEVER:
            return self._queue.head()
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
        if self._breaker.passes_at > now:
            return _Gate(Reason.BREAKER, self._breaker.passes_at)
        metered_at = max((m.earliest(ticket.demand.of(m.dimension), now) for m in self._meters.values()), default=now)
        is_full = self.in_flight >= self.limit
        opens_at = _NEVER if is_full else max(self._pause.until, metered_at)
        if self._pause.until > now:
            return _Gate(Reason.BLOCKED, opens_at)
        if is_full:
            return _Gate(Reason.CONCURRENCY, opens_at)
        return _Gate(Reason.METER, opens_at) if metered_at > now else None

    def _admit(self, place: Place, now: float) -> Admitted:
        ticket = place.ticket
        self._queue.remove(ticket.id)
        self._stamp += 1
        place.history = place.history.started()
        reservation = Reservation(ticket=ticket, attempt=place.history.attempts, admitted_at=now)
        for meter in self._meters.values():
            meter.reserve(stamp=self._stamp, units=ticket.demand.of(meter.dimension), now=now)
        is_probe = self._breaker.state is not BreakerState.CLOSED
        self._flights[ticket.id] = _Flight(
            place=place,
            reservation=reservation,
            stamp=self._stamp,
            fills_limit=self._aimd.fills(self.in_flight + 1),
            is_probe=is_probe,
        )
        waited_s = self._end_wait(place, now)
        if is_probe:
            self._probe_choice = None
            self._breaker.probe_started(ticket.session, now)
            self._emit(BreakerChanged(at=now, pool=self.key, state=self._breaker.state.value, reason="probe sent"))
        self._emit(
            AttemptStarted(
                at=now,
                ticket_id=ticket.id,
                pool=self.key,
                attempt=reservation.attempt,
                waited_s=waited_s,
                in_flight=self.in_flight,
            )
        )
        return Admitted(reservation)

    def _shed(self, place: Place, now: float, reason: Reason, come_back_s: float) -> Shed:
        self._queue.remove(place.ticket.id)
        self._end_wait(place, now)
        self._end_ticket(place, now, end="shed", reason=reason.value)
        return Shed(ticket=place.ticket, reason=reason, come_back_s=come_back_s)

    def _come_back_s(self, place: Place, now: float) -> float:
        gate = self._gate(place.ticket, now)
        fits_at = now if gate is None or gate.opens_at == _NEVER else gate.opens_at
        return max(_SOONEST_COME_BACK_S, fits_at - now, place.not_before - now)

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
        if place.not_before > now:
            return Reason.BACKOFF
        if gate is None or (place is not head and gate.reason is Reason.METER):
            return Reason.ORDER
        return gate.reason

    def _wakeup_at(self, gate: _Gate | None, now: float) -> float | None:
        at = min(self._queue.next_shed_at(), self._queue.next_due_at(), gate.opens_at if gate else _NEVER)
        return None if at == _NEVER else max(at, now + _TIMER_STEP_S)

    def _adopt_flights(self, meter: Meter, now: float) -> None:
        for flight in self._flights.values():
            meter.adopt(
                stamp=flight.stamp,
                units=flight.reservation.ticket.demand.of(meter.dimension),
                admitted_at=flight.reservation.admitted_at,
                now=now,
            )

    def _teach(self, flight: _Flight, outcome: Outcome, now: float) -> None:
        """Concurrency limit, breaker and pause learn from an attempt's end."""
        admitted_at = flight.reservation.admitted_at
        limit = self.limit
        if outcome.kind is OutcomeKind.SUCCESS:
            self._aimd.success(filled=flight.fills_limit)
            self._pause.succeeded(admitted_at=admitted_at)
        elif outcome.kind is OutcomeKind.OVERLOADED:
            self._aimd.overload(admitted_at=admitted_at, now=now)
        elif outcome.kind is OutcomeKind.THROTTLED:
            self._refused(flight, outcome, now)
        changed = self._breaker.attempt_ended(
            outcome.kind,
            session=flight.reservation.ticket.session,
            probe=flight.is_probe,
            admitted_at=admitted_at,
            now=now,
        )
        if changed:
            if self._breaker.state is BreakerState.CLOSED:
                self._aimd.recover()
            self._emit(BreakerChanged(at=now, pool=self.key, state=self._breaker.state.value, reason=outcome.reason))
        if self.limit != limit:
            self._emit(ConcurrencyChanged(at=now, pool=self.key, limit=self.limit, reason=outcome.reason))

    def _refused(self, flight: _Flight, outcome: Outcome, now: float) -> None:
        demand = flight.reservation.ticket.demand
        explained = any(m.earliest(demand.of(m.dimension), now) > now for m in self._meters.values())
        if self._pause.refused(
            admitted_at=flight.reservation.admitted_at,
            retry_after_s=outcome.retry_after_s,
            explained=explained,
            now=now,
        ):
            self._emit(PoolBlocked(at=now, pool=self.key, until=self._pause.until, reason=outcome.reason))

    def _put_back(self, place: Place, backoff: Backoff, now: float) -> None:
        self._queue.put_back(place, backoff.until)
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

    def _end_ticket(self, place: Place, now: float, *, end: str, reason: str) -> None:
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
            )
        )

    def _view_flights(self) -> list[TicketView]:
        return [
            TicketView(
                ticket=flight.reservation.ticket,
                state="in flight",
                reason="",
                position=0,
                attempts=flight.reservation.attempt,
                waited_s=flight.place.waited_s,
            )
            for flight in self._flights.values()
        ]

    def _view_queue(self, now: float) -> list[TicketView]:
        head = self._queue.head()
        gate = self._gate(head.ticket, now) if head else None
        return [
            TicketView(
                ticket=place.ticket,
                state="backing off" if place.not_before > now else "queued",
                reason=self._reason(place, head, gate, now).value,
                position=position,
                attempts=place.history.attempts,
                waited_s=place.waited_s + max(0.0, now - place.wait_began_at),
            )
            for position, place in enumerate(self._queue.in_order(), start=1)
        ]
