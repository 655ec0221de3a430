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
from hivemind_addon.api.ticket import Attempt, Demand, Dimension, Outcome, OutcomeKind, Reading, Ticket
from hivemind_addon.proxy.core.common_meters import ENOUGH_VOTES, CommonMeters
from hivemind_addon.proxy.core.lanes import InFlight, QueueEntry
from hivemind_addon.proxy.core.learned import LearnedMeter
from hivemind_addon.proxy.core.meter import Meter, is_usable

FAILURES = (OutcomeKind.FAILED, OutcomeKind.OVERLOADED, OutcomeKind.THROTTLED)
_LATE_IN_WINDOW_S = 1.0
"""What is due so shortly before a window's end may miss it: no unit is kept for it."""


class Backoffs:
    """Queued tickets that have been tried, due or not."""

    def __init__(self) -> None:
        self._entries: dict[str, QueueEntry] = {}
        self._told: dict[str, OutcomeKind] = {}
        """Those that wait because a refusal of this kind told them to."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[QueueEntry]:
        """In the order in which they were put back."""
        return iter(self._entries.values())

    def __repr__(self) -> str:
        return f"<Backoffs {len(self)}>"

    def add(self, entry: QueueEntry, told_by: OutcomeKind | None = None) -> None:
        """A ticket is to be tried again; `told_by`: when, is what a refusal of this kind told."""
        self._entries[entry.ticket.id] = entry
        if told_by is not None:
            self._told[entry.ticket.id] = told_by

    def told_falsely(self, believes_told: Callable[[OutcomeKind, Demand], bool]) -> list[QueueEntry]:
        """Those that wait for what is no longer believed; each is named once."""
        if not self._told:
            return []
        told = [(self._entries[ticket_id], kind) for ticket_id, kind in self._told.items()]
        found = [entry for entry, kind in told if not believes_told(kind, entry.ticket.demand)]
        for entry in found:
            del self._told[entry.ticket.id]
        return found

    def discard(self, ticket_id: str) -> None:
        """It goes, or goes no more; nothing happens when it was never tried."""
        self._entries.pop(ticket_id, None)
        self._told.pop(ticket_id, None)

    def kept_of_meter(self, meter: Meter, ticket: Ticket, now: float) -> int:
        """Units of a meter that others will want before its window ends, as far as a ticket has to leave them."""
        if not self._entries:
            return 0
        half = int(meter.limit / 2)
        ends_at = meter.window_ends_at(now)
        if ends_at is None or meter.level(now) >= ticket.demand.of(meter.dimension) + half:
            return 0
        coming = self._due_before(ends_at, ticket, now)
        return min(sum(entry.ticket.demand.of(meter.dimension) for entry in coming), half)

    def _due_before(self, ends_at: float, ticket: Ticket, now: float) -> Iterator[QueueEntry]:
        """Others that back off now and are due, in time, before a window ends."""
        return (
            entry
            for entry in self._entries.values()
            if now < entry.not_before < ends_at - _LATE_IN_WINDOW_S and entry.ticket.id != ticket.id
        )


class Meters:
    """By name. A limit that is new takes over the attempts in flight."""

    def __init__(
        self, account: CommonMeters | None = None, flights: InFlight | None = None, *, model_group: str = ""
    ) -> None:
        """`account`: of the pools that may draw on the same limits; the rest is the pool's own."""
        self.model_group = model_group
        self._meters: dict[str, Meter] = {}
        """That count."""
        self._own: dict[str, Meter] = {}
        """The pool's; they learn beside the common ones, too."""
        self._account = CommonMeters() if account is None else account
        self._account.join(self, InFlight() if flights is None else flights)

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

    def move(self, account: CommonMeters | None, flights: InFlight) -> None:
        """The pool's account proved to be another one; None: the pool is no more."""
        self._account.leave(self)
        if account is not None:
            self._account = account
            self._account.join(self, flights)

    def learn(
        self, reading: Reading, attempt: Attempt, flights: InFlight, now: float, *, answered: bool = True
    ) -> Meter | None:
        """One of the limits that the head of an attempt's answer told. The meter, where its kind or limit is news.

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
        sent_at = attempt.admitted_at
        changed = meter.learn(reading, stamp=attempt.stamp, sent_at=sent_at, now=now)
        self._account.learn(self, meter, reading, attempt, now, answered=answered)
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

    def settle(self, attempt: Attempt, charged: Demand | None, outcome: Outcome, *, stamp: int, now: float) -> None:
        """An attempt ended; `charged` is what the provider takes for it, where it is known. `stamp`: of its end."""
        # One that was cut off without a word may have been charged though refusals are not.
        failed = outcome.status is not None and outcome.kind in FAILURES
        generated = outcome.kind not in FAILURES or outcome.ambiguous
        for meter in self._counting():
            units = None if charged is None else charged.of(meter.dimension)
            if not generated and meter.dimension is Dimension.OUTPUT_TOKENS:
                units = 0  # there was not even a part of an answer
            meter.settle(stamp=attempt.stamp, settled_stamp=stamp, charged=units, now=now, failed=failed)

    def adopt(self, attempt: Attempt, now: float) -> None:
        """Take over an attempt that another pool has sent."""
        for meter in self._own.values():
            _adopt(meter, attempt, now)
        self._account.adopt(self, attempt, now)

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

    def _add(self, meter: Meter, flights: InFlight, now: float) -> None:
        self._own[meter.name] = self._meters[meter.name] = meter
        for attempt in flights.attempts:
            _adopt(meter, attempt, now)


def _adopt(meter: Meter, attempt: Attempt, now: float) -> None:
    units = attempt.demand.of(meter.dimension)
    meter.adopt(stamp=attempt.stamp, units=units, admitted_at=attempt.admitted_at, now=now)


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
