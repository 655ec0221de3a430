"""Our model of one provider limit, learned from what responses say about it.

**Kind.** A bucket is refilled all the time and `reset` is when it will be full; a window jumps to full at `reset`.
One reading tells them apart: in a bucket `reset ≈ (limit - remaining) · W / limit`, W being the window that the limit
is stated for. A reading that fits is evidence for a bucket, unless it is nearly full (then both fit) or repeats the
reset instant that is already known (then a window fits as well); one that does not fit is evidence for a window.
Later evidence replaces earlier. Without any, a meter with a known reset is treated as a window: its error is to wait.
The window that is stated may be wrong: where no reading fits it, but all tell the same seconds a unit while the reset
moves (a fixed one's does not), the limit is a bucket of that rate.

**Level.** `level = remaining - Σ(costs that this header cannot know)`, then refilled with time. Headers tell of the
past: attempts that were sent after the one that a header answers are not in it. So each cost is kept, with the
*stamp* (a count of the pool's admissions and settles) from which on headers know it: its own admission where the
provider charges then, its settle where it charges what is generated (output). A header of an attempt with stamp h
holds every cost that is known from h or before. A header of an older attempt than the newest one learned from says
less than is known and is ignored, unless both were sent within a second: then the network may have swapped them on
the way, and the older may lower the level.

**What differs from expectation.** A header that tells less than was expected tells of somebody else on the same key:
their rate is averaged over half a minute, what they take during one round trip stays in reserve, and a bucket counts
on what they leave. One that tells more by just what failed attempts cost shows that failures are not charged: from
then on they are given back at once. One that tells more by what was sent in the last seconds is stale (a replica
behind the others): from then on headers are taken to be that old.

**Caution.** Half of the rounding of `remaining` stays in reserve, a fixed reset gets 0.1 s of guard, output of
attempts in flight stays taken while a bucket refills, and what was sent just before a window's end may be booked in
the next one. An instant in whole seconds may be cut: its guard is a second, unless one was told farther away than its
window is long, for that one was rounded up. A window that is caught unturned after its reset gets a second more than
the usual guard. One that is found turned before its reset was told rounded up as well: from then on it is taken to turn
that much earlier.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from operator import attrgetter

from msgspec import Struct

from hivemind_addon.kernel.limits.learned import LearnedMeter, MeterKind
from hivemind_addon.kernel.values.ticket import Demand, Dimension, Reading

_RESET_GUARD_S = 0.1
_ROUNDING_S = 1.0
"""Some providers cut their reset instants to whole seconds, and so tell them this much too early."""
_HURRY_S = 0.5
"""So long before the instant at which a window is taken to turn it is worth a try for one that cannot wait."""
_INSTANT_S = 1e-6
"""A reset has passed when it is this close: sums of instants lose digits."""
_TRANSIT_S = 5.0
"""What was sent this long before a window's end has been booked by then."""
_SWAPPED_S = 1.0
"""Attempts sent within this time may reach the provider in either order."""
_CHARGED_AT_ENDS = (Dimension.OUTPUT_TOKENS, Dimension.TOTAL_TOKENS)
"""Of these an answer may take more than was left."""
_MOST_UNITS = 1e15
"""Above it a number is an oddity, and sums would lose units."""
_LEAST_LIMIT = 1.0
_LEAST_WINDOW_S = 0.01
_MOST_RESET_S = 32 * 86_400.0
_KIND_SLACK_S = 2.5
_KIND_SLACK = 0.15
_KIND_LAG_S = 300.0
"""A header may have been written this long before it arrives, at its attempt's admission."""
_SAME_SECONDS = 1.15
"""Bounds of a bucket's seconds a unit that are this close are one number."""
_SLOW_RATE = 0.25
"""Units a second; of a faster bucket a reset that is rounded to seconds tells no parts of a unit."""
_USUAL_WINDOWS_S = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0),
    *(7200.0, 14_400.0, 18_000.0, 28_800.0, 43_200.0, 86_400.0, 604_800.0),
)
_WINDOWS_SEEN = 4
"""In so many one is told of soon after its beginning."""
_SAME_RESET = 0.05
"""Of the window: two reset instants this close are the same."""
_OTHERS_OVER_S = 30.0
"""What others take is averaged over this time."""
_MOST_OTHERS = 0.9
"""Of a bucket's rate: others are never taken to take more."""
_FEW_OTHERS = 0.05
"""Of the limit's rate: less is noise."""
_MOST_WAY_S = 10.0
_SAME_UNITS = 0.25
"""Two amounts that differ by less than this share are the same."""
_MOST_VOTES = 3
_MOST_STALE_S = 10.0
_OLD_S = 1.0
"""A header that is older has certainly told an instant, not a time from when it was written."""
_SWEEP_FROM = 64
"""Settled costs that are kept before the first look for ones that no header can miss any more."""
_TOLD_WITHIN_S = 15.0
"""The head of a run's first answer usually comes sooner."""


class _Cost(Struct, eq=False):
    """What one attempt takes from one meter."""

    stamp: int
    """Of its admission."""
    admitted_at: float
    units: int
    """Reserved, and once settled the actual charge."""
    known_from: int | None
    """Headers of attempts with this stamp or a later one hold it; None: no header yet can."""
    taken_at: float
    """When the provider took it: at its admission, or where it charges late at its end."""
    failed_units: int = 0
    """What a failed attempt would cost if failures are charged; 0 for all others."""
    is_assumed: bool = False
    """Nobody said what it was charged."""
    is_elsewhere: bool = False
    """Another process has sent it."""


class _Costs:
    """Costs by stamp, in the order in which they were added, and their sums. None changes while it is here."""

    __slots__ = ("_by_stamp", "assumed_units", "units")

    def __init__(self, costs: Iterable[_Cost] = ()) -> None:
        self._by_stamp = {cost.stamp: cost for cost in costs}
        self.units = sum([cost.units for cost in self])
        self.assumed_units = sum([cost.units for cost in self if cost.is_assumed])
        """Of those of which nobody said what they were charged."""

    def __len__(self) -> int:
        return len(self._by_stamp)

    def __iter__(self) -> Iterator[_Cost]:
        return iter(self._by_stamp.values())

    def __reversed__(self) -> Iterator[_Cost]:
        return reversed(self._by_stamp.values())

    def __contains__(self, cost: _Cost) -> bool:
        return cost.stamp in self._by_stamp

    def add(self, cost: _Cost) -> None:
        """One more."""
        self._by_stamp[cost.stamp] = cost
        self.units += cost.units
        if cost.is_assumed:
            self.assumed_units += cost.units

    def remove(self, cost: _Cost) -> bool:
        """One less. False: it was not here."""
        if self._by_stamp.pop(cost.stamp, None) is None:
            return False
        self.units -= cost.units
        if cost.is_assumed:
            self.assumed_units -= cost.units
        return True


def is_usable(reading: Reading) -> bool:
    """Whether a meter can learn anything from it; providers also send -1, 0 and worse."""
    if not _LEAST_WINDOW_S <= reading.window_s <= _MOST_RESET_S:
        return False
    return _limit_of(reading) is not None or _sane(reading.remaining, _MOST_UNITS) is not None


class Meter:
    """One limit of one pool. The pool reserves at admission, settles at the end and shows every header."""

    def __init__(self, *, reading: Reading, limit: float, now: float) -> None:
        self.name = reading.meter
        self.dimension = reading.dimension
        self.units_of: Callable[[Demand], int] = attrgetter(reading.dimension.value)
        """What a demand takes of it."""
        self.counts_input = reading.dimension in (Dimension.INPUT_TOKENS, Dimension.TOTAL_TOKENS)
        self._is_charged_late = reading.dimension is Dimension.OUTPUT_TOKENS
        self.kind = MeterKind.UNKNOWN
        self.limit = limit
        self.reserved = 0
        """Units of attempts in flight."""
        self._reserved_elsewhere = 0
        """Of these by attempts that another process has sent."""
        self.window_s = reading.window_s
        """The window that the limit is stated for, or of a bucket the one that readings told."""
        self._found_window_s: float | None = None
        self._first_resets_s: deque[float] = deque(maxlen=_WINDOWS_SEEN)
        """How far off its end was when a window was first told of; the newest windows'."""
        self._per_unit_s = (0.0, float("inf"))
        """In what bounds a bucket's seconds a unit lie, as the readings that agree have it."""
        self._agreed = 0
        """Readings that these bounds come from."""
        self._level = limit
        self._at = now
        self._resets_at: float | None = None
        self._reset_was_told = False
        """`_resets_at` comes from a reading, not from adding a window to the last one."""
        self._reset_lag_s = 0.0
        """By so much at most `_resets_at` is late: a duration counts from when its header was written."""
        self._anchor_resets_at: float | None = None
        """The first of the reset instants that were the same so far: what a bucket's drifts away from."""
        self._reset_passed_at = float("-inf")
        self._guard_s = _RESET_GUARD_S
        self._is_rounded_up = False
        """Whether a reset in whole seconds was told farther away than it can be."""
        self._learned_stamp = -1
        self._learned_sent_at = float("-inf")
        self._others_units = 0.0
        """What others took, each unit fading away with time."""
        self._others_at = now
        self._held_s = 0.0
        """From an admission to its end, averaged."""
        self._way_s = 0.0
        """From an admission to its header, averaged."""
        self._doubt = 0.0
        """By so much the level may be higher: what was assumed, not told, since the last header."""
        self._votes = 0
        """Above zero: failed attempts are not charged."""
        self.surprise: float | None = None
        """What the newest header told beyond what was expected; None: it cannot be compared."""
        self.stale_s = 0.0
        """Headers do not know what was sent so long before their attempt."""
        self._open: dict[int, _Cost] = {}
        """Of attempts in flight, by stamp."""
        self._unbooked = _Costs()
        """Of them those that no header that was learned from holds; the others are in the level for good."""
        self._settled = _Costs()
        """Unbooked as well."""
        self._sweep_at = _SWEEP_FROM
        self._one_by_one_until = float("-inf")
        """Until a header tells the level, or until then: nobody knows what was taken before."""

    @classmethod
    def of(cls, reading: Reading, now: float) -> "Meter | None":
        """A full meter for a reading that names a limit; its own `learn` comes next."""
        limit = _limit_of(reading)
        return None if limit is None else cls(reading=reading, limit=limit, now=now)

    @classmethod
    def resume(cls, learned: LearnedMeter, now: float) -> "Meter":
        """The meter of an earlier run, full until a response tells its level."""
        reading = Reading(meter=learned.name, dimension=learned.dimension, window_s=learned.window_s)
        meter = cls(reading=reading, limit=learned.limit, now=now)
        meter.kind = learned.kind
        meter._found_window_s = learned.window_s if learned.kind is MeterKind.BUCKET else None
        meter.stale_s = learned.stale_s
        meter._votes = 1 if learned.failures_are_free else 0
        return meter

    @property
    def learned(self) -> LearnedMeter:
        """What outlives a run."""
        return LearnedMeter(
            name=self.name,
            dimension=self.dimension,
            kind=self.kind,
            limit=self.limit,
            window_s=self.window_s,
            failures_are_free=self._votes > 0,
            stale_s=self.stale_s,
        )

    def __repr__(self) -> str:
        return f"<Meter {self.name} {self.kind.value} {self._level:.1f}/{self.limit:.0f}, {self.reserved} reserved>"

    def as_of(self, now: float) -> "Meter":
        """A copy as it stands at an instant, for views: sums of many small steps are not those of one large one."""
        seen = copy(self)
        seen._advance(now)  # noqa: SLF001  its own kind
        return seen

    def level(self, now: float) -> float:
        """What may still be taken. Never above the limit; below zero when more was taken than we knew."""
        self._advance(now)
        return self._level - self._promised

    def full_in_s(self, now: float) -> float:
        """Seconds until the level is at the limit, if nothing more is taken."""
        self._advance(now)
        if self._level >= self.limit:
            return 0.0
        if self._refills:
            return (self.limit - self._level) / self._rate
        return self._next_reset_at() - now

    def window_ends_at(self, now: float) -> float | None:
        """When a fixed window turns; None where there is none."""
        self._advance(now)
        return None if self._refills else self._next_reset_at()

    def earliest(self, units: int, now: float, *, kept: int = 0, hurried: bool = False, hoped: bool = False) -> float:
        """The first instant at which so many units fit beside those that are kept, if nothing else changes.

        `hurried`: the first at which they may fit, because a reset may have been rounded up; `hoped`: because nothing
        that was only assumed may have been taken.
        Infinite when a settle must come first. More than the whole limit fits when the meter is full and nothing
        of it is reserved.
        """
        self._advance(now)
        if units <= 0:
            return now
        if units > self.limit and self.reserved:
            return float("inf")
        if self._learned_stamp < 0 and now < self._one_by_one_until and self.reserved > self._reserved_elsewhere:
            return self._one_by_one_until  # unless a header or a settle comes first
        if self._is_charged_late:
            # What is left of it lets a whole answer pass; what that takes beyond comes out of what refills.
            units = 1
        promised = self._promised if self._is_charged_late else 0
        level = self._level - promised
        if units + kept <= level and self._others_units <= 0:
            return now  # most often there is plenty
        needed = min(units + kept + self._kept_for_others(now), self.limit)
        if hoped:
            level = min(level + self._doubt, self.limit - promised)
        if level + self._slack >= needed:
            return now
        if self._refills or (hoped and not self._reset_was_told):
            # What others take has faded by then, unless a header tells of more.
            others_s = self._others_rate(now) * _OTHERS_OVER_S / self._rate
            lacking_s = (needed - level) / self._rate
            refilled_at = now + min(lacking_s / (1 - self._others_rate(now) / self._rate), lacking_s + others_s)
            return refilled_at if needed <= self.limit - promised else float("inf")
        reset_at = self._next_reset_at()
        if self.limit - promised - self._carried_over(reset_at - self._guard_s) + self._slack >= needed:
            return max(now, reset_at - self._guard_s - _HURRY_S) if hurried and self._guard_s > 0 else reset_at
        return reset_at + self.window_s if needed <= self.limit - promised else float("inf")

    def reserve(self, *, stamp: int, units: int, now: float) -> None:
        """An attempt was admitted."""
        self._advance(now)
        known_from = None if self._is_charged_late else stamp
        cost = self._open[stamp] = _Cost(stamp=stamp, admitted_at=now, units=units, known_from=known_from, taken_at=now)
        self._unbooked.add(cost)
        self.reserved += units
        if not self._is_charged_late:
            self._set_level(self._level - units)

    def doubt_level(self, now: float) -> None:
        """Its run has just begun, and another one may have taken of the limit a moment ago: one by one at first."""
        self._one_by_one_until = now + _TOLD_WITHIN_S

    def adopt(self, *, stamp: int, units: int, admitted_at: float, now: float, is_elsewhere: bool = False) -> None:
        """An attempt was admitted before this meter counted it; `is_elsewhere`: by another process."""
        is_oldest_first = not self._open or next(reversed(self._open)) < stamp
        self.reserve(stamp=stamp, units=units, now=now)
        self._open[stamp].admitted_at = self._open[stamp].taken_at = admitted_at
        if is_elsewhere:
            self._open[stamp].is_elsewhere = True
            self._reserved_elsewhere += units
        if not is_oldest_first:
            self._open = dict(sorted(self._open.items()))
            self._unbooked = _Costs(cost for cost in self._open.values() if cost in self._unbooked)

    def settle(self, *, stamp: int, settled_stamp: int, charged: int | None, now: float, failed: bool = False) -> None:
        """An attempt ended; `charged` is what the provider takes for it.

        None: what was reserved, or nothing for a failed one where failures have proved to be free.
        """
        self._advance(now)
        cost = self._open.pop(stamp)
        held_s = now - cost.admitted_at
        self._held_s = held_s if not self._held_s else self._held_s + 0.1 * (held_s - self._held_s)
        was_unbooked = self._unbooked.remove(cost)
        reserved = cost.units
        self.reserved -= reserved
        if cost.is_elsewhere:
            self._reserved_elsewhere -= reserved
        if charged is not None:
            cost.units = charged if charged > 0 else 0
        elif failed:
            cost.failed_units = reserved
            cost.units = 0 if self._votes > 0 else reserved
        cost.is_assumed = charged is None
        if cost.known_from is None:
            cost.known_from, cost.taken_at = settled_stamp, now
        if was_unbooked:
            self._set_level(self._level - cost.units + (0 if self._is_charged_late else reserved))
            self._settled.add(cost)
            self._doubt += cost.units if cost.is_assumed else 0
        self._sweep()

    def learn(self, reading: Reading, *, stamp: int, sent_at: float, now: float) -> bool:
        """A header told of this limit; `stamp` and `sent_at` are its attempt's admission.

        True when the limit or the kind changed.
        """
        self._advance(now)
        self.surprise = None
        remaining = _sane(reading.remaining, _MOST_UNITS)
        reserve = (_sane(reading.granularity, _MOST_UNITS) or 0.0) / 2 if reading.granularity else 0.0
        reset_in_s = _sane(reading.reset_in_s, _MOST_RESET_S)
        if reset_in_s is not None and reading.reset_cut_s:
            reset_in_s = max(0.0, reset_in_s - reading.reset_cut_s)  # as it was told; the guard has the rest
        if stamp < self._learned_stamp:
            if remaining is not None and self._learned_sent_at - sent_at <= _SWAPPED_S:
                self._learn_from_swapped(max(0.0, remaining - reserve), reset_in_s, sent_at=sent_at, now=now)
            return False
        if reset_in_s is not None and self._is_of_the_last_window(sent_at, reset_in_s):
            return False
        is_first = self._learned_stamp < 0
        self._learned_stamp, self._learned_sent_at = stamp, sent_at
        before, window_s = (self.limit, self.kind), self.window_s
        self.window_s = self._found_window_s or self._turning_s(reading)
        self.limit = _limit_of(reading) or self.limit
        if self.kind is not MeterKind.BUCKET and self._is_full_now(remaining, reset_in_s):
            # A window would tell its end. When it was full is no instant at which it turns.
            self.kind = MeterKind.UNKNOWN
            self._resets_at = self._anchor_resets_at = None
            self._reset_was_told = False
        elif reset_in_s is not None:
            if remaining is not None:
                self._judge_kind(reading, remaining, reset_in_s, lag_s=now - sent_at, now=now)
            if self._is_unturned(sent_at, reset_in_s):
                self._guard_s = _RESET_GUARD_S + (_ROUNDING_S if self._guard_s > 0 else 0)
                self._is_rounded_up = False
            elif self._turned_early(reset_in_s, now):
                assert self._resets_at is not None, "it was told"
                self._guard_s = max(-_ROUNDING_S, min(self._guard_s, now - self._resets_at))
            elif reading.reset_cut_s and self._guard_s > 0:
                self._is_rounded_up |= self.window_s < reset_in_s <= self.window_s + _ROUNDING_S
                self._guard_s = _RESET_GUARD_S if self._is_rounded_up else max(self._guard_s, reading.reset_cut_s)
            self._learn_reset(now + reset_in_s, lag_s=now - sent_at, now=now)
        if remaining is None:
            self._set_level(self._level)
        else:
            expected = self._level
            booked = self._book(stamp, sent_at)
            self._doubt = float(self._settled.assumed_units)
            told = self.limit if remaining >= self.limit else max(0.0, remaining - reserve)
            self._set_level(self._level_now(told, reset_in_s, sent_at=sent_at, now=now))
            if before[0] == self.limit and not [cost for cost in booked if cost.failed_units]:
                self.surprise = self._level - expected
            was_guessed = before[1] is MeterKind.UNKNOWN is not self.kind
            if self.kind is MeterKind.BUCKET and (before[1] is not self.kind or window_s != self.window_s):
                # It refills at another rate than was thought: that was no neighbour.
                self._others_units = 0.0
            elif self.kind is not MeterKind.UNKNOWN and not is_first and not was_guessed and before[0] == self.limit:
                self._compare(self._level - expected, booked, rounding=2 * reserve, sent_at=sent_at, now=now)
            way_s = now - sent_at if now > sent_at else 0.0
            self._way_s += 0.2 * ((way_s if way_s < _MOST_WAY_S else _MOST_WAY_S) - self._way_s)
        return before != (self.limit, self.kind)

    def lower(self, level: float, now: float) -> None:
        """It is not above this level, as somebody else who watches the same limit knows."""
        self._advance(now)
        self._set_level(min(self._level, level + self._promised))

    def inherit(self, other: "Meter", now: float) -> None:
        """Another meter has counted a part of what is taken from the same limit, and learned from its headers."""
        if self._resets_at is None and other._resets_at is not None:  # noqa: SLF001  its own kind
            self.kind = other.kind
            self._resets_at, self._reset_was_told = other._resets_at, other._reset_was_told  # noqa: SLF001
            self._anchor_resets_at, self._reset_lag_s = other._anchor_resets_at, other._reset_lag_s  # noqa: SLF001
        self.lower(other.level(now), now)
        if other._learned_stamp > self._learned_stamp:  # noqa: SLF001
            self._learned_stamp, self._learned_sent_at = other._learned_stamp, other._learned_sent_at  # noqa: SLF001

    def others_per_s(self, now: float) -> float:
        """What somebody else takes from the same limit."""
        return self._others_rate(now)

    @property
    def _refills(self) -> bool:
        return self.kind is MeterKind.BUCKET or self._resets_at is None

    @property
    def _rate(self) -> float:
        """Units per second of a bucket."""
        return self.limit / self.window_s

    @property
    def _promised(self) -> int:
        """What is charged when the attempts in flight end: the provider's level has it still, and it is kept.

        But for what has refilled by then: of an answer's time half is left, in the mean.
        """
        if not self._is_charged_late:
            return 0
        refilled = self._rate * self._held_s / 2 if self._refills else 0.0
        return max(0, self.reserved - int(refilled))

    @property
    def _slack(self) -> float:
        """Rounding of instants and sums, so that what fits at `earliest` fits when that instant has come."""
        return self.limit * 1e-9 + self._rate * 1e-7

    def _set_level(self, level: float) -> None:
        # A debt is never larger than one window: a wrong count must not block a pool for hours.
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
        elif not self._reset_was_told:
            # No header has told of this window: it may be no window.
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
        self._reset_was_told = False
        self._settled = _Costs()
        self._doubt = 0.0
        self._set_level(self.limit - self._carried_over(self._reset_passed_at))
        if not self._is_charged_late:
            # What was spent in the window that is over is no longer in the level.
            since = self._reset_passed_at - _TRANSIT_S
            self._unbooked = _Costs(cost for cost in self._unbooked if cost.admitted_at >= since)

    def _carried_over(self, reset_at: float) -> int:
        """Units in flight that the provider may book after a reset, beside what is charged late anyway."""
        if self._is_charged_late:
            return 0
        units = 0
        for cost in reversed(self._unbooked):
            if cost.admitted_at < reset_at - _TRANSIT_S:
                break
            units += cost.units
        return units

    def _learn_from_swapped(self, told: float, reset_in_s: float | None, *, sent_at: float, now: float) -> None:
        if sent_at >= self._reset_passed_at:
            self._set_level(min(self._level, self._level_now(told, reset_in_s, sent_at=sent_at, now=now)))

    def _is_of_the_last_window(self, sent_at: float, reset_in_s: float) -> bool:
        """Whether a header was written before the last reset and came after it."""
        return (
            self.kind is MeterKind.WINDOW
            and sent_at < self._reset_passed_at
            and sent_at + reset_in_s <= self._reset_passed_at + _SWAPPED_S
        )

    def _is_unturned(self, sent_at: float, reset_in_s: float) -> bool:
        """Whether an attempt that was sent after the reset found the provider still before it."""
        return (
            self.kind is MeterKind.WINDOW
            and min(0.0, self._guard_s) <= sent_at - self._reset_passed_at <= _ROUNDING_S + _RESET_GUARD_S
            and reset_in_s <= _ROUNDING_S < self.window_s / 4
        )

    def _turned_early(self, reset_in_s: float, now: float) -> bool:
        """Whether a header tells of the next window shortly before the reset that was told for this one."""
        return (
            self.kind is MeterKind.WINDOW
            and self._reset_was_told
            and self._resets_at is not None
            and self._reset_lag_s < self._resets_at - now <= _ROUNDING_S < self.window_s / 4
            and reset_in_s > self.window_s / 2
        )

    def _judge_kind(self, reading: Reading, remaining: float, reset_in_s: float, *, lag_s: float, now: float) -> None:
        deficit = self.limit - remaining
        if deficit <= 0 or self._tells_debt(remaining, reset_in_s):
            return
        rounding = (_sane(reading.granularity, _MOST_UNITS) or 0.0) / 2
        written_s = min(max(lag_s, 0.0), _KIND_LAG_S)
        has_moved = not self._is_same(now + reset_in_s, self._anchor_resets_at)
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
            # Of a long one a window's turn may seem to be the move.
            and (self._knows_reset(now) or found_s < reading.window_s)
        ):
            self.kind = MeterKind.BUCKET
            self.window_s = self._found_window_s = found_s
            self._first_resets_s.clear()
        else:
            self.kind = MeterKind.WINDOW
            self.window_s, self._found_window_s = self._turning_s(reading), None

    def _is_full_now(self, remaining: float | None, reset_in_s: float | None) -> bool:
        return (
            remaining is not None
            and remaining >= self.limit
            and reset_in_s is not None
            and reset_in_s <= _ROUNDING_S < self.window_s / 4
        )

    def _tells_debt(self, remaining: float, reset_in_s: float) -> bool:
        """Whether a bucket that is charged when answers end is below zero: no header says so, but it is full later."""
        return (
            remaining <= 0
            and self.kind is MeterKind.BUCKET
            and self.dimension in _CHARGED_AT_ENDS
            and self.window_s < reset_in_s <= 2 * self.window_s
        )

    def _knows_reset(self, now: float) -> bool:
        """Whether a reading has told of a reset that is still to come."""
        return self._anchor_resets_at is not None and self._anchor_resets_at > now and self._reset_was_told

    def _turning_s(self, reading: Reading) -> float:
        """How long a fixed window is: as is stated, unless all of the last ones were told to end much sooner."""
        if len(self._first_resets_s) < _WINDOWS_SEEN:
            return reading.window_s
        longest_s = max(self._first_resets_s) - _ROUNDING_S
        return min((one for one in _USUAL_WINDOWS_S if longest_s <= one < reading.window_s), default=reading.window_s)

    def _bound_seconds(self, deficit: float, reset_in_s: float, *, rounding: float, lag_s: float) -> None:
        """Learn from one reading how long a unit takes to come back, if the limit is a bucket."""
        least, most = self._per_unit_s
        # What is left is rounded, and without more than that it is cut to whole units.
        most_deficit, least_deficit = deficit + rounding, deficit - max(1.0, rounding)
        told_least = max(0.0, reset_in_s - _ROUNDING_S) / most_deficit
        told_most = (reset_in_s + lag_s + _ROUNDING_S) / least_deficit if least_deficit > 0 else float("inf")
        least, most = max(least, told_least), min(most, told_most)
        if least > most:
            least, most, self._agreed = told_least, told_most, 0
        self._per_unit_s, self._agreed = (least, most), self._agreed + 1

    def _found(self) -> float | None:
        """The window of the bucket that all readings tell of; None: they leave it open."""
        least_s, most_s = (per_unit_s * self.limit for per_unit_s in self._per_unit_s)
        usual = [one for one in _USUAL_WINDOWS_S if least_s <= one <= most_s]
        if len(usual) == 1:
            return usual[0]
        return most_s if 0 < most_s <= _SAME_SECONDS * least_s else None

    def _is_same(self, resets_at: float, known_at: float | None) -> bool:
        """Whether two reset instants are one, told twice."""
        return known_at is not None and abs(resets_at - known_at) <= max(_KIND_SLACK_S, _SAME_RESET * self.window_s)

    def _learn_reset(self, resets_at: float, *, lag_s: float, now: float) -> None:
        # Durations are counted from when the header was written, so each one is late by its way here:
        # of several that tell of the same reset the earliest is the best.
        if not self._is_same(resets_at, self._anchor_resets_at):
            self._anchor_resets_at = resets_at
            if self.kind is MeterKind.WINDOW and resets_at - now > _ROUNDING_S:
                self._first_resets_s.append(resets_at - now)
        if self.kind is MeterKind.WINDOW and self._reset_was_told and self._is_same(resets_at, self._resets_at):
            assert self._resets_at is not None, "a told reset is known"
            if resets_at >= self._resets_at:
                return
        self._resets_at, self._reset_was_told, self._reset_lag_s = resets_at, True, max(0.0, lag_s)

    def _kept_for_others(self, now: float) -> float:
        """Units that others will have taken before an attempt that goes now arrives.

        Twice that in a bucket, and rounded up: in the long run it costs nothing there. Rounded down in a window, or
        its last units would never be used.
        """
        rate = self._others_rate(now)
        if rate <= _FEW_OTHERS * self._rate:
            return 0.0
        expected = rate * self._way_s
        return math.ceil(2 * expected) if self._refills else math.floor(expected)

    def _others_rate(self, now: float) -> float:
        if self._others_units <= 0:
            return 0.0
        faded = self._others_units * math.exp(-max(0.0, now - self._others_at) / _OTHERS_OVER_S)
        return min(faded / _OTHERS_OVER_S, _MOST_OTHERS * self._rate)

    def _compare(self, surplus: float, booked: list[_Cost], *, rounding: float, sent_at: float, now: float) -> None:
        """Learn from the difference between what a header told and what was expected."""
        failed = sum(cost.failed_units for cost in booked)
        if failed:
            given_back = sum(cost.failed_units - cost.units for cost in booked if cost.failed_units)
            if abs(surplus + given_back - failed) <= _SAME_UNITS * failed:
                self._votes = min(self._votes + 1, _MOST_VOTES)
            elif abs(surplus + given_back) <= _SAME_UNITS * failed:
                self._votes = max(self._votes - 1, -_MOST_VOTES)
            return
        if self.dimension is Dimension.REQUESTS and surplus >= max(1.0, rounding):
            self._suspect_staleness(surplus, booked, sent_at)
        if abs(surplus) <= rounding:
            surplus = 0.0
        faded = self._others_units * math.exp(-max(0.0, now - self._others_at) / _OTHERS_OVER_S)
        # Below zero is noise of estimates; a little of it may cancel the noise to come.
        self._others_units = max(-0.1 * self.limit, min(faded - surplus, self.limit))
        self._others_at = now

    def _suspect_staleness(self, surplus: float, booked: list[_Cost], sent_at: float) -> None:
        """See how old a header must be to miss what it misses; requests alone are counted exactly enough for it."""
        missed = 0
        for cost in sorted(booked, key=lambda cost: -cost.admitted_at):
            if cost.admitted_at < self._reset_passed_at:
                return
            missed += cost.units
            age_s = sent_at - cost.admitted_at
            if missed >= surplus - _SAME_UNITS:
                if _SWAPPED_S < age_s <= _MOST_STALE_S:
                    self.stale_s = max(self.stale_s, age_s)
                    self._set_level(self._level - surplus)
                    self._unbooked = _Costs(
                        late
                        for late in self._open.values()
                        if late in self._unbooked or late.admitted_at > sent_at - self.stale_s
                    )
                return

    def _book(self, stamp: int, sent_at: float) -> list[_Cost]:
        """Every cost that a header with this stamp holds is in the level from now on. Those that were not before."""
        fresh = []
        if not self._is_charged_late:  # in flight, what is charged late is in no header
            for cost in self._unbooked:
                if cost.stamp > stamp:
                    break  # and so are all behind it
                if self._holds(stamp, sent_at, cost):
                    fresh.append(cost)
            for cost in fresh:
                self._unbooked.remove(cost)
        settled = []
        for cost in self._settled:
            if self._holds(stamp, sent_at, cost):
                settled.append(cost)
            elif self._is_charged_late and (cost.known_from or 0) > stamp:
                break  # these are known from their end on, and so in order
        for cost in settled:
            self._settled.remove(cost)
        return fresh + settled

    def _holds(self, stamp: int, sent_at: float, cost: _Cost) -> bool:
        if cost.known_from is None or cost.known_from > stamp:
            return False
        return not self.stale_s or cost.stamp == stamp or cost.admitted_at <= sent_at - self.stale_s

    def _level_now(self, told: float, reset_in_s: float | None, *, sent_at: float, now: float) -> float:
        """The level, where a header told of one that was true when it was written.

        When that was is known of buckets that tell an instant: the later it is read the sooner they are full. A full
        one tells only that nobody else had taken anything: then what was expected holds.
        """
        if self.kind is MeterKind.BUCKET and reset_in_s is not None and self._rate <= _SLOW_RATE:
            # What is left is cut to whole units; its reset tells parts of one.
            told = min(told + 1, max(told, self.limit - self._rate * (reset_in_s + _ROUNDING_S)))
        careful = told - self._unknown_units()
        if self.kind is not MeterKind.BUCKET or reset_in_s is None:
            return careful
        if told >= self.limit:
            return max(careful, self._level)
        if self._tells_debt(told, reset_in_s):
            return careful + self.limit - self._rate * reset_in_s
        age_s = min((self.limit - told) / self._rate - reset_in_s, now - sent_at)
        if age_s < _OLD_S:
            return careful
        level, at = told, now - age_s
        unknown = self._settled if self._is_charged_late else [*self._unbooked, *self._settled]
        for taken_at, units in sorted((cost.taken_at, cost.units) for cost in unknown):
            if taken_at > at:
                level, at = min(self.limit, level + self._rate * (taken_at - at)), taken_at
            level -= units
        return min(self.limit, level + self._rate * (now - at))

    def _unknown_units(self) -> int:
        """What the newest header cannot know of."""
        return self._settled.units + (0 if self._is_charged_late else self._unbooked.units)

    def _sweep(self) -> None:
        """Forget settled costs that every header to come will hold: its attempt is in flight or yet to be admitted."""
        settled = len(self._settled)
        if not settled:
            return
        if not self._open:
            # A stale header may miss the last ones, and one that follows may show that a failed one was free.
            since = self._at - _MOST_STALE_S
            if any(cost.admitted_at <= since for cost in self._settled):
                self._settled = _Costs(cost for cost in self._settled if cost.admitted_at > since)
        elif settled > self._sweep_at:
            oldest = next(iter(self._open))
            self._settled = _Costs(cost for cost in self._settled if (cost.known_from or 0) > oldest)
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._settled))


def _limit_of(reading: Reading) -> float | None:
    limit = _sane(reading.limit, _MOST_UNITS)
    return limit if limit is not None and limit >= _LEAST_LIMIT else None


def _sane(number: float | None, most: float) -> float | None:
    """The number if it is one, and possible; NaN compares false."""
    return number if number is not None and 0 <= number <= most else None
