"""All limits of a pool that headers report: each meter reserves and settles every attempt, and learns from its headers.

Each meter is the pool's own, or in its place a meter that is common to several pools of the account.

**Common meters.** When headers report the same name, limit and window to several pools of an account, a *common* meter
is kept beside the pools' own. The common meter counts the attempts of all these pools and learns from all their
headers, while each own meter does so for a single pool. Every header is then a test: if the pools share the limit, the
header is below the own meter's expectation and meets the common meter's; if each model has a limit of its own, the
reverse. Two headers that only the common meter explains put this meter in the place of the own meters, and headers
against it undo that. All meters learn all the time, so either change takes effect at once and loses nothing.

**Costs** are the unit of the order: the usage of an attempt, in seconds of the pool's bottleneck. A demand of `d` units
takes `d / rate` seconds of a meter that refills `rate` units per second, and a call of `s` seconds takes `s / slots` of
a concurrency limit. The largest of these is the attempt's dominant cost: the additional wait for all others.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace

from hivemind_addon.kernel.limits.learned import LearnedMeter
from hivemind_addon.kernel.limits.meter import Meter, is_usable
from hivemind_addon.kernel.order.lanes import InFlight
from hivemind_addon.kernel.values.snapshot import MeterView
from hivemind_addon.kernel.values.ticket import Attempt, Demand, Dimension, Outcome, OutcomeKind, Reading

_MOST_VOTES = 4
ENOUGH_VOTES = 2
"""A common meter is used from then on."""
_NOISE = 0.02
"""Share of the limit: two expectations that differ by less explain a header equally well."""


class CommonMeter:
    """Meter of a limit that several pools may share, in use or not."""

    def __init__(self, like: Meter, now: float) -> None:
        self.members: list[Meters] = []
        self.votes = 0
        """Headers explained better than by the pools' own meters, less the headers explained worse."""
        self.is_used = False
        self.meter = Meter.resume(like.learned, now)

    def __repr__(self) -> str:
        return f"<CommonMeter of {len(self.members)} pools, {self.votes} votes, {self.meter!r}>"

    def join(self, meters: "Meters", own: Meter, flights: InFlight, now: float) -> None:
        """Add a pool that knows this limit, and whose usage its own meter has counted so far."""
        self.members.append(meters)
        for attempt in flights.attempts:
            self.adopt(attempt, now)
        self.meter.inherit(own, now)

    def adopt(self, attempt: Attempt, now: float) -> None:
        """Count an attempt that was sent before."""
        units = self.meter.units_of(attempt.demand)
        self.meter.adopt(stamp=attempt.stamp, units=units, admitted_at=attempt.admitted_at, now=now)

    def judge(self, own: Meter, reading: Reading, *, answered: bool) -> None:
        """Compare both meters' expectations for a header that both have learned from.

        No refusal is evidence against this meter: concurrent refusals in other pools are not settled yet.
        """
        if reading.limit is not None and reading.limit != self.meter.limit:
            self._vote(-2)
        if own.surprise is None or self.meter.surprise is None:
            return
        noise = max(0.5, reading.granularity, _NOISE * self.meter.limit)
        gain = abs(own.surprise) - abs(self.meter.surprise)
        if gain > noise:
            self._vote(1)
        elif answered and gain < -noise and abs(own.surprise) <= noise:
            self._vote(-2)

    def _vote(self, vote: int) -> None:
        self.votes = max(-_MOST_VOTES, min(self.votes + vote, _MOST_VOTES))


class CommonMeters:
    """Common meters of an account. Each pool's `Meters` join once, and report all their attempts and headers."""

    def __init__(self) -> None:
        self._flights: dict[Meters, InFlight] = {}
        self._common: dict[str, CommonMeter] = {}
        self.is_in_use = False
        """Whether any common meter is in use."""

    def __repr__(self) -> str:
        return f"<CommonMeters {list(self._common.values())}>"

    def join(self, meters: "Meters", flights: InFlight) -> None:
        """Add a pool to the account."""
        self._flights[meters] = flights

    def leave(self, meters: "Meters") -> None:
        """Remove a pool from the account."""
        del self._flights[meters]
        for name in [name for name, common in self._common.items() if meters in common.members]:
            self._drop(name)

    def members_of(self, meter: Meter) -> "tuple[Meters, ...]":
        """The pools that draw on a common meter; none for a pool's own meter."""
        common = self._common.get(meter.name)
        return tuple(common.members) if common is not None and common.meter is meter else ()

    def of(self, meters: "Meters") -> list[Meter]:
        """The common meters that count a pool's attempts, in use or not."""
        return [common.meter for common in self._common.values() if meters in common.members] if self._common else []

    def adopt(self, meters: "Meters", attempt: Attempt, now: float) -> None:
        """Count an attempt that a pool took over from another pool."""
        for common in self._common.values():
            if meters in common.members:
                common.adopt(attempt, now)

    def learn(
        self, meters: "Meters", own: Meter, reading: Reading, attempt: Attempt, now: float, *, answered: bool
    ) -> None:
        """Learn from a header after the pool's own meter; `answered`: the header is no refusal's."""
        if len(self._flights) < 2 and not self._common:
            return
        self.meet(own, now)
        common = self._common.get(own.name)
        if common is None or meters not in common.members:
            return
        common.meter.learn(reading, stamp=attempt.stamp, sent_at=attempt.admitted_at, now=now)
        common.judge(own, reading, answered=answered)
        if common.votes == -_MOST_VOTES and not self._is_alike(common):
            self._drop(own.name)
        else:
            self._put_in_use(common)

    def meet(self, own: Meter, now: float, *, votes: int = 0) -> None:
        """Give pools that know the same limit a common meter, which begins with `votes`."""
        if len(self._flights) < 2:
            return
        common = self._common.get(own.name)
        if common is None:
            common = self._common[own.name] = CommonMeter(own, now)
        if not _are_alike(own, common.meter):
            return
        common.votes = max(common.votes, votes)
        for meters, flights in self._flights.items():
            candidate = meters.own(own.name)
            if meters not in common.members and candidate is not None and _are_alike(own, candidate):
                common.join(meters, candidate, flights, now)
        self._put_in_use(common)

    def _is_alike(self, common: CommonMeter) -> bool:
        return all(
            (own := meters.own(common.meter.name)) is not None and _are_alike(own, common.meter)
            for meters in common.members
        )

    def _drop(self, name: str) -> None:
        common = self._common.pop(name)
        for meters in common.members:
            meters.draw_on(name, None)
        self.is_in_use = any(other.is_used for other in self._common.values())

    def _put_in_use(self, common: CommonMeter) -> None:
        """Use the common meter for all members, or their own meters, as the votes are."""
        common.is_used = common.votes >= (1 if common.is_used else ENOUGH_VOTES)
        for meters in common.members:
            meters.draw_on(common.meter.name, common.meter if common.is_used else None)
        self.is_in_use = any(other.is_used for other in self._common.values())


def _are_alike(first: Meter, second: Meter) -> bool:
    return (first.limit, first.window_s, first.dimension) == (second.limit, second.window_s, second.dimension)


FAILURES = (OutcomeKind.FAILED, OutcomeKind.OVERLOADED, OutcomeKind.THROTTLED)


class Meters:
    """Meters of a pool, by name. A new meter takes over the attempts in flight."""

    def __init__(
        self, account: CommonMeters | None = None, flights: InFlight | None = None, *, model_group: str = ""
    ) -> None:
        """`account`: common meters of the pools that may draw on the same limits."""
        self.model_group = model_group
        self.by_name: dict[str, Meter] = {}
        """Meters in use. Changed by this class only."""
        self._own: dict[str, Meter] = {}
        """The pool's own meters, which learn even while a common meter is in use."""
        self._account = CommonMeters() if account is None else account
        self._account.join(self, InFlight() if flights is None else flights)

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[Meter]:
        """In the order in which they became known."""
        return iter(self.by_name.values())

    def __repr__(self) -> str:
        return f"<Meters {', '.join(self.by_name)}>"

    @property
    def learned(self) -> tuple[LearnedMeter, ...]:
        """The values that outlive a run."""
        return tuple(
            replace(meter.learned, is_common=bool(self._account.members_of(meter))) for meter in self.by_name.values()
        )

    def resume(self, learned: Iterable[LearnedMeter], flights: InFlight, now: float) -> None:
        """Continue with limits from an earlier run or another pool, and count the attempts in flight."""
        for limit in learned:
            self._add(Meter.resume(limit, now), flights, now)
            if limit.is_common:
                self._account.meet(self._own[limit.name], now, votes=ENOUGH_VOTES)

    def as_of(self, now: float) -> "Meters":
        """A copy at an instant, for views, whose answers change nothing."""
        seen = copy(self)
        seen.by_name = {name: meter.as_of(now) for name, meter in self.by_name.items()}
        return seen

    def doubt_levels(self, now: float) -> None:
        """Doubt all levels at the start of a run: an earlier run may have used the limits a moment ago."""
        for meter in self._own.values():
            meter.doubt_level(now)

    def own(self, name: str) -> Meter | None:
        """The pool's own meter."""
        return self._own.get(name)

    def draw_on(self, name: str, common: Meter | None) -> None:
        """Use a common meter for a limit; None: the pool's own."""
        self.by_name[name] = self._own[name] if common is None else common

    def move(self, account: CommonMeters | None, flights: InFlight) -> None:
        """Move the pool to another account; None: remove the pool."""
        self._account.leave(self)
        if account is not None:
            self._account = account
            self._account.join(self, flights)

    def learn(
        self, reading: Reading, attempt: Attempt, flights: InFlight, now: float, *, answered: bool = True
    ) -> Meter | None:
        """Learn from a limit in the head of an attempt's answer. Return the meter if the kind or limit is news.

        `answered`: the head is no refusal's.
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

    def fits_at(self, demand: Demand, now: float, *, hoped: bool = False) -> float:
        """When all meters have room for the demand, if nothing else changes."""
        fits_at = now
        for meter in self.by_name.values():
            fits_at = max(fits_at, meter.earliest(meter.units_of(demand), now, hoped=hoped))
        return fits_at

    def last_to_fit(self, demand: Demand, now: float) -> str:
        """Name of the last meter to have room for a demand; empty if all have room now."""
        fits_at = {meter.name: meter.earliest(meter.units_of(demand), now) for meter in self.by_name.values()}
        last = max(fits_at, key=fits_at.__getitem__, default="")
        return last if fits_at.get(last, now) > now else ""

    def explain(self, demand: Demand, now: float) -> bool:
        """Whether a meter explains the refusal of a demand: the demand does not fit."""
        return any(meter.earliest(meter.units_of(demand), now) > now for meter in self.by_name.values())

    def are_scarce(self, demand: Demand, waiting: int, now: float) -> bool:
        """Whether a meter that counts requests has less left than `waiting` times a demand.

        Tokens are left out: a ticket takes more of them the longer the wait, because the prompt cache has lapsed.
        """
        return any(
            meter.level(now) < waiting * demand.requests
            for meter in self.by_name.values()
            if meter.dimension is Dimension.REQUESTS
        )

    def fills_at(self, demand: Demand, now: float) -> float:
        """When the buckets will hold a demand if nobody else takes units. Buckets smaller than that are ignored."""
        fits_at = (meter.earliest(meter.units_of(demand), now) for meter in self._buckets(now))
        return max((at for at in fits_at if at < float("inf")), default=now)

    def filling_s(self, demand: Demand, now: float) -> float:
        """Seconds that the buckets need to fill for a demand."""
        return max((meter.units_of(demand) / meter.limit * meter.window_s for meter in self._buckets(now)), default=0.0)

    def _buckets(self, now: float) -> Iterator[Meter]:
        return (meter for meter in self.by_name.values() if meter.window_ends_at(now) is None)

    def next_window_at(self, now: float) -> float | None:
        """When the first fixed window turns; None where there is none."""
        ends_at = (meter.window_ends_at(now) for meter in self.by_name.values())
        return min((at for at in ends_at if at is not None), default=None)

    def reserve(self, demand: Demand, *, stamp: int, now: float) -> None:
        """Reserve an admitted attempt."""
        if not self._own:
            return
        for meter in self._counting():
            meter.reserve(stamp=stamp, units=meter.units_of(demand), now=now)

    def settle(self, attempt: Attempt, charged: Demand | None, outcome: Outcome, *, stamp: int, now: float) -> None:
        """End an attempt; `charged`: the provider's charge, where known. `stamp`: of the end."""
        if not self._own:
            return
        # An attempt cut off without an answer may have been charged although refusals are not.
        failed = outcome.status is not None and outcome.kind in FAILURES
        generated = outcome.kind not in FAILURES or outcome.ambiguous
        for meter in self._counting():
            units = None if charged is None else meter.units_of(charged)
            if not generated and meter.dimension is Dimension.OUTPUT_TOKENS:
                units = 0  # no part of an answer came
            meter.settle(stamp=attempt.stamp, settled_stamp=stamp, charged=units, now=now, failed=failed)

    def adopt(self, attempt: Attempt, now: float, *, is_elsewhere: bool = False) -> None:
        """Take over an attempt sent by another pool; `is_elsewhere`: by another process."""
        for meter in self._own.values():
            _adopt(meter, attempt, now, is_elsewhere=is_elsewhere)
        self._account.adopt(self, attempt, now)

    def views(self, now: float) -> tuple[MeterView, ...]:
        """All meters at an instant."""
        return tuple(
            MeterView(
                name=meter.name,
                kind=meter.kind.value,
                limit=meter.limit,
                level=max(0.0, (seen := meter.as_of(now)).level(now)),
                full_in_s=seen.full_in_s(now),
                window_s=meter.window_s,
                dimension=meter.dimension,
                shared_by=tuple(sorted(pool.model_group for pool in self._account.members_of(meter))),
            )
            for meter in self
        )

    def is_near(self, demand: Demand, times: int, now: float) -> bool:
        """Whether a meter that counts input has less left than `times` times a demand."""
        return any(meter.counts_input and meter.level(now) < times * meter.units_of(demand) for meter in self)

    def in_the_way(self, demand: Demand, now: float) -> "set[Meters]":
        """The pools that draw on a common limit without room for a demand now."""
        return {
            meters
            for meter in self.by_name.values()
            if (members := self._account.members_of(meter)) and meter.earliest(meter.units_of(demand), now) > now
            for meters in members
        }

    def _counting(self) -> Iterable[Meter]:
        common = self._account.of(self)
        return [*self._own.values(), *common] if common else self._own.values()

    def _add(self, meter: Meter, flights: InFlight, now: float) -> None:
        self._own[meter.name] = self.by_name[meter.name] = meter
        for attempt in flights.attempts:
            _adopt(meter, attempt, now)


def _adopt(meter: Meter, attempt: Attempt, now: float, *, is_elsewhere: bool = False) -> None:
    units = meter.units_of(attempt.demand)
    meter.adopt(stamp=attempt.stamp, units=units, admitted_at=attempt.admitted_at, now=now, is_elsewhere=is_elsewhere)


_FIRST_GUESS_S = 10.0
_NEWEST_WEIGHT = 0.1
_LONGEST_WINDOW_S = 3_600.0
"""Limits over longer windows are no bottleneck of the moment: they are not paced, and their rate means nothing."""
_PREFILL_TOKENS_S = 10_000.0
"""Speed of a model that reads uncached input, where no meter counts input: a warm prefix saves at least that time."""


class ServiceTime:
    """Expected time that an attempt holds a slot: a moving mean over successful attempts."""

    def __init__(self) -> None:
        self.mean_s = _FIRST_GUESS_S
        self._is_guess = True

    def __repr__(self) -> str:
        return f"<ServiceTime {self.mean_s:.2f} s{', a guess' if self._is_guess else ''}>"

    @property
    def is_known(self) -> bool:
        """Whether any attempt was measured."""
        return not self._is_guess

    def succeeded(self, duration_s: float) -> None:
        """Learn from a successful attempt."""
        if self._is_guess:
            self.mean_s, self._is_guess = duration_s, False
        else:
            self.mean_s += _NEWEST_WEIGHT * (duration_s - self.mean_s)


def dominant_s(demand: Demand, meters: Iterable[Meter], *, service_s: float, slots: int) -> float:
    """Dominant cost of a demand that holds a slot for `service_s`. Never negative."""
    longest_s = service_s / slots if service_s > 0 else 0.0
    for meter in meters:
        if meter.window_s <= _LONGEST_WINDOW_S:
            # A demand above the whole limit takes the whole limit.
            units, limit = meter.units_of(demand), meter.limit
            takes_s = units / limit * meter.window_s if units < limit else meter.window_s
            if takes_s > longest_s:
                longest_s = takes_s
    return longest_s


def reading_s(input_tokens: int, meters: Iterable[Meter]) -> float:
    """Seconds of the bottleneck that uncached input takes."""
    longest_s = input_tokens / _PREFILL_TOKENS_S
    for meter in meters:
        if meter.counts_input and meter.window_s <= _LONGEST_WINDOW_S:
            limit = meter.limit
            takes_s = input_tokens / limit * meter.window_s if input_tokens < limit else meter.window_s
            if takes_s > longest_s:
                longest_s = takes_s
    return longest_s
