"""When each waiting ticket is likely to go, from what the limits and the queue tell now. Only views ask for it.

The queue is played through once, in its order: each ticket takes a slot, and its units of every limit, at the first
instant at which it finds them, and no sooner than the one before it. A slot comes back after the mean service time;
the concurrency limit grows with the attempts that end, as it would if all of them succeeded. A ticket that backs off
lets others pass until it is due. What will come in from now on, and what refusals will teach, nobody knows.

O(n log n) in the tickets, a few microseconds each.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hivemind_addon.api.ticket import Demand, Dimension
from hivemind_addon.proxy.core.hidden_limits import HiddenLimits
from hivemind_addon.proxy.core.lanes import Place
from hivemind_addon.proxy.core.meter import Meter

_NEVER = float("inf")
_LEAST_LEFT = 0.25
"""An attempt that has run for longer than the mean is expected to run for this part of it more."""


@dataclass(slots=True)
class Supply:
    """What one limit will give. Ask and take in the order of time."""

    dimension: Dimension
    limit: float
    level: float
    """At the instant `at`."""
    at: float
    per_s: float = 0.0
    """Of a bucket: what it refills."""
    turns_at: float = _NEVER
    """Of a window."""
    window_s: float = _NEVER

    @classmethod
    def of_meter(cls, meter: Meter, now: float) -> "Supply":
        """What headers tell."""
        supply = cls(meter.dimension, meter.limit, meter.level(now), now)
        turns_at = meter.window_ends_at(now)
        if turns_at is None:
            supply.per_s = meter.limit / meter.window_s - meter.others_per_s(now)
        else:
            supply.turns_at, supply.window_s = turns_at, meter.window_s
        return supply

    @classmethod
    def of_hidden(cls, hidden: HiddenLimits, now: float) -> "list[Supply]":
        """What refusals taught: as a bucket that has room for one when it opens."""
        limit = hidden.limit
        if limit is None or limit.window_s is None:
            return []
        per_s = limit.amount / limit.window_s
        owed = max(0.0, hidden.opens_at(Demand(), 0, now) - now) * per_s
        return [cls(limit.dimension, limit.amount, 1.0 - owed, now, per_s=per_s)]

    def fits_at(self, units: float, at: float) -> float:
        """The first instant from `at` on at which so many units are there; of more than the limit, the limit."""
        missing = min(units, self.limit) - self._level_at(at)
        if missing <= 0:
            return at
        return at + missing / self.per_s if self.per_s > 0 else self.turns_at

    def take(self, units: float, at: float) -> None:
        """They are taken."""
        self.level = self._level_at(at) - units
        self.at = max(at, self.at)
        if at >= self.turns_at:
            self.turns_at += self.window_s * (1 + (at - self.turns_at) // self.window_s)

    def _level_at(self, at: float) -> float:
        if at >= self.turns_at:
            return self.limit
        return min(self.limit, self.level + self.per_s * max(0.0, at - self.at))


class Slots:
    """The attempts that may be in flight, and when they end. Ask and take in the order of time."""

    def __init__(self, *, limit: int, gain: float, most: int, service_s: float | None) -> None:
        """`gain`: slots that each success adds, up to `most`; `service_s` None: nothing tells how long one takes."""
        self._limit = float(limit)
        self._gain = gain
        self._most = most
        self._service_s = service_s
        self._ends: list[float] = []

    def run(self, for_s: Iterable[float], now: float) -> None:
        """These attempts are in flight, for so long already."""
        for ran_s in for_s:
            mean_s = _NEVER if self._service_s is None else self._service_s
            left_s = _NEVER if mean_s == _NEVER else max(mean_s - ran_s, _LEAST_LEFT * mean_s)
            heapq.heappush(self._ends, now + left_s)

    def free_at(self, at: float) -> float:
        """The first instant from `at` on at which there is a slot; infinite where nothing tells."""
        self._end_until(at)
        surplus = len(self._ends) - int(self._limit)
        if surplus < 0:
            return at
        # After the limit was lowered more than one has to end.
        return self._ends[0] if surplus == 0 else heapq.nsmallest(surplus + 1, self._ends)[-1]

    def take(self, at: float) -> None:
        """An attempt goes."""
        self._end_until(at)
        heapq.heappush(self._ends, _NEVER if self._service_s is None else at + self._service_s)

    def _end_until(self, at: float) -> None:
        while self._ends and self._ends[0] <= at:
            heapq.heappop(self._ends)
            self._limit = max(self._limit, min(self._limit + self._gain, self._most))


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a pool knows of the time to come."""

    now: float
    limit: int
    growth: tuple[float, int]
    """Slots that a success adds, and up to what limit."""
    service_s: float | None
    """None: never measured."""
    running_s: Sequence[float]
    """How long each attempt in flight has run."""
    meters: Iterable[Meter]
    hidden: Sequence[HiddenLimits]
    probes_at: float
    """When one may go whose answer the others wait for; infinite: it is under way; minus infinite: none has to."""

    def starts_at(self, places: Iterable[Place]) -> dict[str, float]:
        """When tickets, in their order, are likely to go; those of which nothing tells are left out."""
        now, (gain, most) = self.now, self.growth
        slots = Slots(limit=self.limit, gain=gain, most=most, service_s=self.service_s)
        slots.run(self.running_s, now)
        first_at = others_at = max(now, *(hidden.closed_until for hidden in self.hidden))
        if self.probes_at > -_NEVER:
            answer_s = _NEVER if self.service_s is None else self.service_s
            is_sent = self.probes_at == _NEVER
            first_at = max(first_at, now + answer_s if is_sent else self.probes_at)
            others_at = first_at if is_sent else first_at + answer_s
        supplies = [
            *(Supply.of_meter(meter, now) for meter in self.meters),
            *(supply for hidden in self.hidden for supply in Supply.of_hidden(hidden, now)),
        ]
        return forecast(places, supplies=supplies, slots=slots, first_at=first_at, others_at=others_at)


def forecast(
    places: Iterable[Place], *, supplies: Sequence[Supply], slots: Slots, first_at: float, others_at: float
) -> dict[str, float]:
    """The instants at which tickets are likely to go, by id; a ticket of which nothing tells is left out.

    `places` are in the order of the queue. `first_at`: from when on one may go; `others_at`: and those after it.
    """
    starts_at: dict[str, float] = {}
    later: list[tuple[float, int, Place]] = []
    at = first_at

    def soonest(place: Place) -> float:
        """When a ticket finds all that it needs."""
        demand = place.ticket.demand
        found_at = slots.free_at(max(at, place.not_before))
        for supply in supplies:
            if found_at == _NEVER:
                break
            found_at = supply.fits_at(demand.of(supply.dimension), found_at)
        return found_at

    def go(place: Place, starts: float) -> float:
        """It goes; from when on others may."""
        demand = place.ticket.demand
        starts_at[place.ticket.id] = starts
        slots.take(starts)
        for supply in supplies:
            supply.take(demand.of(supply.dimension), starts)
        return max(starts, others_at)

    for number, place in enumerate(places):
        if place.not_before > at:
            heapq.heappush(later, (place.not_before, number, place))
            continue
        starts = soonest(place)
        while later and later[0][0] <= starts < _NEVER:
            _, _, due = heapq.heappop(later)
            at = go(due, soonest(due))
            starts = soonest(place)
        if starts == _NEVER:
            return starts_at
        at = go(place, starts)
    while later:
        _, _, due = heapq.heappop(later)
        starts = soonest(due)
        if starts == _NEVER:
            break
        at = go(due, starts)
    return starts_at
