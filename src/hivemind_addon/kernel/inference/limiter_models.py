"""Models of limiters that no header reports: each predicts which attempts the limiter would have refused. Pure.

A model is a *level*: a number that each attempt finds when sent, itself counted, computed from the earlier attempts. A
limiter of that kind refuses exactly the attempts that would rise above the limit's amount.

    ConcurrencyLevel   attempts in flight, and those that ended less than `linger_s` ago
    SlidingLevel       units sent within the last `window_s`
    WindowLevel        units sent since the window began
    BucketLevel        units sent, less the units drained at `per_s`; a small amount enforces a spacing

Levels have no state: they read an `AttemptHistory`. The likelihood of a level is that of a decision stump: refusals are
chance below some amount, which `fit` finds, and the rule above.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

from msgspec import Meta, Struct

from hivemind_addon.kernel.values.ticket import Dimension

_NEVER = float("inf")
_MOST_ATTEMPTS = 512
"""Most attempts that a hypothesis has to explain."""


class _Share:
    """Beta prior of a share of refusals."""

    def __init__(self, refused: float, attempts: float) -> None:
        """As if `refused` of `attempts` had been observed before."""
        self._refused, self._attempts = refused, attempts
        counts = range(_MOST_ATTEMPTS + 1)
        self._of_refused = [math.lgamma(count + refused) - math.lgamma(refused) for count in counts]
        passed = attempts - refused
        self._of_passed = [math.lgamma(count + passed) - math.lgamma(passed) for count in counts]
        self._of_attempts = [math.lgamma(count + attempts) - math.lgamma(attempts) for count in counts]

    def expected(self, refused: int, attempts: int) -> float:
        """Expected share after these attempts."""
        return (refused + self._refused) / (attempts + self._attempts)

    def likelihood(self, refused: int, attempts: int) -> float:
        """Log-likelihood of these verdicts, over all shares."""
        return self._of_refused[refused] + self._of_passed[attempts - refused] - self._of_attempts[attempts]


_CHANCE = _Share(0.5, 5.0)
"""Refusals by chance, as if 0.5 of 5 attempts: the more, the less likely."""
_RULE = _Share(20.0, 20.4)
"""Refusals by a limiter above the amount, as if 20 of 20.4 attempts."""

_SHORT = 0.5
"""Share of an attempt's units missing in a bucket that refuses without a retry-after."""
_INSTANT_S = 1e-6
"""Rounding error of instants."""
_EDGE_S = 0.1
"""Attempts sent so shortly before a window may count in the window: ends are reported with the delay of a response."""


class Sent(Struct, eq=False):
    """An attempt from a limiter's point of view."""

    stamp: int
    sent_at: float
    units: tuple[float, ...]
    """By measure: requests, input tokens, all tokens."""
    in_flight: int
    """Attempts in flight on arrival, this attempt included; once passed, without those that may have ended before."""
    ended_at: float = _NEVER
    told_at: float | None = None
    """End of the retry-after that the refusal reported."""
    refused: bool | None = None
    """None: not known yet."""
    is_void: bool = False
    """Something else explains the end: the attempt teaches nothing, and took nothing."""
    odds: tuple[float, float] | None = None
    """Probability of a refusal when sent: by the hypotheses, and by chance alone."""
    is_failed: bool = False
    """Failed for another reason; some limiters do not count failures."""
    most_in_flight: int = 0
    """`in_flight` as counted when sent."""
    is_probe: bool = False
    """Sent although some plausible hypothesis expected a refusal."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How well a level explains the verdicts."""

    amount: float
    """The highest level that passes; infinite: refusals are chance."""
    score: float
    """Log-likelihood."""
    chance: float
    """Share of the attempts below the amount that are refused nevertheless."""


def fit_chance(refused: int, attempts: int) -> Fit:
    """Fit of pure chance."""
    return Fit(_NEVER, _CHANCE.likelihood(refused, attempts), _CHANCE.expected(refused, attempts))


def fit(levels: Iterable[float], refused_levels: Iterable[float], *, step: float, least: float = 0.0) -> Fit:
    """Find the most likely amount from the levels of all attempts and those of the refused attempts.

    `step`: units of the smallest attempt; `least`: smallest possible amount.
    """
    found, refused = sorted(levels), sorted(refused_levels)
    attempts = len(found)
    best = fit_chance(len(refused), attempts)
    # Any of the levels may be the limit: the best of many candidates explains less.
    choice = math.log(1 + len(set(found)))
    passed = -1
    for level in sorted(set(refused)):
        # All attempts with the same level are on the same side.
        below, below_refused = bisect_left(found, level), bisect_left(refused, level)
        if below - below_refused == passed:
            continue  # no attempt passed between this level and the last: the last explains more
        amount = _between(found[below - 1] if below else 0.0, level, step)
        if amount < least:
            continue
        passed, above = below - below_refused, attempts - below
        score = (
            _CHANCE.likelihood(below_refused, below) + _RULE.likelihood(len(refused) - below_refused, above) - choice
        )
        if score >= best.score:
            best = Fit(amount, score, _CHANCE.expected(below_refused, below))
    return best


def fit_all(refused: int, attempts: int) -> float:
    """Score of a limiter that explains every verdict."""
    passed = attempts - refused
    return _CHANCE.likelihood(0, passed) + _RULE.likelihood(refused, refused) - math.log(1 + attempts)


def fit_at(amount: float, levels: Iterable[float], refused_levels: Iterable[float]) -> Fit:
    """Fit of a known amount."""
    found, refused = sorted(levels), sorted(refused_levels)
    below, below_refused = bisect_right(found, amount), bisect_right(refused, amount)
    score = _CHANCE.likelihood(below_refused, below)
    score += _RULE.likelihood(len(refused) - below_refused, len(found) - below)
    score -= math.log(1 + len(set(found)))
    return Fit(amount, score, _CHANCE.expected(below_refused, below))


def _between(passed: float, refused: float, step: float) -> float:
    """The amount between a level that passed and a higher level that was refused; `step`: units of an attempt."""
    return max((passed + refused) / 2, refused - step)


class AttemptHistory:
    """Attempts in the order in which they were sent, and running sums of the units that a limiter counts."""

    def __init__(
        self,
        attempts: Sequence[Sent],
        counts: Callable[[Sent], bool],
        first: int = 0,
        judged: Sequence[int] | None = None,
    ) -> None:
        """`first`: index of the first attempt that has to be explained; earlier attempts only fill limits.

        `judged`: indexes of the attempts whose verdicts are weighed; None: of all that have to be explained.
        """
        self.attempts = list(attempts)
        self.counts, self.first = counts, first
        self.judged = range(first, len(attempts)) if judged is None else judged
        self.sent_at = [sent.sent_at for sent in attempts]
        self.counted = [counts(sent) for sent in attempts]
        self._sums: dict[int, list[float]] = {}
        self._ends: list[float] | None = None
        self.levels: dict[Level, list[float]] = {}
        """Levels of buckets before each attempt, and after the last, as far as computed."""

    @property
    def explained(self) -> list[Sent]:
        """The attempts whose verdicts are weighed."""
        return [self.attempts[index] for index in self.judged]

    def counted_by(self, counts: Callable[[Sent], bool]) -> "AttemptHistory":
        """The same attempts for a limiter that counts other attempts."""
        return self if counts is self.counts else AttemptHistory(self.attempts, counts, self.first, self.judged)

    @property
    def ends(self) -> Sequence[float]:
        """When the counted attempts that have to be explained ended, in order."""
        if self._ends is None:
            pairs = zip(self.attempts[self.first :], self.counted[self.first :], strict=True)
            self._ends = sorted(sent.ended_at for sent, is_counted in pairs if is_counted and sent.ended_at < _NEVER)
        return self._ends

    def add(self, sent: Sent) -> None:
        """Append an attempt that is in flight."""
        self.attempts.append(sent)
        self.sent_at.append(sent.sent_at)
        self.counted.append(True)
        for measure, sums in self._sums.items():
            sums.append(sums[-1] + sent.units[measure])

    def ended(self, sent: Sent) -> None:
        """Note the end of a counted attempt, later than all others."""
        if self._ends is not None:
            self._ends.append(sent.ended_at)

    def sums(self, measure: int) -> list[float]:
        """Counted units before each attempt, and of all."""
        if measure not in self._sums:
            pairs = zip(self.attempts, self.counted, strict=True)
            units = (sent.units[measure] if is_counted else 0.0 for sent, is_counted in pairs)
            self._sums[measure] = list(accumulate(units, initial=0.0))
        return self._sums[measure]


type Level = ConcurrencyLevel | SlidingLevel | WindowLevel | BucketLevel
"""A kind of limiter. `measure`: index of the counted unit in `Sent.units`; `found`: the level that each judged attempt
found, itself included; `opens_at`: when `units` more fit into the amount, infinite: when an attempt ends."""


@dataclass(frozen=True, slots=True)
class ConcurrencyLevel:
    """Attempts that a provider works on, and ended attempts whose slot is not free yet."""

    linger_s: float
    """How long a slot stays taken after the attempt's end."""
    measure: int = 0

    def found(self, history: AttemptHistory) -> list[float]:
        """See Level."""
        if not self.linger_s:
            return [sent.in_flight for sent in history.explained]
        ended_at = history.ends
        return [
            sent.in_flight + bisect_right(ended_at, sent.sent_at) - bisect_right(ended_at, sent.sent_at - self.linger_s)
            for sent in history.explained
        ]

    def opens_at(self, history: AttemptHistory, units: float, amount: float, in_flight: int, now: float) -> float:  # noqa: ARG002
        """See Level."""
        free = amount - in_flight
        if free < 1:
            return _NEVER
        before = bisect_right(history.ends, now - self.linger_s)
        surplus = len(history.ends) - before + 1 - int(free)
        return now if surplus <= 0 else max(now, history.ends[before + surplus - 1] + self.linger_s)


@dataclass(frozen=True, slots=True)
class SlidingLevel:
    """Units sent within the last `window_s`; safe for any limiter that admits the same amount in that time."""

    measure: int
    window_s: float

    def found(self, history: AttemptHistory) -> list[float]:
        """See Level."""
        sums, sent_at, measure, window_s = history.sums(self.measure), history.sent_at, self.measure, self.window_s
        return [
            sums[index] - sums[bisect_right(sent_at, sent.sent_at - window_s + _INSTANT_S)] + sent.units[measure]
            for index, sent in zip(history.judged, history.explained, strict=True)
        ]

    def opens_at(self, history: AttemptHistory, units: float, amount: float, in_flight: int, now: float) -> float:  # noqa: ARG002
        """See Level."""
        sums = history.sums(self.measure)
        leaving = bisect_left(sums, sums[-1] + units - max(amount, units) - 1e-9)
        return max(now, history.sent_at[leaving - 1] + self.window_s) if leaving else now

    def turns_at(self, history: AttemptHistory, now: float) -> float | None:
        """When the first units are free again; None: all are."""
        oldest = bisect_right(history.sent_at, now - self.window_s + _INSTANT_S)
        return history.sent_at[oldest] + self.window_s if oldest < len(history.sent_at) else None


@dataclass(frozen=True, slots=True)
class WindowLevel:
    """Units sent since a window began; windows follow each other without a gap."""

    measure: int
    window_s: float
    ends: tuple[float, ...]
    """Known ends of windows, in order."""

    def found(self, history: AttemptHistory) -> list[float]:
        """See Level."""
        sums, sent_at, measure = history.sums(self.measure), history.sent_at, self.measure
        found: list[float] = []
        ends_at, before = -_NEVER, 0.0
        for index, sent in zip(history.judged, history.explained, strict=True):
            if sent.sent_at >= ends_at:
                begins_at, ends_at = self._around(sent.sent_at)
                before = sums[bisect_left(sent_at, begins_at)]
            found.append(sums[index] - before + sent.units[measure])
        return found

    def opens_at(self, history: AttemptHistory, units: float, amount: float, in_flight: int, now: float) -> float:  # noqa: ARG002
        """See Level."""
        sums = history.sums(self.measure)
        begins_at, ends_at = self._around(now)
        used = sums[-1] - sums[bisect_left(history.sent_at, begins_at)]
        return now if used + units <= max(amount, units) + 1e-9 else ends_at

    def turns_at(self, history: AttemptHistory, now: float) -> float | None:  # noqa: ARG002
        """When the window ends."""
        return self._around(now)[1]

    def _around(self, now: float) -> tuple[float, float]:
        """Begin and end of the window that contains an instant."""
        ends, window_s, now = self.ends, self.window_s, now + _INSTANT_S
        after = bisect_right(ends, now)
        last = ends[after - 1] if after else -_NEVER
        if after < len(ends) and ends[after] - window_s <= now:
            return max(last, ends[after] - window_s - _EDGE_S), ends[after]
        known = ends[max(0, after - 1)]
        begins_at = known + math.floor((now - known) / window_s) * window_s
        return begins_at - (_EDGE_S if begins_at < known else 0.0), begins_at + window_s


@dataclass(frozen=True, slots=True)
class BucketLevel:
    """Units sent, less the units drained since."""

    measure: int
    per_s: float
    amount: float | None = None
    """With an amount, each verdict corrects the level: errors and others' usage add up in a bucket that is never
    full."""

    def found(self, history: AttemptHistory) -> list[float]:
        """See Level."""
        levels, attempts, measure = self._levels(history), history.attempts, self.measure
        return [levels[index] + attempts[index].units[measure] for index in history.judged]

    def opens_at(self, history: AttemptHistory, units: float, amount: float, in_flight: int, now: float) -> float:  # noqa: ARG002
        """See Level."""
        drained = self.per_s * max(0.0, now - history.sent_at[-1]) if history.attempts else 0.0
        surplus = max(0.0, self._levels(history)[-1] - drained) + units - max(amount, units)
        return now if surplus <= 1e-9 else now + surplus / self.per_s

    def _levels(self, history: AttemptHistory) -> list[float]:
        """The level before each attempt, and after the last attempt."""
        levels = history.levels.setdefault(self, [0.0])
        known = len(levels) - 1
        if known == len(history.attempts):
            return levels
        per_s, measure, amount = self.per_s, self.measure, self.amount
        level, last = levels.pop(), history.sent_at[max(0, known - 1)]
        for sent, is_counted in zip(history.attempts[known:], history.counted[known:], strict=True):
            at = sent.sent_at
            level -= per_s * (at - last)
            if level < 0:
                level = 0.0
            levels.append(level)
            units, last = sent.units[measure], at
            if is_counted:
                level += units
            if amount is None:
                continue
            if sent.refused:
                short = _SHORT * units if sent.told_at is None else per_s * (sent.told_at - at)
                level = max(level, amount - units + short)
            elif sent.refused is False:
                level = min(level, amount)
        levels.append(level)
        return levels


_MOST_WINDOW_S = 32 * 86_400.0
UNEQUAL = 1.3
"""Attempts whose sizes differ by a smaller factor teach nothing about tokens."""
_DIMENSIONS = (Dimension.REQUESTS, Dimension.INPUT_TOKENS, Dimension.TOTAL_TOKENS)
"""By measure."""


@dataclass(frozen=True, slots=True)
class HiddenLimit:
    """The limit that best explains refusals, for views, costs and forecasts."""

    measure: Annotated[int, Meta(ge=0, le=2)]
    amount: Annotated[float, Meta(ge=1, le=1e15)]
    window_s: Annotated[float, Meta(ge=0.01, le=_MOST_WINDOW_S)] | None = None
    """None: a limit of attempts in flight."""
    is_bucket: bool = False

    @property
    def dimension(self) -> Dimension:
        """The counted unit."""
        return _DIMENSIONS[self.measure]

    @property
    def kind(self) -> str:
        """How the limit refills."""
        if self.window_s is None:
            return "at a time"
        return "bucket" if self.is_bucket else "window"

    def __str__(self) -> str:
        if self.window_s is None:
            return f"{self.amount:.0f} at a time"
        what = self.dimension.value.replace("_", " ")
        if self.is_bucket:
            return f"{self.amount / self.window_s * 60:.3g} {what} per minute, {self.amount:.0f} at once"
        return f"{self.amount:.0f} {what} per {self.window_s:.0f} s"

    def level(self) -> Level:
        """An empty level for this limit."""
        if self.window_s is None:
            return ConcurrencyLevel(0.0)
        if self.is_bucket:
            return BucketLevel(self.measure, self.amount / self.window_s)
        return SlidingLevel(self.measure, self.window_s)

    def is_like(self, other: "HiddenLimit") -> bool:
        """Whether people need no report of the difference."""
        return (
            (self.measure, self.is_bucket, self.window_s is None)
            == (other.measure, other.is_bucket, other.window_s is None)
            and math.isclose(self.amount, other.amount, rel_tol=UNEQUAL - 1)
            and math.isclose(self.window_s or 0, other.window_s or 0, rel_tol=UNEQUAL - 1)
        )
