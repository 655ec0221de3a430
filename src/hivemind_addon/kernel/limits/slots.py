"""The concurrency limit while no refusal limits it.

**It grows** until a refusal comes: an attempt that fills all slots proves the last slot if no refusal comes in the
usual time of a refusal. `hidden_limits.py` interprets refusals.

**It is taken back** where more attempts in flight bring no more answers: such a provider queues silently, or slows
down, and its queue knows no priorities. The rule is BBR's (Cardwell et al., ACM Queue 14(5), 2016): attempts in flight
= the best rate of answers x the time of an answer without a queue. Neither is visible where the other is measured, so
limits are tried:

    fewer    when answers take longer than those to attempts that found few in flight, or after very many answers
    fewer    than a limit that stands, once, and again when its answers take twice as long as with fewer
    more     than a limit that stands, from time to time

The smaller limit of the two stands if it brings as many answers per second. Else the larger one does, or the limit that
the rates require. Only time in which all slots are in use counts, so that neither agents that think nor a rate limit
are taken for the provider. An answer counts as much as answers of that session usually take, compared with others.
"As many" allows for twice the standard error of the counts.

**A wrong belief is bounded.** A trial ends after a few times of an answer, and each failure doubles the pause until the
next. Where no answer comes for some time, one more attempt goes beyond a limit that stands, and ends a trial.
"""

import math
from dataclasses import dataclass

_NEVER = float("inf")
_LEAST_AFTER_OUTAGE = 2
_PROOF_S = 0.05
"""The usual time of a limiter's refusal."""
_CROWDED_S = 5.0
"""After a refusal, where others may use the rest of a limit, no further slot is tried for this time."""
_REMEMBERED = 128
"""Answers over which a level is measured."""
_FEW, _ENOUGH = 4, 8
"""Answers that show a time, and a rate."""
_LEAST_SPREAD = 0.1
_UNEQUAL = 1.5
"""A spread beyond which nothing is tried: others would wait for the slots of the longest, and counts prove little."""
_KINDS = 1024
"""Sessions whose usual times are remembered."""
_LOW = 4
"""Attempts in flight, or a quarter of the limit, that are few."""
_EQUAL = 0.97
"""Rates that differ by less are equal."""
_LONGER, _TWICE = 1.3, 2.0
"""Factors of the time of an answer at which fewer are tried: of a limit that grows, and of a limit that stands."""
_PAUSE, _MOST_PAUSE = 4.0, 128.0
"""The first and the longest pause between trials, in times of an answer."""
_WITHOUT_CAUSE = 16
"""Pauses after which fewer are tried though nothing suggests that."""
_DRAIN, _SILENT = 1.5, 4
"""Times of an answer that attempts beyond a smaller limit may take to end, and without any answer."""
_SHORT_S = 1.0
"""With shorter answers a slot is idle for more than 3 % of the time while the next request is on its way (some 20 ms),
so one more waits at the provider."""


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    """The start and the bounds of the concurrency limit."""

    initial: int = 4
    """The limit before anything is known about the provider."""
    maximum: int = 4096
    """The upper bound. A third of the files that the proxy may open is never exceeded."""
    maximum_from: str = "concurrency.maximum"
    """The setting that the maximum comes from, for people who want to raise the limit. Not written in files."""


class _Level:
    """The answers at a level of attempts in flight."""

    def __init__(self) -> None:
        self.answers = self._seconds = self._timed = self._took_s = self._squares = 0.0

    def pass_time(self, seconds: float) -> None:
        """Count time in which all slots of the level are in use."""
        self._seconds += seconds

    def answered(self, took_s: float, *, counts: float = 1.0, found: int = 0, is_timed: bool = True) -> None:
        """Count an answer. `found`: attempts in flight at the admission, if no time is counted otherwise."""
        if self.answers >= _REMEMBERED:
            for name in vars(self):
                setattr(self, name, getattr(self, name) / 2)
        self.answers += counts
        if found:
            self._seconds += took_s / found
        if is_timed:
            self._timed += 1
            self._took_s += took_s
            self._squares += took_s**2

    @property
    def time_s(self) -> float:
        """The mean time of an answer."""
        return self._took_s / max(1.0, self._timed)

    @property
    def spread(self) -> float:
        """Standard deviation of an answer's time, relative to the mean."""
        if self._timed < _FEW or not self._took_s:
            return 1.0
        return math.sqrt(max(_LEAST_SPREAD**2, self._squares * self._timed / self._took_s**2 - 1))

    def expects(self, other: "_Level") -> float:
        """Answers that this level would have brought in the time of another."""
        return self.answers * other._seconds / self._seconds if self._seconds else _NEVER  # noqa: SLF001  its own kind

    def least_for(self, time_s: float) -> int:
        """The attempts in flight that bring this level's rate if an answer takes `time_s`."""
        return max(1, math.ceil(self.answers * time_s / self._seconds)) if self._seconds else 1

    def is_slower(self, low: "_Level", factor: float) -> bool:
        """Whether an answer surely takes this many times as long as at a low level."""
        if low._timed < _FEW or not low.time_s:  # noqa: SLF001
            return False
        error = 3 * max(low.spread, self.spread) * math.sqrt(1 / low._timed + 1 / max(1.0, self._timed))  # noqa: SLF001
        return self.time_s > low.time_s * factor * math.exp(error)


@dataclass(frozen=True, slots=True)
class _Trial:
    """The state before a trial."""

    ceiling: int | None
    limit: int
    level: _Level
    drained_by: float
    """The attempts beyond a smaller limit have to be over by then."""


class Slots:
    """The concurrency limit while no refusal limits it."""

    def __init__(self, settings: ConcurrencySettings) -> None:
        self._settings = settings
        self.maximum, self.maximum_from = max(1, settings.maximum), settings.maximum_from
        self.limit = _first_limit(settings)
        """The most attempts in flight; at least 1."""
        self._filled_at: float | None = None
        """When the last slot was first used."""
        self._crowded_until = self._full_until = -_NEVER
        self._in_flight, self._changed_at = 0, 0.0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._ceiling: int | None = None
        """The limit that stands or is tried; None: the limit grows."""
        self._trial: _Trial | None = None
        self._level, self._low = _Level(), _Level()
        """The answers at the limit, and to attempts that found few in flight."""
        self._skips = 0
        """Answers that do not count, until each slot was used once."""
        self._usual: dict[object, float] = {}
        """How long answers of a kind take, compared with all."""
        self._pause, self._due = _PAUSE, 0.0
        """The pause between trials, and the rest of it, in times of an answer."""
        self._is_least = True
        """Whether fewer attempts brought fewer answers."""
        self._heard_at, self._silent_s = -_NEVER, _NEVER
        """When an answer came, and for how long none may come."""

    def __repr__(self) -> str:
        return f"<Slots {self.limit}>"

    def sent(self, in_flight: int, now: float) -> None:
        """Note an admitted attempt; `in_flight` includes the attempt."""
        self._pass_time(in_flight, now)
        if self._ceiling is not None and in_flight > self._ceiling:
            if self._trial is not None:
                self._give_up(self._trial)
            else:
                self._settle_on(in_flight, self._level)
        if in_flight > self.limit:
            # The last slot is proved: no refusal came for a while.
            self.limit, self._filled_at = min(in_flight, self.maximum), None
        if in_flight == self.limit and self._filled_at is None:
            self._filled_at = now

    def passed(self, in_flight: int, now: float) -> None:
        """Note an accepted attempt; `in_flight`: at the admission, the attempt included."""
        if in_flight >= self.limit and now >= self._full_until:
            self._grow()

    def ended(self, in_flight: int, now: float, *, found: int, took_s: float | None, kind: object = None) -> None:
        """Note an attempt's end, with the attempts left.

        `found`: attempts in flight at its admission, the attempt included; `took_s`: the time of an answer, None: there
        was none. Answers of one `kind` take about the same time.
        """
        is_full = self._in_flight == self._ceiling
        self._pass_time(in_flight, now)
        if took_s is None:
            return
        self._heard_at = now
        if self._ceiling is None:
            if found <= max(_LOW, self.limit // _LOW):
                self._low.answered(took_s)
            elif found > self.limit // 2:
                self._level.answered(took_s, counts=self._counts(kind, took_s), found=found)
                self._look(now)
        elif self._trial is not None and in_flight > self._ceiling and now > self._trial.drained_by:
            # Some answers take far longer than most, and the others wait for their slots.
            self._give_up(self._trial)
        elif is_full and self._skips:
            self._skips -= 1
        elif is_full:
            self._level.answered(took_s, counts=self._counts(kind, took_s), is_timed=found <= self._ceiling)
            if self._trial is None:
                self._look(now)
            else:
                self._judge(self._trial, self._ceiling, now)

    def _pass_time(self, in_flight: int, now: float) -> None:
        if self._in_flight == self._ceiling and not self._skips:
            self._level.pass_time(now - self._changed_at)
        self._in_flight, self._changed_at = in_flight, now

    def _counts(self, kind: object, took_s: float) -> float:
        """How long an answer of a kind usually takes, compared with all; learned while nothing is tried."""
        counts, level = self._usual.pop(kind, 1.0), self._level
        if self._trial is None and level.answers >= _ENOUGH and level.time_s:
            counts += (took_s / level.time_s - counts) / 4
        self._usual[kind] = counts
        if len(self._usual) > _KINDS:
            del self._usual[next(iter(self._usual))]
        return counts

    def _look(self, now: float) -> None:
        """Begin a trial if one is due."""
        level, limit, is_growing = self._level, self.limit, self._ceiling is None
        self._due -= 1 / limit
        if self._due > 0 or level.answers < (_ENOUGH if is_growing else 2 * _ENOUGH) or level.spread > _UNEQUAL:
            return
        # In no queue does an answer take more times as long as there are attempts: those are longer answers.
        is_queue = level.time_s < 2 * limit * self._low.time_s
        if limit > 1 and is_queue and level.is_slower(self._low, _LONGER if is_growing else _TWICE):
            self._try(min(limit - 1, level.least_for(self._low.time_s)), now)
        elif not is_growing:
            self._try(self._more if self._is_least else self._fewer, now)
        elif limit > _LOW and self._due < -_WITHOUT_CAUSE * self._pause:
            self._try(limit // 2, now)

    def _judge(self, trial: _Trial, limit: int, now: float) -> None:
        """End a trial if its answers decide."""
        level, before = self._level, trial.limit
        answers, expected = level.answers, trial.level.expects(level)
        if expected < limit:
            return
        variance = expected * (1 + expected / trial.level.answers)
        error = 1 + 2 * max(level.spread, trial.level.spread) * math.sqrt(variance)
        alike = expected * limit / before
        """Answers if each took as long as before."""
        halfway = (expected + alike) / 2
        if limit > before:
            is_over = answers >= _REMEMBERED / 2
            if _EQUAL * answers - expected > error or (is_over and answers > halfway):
                self._settle_on(limit, level)
                self._is_least = True
                self._try(self._more, now)
            elif is_over or answers + error < halfway:
                self._give_up(trial)
            return
        is_over = expected > max(3 * before, 4 * _ENOUGH)
        if _EQUAL * expected - answers > error or (is_over and (trial.ceiling is None or answers <= halfway)):
            self._low, self._is_least = level, True
            if answers > alike + error:
                self._settle_on(min(before, max(limit + 1, round(limit * expected / answers))), trial.level)
            else:
                self._give_up(trial)
                if trial.ceiling is not None and trial.level.time_s < _SHORT_S:
                    self._settle_on(before + 1, trial.level)
            self._due = self._due if self._ceiling is None else 1.0
        elif is_over or answers - error > halfway:
            is_better = answers > expected + error / 2
            self._settle_on(limit, level)
            self._is_least = limit == 1
            self._try(self._more if is_better or limit == 1 else self._fewer, now)

    @property
    def _more(self) -> int:
        return max(self.limit + 1, round(1.25 * self.limit))

    @property
    def _fewer(self) -> int:
        return self.limit - max(self.limit // 4, min(self.limit // 2, 2))

    def _try(self, limit: int, now: float) -> None:
        limit, level = min(limit, self.maximum), self._level
        if limit != self.limit:
            self._trial = _Trial(self._ceiling, self.limit, level, now + _DRAIN * level.time_s)
            self._ceiling = self.limit = self._skips = limit
            self._level, self._filled_at, self._heard_at, self._silent_s = _Level(), None, now, _SILENT * level.time_s

    def _give_up(self, trial: _Trial) -> None:
        """End a trial without a change."""
        self._ceiling, self.limit, self._level, self._skips = trial.ceiling, trial.limit, trial.level, trial.limit
        self._trial = self._filled_at = None
        self._due = self._pause = min(_MOST_PAUSE, 2 * self._pause)

    def _settle_on(self, limit: int, level: _Level) -> None:
        """Let a limit stand."""
        self._skips = limit if limit > self.limit else 0
        self._ceiling = self.limit = limit
        self._level, self._trial, self._filled_at = level, None, None
        self._due = self._pause = _PAUSE
        self._silent_s = _SILENT * level.time_s or self._silent_s

    def crowded(self, in_flight: int, now: float, *, by_others: bool) -> None:
        """Cut the slots for a while, and learn no limit: others had unknown attempts in flight, or the edge refused.

        Where the edge refuses some attempts, each pass gives a slot back.
        """
        self.limit = max(1, min(self.limit, in_flight - 1) if by_others else self.limit - 1)
        self._filled_at, self._crowded_until = None, now + _CROWDED_S
        if by_others:
            self._full_until = self._crowded_until

    def opens_at(self, in_flight: int, now: float) -> float:
        """When a further attempt may go; infinite: when an attempt ends."""
        if in_flight < self.limit:
            return now
        if self.limit == self._ceiling:
            drained_by = self._trial.drained_by if self._trial and in_flight > self._ceiling else _NEVER
            return max(now, min(drained_by, self._heard_at + self._silent_s))
        if in_flight > self.limit or self._filled_at is None or self.limit == self.maximum:
            return _NEVER
        return max(now, self._filled_at + _PROOF_S, self._crowded_until)

    def configure(self, settings: ConcurrencySettings) -> None:
        """Restart if nothing was proved yet; else keep the limit within the new maximum."""
        is_new = self._ceiling is None and self.limit == _first_limit(self._settings)
        self._settings = settings
        self.maximum, self.maximum_from = max(1, settings.maximum), settings.maximum_from
        before, self.limit = self.limit, _first_limit(settings) if is_new else min(self.limit, self.maximum)
        if self.limit != before:
            self._filled_at = None

    def recover(self, in_flight: int, now: float) -> None:
        """Halve the slots after an outage, then grow as ever.

        Attempts in flight outlived the outage, so there are at least as many slots.
        """
        self.limit = min(self.limit, max(_LEAST_AFTER_OUTAGE, self.limit // 2, in_flight))
        self._filled_at = now if in_flight == self.limit else None

    def rest(self) -> None:
        """Restart after a long time."""
        self.limit = min(self.limit, max(1, self._settings.initial))
        self._filled_at = None
        self._begin_anew()

    def _grow(self) -> None:
        self.limit = min(self.limit + 1, self.maximum if self._ceiling is None else self._ceiling)
        self._filled_at = None


def _first_limit(settings: ConcurrencySettings) -> int:
    return max(1, min(settings.initial, settings.maximum))
