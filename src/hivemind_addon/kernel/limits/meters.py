"""All limits of a pool that headers report: each meter reserves and settles every attempt, and learns from its headers.

**Common meters.** A new pool draws on all meters of the account that its answers mention with the same limit. Each
header is a test: a common meter that explains the headers of all pools is right. If a header is higher than the common
meter expects, a *trial* begins, as for each new pool: beside the common meter, a meter counts this pool's attempts
only, and both learn from the pool's headers. The pool is separated when only its own meter explains the headers.

**Costs** are the unit of the order: the usage of an attempt, in seconds of the pool's bottleneck. A demand of `d` units
takes `d / rate` seconds of a meter that refills `rate` units per second, and a call of `s` seconds takes `s / slots` of
a concurrency limit. The largest of these is the attempt's dominant cost: the additional wait for all others.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace

from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.learned import LearnedMeter
from hivemind_addon.kernel.limits.meter import Meter, is_usable
from hivemind_addon.kernel.order.entry import InFlight
from hivemind_addon.kernel.values.snapshot import MeterView
from hivemind_addon.kernel.values.ticket import Attempt, Demand, Dimension, Outcome, OutcomeKind, Reading

_NEVER = float("inf")
_FIRST_VOTES = 2
_MOST_VOTES = 4
"""A pool belongs to a common meter for sure from then on."""
_LEAST_SHARE = 0.1
"""Share of a window's level that a demand may take however long the window lasts."""
_LONGER = 5.0
"""A limit over a window that is longer by this factor is another limit."""
_NOISE = 0.02
"""Share of the limit: two expectations that differ by less explain a header equally well."""


class CommonMeters:
    """Common meters of an account. Each pool's `Meters` join once."""

    def __init__(self) -> None:
        self.pools: dict[Meters, None] = {}
        self.users: dict[Meter, dict[Meters, None]] = {}
        """The common meters, with the pools that draw on each."""
        self._by_limit: dict[tuple[str, float], Meter] = {}
        self.are_separate: set[str] = set()
        """Names of the limits that proved to be of a single pool."""

    def __repr__(self) -> str:
        return f"<CommonMeters {list(self.users)}>"

    def are_several(self, meter: Meter) -> bool:
        """Whether several pools draw on a meter."""
        return len(self.users.get(meter, ())) > 1

    def like(self, name: str, limit: float) -> Meter | None:
        """The common meter of this name and limit."""
        return self._by_limit.get((name, limit))

    def add(self, meter: Meter) -> None:
        """Make a meter common."""
        self.users.pop(self._by_limit.get((meter.name, meter.limit), meter), None)
        self._by_limit[meter.name, meter.limit] = meter
        self.users[meter] = {}

    def discard(self, meter: Meter, limit: float) -> None:
        """Forget a common meter that is known under this limit."""
        self.users.pop(meter, None)
        if self._by_limit.get((meter.name, limit)) is meter:
            del self._by_limit[meter.name, limit]


@dataclass(slots=True)
class _Trial:
    """Whether a pool belongs to a common meter, judged by the headers of the pool."""

    own: Meter | None = None
    """Counts the pool's attempts only, from the first header on."""
    votes: int = _FIRST_VOTES
    """Headers that the common meter explains better, less the headers that the own meter explains better."""


def _noise(meter: Meter, reading: Reading) -> float:
    return max(0.5, reading.granularity, _NOISE * meter.limit)


FAILURES = (OutcomeKind.FAILED, OutcomeKind.OVERLOADED, OutcomeKind.THROTTLED)


class Meters:
    """Meters of a pool, by name: the account's, or the pool's own. A new meter takes over the attempts in flight."""

    def __init__(
        self, account: CommonMeters | None = None, flights: InFlight | None = None, *, model_group: str = ""
    ) -> None:
        """`account`: common meters of the pools that may draw on the same limits."""
        self.model_group = model_group
        self.by_name: dict[str, Meter] = {}
        """Meters in use. Changed by this class only."""
        self._trials: dict[str, _Trial] = {}
        """By name of a common meter, until the pool belongs to the meter for sure."""
        self._flights = InFlight() if flights is None else flights
        self._account = CommonMeters()
        self._enter(self._account if account is None else account, 0.0)

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
            replace(meter.learned, is_separate=meter not in self._account.users) for meter in self.by_name.values()
        )

    def resume(self, learned: Iterable[LearnedMeter], now: float) -> None:
        """Continue with limits from an earlier run or another pool, and count the attempts in flight."""
        for limit in learned:
            if limit.is_separate:
                self._account.are_separate.add(limit.name)
                self._draw_on(Meter.resume(limit, now), now)
            elif (common := self._account.like(limit.name, limit.limit)) is None:
                self._share(Meter.resume(limit, now), now)
            elif self.by_name.get(limit.name) is not common:
                self._join(common, now)

    def as_of(self, now: float) -> "Meters":
        """A copy at an instant, for views, whose answers change nothing."""
        seen = copy(self)
        seen.by_name = {name: meter.as_of(now) for name, meter in self.by_name.items()}
        return seen

    def doubt_levels(self, now: float) -> None:
        """Doubt all levels at the start of a run: an earlier run may have used the limits a moment ago."""
        for meter in self:
            meter.doubt_level(now)

    def move(self, account: CommonMeters | None, now: float) -> None:
        """Move the pool to another account; None: remove the pool."""
        own = [meter for meter in self if meter not in self._account.users]
        for meter in self:
            self._leave(meter, now)
        del self._account.pools[self]
        self.by_name = {meter.name: meter for meter in own}
        if account is not None:
            self._enter(account, now)

    def learn(self, reading: Reading, attempt: Attempt, now: float, *, answered: bool = True) -> Meter | None:
        """Learn from a limit in the head of an attempt's answer. Return the meter if the kind or limit is news.

        `answered`: the head is no refusal's.
        """
        if not is_usable(reading):
            return None
        name, limit = reading.meter, reading.limit
        meter = self.by_name.get(name)
        account = self._account
        is_new = meter is None or (limit not in (None, meter.limit) and account.are_several(meter))
        if is_new:
            meter = self._met(reading, now)
        if meter is None:
            return None
        trial, before = self._trials.get(name), meter.limit
        if trial is not None:
            trial.own = trial.own or self._fresh(Meter.resume(meter.learned, now), now)
            trial.own.learn(reading, stamp=attempt.stamp, sent_at=attempt.admitted_at, now=now)
        level = meter.level(now)
        changed = meter.learn(reading, stamp=attempt.stamp, sent_at=attempt.admitted_at, now=now)
        if meter.limit != before and meter in account.users:
            account.discard(meter, before)
            self._share(meter, now)
        elif trial is not None:
            self._judge(trial, meter, level, reading, now, answered=answered)
        elif answered and account.are_several(meter) and (meter.surprise or 0.0) > _noise(meter, reading):
            self._trials[name] = _Trial()
        return self.by_name[name] if changed or is_new else None

    def _judge(
        self, trial: _Trial, common: Meter, level: float, reading: Reading, now: float, *, answered: bool
    ) -> None:
        """Compare both expectations of a header that both meters have learned from; end a trial that is decided.

        `level`: of the common meter before the header. No refusal is evidence against the common meter: concurrent
        refusals in other pools are not settled yet.
        """
        own = trial.own
        if own is None or own.surprise is None or common.surprise is None:
            return
        mine, theirs, noise = abs(own.surprise), abs(common.surprise), _noise(common, reading)
        if mine - theirs > noise:
            trial.votes += 1
        elif answered and theirs - mine > noise >= mine:
            trial.votes -= 1
        if trial.votes >= _MOST_VOTES:
            del self._trials[common.name]
        elif trial.votes <= 0:
            self._account.are_separate.add(common.name)
            self._leave(common, now)
            common.lower(level, now)
            self.by_name[common.name] = own

    def miss(self, readings: Iterable[Reading], now: float) -> None:
        """Leave the common meters that an answer of this pool does not mention, unless an earlier response did."""
        if self._trials:
            names = {reading.meter for reading in readings}
            for name, trial in list(self._trials.items()):
                if trial.own is None and name not in names:
                    self._leave(self.by_name.pop(name), now)

    def _enter(self, account: CommonMeters, now: float) -> None:
        self._account = account
        account.pools[self] = None
        for meter in list(self):
            if account.like(meter.name, meter.limit) is None:
                self._share(meter, now)
        for common in list(account.users):
            if common.name not in self.by_name and common.name not in account.are_separate:
                self._join(common, now)

    def _met(self, reading: Reading, now: float) -> Meter | None:
        """The meter of a limit that is new to this pool; None: the reading states none."""
        name = reading.meter
        common = self._account.like(name, reading.limit or 0.0)
        if common is not None and name not in self._account.are_separate:
            self._join(common, now)
            return common
        meter = Meter.of(reading, now)
        if meter is None:
            return None
        if common is None:
            self._share(meter, now)
        else:
            self._draw_on(meter, now)
        return meter

    def _share(self, meter: Meter, now: float) -> None:
        """Make a meter common, for this pool and all pools that know no such limit."""
        self._account.add(meter)
        self._draw_on(meter, now)
        self._account.users[meter][self] = None
        if meter.name not in self._account.are_separate:
            for pool in self._account.pools:
                if meter.name not in pool.by_name:
                    pool._join(meter, now)  # noqa: SLF001  its own kind

    def _join(self, common: Meter, now: float) -> None:
        self._draw_on(common, now)
        self._account.users[common][self] = None
        self._trials[common.name] = _Trial()

    def _draw_on(self, meter: Meter, now: float) -> None:
        before = self.by_name.get(meter.name)
        if before is meter:
            return
        if before is not None:
            self._leave(before, now)
        self.by_name[meter.name] = self._fresh(meter, now)

    def _leave(self, meter: Meter, now: float) -> None:
        """Take this pool's attempts out of a meter that the pool uses no more."""
        self._trials.pop(meter.name, None)
        users = self._account.users.get(meter)
        if users is None:
            return
        del users[self]
        if not users:
            self._account.discard(meter, meter.limit)
        for attempt in self._flights.attempts:
            meter.settle(stamp=attempt.stamp, settled_stamp=attempt.stamp, charged=0, now=now)

    def _fresh(self, meter: Meter, now: float) -> Meter:
        """The meter, which counts this pool's attempts in flight from now on."""
        for attempt in self._flights.attempts:
            _adopt(meter, attempt, now)
        return meter

    def fits_at(self, demand: Demand, now: float, *, hoped: bool = False) -> float:
        """When all meters have room for the demand, if nothing else changes."""
        fits_at = now
        for meter in self.by_name.values():
            fits_at = max(fits_at, meter.earliest(meter.units_of(demand), now, hoped=hoped))
        return fits_at

    def fits_after(self, demand: Demand, other: Demand, others: "Meters", now: float) -> float:
        """When all meters have room for the demand if another demand on the meters `others` goes now."""
        fits_at = now
        for name, meter in self.by_name.items():
            before = meter.units_of(other) if others.by_name.get(name) is meter else 0
            fits_at = max(fits_at, meter.earliest(meter.units_of(demand), now, before=before))
        return fits_at

    def spare_at(self, demand: Demand, now: float) -> float:
        """When the windows can spare the demand; infinite: not before they end.

        Tickets that come later have a claim, too: a demand takes a share of the rest that grows with the window's age.
        """
        spare_at = now
        for meter in self:
            ends_at, units = meter.window_ends_at(now), meter.units_of(demand)
            if ends_at is not None and units > max(1, _LEAST_SHARE * (level := meter.level(now))):
                spare_at = max(spare_at, ends_at - (1.0 - units / level) * meter.window_s if units < level else _NEVER)
        return spare_at

    def last_to_fit(self, demand: Demand, now: float) -> str:
        """Name of the last meter to have room for a demand; empty if all have room now."""
        fits_at = {meter.name: meter.earliest(meter.units_of(demand), now) for meter in self.by_name.values()}
        last = max(fits_at, key=fits_at.__getitem__, default="")
        return last if fits_at.get(last, now) > now else ""

    def contradict(self, limit: HiddenLimit, demand: Demand, now: float) -> bool:
        """Whether headers report room for a demand where an inferred limit over about the same time has none."""
        window_s = limit.window_s
        return window_s is not None and any(
            meter.dimension is limit.dimension
            and meter.window_s <= window_s < _LONGER * meter.window_s
            and meter.earliest(meter.units_of(demand), now) <= now
            for meter in self
        )

    def filling_s(self, demand: Demand, now: float) -> float:
        """Seconds that the buckets need to fill for a demand."""
        buckets = (meter for meter in self if meter.window_ends_at(now) is None)
        return max((meter.units_of(demand) / meter.limit * meter.window_s for meter in buckets), default=0.0)

    def next_window_at(self, now: float) -> float | None:
        """When the first fixed window turns; None where there is none."""
        ends_at = (meter.window_ends_at(now) for meter in self.by_name.values())
        return min((at for at in ends_at if at is not None), default=None)

    def reserve(self, demand: Demand, *, stamp: int, now: float) -> None:
        """Reserve an admitted attempt."""
        for meter in self._counting():
            meter.reserve(stamp=stamp, units=meter.units_of(demand), now=now)

    def settle(self, attempt: Attempt, charged: Demand | None, outcome: Outcome, *, stamp: int, now: float) -> None:
        """End an attempt; `charged`: the provider's charge, where known. `stamp`: of the end."""
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
        for meter in self._counting():
            _adopt(meter, attempt, now, is_elsewhere=is_elsewhere)

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
                shared_by=tuple(sorted(pool.model_group for pool in self._account.users[meter]))
                if self._account.are_several(meter)
                else (),
            )
            for meter in self
        )

    def is_near(self, demand: Demand, times: int, now: float) -> bool:
        """Whether a meter that counts input has less left than `times` times a demand."""
        return any(meter.counts_input and meter.level(now) < times * meter.units_of(demand) for meter in self)

    def _counting(self) -> Iterator[Meter]:
        """The meters that count the attempts of this pool, those of trials included."""
        yield from self.by_name.values()
        for trial in self._trials.values():
            if trial.own is not None:
                yield trial.own


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
        self.is_known = False
        """Whether any attempt was measured."""

    def __repr__(self) -> str:
        return f"<ServiceTime {self.mean_s:.2f} s{'' if self.is_known else ', a guess'}>"

    def succeeded(self, duration_s: float) -> None:
        """Learn from a successful attempt."""
        self.mean_s += (duration_s - self.mean_s) * (_NEWEST_WEIGHT if self.is_known else 1.0)
        self.is_known = True


def dominant_s(demand: Demand, meters: Iterable[Meter], *, service_s: float, slots: int) -> float:
    """Dominant cost of a demand that holds a slot for `service_s`. Never negative."""
    return max(0.0, service_s / slots, *(_takes_s(meter, meter.units_of(demand)) for meter in meters))


def reading_s(input_tokens: int, meters: Iterable[Meter]) -> float:
    """Seconds of the bottleneck that uncached input takes."""
    takes = (_takes_s(meter, input_tokens) for meter in meters if meter.counts_input)
    return max(0.0, input_tokens / _PREFILL_TOKENS_S, *takes)


def _takes_s(meter: Meter, units: int) -> float:
    """Seconds of a limit that a demand takes. A demand above the whole limit takes the whole limit."""
    return min(units / meter.limit, 1.0) * meter.window_s if meter.window_s <= _LONGEST_WINDOW_S else 0.0
