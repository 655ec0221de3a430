"""What one pool may send: its attempts in flight, and what they have taught of the provider's limits.

    a head that came       teaches the meters, the long windows, and a wall's probe
    an attempt that ended  teaches the meters, the service time, the concurrency limit, the brake, the breaker, the wall

Each of these rooms decides on its own what it makes of it. Here they hear of the same attempts in the same order, and
what changed is told. Who waits, and who goes next, is not known here.
"""

import random
from collections.abc import Callable

from msgspec.structs import replace

from hivemind_addon.core.aimd import AimdLimit, ConcurrencySettings
from hivemind_addon.core.brake import Brake
from hivemind_addon.core.breaker import Breaker, BreakerSettings, BreakerState
from hivemind_addon.core.cost import ServiceTime, dominant_s, reading_s
from hivemind_addon.core.events import (
    BreakerChanged,
    ConcurrencyChanged,
    Event,
    MeterLearned,
    PoolBlocked,
    WallHit,
    WallOpened,
    WindowUsed,
)
from hivemind_addon.core.flights import Flight, Flights
from hivemind_addon.core.lanes import Place
from hivemind_addon.core.learned import LearnedPool
from hivemind_addon.core.meters import Meters
from hivemind_addon.core.orders import Orders
from hivemind_addon.core.ticket import (
    Demand,
    Dimension,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Reservation,
    Ticket,
)
from hivemind_addon.core.wall import Wall
from hivemind_addon.core.windows import Windows

_FAILURES = (OutcomeKind.FAILED, OutcomeKind.OVERLOADED, OutcomeKind.THROTTLED)
_SURE_SERVICES = 1.5
"""In so many mean times an answer comes, mostly."""


class Capacity:
    """Only its pool changes it; whoever asks may look at its rooms.

    Each attempt is reserved, may be heard of, and is settled, once; after that `learn` from its end.
    """

    def __init__(
        self,
        *,
        key: PoolKey,
        concurrency: ConcurrencySettings,
        breaker: BreakerSettings,
        orders: Orders,
        rng: random.Random,
        emit: Callable[[Event], None],
    ) -> None:
        self.key = key
        """The pool's, as events name it."""
        self.bypassing = 0
        """Attempts upstream that nobody admitted."""
        self.flights = Flights()
        self.service = ServiceTime()
        self.meters = Meters()
        self.aimd = AimdLimit(concurrency)
        self.breaker = Breaker(breaker, rng=rng)
        self.brake = Brake(rng=rng)
        self.wall = Wall()
        self.windows = Windows()
        self._orders = orders
        self.paused = orders.is_paused(key)
        """By a person."""
        self.cap = orders.cap_of(key)
        """The most that a person lets the concurrency limit be."""
        self._emit = emit
        self._stamp = 0

    def __repr__(self) -> str:
        return f"<Capacity {self.in_flight}/{self.limit} in flight, {self.meters!r}>"

    @property
    def in_flight(self) -> int:
        """Attempts upstream, bypassing ones counted."""
        return len(self.flights) + self.bypassing

    @property
    def limit(self) -> int:
        """The concurrency limit: what was learned, or less where a person said so."""
        return self.aimd.limit if self.cap is None else min(self.aimd.limit, self.cap)

    @property
    def is_capped(self) -> bool:
        """Whether it is a person that holds the limit down: what fills it proves nothing about a higher one."""
        return self.cap is not None and self.aimd.limit >= self.cap

    @property
    def is_provider_down(self) -> bool:
        """Whether only probes go."""
        return self.breaker.state is not BreakerState.CLOSED

    @property
    def ready_at(self) -> float:
        """When it may send again, after what the provider asked for and an outage; in the past where nothing is."""
        return max(self.brake.pause.until, self.breaker.passes_at)

    def hopeless_at(self, ticket: Ticket) -> float:
        """From when on no answer would come in time; what its own `shed_at` says where nothing was measured yet."""
        if not self.service.is_known:
            return ticket.shed_at
        return ticket.deadline_at - _SURE_SERVICES * self.service.mean_s

    # In seconds of the bottleneck ------------------------------------------------------------------------------------

    def cost_s(self, demand: Demand) -> float:
        """What an attempt is expected to take."""
        cost_s = dominant_s(demand, self.meters, service_s=self.service.mean_s, slots=self.limit)
        return max(cost_s, self.brake.attempt_s)

    def saved_s(self, tokens: int) -> float:
        """What so many warm tokens save."""
        return reading_s(tokens, self.meters)

    def _took_s(self, flight: Flight, outcome: Outcome, charged: Demand | None, now: float) -> float:
        """What an attempt took."""
        took = charged
        if took is None:
            took = Demand(requests=0) if outcome.kind in _FAILURES else flight.demand
        held_s = max(0.0, now - flight.reservation.admitted_at)
        cost_s = dominant_s(took, self.meters, service_s=held_s, slots=self.limit)
        return max(cost_s, self.brake.attempt_s) if took.requests else cost_s

    # An attempt's way ------------------------------------------------------------------------------------------------

    def reserve(self, place: Place, demand: Demand, now: float) -> Flight:
        """A ticket's next attempt goes: all limits count it. While the provider is down it is the probe."""
        ticket = place.ticket
        self._stamp += 1
        self.meters.reserve(demand, stamp=self._stamp, now=now)
        self.brake.sent(now)
        self.wall.sent(ticket.id)
        in_flight = self.in_flight + 1
        flight = Flight(
            place=place,
            reservation=Reservation(ticket=ticket, attempt=place.history.attempts, admitted_at=now),
            demand=demand,
            stamp=self._stamp,
            in_flight=in_flight,
            fills_limit=self.aimd.fills(in_flight) and not self.is_capped,
            is_probe=self.is_provider_down,
        )
        self.flights.add(flight)
        if flight.is_probe:
            before = self.breaker.state
            self.breaker.probe_started(ticket.session, now)
            self._tell_breaker(before, "probe sent", now)
        return flight

    def hear(self, hints: Hints, flight: Flight, now: float, *, answered: bool) -> None:
        """The head of a flight's response arrived; `answered`: it is no refusal."""
        self._note_windows(hints, now)
        if answered:
            self._pass_wall(flight.ticket.id, now)
        for reading in hints.readings:
            if meter := self.meters.learn(reading, flight, self.flights, now):
                self._tell_learned(
                    meter.name, meter.kind.value, meter.limit, now, window_s=meter.window_s, dimension=meter.dimension
                )

    def settle(self, flight: Flight, outcome: Outcome, charged: Demand | None, now: float) -> float:
        """A flight is over: its reservation becomes what is charged. Seconds of the bottleneck that it took."""
        self.flights.remove(flight)
        self._stamp += 1
        # One that was cut off without a word may have been charged though refusals are not.
        failed = outcome.status is not None and outcome.kind in _FAILURES
        self.meters.settle(flight, settled_stamp=self._stamp, charged=charged, failed=failed, now=now)
        if outcome.kind is OutcomeKind.SUCCESS:
            self.service.succeeded(max(0.0, now - flight.reservation.admitted_at))
        return self._took_s(flight, outcome, charged, now)

    def learn(self, flight: Flight, outcome: Outcome, now: float) -> None:
        """Concurrency limit, brake, breaker and wall learn from a flight's end."""
        limit = self.limit
        self._judge(flight, outcome, now)
        self._judge_breaker(flight, outcome, now)
        if self.limit != limit:
            self._tell_limit(outcome.reason, now)
        self._judge_wall(flight.ticket.id, outcome, now)

    def _judge(self, flight: Flight, outcome: Outcome, now: float) -> None:
        admitted_at = flight.reservation.admitted_at
        if outcome.kind is OutcomeKind.SUCCESS:
            filled = flight.fills_limit and not self.is_capped
            self.aimd.success(in_flight=flight.in_flight, filled=filled, admitted_at=admitted_at, now=now)
            self.brake.succeeded(admitted_at=admitted_at, now=now)
        elif outcome.kind is OutcomeKind.OVERLOADED:
            self.aimd.overload(in_flight=flight.in_flight, admitted_at=admitted_at, now=now)
            if outcome.status is not None:
                self.brake.overloaded(admitted_at=admitted_at)
        elif outcome.kind is OutcomeKind.THROTTLED:
            self._refused(flight, outcome, now)

    def _refused(self, flight: Flight, outcome: Outcome, now: float) -> None:
        brake = self.brake
        lesson = brake.refused(
            admitted_at=flight.reservation.admitted_at,
            retry_after_s=outcome.retry_after_s,
            explained=self.meters.explain(flight.demand, now),
            now=now,
        )
        if lesson.paused:
            self._emit(PoolBlocked(at=now, pool=self.key, until=brake.pause.until, reason=outcome.reason))
        if lesson.paced and brake.pace.rate is not None:
            self._tell_learned("pace", "per second", brake.pace.rate, now, window_s=1.0)
        if lesson.quota and brake.quota.limit is not None:
            window_s = brake.quota.window_s
            self._tell_learned("quota", f"per {window_s:.0f} s", brake.quota.limit, now, window_s=window_s)

    def _judge_breaker(self, flight: Flight, outcome: Outcome, now: float) -> None:
        before = self.breaker.state
        changed = self.breaker.attempt_ended(
            outcome.kind,
            session=flight.ticket.session,
            probe=flight.is_probe,
            admitted_at=flight.reservation.admitted_at,
            now=now,
            unreached=outcome.unreached,
        )
        if changed:
            if not self.is_provider_down:
                self.aimd.recover()
            self._tell_breaker(before, outcome.reason, now)

    def _judge_wall(self, ticket_id: str, outcome: Outcome, now: float) -> None:
        """An attempt's end may be the wall, or prove it open."""
        if outcome.kind is OutcomeKind.SUCCESS:
            self._pass_wall(ticket_id, now)
        if outcome.wall_s is not None and self.wall.hit(outcome.reason, outcome.wall_s, now):
            closure = self.wall.stands(now)
            until = now if closure is None else closure.until
            self._emit(WallHit(at=now, pool=self.key, until=until, reason=outcome.reason))
        self.wall.ended(ticket_id)

    def _pass_wall(self, ticket_id: str, now: float) -> None:
        if self.wall.answered(ticket_id):
            self._emit(WallOpened(at=now, pool=self.key))

    def _note_windows(self, hints: Hints, now: float) -> None:
        for reading in hints.windows:
            if self.windows.learn(reading, now):
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

    # What happens to all of it at once -------------------------------------------------------------------------------

    def obey(self, now: float) -> None:
        """Persons' orders have changed."""
        limit = self.limit
        self.paused = self._orders.is_paused(self.key)
        self.cap = self._orders.cap_of(self.key)
        if self.limit != limit:
            self._tell_limit("a person said so", now)

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed for the provider while everything here slept."""
        self.aimd.clock_jumped(delta_s)
        self.aimd.rest()
        self.breaker.clock_jumped(delta_s)
        self.brake.clock_jumped(delta_s)
        self.wall.clock_jumped(delta_s)
        self.windows.clock_jumped(delta_s)
        self.meters.clock_jumped(delta_s)

    @property
    def learned(self) -> LearnedPool:
        """What outlives a run."""
        return LearnedPool(
            key=self.key,
            ceiling=self.aimd.ceiling,
            pace_per_s=self.brake.pace.rate,
            quota=self.brake.quota.limit,
            quota_window_s=self.brake.quota.window_s,
            meters=self.meters.learned,
        )

    def resume(self, learned: LearnedPool, now: float) -> None:
        """Begin with what an earlier run has learned, before the first attempt."""
        if learned.ceiling is not None:
            self.aimd.resume(learned.ceiling)
        if learned.pace_per_s is not None:
            self.brake.pace.resume(learned.pace_per_s)
        if learned.quota is not None:
            self.brake.quota.resume(limit=learned.quota, window_s=learned.quota_window_s)
        self.meters.resume(learned.meters, now)

    def absorb(self, other: "Capacity", now: float) -> None:
        """Another pool turned out to be of the same account: its attempts count here, and what they taught."""
        self.meters.absorb(other.meters, self.flights, now)
        for flight in other.flights:
            self._stamp += 1
            # Its breaker is not ours: here it is an attempt like others.
            moved = replace(flight, stamp=self._stamp, is_probe=False)
            self.flights.add(moved)
            self.meters.adopt(moved, now)
        self.aimd.absorb(other.aimd)
        self.brake.absorb(other.brake)
        self.wall.absorb(other.wall)
        self.windows.absorb(other.windows)

    # What is told ----------------------------------------------------------------------------------------------------

    def _tell_learned(
        self,
        meter: str,
        kind: str,
        limit: float,
        now: float,
        *,
        window_s: float,
        dimension: Dimension = Dimension.REQUESTS,
    ) -> None:
        self._emit(
            MeterLearned(
                at=now, pool=self.key, meter=meter, kind=kind, limit=limit, window_s=window_s, dimension=dimension
            )
        )

    def _tell_limit(self, reason: str, now: float) -> None:
        self._emit(ConcurrencyChanged(at=now, pool=self.key, limit=self.limit, reason=reason))

    def _tell_breaker(self, before: BreakerState, reason: str, now: float) -> None:
        state = self.breaker.state.value
        self._emit(BreakerChanged(at=now, pool=self.key, state=state, reason=reason, before=before.value))
