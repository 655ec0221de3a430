"""All limits of one pool that headers tell of: every attempt is reserved, settled and shown to each of them.

Each is the pool's own meter, or in its place the one that several pools of the account draw on (`common_meters.py`).

**Costs**, the unit of the order: what an attempt takes of its pool, in seconds of the pool's bottleneck. A demand of
`d` units takes `d / rate` seconds of a meter that refills `rate` units per second, and a call of `s` seconds takes `s /
slots` of a concurrency limit. The largest of these is the attempt's dominant cost: what everybody else waits longer
because of it.

**Backoffs**: the tickets of one pool that have been tried and wait again, and what is kept for them. In a fixed window
units would be gone by the time a backoff is over, and the ticket would wait for the next window. So others leave them
what they will want, if they are due in time; at most half of the window, and nothing in a bucket, where no unit is lost
by waiting.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from hivemind_addon.api.snapshot import MeterView
from hivemind_addon.api.ticket import Demand, Dimension, OutcomeKind, Reading, Ticket
from hivemind_addon.proxy.core.common_meters import ENOUGH_VOTES, CommonMeters
from hivemind_addon.proxy.core.lanes import Flight, Flights, Place
from hivemind_addon.proxy.core.learned import LearnedMeter
from hivemind_addon.proxy.core.meter import Meter, is_usable

_LATE_IN_WINDOW_S = 1.0
"""What is due so shortly before a window's end may miss it: no unit is kept for it."""


class Backoffs:
    """Queued tickets that have been tried, due or not."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._told: dict[str, OutcomeKind] = {}
        """Those that wait because a refusal of this kind told them to."""

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        """In the order in which they were put back."""
        return iter(self._places.values())

    def __repr__(self) -> str:
        return f"<Backoffs {len(self)}>"

    def add(self, place: Place, told_by: OutcomeKind | None = None) -> None:
        """A ticket is to be tried again; `told_by`: when, is what a refusal of this kind told."""
        self._places[place.ticket.id] = place
        if told_by is not None:
            self._told[place.ticket.id] = told_by

    def told_falsely(self, believes_told: Callable[[OutcomeKind, Demand], bool]) -> list[Place]:
        """Those that wait for what is no longer believed; each is named once."""
        if not self._told:
            return []
        told = [(self._places[ticket_id], kind) for ticket_id, kind in self._told.items()]
        found = [place for place, kind in told if not believes_told(kind, place.ticket.demand)]
        for place in found:
            del self._told[place.ticket.id]
        return found

    def discard(self, ticket_id: str) -> None:
        """It goes, or goes no more; nothing happens when it was never tried."""
        self._places.pop(ticket_id, None)
        self._told.pop(ticket_id, None)

    def absorb(self, other: "Backoffs") -> None:
        """Another pool turned out to be of the same account."""
        self._places |= other._places  # noqa: SLF001  its own kind
        self._told |= other._told  # noqa: SLF001

    def kept_of_meter(self, meter: Meter, ticket: Ticket, now: float) -> int:
        """Units of a meter that others will want before its window ends, as far as a ticket has to leave them."""
        if not self._places:
            return 0
        half = int(meter.limit / 2)
        ends_at = meter.window_ends_at(now)
        if ends_at is None or meter.level(now) >= ticket.demand.of(meter.dimension) + half:
            return 0
        coming = self._due_before(ends_at, ticket, now)
        return min(sum(place.ticket.demand.of(meter.dimension) for place in coming), half)

    def _due_before(self, ends_at: float, ticket: Ticket, now: float) -> Iterator[Place]:
        """Others that back off now and are due, in time, before a window ends."""
        return (
            place
            for place in self._places.values()
            if now < place.not_before < ends_at - _LATE_IN_WINDOW_S and place.ticket.id != ticket.id
        )


class Meters:
    """By name. A limit that is new takes over the attempts in flight."""

    def __init__(
        self, account: CommonMeters | None = None, flights: Flights | None = None, *, model_group: str = ""
    ) -> None:
        """`account`: of the pools that may draw on the same limits; the rest is the pool's own."""
        self.model_group = model_group
        self._meters: dict[str, Meter] = {}
        """That count."""
        self._own: dict[str, Meter] = {}
        """The pool's; they learn beside the common ones, too."""
        self._account = CommonMeters() if account is None else account
        self._account.join(self, Flights() if flights is None else flights)

    def __len__(self) -> int:
        return len(self._meters)

    def __iter__(self) -> Iterator[Meter]:
        """In the order in which they became known."""
        return iter(self._meters.values())

    def __repr__(self) -> str:
        return f"<Meters {', '.join(self._meters)}>"

    @property
    def learned(self) -> tuple[LearnedMeter, ...]:
        """What outlives a run."""
        return tuple(
            replace(meter.learned, is_common=bool(self._account.members_of(meter))) for meter in self._meters.values()
        )

    def resume(self, learned: Iterable[LearnedMeter], now: float) -> None:
        """Begin with what an earlier run has learned."""
        for one in learned:
            self._own[one.name] = self._meters[one.name] = Meter.resume(one, now)
            if one.is_common:
                self._account.meet(self._own[one.name], now, votes=ENOUGH_VOTES)

    def own(self, name: str) -> Meter | None:
        """The pool's own meter."""
        return self._own.get(name)

    def draw_on(self, name: str, common: Meter | None) -> None:
        """A limit is one with those of other pools; None: it is the pool's own."""
        self._meters[name] = self._own[name] if common is None else common

    def move(self, account: CommonMeters | None, flights: Flights) -> None:
        """The pool's account proved to be another one; None: the pool is no more."""
        self._account.leave(self)
        if account is not None:
            self._account = account
            self._account.join(self, flights)

    def learn(
        self, reading: Reading, flight: Flight, flights: Flights, now: float, *, answered: bool = True
    ) -> Meter | None:
        """One of the limits that the head of a flight's answer told. The meter, where its kind or limit is news.

        `answered`: it is no refusal's.
        """
        if not is_usable(reading):
            return None
        meter = self._own.get(reading.meter)
        is_new = meter is None
        if meter is None:
            meter = Meter.of(reading, now)
            if meter is None:
                return None
            self._add(meter, flights, now)
        sent_at = flight.reservation.admitted_at
        changed = meter.learn(reading, stamp=flight.stamp, sent_at=sent_at, now=now)
        self._account.learn(self, meter, reading, flight, now, answered=answered)
        return meter if changed or is_new else None

    def fits_at(
        self,
        demand: Demand,
        ticket: Ticket,
        backoffs: Backoffs,
        now: float,
        *,
        hurried: bool = False,
        hoped: bool = False,
    ) -> float:
        """When all have room for a ticket's demand beside what is kept for others, if nothing else changes."""
        fits_at = now
        for meter in self._meters.values():
            kept = backoffs.kept_of_meter(meter, ticket, now)
            units = demand.of(meter.dimension)
            fits_at = max(fits_at, meter.earliest(units, now, kept=kept, hurried=hurried, hoped=hoped))
        return fits_at

    def explain(self, demand: Demand, now: float) -> bool:
        """Whether they know why a demand was refused: it does not fit."""
        return any(meter.earliest(demand.of(meter.dimension), now) > now for meter in self._meters.values())

    def are_scarce(self, demand: Demand, waiting: int, now: float) -> bool:
        """Whether one that counts requests has not so many times a demand.

        Of tokens a late ticket takes the more the longer it has waited: its prompt cache has lapsed.
        """
        return any(
            meter.level(now) < waiting * demand.requests
            for meter in self._meters.values()
            if meter.dimension is Dimension.REQUESTS
        )

    def next_window_at(self, now: float) -> float | None:
        """When the first fixed window turns; None where there is none."""
        ends_at = (meter.window_ends_at(now) for meter in self._meters.values())
        return min((at for at in ends_at if at is not None), default=None)

    def reserve(self, demand: Demand, *, stamp: int, now: float) -> None:
        """An attempt was admitted."""
        for meter in self._counting():
            meter.reserve(stamp=stamp, units=demand.of(meter.dimension), now=now)

    def settle(
        self,
        flight: Flight,
        *,
        settled_stamp: int,
        charged: Demand | None,
        failed: bool,
        now: float,
        generated: bool = True,
    ) -> None:
        """It ended; `charged` is what the provider takes for it, where it is known.

        `generated`: there may have been an answer, if only a part of one. Where there was none no output counts.
        """
        for meter in self._counting():
            units = None if charged is None else charged.of(meter.dimension)
            if not generated and meter.dimension is Dimension.OUTPUT_TOKENS:
                units = 0
            meter.settle(stamp=flight.stamp, settled_stamp=settled_stamp, charged=units, now=now, failed=failed)

    def adopt(self, flight: Flight, now: float) -> None:
        """Take over an attempt that another pool has sent."""
        for meter in self._own.values():
            _adopt(meter, flight, now)
        self._account.adopt(self, flight, now)

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept."""
        for meter in self._own.values():
            meter.clock_jumped(delta_s)
        self._account.clock_jumped(delta_s, self)

    def absorb(self, other: "Meters", flights: Flights, now: float) -> None:
        """Another pool turned out to be of the same account: of what both know the lower level counts."""
        for name, meter in other._own.items():  # noqa: SLF001  its own kind
            known = self._own.get(name)
            if known is None:
                meter.release_all(now)
                self._add(meter, flights, now)
            else:
                known.lower(meter.level(now) + meter.reserved - known.reserved, now)

    def views(self, now: float) -> tuple[MeterView, ...]:
        """All of them at one instant."""
        return tuple(
            MeterView(
                name=meter.name,
                kind=meter.kind.value,
                limit=meter.limit,
                level=max(0.0, meter.level(now)),
                full_in_s=meter.full_in_s(now),
                window_s=meter.window_s,
                dimension=meter.dimension,
                shared_by=tuple(sorted(one.model_group for one in self._account.members_of(meter))),
            )
            for meter in self
        )

    def in_the_way(self, demand: Demand, now: float) -> "set[Meters]":
        """The pools that draw on a common limit that has no room for a demand now."""
        return {
            meters
            for meter in self._meters.values()
            if (members := self._account.members_of(meter)) and meter.earliest(demand.of(meter.dimension), now) > now
            for meters in members
        }

    def _counting(self) -> Iterator[Meter]:
        yield from self._own.values()
        yield from self._account.of(self)

    def _add(self, meter: Meter, flights: Flights, now: float) -> None:
        self._own[meter.name] = self._meters[meter.name] = meter
        for flight in flights:
            _adopt(meter, flight, now)


def _adopt(meter: Meter, flight: Flight, now: float) -> None:
    units = flight.demand.of(meter.dimension)
    meter.adopt(stamp=flight.stamp, units=units, admitted_at=flight.reservation.admitted_at, now=now)


_FIRST_GUESS_S = 10.0
_NEWEST_WEIGHT = 0.1
_LONGEST_WINDOW_S = 3_600.0
"""Limits per day or longer are no bottleneck of the moment: they are not paced, and their rate says nothing."""
_OF_INPUT = (Dimension.INPUT_TOKENS, Dimension.TOTAL_TOKENS)
_PREFILL_TOKENS_S = 10_000.0
"""How fast a model reads uncached input, where no meter counts it: what a warm prefix saves is at least that time."""


class ServiceTime:
    """How long an attempt is expected to hold its slot: a moving mean over the successful ones."""

    def __init__(self) -> None:
        self.mean_s = _FIRST_GUESS_S
        self._is_guess = True

    def __repr__(self) -> str:
        return f"<ServiceTime {self.mean_s:.2f} s{', a guess' if self._is_guess else ''}>"

    @property
    def is_known(self) -> bool:
        """Whether it was measured at all."""
        return not self._is_guess

    def succeeded(self, duration_s: float) -> None:
        """Learn from one."""
        if self._is_guess:
            self.mean_s, self._is_guess = duration_s, False
        else:
            self.mean_s += _NEWEST_WEIGHT * (duration_s - self.mean_s)


def dominant_s(demand: Demand, meters: Iterable[Meter], *, service_s: float, slots: int) -> float:
    """The dominant cost of a demand that holds a slot for `service_s`. Never negative."""
    longest_s = service_s / max(1, slots)
    for meter in meters:
        if meter.window_s <= _LONGEST_WINDOW_S:
            # More than the whole limit takes the whole limit.
            longest_s = max(longest_s, min(demand.of(meter.dimension), meter.limit) / meter.limit * meter.window_s)
    return max(0.0, longest_s)


def reading_s(input_tokens: int, meters: Iterable[Meter]) -> float:
    """Seconds of the bottleneck that so much uncached input takes."""
    longest_s = input_tokens / _PREFILL_TOKENS_S
    for meter in meters:
        if meter.dimension in _OF_INPUT and meter.window_s <= _LONGEST_WINDOW_S:
            longest_s = max(longest_s, min(input_tokens, meter.limit) / meter.limit * meter.window_s)
    return longest_s
