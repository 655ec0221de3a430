"""Models of limiters that no header reports: each predicts which attempts the limiter would have refused. Pure.

A model is a *level*: a number that each attempt finds when sent, itself counted, computed from the earlier attempts. A
limiter of that kind refuses exactly the attempts that would rise above the limit's amount.

    ConcurrencyLevel   attempts in flight, and those that ended less than `linger_s` ago
    SlidingLevel       units sent within the last `window_s`
    WindowLevel        units sent since the window began
    CounterLevel       the same, and of the previous window as many as if they had been sent evenly
    BucketLevel        units sent, less the units drained at `per_s`; a small amount enforces a spacing

Two more hypotheses need no level (`hypotheses.py`): only chance refuses; the provider is closed until the instant it
names. A level's likelihood is a decision stump's: refusals are chance below some amount, which `fit` finds, and the
rule above.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Annotated, Protocol

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
    for level in sorted(set(refused), reverse=True):
        # All attempts with the same level are on the same side.
        below, below_refused = bisect_left(found, level), bisect_left(refused, level)
        above, above_refused = attempts - below, len(refused) - below_refused
        score = _CHANCE.likelihood(below_refused, below) + _RULE.likelihood(above_refused, above) - choice
        if score > best.score:
            amount = _between(found[below - 1] if below else 0.0, level, step)
            if amount >= least:
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


class Level(Protocol):
    """Sum of earlier attempts in a kind of limiter. Add attempts in the order in which they were sent."""

    measure: int
    """Index of the counted unit in `Sent.units`."""

    def add(self, sent: Sent) -> float:
        """Count an attempt; return the level that includes this attempt."""
        ...

    def replay(self, records: Sequence[Sent], taken: Sequence[bool]) -> list[float]:
        """Add attempts in turn; return their levels. Attempts that are not taken are taken back at once."""
        ...

    def preload(self, older: Sequence[Sent]) -> None:
        """Begin with the rest of older attempts that were taken, as if they were replayed."""
        ...

    def take_back(self, sent: Sent) -> None:
        """Uncount a refused attempt."""
        ...

    def correct(self, sent: Sent, units: float) -> None:
        """Correct an attempt to the units that were actually taken."""
        ...

    def opens_at(self, units: float, amount: float, in_flight: int, now: float) -> float:
        """When `units` more fit into the amount; infinite: when an attempt ends."""
        ...


class ConcurrencyLevel:
    """Attempts that a provider works on, and ended attempts whose slot is not free yet."""

    measure = 0

    def __init__(self, linger_s: float) -> None:
        self.linger_s = linger_s
        self._lingering: deque[Sent] = deque()

    def __repr__(self) -> str:
        return f"<ConcurrencyLevel, slots free after {self.linger_s:g} s>"

    def replay(self, records: Sequence[Sent], taken: Sequence[bool]) -> list[float]:
        """See Level."""
        if not self.linger_s:
            return [sent.in_flight for sent in records]
        found: list[float] = []
        for sent, is_taken in zip(records, taken, strict=True):
            found.append(self.add(sent))
            if not is_taken:
                self._lingering.pop()
        return found

    def preload(self, older: Sequence[Sent]) -> None:
        """Do nothing: ended attempts hold no slot."""

    def add(self, sent: Sent) -> float:
        """See Level."""
        if not self.linger_s:
            return sent.in_flight
        level = sent.in_flight + len(self._held(sent.sent_at))
        self._lingering.append(sent)
        return level

    def take_back(self, sent: Sent) -> None:
        """See Level."""
        if self.linger_s and sent in self._lingering:
            self._lingering.remove(sent)

    def correct(self, sent: Sent, units: float) -> None:
        """See Level."""

    def opens_at(self, units: float, amount: float, in_flight: int, now: float) -> float:  # noqa: ARG002
        """See Level."""
        free = amount - in_flight
        if free < 1:
            return _NEVER
        if not self.linger_s:
            return now
        frees_at = sorted(self._held(now))
        surplus = len(frees_at) + 1 - int(free)
        return now if surplus <= 0 else max(now, frees_at[surplus - 1])

    def _held(self, now: float) -> list[float]:
        """When the slots of ended attempts get free."""
        oldest = now - self.linger_s
        self._lingering = deque([sent for sent in self._lingering if sent.ended_at > oldest])
        return [sent.ended_at + self.linger_s for sent in self._lingering if sent.ended_at <= now]


@dataclass(slots=True, eq=False, repr=False)
class SlidingLevel:
    """Units sent within the last `window_s`; safe for any limiter that admits the same amount in that time."""

    measure: int
    window_s: float
    _sent: deque[Sent] = field(default_factory=deque)
    _units: float = 0.0

    def __repr__(self) -> str:
        return f"<SlidingLevel of {self.measure}, {self.window_s:g} s: {self._units:g}>"

    def replay(self, records: Sequence[Sent], taken: Sequence[bool]) -> list[float]:
        """See Level."""
        queue, total, window_s, measure = self._sent, self._units, self.window_s, self.measure
        found: list[float] = []
        note, append, popleft = found.append, queue.append, queue.popleft
        for sent, is_taken in zip(records, taken, strict=True):
            now = sent.sent_at
            while queue and queue[0].sent_at + window_s <= now:
                total -= popleft().units[measure]
            level = total + sent.units[measure]
            note(level)
            if is_taken:
                append(sent)
                total = level
        self._units = total
        return found

    def preload(self, older: Sequence[Sent]) -> None:
        """See Level."""
        now, window_s = older[-1].sent_at, self.window_s
        self._sent.extend(older[bisect_right(older, now, key=lambda sent: sent.sent_at + window_s) :])
        self._units = sum([sent.units[self.measure] for sent in self._sent])

    def add(self, sent: Sent) -> float:
        """See Level."""
        self._forget(sent.sent_at)
        self._sent.append(sent)
        self._units += sent.units[self.measure]
        return self._units

    def take_back(self, sent: Sent) -> None:
        """See Level."""
        if sent in self._sent:
            self._sent.remove(sent)
            self._units -= sent.units[self.measure]

    def correct(self, sent: Sent, units: float) -> None:
        """See Level."""
        if self._sent and sent.sent_at >= self._sent[0].sent_at:
            self._units += units - sent.units[self.measure]

    def opens_at(self, units: float, amount: float, in_flight: int, now: float) -> float:  # noqa: ARG002
        """See Level."""
        self._forget(now)
        surplus = self._units + units - max(amount, units)
        opens_at = now
        for sent in self._sent:
            if surplus <= 0:
                break
            surplus -= sent.units[self.measure]
            opens_at = sent.sent_at + self.window_s
        return opens_at

    def stand_alone(self) -> None:
        """Detach a copy: the original keeps the attempts that the copy forgets."""
        self._sent = self._sent.copy()

    def turns_at(self, now: float) -> float | None:
        """When the first units are free again; None: all are."""
        self._forget(now)
        return self._sent[0].sent_at + self.window_s if self._sent else None

    def _forget(self, now: float) -> None:
        while self._sent and self._sent[0].sent_at + self.window_s <= now:
            self._units -= self._sent.popleft().units[self.measure]


@dataclass(slots=True, eq=False, repr=False)
class WindowLevel:
    """Units sent since a window began."""

    measure: int
    window_s: float
    ends: Sequence[float]
    """Known ends of windows, in order."""
    is_tiled: bool
    """Windows follow each other without a gap; else a window begins with the first attempt after the last end."""
    _ends_at: float = -_NEVER
    _units: float = 0.0
    _next: int = 0

    def __repr__(self) -> str:
        tiled = "tiled" if self.is_tiled else "opened"
        return (
            f"<WindowLevel {tiled} of {self.measure}, {self.window_s:g} s: {self._units:g} until {self._ends_at:.1f}>"
        )

    def replay(self, records: Sequence[Sent], taken: Sequence[bool]) -> list[float]:
        """See Level."""
        total, ends_at, measure = self._units, self._ends_at, self.measure
        found: list[float] = []
        note = found.append
        for sent, is_taken in zip(records, taken, strict=True):
            now = sent.sent_at
            if now >= ends_at:
                ends_at, total = self._end_of(now), 0.0
            units = sent.units[measure]
            level = total + units
            note(level)
            total = level if is_taken or now < ends_at - self.window_s else max(0.0, level - units)
        self._units, self._ends_at = total, ends_at
        return found

    def preload(self, older: Sequence[Sent]) -> None:
        """See Level."""
        if self.is_tiled and len(self.ends) == 1:  # in all others, each window begins at the previous end
            older = _last(older, _FORGOTTEN * self.window_s)
        total, ends_at, measure = self._units, self._ends_at, self.measure
        for sent in older:
            if sent.sent_at >= ends_at:
                ends_at, total = self._end_of(sent.sent_at), 0.0
            total += sent.units[measure]
        self._units, self._ends_at = total, ends_at

    def add(self, sent: Sent) -> float:
        """See Level."""
        self._roll(sent.sent_at)
        if self._ends_at == -_NEVER:
            self._ends_at = self._end_of(sent.sent_at)
        self._units += sent.units[self.measure]
        return self._units

    def take_back(self, sent: Sent) -> None:
        """See Level."""
        self.correct(sent, 0.0)

    def correct(self, sent: Sent, units: float) -> None:
        """See Level."""
        if sent.sent_at >= self._ends_at - self.window_s:
            self._units = max(0.0, self._units + units - sent.units[self.measure])

    def opens_at(self, units: float, amount: float, in_flight: int, now: float) -> float:  # noqa: ARG002
        """See Level."""
        self._roll(now)
        return now if self._units + units <= max(amount, units) else self._ends_at

    def turns_at(self, now: float) -> float | None:
        """When the window ends; None: none has begun."""
        self._roll(now)
        return self._ends_at if self._ends_at > now else None

    def _roll(self, now: float) -> None:
        if now >= self._ends_at:
            self._ends_at, self._units = -_NEVER, 0.0

    def _end_of(self, now: float) -> float:
        """End of the window that contains an instant."""
        while self._next < len(self.ends) and self.ends[self._next] <= now:
            self._next += 1
        if self._next < len(self.ends) and self.ends[self._next] - self.window_s <= now:
            return self.ends[self._next]
        if not self.is_tiled or not self.ends:
            return now + self.window_s
        known = self.ends[max(0, self._next - 1)]
        return known + (math.floor((now - known) / self.window_s) + 1) * self.window_s


@dataclass(slots=True, eq=False, repr=False)
class CounterLevel:
    """Sliding counter: this window's units, and as many of the previous window's as if they had been sent evenly."""

    measure: int
    window_s: float
    ends_at: float
    """Any end of a window."""
    _this_ends_at: float = -_NEVER
    _last: float = 0.0
    _this: float = 0.0

    def __repr__(self) -> str:
        return (
            f"<CounterLevel of {self.measure}, {self.window_s:g} s: {self._last:g}, {self._this:g} "
            f"until {self._this_ends_at:.1f}>"
        )

    def replay(self, records: Sequence[Sent], taken: Sequence[bool]) -> list[float]:
        """See Level."""
        window_s, measure = self.window_s, self.measure
        found: list[float] = []
        note = found.append
        for sent, is_taken in zip(records, taken, strict=True):
            now = sent.sent_at
            if now >= self._this_ends_at:
                self._roll(now)
            units = sent.units[measure]
            note(self._last * (self._this_ends_at - now) / window_s + self._this + units)
            if is_taken:
                self._this += units
        return found

    def preload(self, older: Sequence[Sent]) -> None:
        """See Level."""
        measure = self.measure
        for sent in _last(older, _FORGOTTEN * self.window_s):
            if sent.sent_at >= self._this_ends_at:
                self._roll(sent.sent_at)
            self._this += sent.units[measure]

    def add(self, sent: Sent) -> float:
        """See Level."""
        self._roll(sent.sent_at)
        self._this += sent.units[self.measure]
        return self._last * (self._this_ends_at - sent.sent_at) / self.window_s + self._this

    def take_back(self, sent: Sent) -> None:
        """See Level."""
        self.correct(sent, 0.0)

    def correct(self, sent: Sent, units: float) -> None:
        """See Level."""
        more, begins_at = units - sent.units[self.measure], self._this_ends_at - self.window_s
        if sent.sent_at >= begins_at:
            self._this = max(0.0, self._this + more)
        elif sent.sent_at >= begins_at - self.window_s:
            self._last = max(0.0, self._last + more)

    def opens_at(self, units: float, amount: float, in_flight: int, now: float) -> float:  # noqa: ARG002
        """See Level."""
        self._roll(now)
        free = max(amount, units) - units
        if self._this <= free:
            return max(now, self._leaves_at(self._last, free - self._this))
        return self._leaves_at(self._this, free) + self.window_s

    def _leaves_at(self, last: float, free: float) -> float:
        """When at most `free` of the previous window's units still count."""
        return self._this_ends_at - self.window_s * min(1.0, free / last) if last else -_NEVER

    def _roll(self, now: float) -> None:
        if now < self._this_ends_at:
            return
        ends_at = self.ends_at + (math.floor((now - self.ends_at) / self.window_s) + 1) * self.window_s
        is_next = ends_at < self._this_ends_at + 1.5 * self.window_s
        self._last, self._this = self._this if is_next else 0.0, 0.0
        self._this_ends_at = ends_at


@dataclass(slots=True, eq=False, repr=False)
class BucketLevel:
    """Units sent, less the units drained since."""

    measure: int
    per_s: float
    amount: float | None = None
    """With an amount, each verdict corrects the level: errors and others' usage add up in a bucket that is never
    full."""
    _level: float = 0.0
    _at: float = -_NEVER

    def __repr__(self) -> str:
        return f"<BucketLevel of {self.measure}, {self.per_s:g} per s: {self._level:g}>"

    def replay(self, records: Sequence[Sent], taken: Sequence[bool]) -> list[float]:
        """See Level."""
        total, at, per_s, measure, amount = self._level, self._at, self.per_s, self.measure, self.amount
        found: list[float] = []
        note = found.append
        for sent, is_taken in zip(records, taken, strict=True):
            now = sent.sent_at
            if now > at:
                total -= per_s * (now - at)
                at = now
                if total < 0.0:
                    total = 0.0
            units = sent.units[measure]
            level = total + units
            note(level)
            total = level if is_taken else max(0.0, level - units)
            if amount is not None:
                if sent.refused:
                    short_s = 0.0 if sent.told_at is None else sent.told_at - now
                    total = max(total, amount - units + (per_s * short_s if short_s else _SHORT * units))
                elif sent.refused is False:
                    total = min(total, amount)
        self._level, self._at = total, at
        return found

    def preload(self, older: Sequence[Sent]) -> None:
        """See Level."""
        self.replay(older, [True] * len(older))

    def add(self, sent: Sent) -> float:
        """See Level."""
        self._drain(sent.sent_at)
        self._level += sent.units[self.measure]
        return self._level

    def take_back(self, sent: Sent) -> None:
        """See Level."""
        self.correct(sent, 0.0)

    def correct(self, sent: Sent, units: float) -> None:
        """See Level."""
        self._level = max(0.0, self._level + units - sent.units[self.measure])

    def opens_at(self, units: float, amount: float, in_flight: int, now: float) -> float:  # noqa: ARG002
        """See Level."""
        self._drain(now)
        surplus = self._level + units - max(amount, units)
        return now if surplus <= 1e-9 else now + surplus / self.per_s

    def _drain(self, now: float) -> None:
        if now > self._at:
            self._level = max(0.0, self._level - self.per_s * (now - self._at))
            self._at = now


def glance(level: Level) -> Level:
    """A copy to ask when the level opens, which leaves the level unchanged."""
    seen = copy(level)
    if isinstance(seen, SlidingLevel):
        seen.stand_alone()
    return seen


_FORGOTTEN = 4.0
"""Windows after which no attempt matters any more."""


def _last(older: Sequence[Sent], reach_s: float) -> Sequence[Sent]:
    """Attempts sent at most `reach_s` before the last."""
    return older[bisect_left(older, older[-1].sent_at - reach_s, key=lambda sent: sent.sent_at) :]


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

    def is_tighter_than(self, other: "HiddenLimit") -> bool:
        """Whether this limit admits clearly less of the same unit in the long run."""
        if (self.measure, self.window_s is None) != (other.measure, other.window_s is None):
            return False
        return self.amount / (self.window_s or 1.0) * UNEQUAL < other.amount / (other.window_s or 1.0)

    def is_like(self, other: "HiddenLimit") -> bool:
        """Whether people need no report of the difference."""
        return (
            (self.measure, self.is_bucket, self.window_s is None)
            == (other.measure, other.is_bucket, other.window_s is None)
            and math.isclose(self.amount, other.amount, rel_tol=UNEQUAL - 1)
            and math.isclose(self.window_s or 0, other.window_s or 0, rel_tol=UNEQUAL - 1)
        )
