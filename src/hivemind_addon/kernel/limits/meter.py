"""Model of one provider limit that response headers report.

**Kind.** A bucket refills continuously, and `reset` is the instant when the bucket is full. A fixed window jumps to
full at `reset`. In a bucket `reset ≈ (limit - remaining) · W / limit`, where W is the window that the limit is stated
for. A reading that fits is evidence for a bucket, unless the meter is nearly full or the reading repeats the known
reset; a reading that does not fit is evidence for a window. Newer evidence replaces older. Without evidence, a meter
with a known reset counts as a window, because the only error is to wait. The stated window may be wrong: if all
readings show the same seconds per unit while the reset moves, the limit is a bucket of that rate.

**Level.** `level = remaining - Σ(costs that this header cannot include)`, then refilled with time. Headers describe the
past: they miss attempts sent after the answered attempt. So each cost is kept with the *stamp* (a count of the pool's
admissions and settles) from which on headers include the cost: of the admission where the provider charges then, of the
settle where the provider charges generated tokens. The header of an attempt older than the newest is ignored.

**Deviations.** A header below the expected level shows that others use the same key: their rate is averaged over half a
minute, their usage during a round trip stays in reserve, and a bucket counts on the rest of the rate only. A
failed attempt counts as charged until a header includes the attempt: the difference then shows no usage by others.

**Caution.** Half of the rounding of `remaining` stays in reserve, a fixed reset gets a guard of 0.1 s (a second more
once a window was found unturned), output of attempts in flight stays taken while a bucket refills, and units sent just
before a window's end may be booked in the next window.
"""

import math
from copy import copy
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from hivemind_addon.kernel.limits.learned import LearnedMeter, MeterKind
from hivemind_addon.kernel.values.ticket import Dimension, Reading

_RESET_GUARD_S = 0.1
_ROUNDING_S = 1.0
"""Reset instants in whole seconds are off by up to this much."""
_INSTANT_S = 1e-6
"""A reset this close has passed: sums of instants lose digits."""
_TRANSIT_S = 5.0
"""Units sent this long before a window's end have been booked by then."""
_MOST_UNITS = 1e15
"""Larger numbers are oddities, and sums would lose units."""
_LEAST_LIMIT = 1.0
_LEAST_WINDOW_S = 0.01
_MOST_RESET_S = 32 * 86_400.0
_KIND_SLACK_S = 2.5
_KIND_SLACK = 0.15
_KIND_LAG_S = 300.0
"""A header may be written up to this long before arrival, at the attempt's admission."""
_SAME_SECONDS = 1.15
"""Bounds of a bucket's seconds per unit whose ratio is smaller count as equal."""
USUAL_WINDOWS_S = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0),
    *(7200.0, 14_400.0, 18_000.0, 28_800.0, 43_200.0, 86_400.0, 604_800.0),
)
_SAME_RESET = 0.05
"""Share of the window: two reset instants this close are the same."""
_OTHERS_OVER_S = 30.0
"""Others' usage is averaged over this time."""
_MOST_OTHERS = 0.9
"""Largest share of a bucket's rate that others are assumed to take."""
_FEW_OTHERS = 0.05
"""Share of the limit's rate: smaller usage by others is noise."""
_MOST_WAY_S = 10.0
_SWEEP_FROM = 64
"""Settled costs kept before the first sweep of those that no header can miss."""
_REPORTED_WITHIN_S = 15.0
"""The first response head of a run usually arrives sooner."""


class _Cost(Struct, eq=False):
    """Units that an attempt takes from a meter."""

    stamp: int
    """Of the admission."""
    admitted_at: float
    units: int
    """Reserved; once settled, the actual charge."""
    known_from: int | None
    """Headers of attempts with this or a later stamp include the cost; None: no header can yet."""
    has_failed: bool = False
    """The provider may not have charged the attempt."""
    is_assumed: bool = False
    """The actual charge is unknown."""
    is_elsewhere: bool = False
    """Another process sent the attempt."""
    is_booked: bool = False
    """The level contains the cost for good: a header learned from includes it, or a window has passed."""


def is_usable(reading: Reading) -> bool:
    """Whether a meter can learn from this reading; providers also send -1, 0 and worse."""
    if not _LEAST_WINDOW_S <= reading.window_s <= _MOST_RESET_S:
        return False
    return _limit_of(reading) is not None or _sane(reading.remaining, _MOST_UNITS) is not None


class Meter:
    """A limit of a pool. The pool reserves at admission, settles at the end and passes every header to `learn`."""

    def __init__(self, *, reading: Reading, limit: float, now: float) -> None:
        self.name = reading.meter
        self.dimension = reading.dimension
        self.units_of = attrgetter(reading.dimension.value)
        """Units of this limit that a demand takes."""
        self.counts_input = reading.dimension in (Dimension.INPUT_TOKENS, Dimension.TOTAL_TOKENS)
        self._is_charged_late = reading.dimension is Dimension.OUTPUT_TOKENS
        self.kind = MeterKind.UNKNOWN
        self.limit = limit
        self.reserved = 0
        """Units of attempts in flight."""
        self._reserved_elsewhere = 0
        """The part of `reserved` that another process sent."""
        self.window_s = reading.window_s
        """The stated window, or for a bucket the window that readings show."""
        self._found_window_s: float | None = None
        self._per_unit_s = (0.0, float("inf"))
        """Bounds of a bucket's seconds per unit, from the readings that agree."""
        self._agreed = 0
        """Number of readings behind these bounds."""
        self._level = limit
        self._at = now
        self._resets_at: float | None = None
        self._reset_is_reported = False
        """`_resets_at` comes from a reading, not from adding a window to the previous reset."""
        self._anchor_resets_at: float | None = None
        """First of the reset instants that were equal so far; a bucket's resets drift away from here."""
        self._reset_passed_at = float("-inf")
        self._guard_s = _RESET_GUARD_S
        self._learned_stamp = -1
        self._others_units = 0.0
        """Units that others took, each fading with time."""
        self._others_at = now
        self._held_s = 0.0
        """Mean time from admission to end."""
        self._way_s = 0.0
        """Mean time from admission to header."""
        self._doubt = 0.0
        """The level may be higher by this: units assumed, not reported, since the last header."""
        self.surprise: float | None = None
        """The newest header's level minus the expected level; None: not comparable."""
        self._open: dict[int, _Cost] = {}
        """Costs of attempts in flight, by stamp, the oldest first."""
        self._settled: list[_Cost] = []
        """Settled costs that are not booked, in the order of the settles."""
        self._sweep_at = _SWEEP_FROM
        self._one_by_one_until = float("-inf")
        """Attempts go singly until this instant, or until a header reports the level: earlier usage is unknown."""

    @classmethod
    def of(cls, reading: Reading, now: float) -> "Meter | None":
        """A full meter for a reading that states a limit, else None; call `learn` with the reading next."""
        limit = _limit_of(reading)
        return None if limit is None else cls(reading=reading, limit=limit, now=now)

    @classmethod
    def resume(cls, learned: LearnedMeter, now: float) -> "Meter":
        """The meter of an earlier run, full until a response reports the level."""
        reading = Reading(meter=learned.name, dimension=learned.dimension, window_s=learned.window_s)
        meter = cls(reading=reading, limit=learned.limit, now=now)
        meter.kind = learned.kind
        meter._found_window_s = learned.window_s if learned.kind is MeterKind.BUCKET else None
        return meter

    @property
    def learned(self) -> LearnedMeter:
        """The values that outlive a run."""
        return LearnedMeter(
            name=self.name,
            dimension=self.dimension,
            kind=self.kind,
            limit=self.limit,
            window_s=self.window_s,
        )

    def __repr__(self) -> str:
        return f"<Meter {self.name} {self.kind.value} {self._level:.1f}/{self.limit:.0f}, {self.reserved} reserved>"

    def as_of(self, now: float) -> "Meter":
        """A copy at an instant, for views: advancing the meter itself in many small steps would change its rounding."""
        seen = copy(self)
        seen._advance(now)  # noqa: SLF001  its own kind
        return seen

    def level(self, now: float) -> float:
        """Units still available: never above the limit, negative when more was taken than known."""
        self._advance(now)
        return self._level - self._promised

    def full_in_s(self, now: float) -> float:
        """Seconds until the meter is full, if nothing more is taken."""
        self._advance(now)
        if self._level >= self.limit:
            return 0.0
        if self._refills:
            return (self.limit - self._level) / self._rate
        return self._next_reset_at() - now

    def window_ends_at(self, now: float) -> float | None:
        """When the fixed window turns; None where there is none."""
        self._advance(now)
        return None if self._refills else self._next_reset_at()

    def earliest(self, units: int, now: float, *, hoped: bool = False, before: int | None = None) -> float:
        """First instant at which `units` fit, if nothing else changes; infinite until a settle.

        `hoped`: as if no unit that is only assumed was taken. A demand above the whole limit fits when the meter is
        full and nothing is reserved. `before`: if another ticket takes these units now, and all attempts end in time.
        """
        self._advance(now)
        if units <= 0:
            return now
        if units > self.limit and self.reserved and before is None:
            return float("inf")
        before = before or 0
        if self._learned_stamp < 0 and now < self._one_by_one_until and self.reserved > self._reserved_elsewhere:
            return self._one_by_one_until  # unless a header or a settle comes first
        if self._is_charged_late:
            # Any unit left admits a whole answer; the excess is paid by later refills.
            units = 1
        promised = self._promised if self._is_charged_late else 0
        level = self._level - promised - before
        if units <= level and self._others_units <= 0:
            return now  # the usual case
        others_per_s = self.others_per_s(now)
        needed = min(units + self._kept_for_others(others_per_s), self.limit)
        if hoped:
            level = min(level + self._doubt, self.limit - promised)
        if level + self._slack >= needed:
            return now
        if self._refills or (hoped and not self._reset_is_reported):
            # Others' usage has faded by then, unless a header reports more.
            others_s, lacking_s = others_per_s * _OTHERS_OVER_S / self._rate, (needed - level) / self._rate
            refilled_at = now + min(lacking_s / (1 - others_per_s / self._rate), lacking_s + others_s)
            return refilled_at if needed <= self.limit - promised else float("inf")
        reset_at = self._next_reset_at()
        room = level + self._slack - units
        if room >= 0:  # others' usage fades, unless a header reports more
            enough = max(room, _FEW_OTHERS * self._rate * self._way_s, 0.9)
            fades_s = _OTHERS_OVER_S * max(0.0, math.log((needed - units) / enough))
            return min(reset_at, now + fades_s + 0.01)
        turns_at = reset_at - self._guard_s
        carried_over = self._carried_over(turns_at) + (before if now >= turns_at - _TRANSIT_S else 0)
        if self.limit - promised - carried_over + self._slack >= needed:
            return reset_at
        return reset_at + self.window_s if needed <= self.limit - promised else float("inf")

    def reserve(self, *, stamp: int, units: int, now: float) -> None:
        """Reserve the units of an admitted attempt."""
        self._advance(now)
        known_from = None if self._is_charged_late else stamp
        self._open[stamp] = _Cost(stamp=stamp, admitted_at=now, units=units, known_from=known_from)
        self.reserved += units
        if not self._is_charged_late:
            self._set_level(self._level - units)

    def doubt_level(self, now: float) -> None:
        """Let attempts go singly at first: the run has just begun, and an earlier run may have just used the limit."""
        self._one_by_one_until = now + _REPORTED_WITHIN_S

    def adopt(self, *, stamp: int, units: int, admitted_at: float, now: float, is_elsewhere: bool = False) -> None:
        """Reserve for an attempt admitted before this meter counted; `is_elsewhere`: another process sent it."""
        is_oldest_first = not self._open or next(reversed(self._open)) < stamp
        self.reserve(stamp=stamp, units=units, now=now)
        self._open[stamp].admitted_at = admitted_at
        if is_elsewhere:
            self._open[stamp].is_elsewhere = True
            self._reserved_elsewhere += units
        if not is_oldest_first:
            self._open = dict(sorted(self._open.items()))

    def settle(self, *, stamp: int, settled_stamp: int, charged: int | None, now: float, failed: bool = False) -> None:
        """End an attempt; `charged` is the provider's charge; None: the reserved units."""
        self._advance(now)
        cost = self._open.pop(stamp)
        held_s = now - cost.admitted_at
        self._held_s = held_s if not self._held_s else self._held_s + 0.1 * (held_s - self._held_s)
        reserved = cost.units
        self.reserved -= reserved
        if cost.is_elsewhere:
            self._reserved_elsewhere -= reserved
        if charged is not None:
            cost.units = charged if charged > 0 else 0
        cost.is_assumed, cost.has_failed = charged is None, charged is None and failed
        if cost.known_from is None:
            cost.known_from = settled_stamp
        if not cost.is_booked:
            self._set_level(self._level - cost.units + (0 if self._is_charged_late else reserved))
            self._settled.append(cost)
            self._doubt += cost.units if cost.is_assumed else 0
        self._sweep()

    def learn(self, reading: Reading, *, stamp: int, sent_at: float, now: float) -> bool:
        """Learn from a header of the attempt admitted with `stamp` at `sent_at`. True if a change is news."""
        self._advance(now)
        self.surprise = None
        remaining = _sane(reading.remaining, _MOST_UNITS)
        reserve = (_sane(reading.granularity, _MOST_UNITS) or 0.0) / 2 if reading.granularity else 0.0
        reset_in_s = _sane(reading.reset_in_s, _MOST_RESET_S)
        if stamp < self._learned_stamp:
            return False
        is_first = self._learned_stamp < 0
        self._learned_stamp = stamp
        before, window_s = (self.limit, self.kind), self.window_s
        self.window_s = self._found_window_s or reading.window_s
        self.limit = _limit_of(reading) or self.limit
        if reset_in_s is not None:
            if remaining is not None:
                self._judge_kind(reading, remaining, reset_in_s, lag_s=now - sent_at, now=now)
            if self._is_unturned(sent_at, reset_in_s):
                self._guard_s = _RESET_GUARD_S + _ROUNDING_S
            self._learn_reset(now + reset_in_s)
        if remaining is None:
            self._set_level(self._level)
        else:
            expected = self._level
            is_certain = not any(cost.has_failed for cost in self._book(stamp))
            self._doubt = float(sum(cost.units for cost in self._settled if cost.is_assumed))
            reported = self.limit if remaining >= self.limit else max(0.0, remaining - reserve)
            in_flight = () if self._is_charged_late else self._open.values()
            missed = [*self._settled, *(cost for cost in in_flight if not cost.is_booked)]
            level = reported - sum(cost.units for cost in missed)
            # A full bucket shows only that nobody else took anything: then the expected level holds.
            is_full = self.kind is MeterKind.BUCKET and reported >= self.limit
            self._set_level(max(level, expected) if is_full else level)
            if self.kind is MeterKind.BUCKET and reset_in_s is not None and not is_full:
                # The later the header of an instant is read, the sooner the bucket is full.
                age_s = min((self.limit - reported) / self._rate - reset_in_s, now - sent_at)
                self._set_level(self._level + (self._rate * age_s if age_s > _ROUNDING_S else 0.0))
            if before[0] == self.limit and is_certain:
                self.surprise = self._level - expected
            was_guessed = before[1] is MeterKind.UNKNOWN is not self.kind
            if self.kind is MeterKind.BUCKET and (before[1] is not self.kind or window_s != self.window_s):
                # The refill rate was wrong: the difference was no usage by others.
                self._others_units = 0.0
            elif self.kind is not MeterKind.UNKNOWN and not is_first and not was_guessed and self.surprise is not None:
                self._compare(self.surprise, rounding=2 * reserve, now=now)
            way_s = now - sent_at if now > sent_at else 0.0
            self._way_s += 0.2 * ((way_s if way_s < _MOST_WAY_S else _MOST_WAY_S) - self._way_s)
        is_another_window = self.kind is MeterKind.WINDOW and window_s != self.window_s
        return is_another_window or before != (self.limit, self.kind)

    def lower(self, level: float, now: float) -> None:
        """Lower the level to at most `level`, which another observer of the same limit knows."""
        self._advance(now)
        self._set_level(min(self._level, level + self._promised))

    def others_per_s(self, now: float) -> float:
        """Units per second that others take from the same limit."""
        if self._others_units <= 0:
            return 0.0
        return min(self._faded_units(now) / _OTHERS_OVER_S, _MOST_OTHERS * self._rate)

    @property
    def _refills(self) -> bool:
        return self.kind is MeterKind.BUCKET or self._resets_at is None

    @property
    def _rate(self) -> float:
        """Refill of a bucket, in units per second."""
        return self.limit / self.window_s

    @property
    def _promised(self) -> int:
        """Units charged when the attempts in flight end: the provider's level still contains them, so they are kept.

        Less the units that refill by then: on average half of an answer's time is left.
        """
        if not self._is_charged_late:
            return 0
        refilled = self._rate * self._held_s / 2 if self._refills else 0.0
        return max(0, self.reserved - int(refilled))

    @property
    def _slack(self) -> float:
        """Tolerance for rounding, so that units that fit at `earliest` fit when that instant has come."""
        return self.limit * 1e-9 + self._rate * 1e-7

    def _set_level(self, level: float) -> None:
        # A debt is at most one window: a wrong count must not block a pool for hours.
        limit = self.limit
        if level > limit:
            self._level = limit
        else:
            self._level = level if level > -limit else -limit

    def _advance(self, now: float) -> None:
        if now <= self._at:
            return
        if self._refills:
            if self._level < self.limit:
                self._set_level(self._level + self._rate * (now - self._at))
        elif now >= self._next_reset_at() - _INSTANT_S:
            self._pass_reset(now)
        elif not self._reset_is_reported:
            # No header has reported this window: there may be none.
            self._doubt += self._rate * (now - self._at)
        self._at = now

    def _next_reset_at(self) -> float:
        assert self._resets_at is not None, "only windows have one"
        return self._resets_at + self._guard_s

    def _pass_reset(self, now: float) -> None:
        passed = max(0, int((now - self._next_reset_at() + _INSTANT_S) // self.window_s))
        self._reset_passed_at = self._next_reset_at() - self._guard_s + passed * self.window_s
        self._resets_at = self._reset_passed_at + self.window_s
        self._anchor_resets_at = self._resets_at
        self._reset_is_reported = False
        self._settled = []
        self._doubt = 0.0
        self._set_level(self.limit - self._carried_over(self._reset_passed_at))
        if not self._is_charged_late:
            # The level no longer contains usage of the previous window.
            since = self._reset_passed_at - _TRANSIT_S
            old = {stamp: cost for stamp, cost in self._open.items() if cost.admitted_at < since}
            self._open = self._open | {stamp: replace(cost, is_booked=True) for stamp, cost in old.items()}

    def _carried_over(self, reset_at: float) -> int:
        """Units in flight that the provider may book after a reset, apart from late charges."""
        if self._is_charged_late:
            return 0
        since = reset_at - _TRANSIT_S
        return sum(cost.units for cost in self._open.values() if not cost.is_booked and cost.admitted_at >= since)

    def _is_unturned(self, sent_at: float, reset_in_s: float) -> bool:
        """Whether an attempt sent after the reset found the provider's window unturned: durations are cut."""
        return (
            self.kind is MeterKind.WINDOW
            and 0 <= sent_at - self._reset_passed_at <= _ROUNDING_S + _RESET_GUARD_S
            and reset_in_s <= _ROUNDING_S < self.window_s / 4
        )

    def _judge_kind(self, reading: Reading, remaining: float, reset_in_s: float, *, lag_s: float, now: float) -> None:
        deficit = self.limit - remaining
        if deficit <= 0:
            return
        rounding = (_sane(reading.granularity, _MOST_UNITS) or 0.0) / 2
        written_s = min(max(lag_s, 0.0), _KIND_LAG_S)
        anchor_at = self._anchor_resets_at
        has_moved = not self._is_same(now + reset_in_s, anchor_at)
        knows_reset = anchor_at is not None and anchor_at > now and self._reset_is_reported
        self._bound_seconds(deficit, reset_in_s, rounding=rounding, lag_s=written_s)
        deficit_s = deficit / self._rate
        slack_s = max(_KIND_SLACK_S, _KIND_SLACK * deficit_s) + min(rounding / self._rate, self.window_s)
        if deficit_s - slack_s - written_s <= reset_in_s <= deficit_s + slack_s:
            if min(deficit_s, reset_in_s) > slack_s and has_moved:
                self.kind = MeterKind.BUCKET
        elif (
            has_moved
            and self._agreed > 1
            and (found_s := self._found()) is not None
            # The turn of a long window may look like a moving reset.
            and (knows_reset or found_s < reading.window_s)
        ):
            self.kind = MeterKind.BUCKET
            self.window_s = self._found_window_s = found_s
        else:
            self.kind = MeterKind.WINDOW
            self.window_s, self._found_window_s = reading.window_s, None

    def _bound_seconds(self, deficit: float, reset_in_s: float, *, rounding: float, lag_s: float) -> None:
        """Learn from a reading how long a unit takes to return, if the limit is a bucket."""
        least, most = self._per_unit_s
        # `remaining` is rounded, at least to whole units. A reset may be rounded up and count until its second is over.
        most_deficit, least_deficit = deficit + rounding, deficit - max(1.0, rounding)
        seen_least = max(0.0, reset_in_s - 2 * _ROUNDING_S) / most_deficit
        seen_most = (reset_in_s + lag_s + _ROUNDING_S) / least_deficit if least_deficit > 0 else float("inf")
        least, most = max(least, seen_least), min(most, seen_most)
        if least > most:
            least, most, self._agreed = seen_least, seen_most, 0
        self._per_unit_s, self._agreed = (least, most), self._agreed + 1

    def _found(self) -> float | None:
        """The bucket's window that fits all readings, of two the shorter; None: several fit.

        Until the reset a faster bucket has less, so the shorter window is careful. Resets within their own
        rounding bound nothing.
        """
        least_s, most_s = (per_unit_s * self.limit for per_unit_s in self._per_unit_s)
        usual = [length_s for length_s in USUAL_WINDOWS_S if least_s <= length_s <= most_s]
        if len(usual) == 1 or (len(usual) == 2 and least_s > 0):
            return usual[0]
        return most_s if 0 < most_s <= _SAME_SECONDS * least_s else None

    def _is_same(self, resets_at: float, known_at: float | None) -> bool:
        """Whether two reported reset instants are the same."""
        return known_at is not None and abs(resets_at - known_at) <= max(_KIND_SLACK_S, _SAME_RESET * self.window_s)

    def _learn_reset(self, resets_at: float) -> None:
        # A duration counts from when the header was written, so each reset is late by the header's way here: the
        # earliest of several equal resets is the best.
        if not self._is_same(resets_at, self._anchor_resets_at):
            self._anchor_resets_at = resets_at
        if self.kind is MeterKind.WINDOW and self._reset_is_reported and self._is_same(resets_at, self._resets_at):
            resets_at = min(resets_at, self._resets_at or resets_at)
        self._resets_at, self._reset_is_reported = resets_at, True

    def _kept_for_others(self, rate: float) -> float:
        """Units that others, at this rate, will take before an attempt sent now arrives.

        In a bucket twice that, rounded up: in the long run the wait costs nothing there. In a window rounded down, or
        the last units would never be used.
        """
        if rate <= _FEW_OTHERS * self._rate:
            return 0.0
        expected = rate * self._way_s
        return math.ceil(2 * expected) if self._refills else math.floor(expected)

    def _faded_units(self, now: float) -> float:
        if not self._others_units:
            return 0.0
        return self._others_units * math.exp(-max(0.0, now - self._others_at) / _OTHERS_OVER_S)

    def _compare(self, surplus: float, *, rounding: float, now: float) -> None:
        """Learn from the difference between the reported and the expected level."""
        if abs(surplus) <= rounding:
            surplus = 0.0
        # Negative values are noise of estimates; a little may cancel later noise.
        self._others_units = max(-0.1 * self.limit, min(self._faded_units(now) - surplus, self.limit))
        self._others_at = now

    def _book(self, stamp: int) -> list[_Cost]:
        """Count every cost that a header with this stamp includes as part of the level. Return the newly included."""
        known = [cost for cost in self._settled if (cost.known_from or 0) <= stamp]
        self._settled = [cost for cost in self._settled if (cost.known_from or 0) > stamp]
        if not self._is_charged_late:  # no header includes late charges in flight
            known += [cost for cost in self._open.values() if not cost.is_booked and cost.stamp <= stamp]
        for cost in known:
            cost.is_booked = True
        return known

    def _sweep(self) -> None:
        """Forget settled costs that every future header includes, as its attempt is in flight or not yet admitted."""
        if len(self._settled) > self._sweep_at:
            oldest = next(iter(self._open), math.inf)
            self._settled = [cost for cost in self._settled if (cost.known_from or 0) > oldest]
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._settled))


def _limit_of(reading: Reading) -> float | None:
    limit = _sane(reading.limit, _MOST_UNITS)
    return limit if limit is not None and limit >= _LEAST_LIMIT else None


def _sane(number: float | None, most: float) -> float | None:
    """The number if present and possible, else None; NaN compares false."""
    return number if number is not None and 0 <= number <= most else None
