"""All limits of one pool that headers tell of: every attempt is reserved, settled and shown to each of them."""

from collections.abc import Iterable, Iterator

from hivemind_addon.core.backoffs import Backoffs
from hivemind_addon.core.flights import Flight, Flights
from hivemind_addon.core.learned import LearnedMeter
from hivemind_addon.core.meter import Meter, is_usable
from hivemind_addon.core.snapshot import MeterView
from hivemind_addon.core.ticket import Demand, Reading, Ticket


class Meters:
    """By name. A limit that is new takes over the attempts in flight."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}

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
        return tuple(meter.learned for meter in self)

    def resume(self, learned: Iterable[LearnedMeter], now: float) -> None:
        """Begin with what an earlier run has learned."""
        self._meters.update((meter.name, Meter.resume(meter, now)) for meter in learned)

    def learn(self, reading: Reading, flight: Flight, flights: Flights, now: float) -> Meter | None:
        """One of the limits that the head of a flight's answer told. The meter, where its kind or limit is news."""
        if not is_usable(reading):
            return None
        meter = self._meters.get(reading.meter)
        is_new = meter is None
        if meter is None:
            meter = Meter.of(reading, now)
            if meter is None:
                return None
            self._add(meter, flights, now)
        sent_at = flight.reservation.admitted_at
        changed = meter.learn(reading, stamp=flight.stamp, sent_at=sent_at, now=now)
        return meter if changed or is_new else None

    def fits_at(
        self, demand: Demand, ticket: Ticket, backoffs: Backoffs, now: float, *, hurried: bool = False
    ) -> float:
        """When all have room for a ticket's demand beside what is kept for others, if nothing else changes."""
        fits_at = now
        for meter in self._meters.values():
            kept = backoffs.kept_of_meter(meter, ticket, now)
            fits_at = max(fits_at, meter.earliest(demand.of(meter.dimension), now, kept=kept, hurried=hurried))
        return fits_at

    def explain(self, demand: Demand, now: float) -> bool:
        """Whether they know why a demand was refused: it does not fit."""
        return any(meter.earliest(demand.of(meter.dimension), now) > now for meter in self._meters.values())

    def are_scarce(self, demand: Demand, waiting: int, now: float) -> bool:
        """Whether one of them has not so many times a demand."""
        return any(meter.level(now) < waiting * demand.of(meter.dimension) for meter in self._meters.values())

    def next_window_at(self, now: float) -> float | None:
        """When the first fixed window turns; None where there is none."""
        ends_at = (meter.window_ends_at(now) for meter in self._meters.values())
        return min((at for at in ends_at if at is not None), default=None)

    def reserve(self, demand: Demand, *, stamp: int, now: float) -> None:
        """An attempt was admitted."""
        for meter in self._meters.values():
            meter.reserve(stamp=stamp, units=demand.of(meter.dimension), now=now)

    def settle(self, flight: Flight, *, settled_stamp: int, charged: Demand | None, failed: bool, now: float) -> None:
        """It ended; `charged` is what the provider takes for it, where it is known."""
        for meter in self._meters.values():
            units = None if charged is None else charged.of(meter.dimension)
            meter.settle(stamp=flight.stamp, settled_stamp=settled_stamp, charged=units, now=now, failed=failed)

    def adopt(self, flight: Flight, now: float) -> None:
        """Take over an attempt that another pool has sent."""
        for meter in self._meters.values():
            _adopt(meter, flight, now)

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept."""
        for meter in self._meters.values():
            meter.clock_jumped(delta_s)

    def absorb(self, other: "Meters", flights: Flights, now: float) -> None:
        """Another pool turned out to be of the same account: of what both know the lower level counts."""
        for name, meter in other._meters.items():  # noqa: SLF001  its own kind
            known = self._meters.get(name)
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
            )
            for meter in self
        )

    def _add(self, meter: Meter, flights: Flights, now: float) -> None:
        self._meters[meter.name] = meter
        for flight in flights:
            _adopt(meter, flight, now)


def _adopt(meter: Meter, flight: Flight, now: float) -> None:
    units = flight.demand.of(meter.dimension)
    meter.adopt(stamp=flight.stamp, units=units, admitted_at=flight.reservation.admitted_at, now=now)
