"""The concurrency limit while no refusal limits it.

**It grows** until a refusal comes: an attempt that fills all slots proves the last slot if no refusal comes in the
usual time of a refusal. `hidden_limits.py` interprets refusals.

**It is taken back** where more attempts in flight bring no more answers: such a provider queues silently, or slows
down, and its queue knows no priorities. The rule is BBR's (Cardwell et al., ACM Queue 14(5), 2016): attempts in flight
= the best rate of answers x the time of an answer without a queue. Neither is visible where the other is measured, so
limits are tried:

    fewer    than a limit that grows, when answers take longer than those to attempts that found few in flight
    fewer    than a limit that stands, and more, by turns: a trial that succeeds is followed by a further step, and a
             trial that fails by a pause and a step the other way

A smaller limit stands if it brings about as many answers per second, a larger limit if it brings more. Only time in
which all slots are in use counts, so that neither agents that think nor a rate limit are taken for the provider.

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
_SPREAD = 0.4
"""Standard deviation of an answer's time, relative to the mean, that is assumed."""
_LOW = 4
"""Attempts in flight, or a quarter of the limit, that are few."""
_EQUAL = 0.9
"""A smaller limit brings at least this share of the answers."""
_LONGER = 1.3
"""Times of an answer without a queue at which fewer are tried."""
_PAUSE, _MOST_PAUSE = 16.0, 128.0
"""The pause after the first trial that failed is twice the first; the second is the longest. In times of an answer."""
_DRAIN, _SILENT = 1.5, 4
"""Times of an answer that attempts beyond a smaller limit may take to end, and without any answer."""
_SHORT_S = 1.0
"""With shorter answers a slot is idle for over 3 % of the time (some 20 ms a request), so one more attempt waits."""


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
        self.answers = self.seconds = self._took_s = 0.0

    def answered(self, took_s: float, *, found: int = 0) -> None:
        """Count an answer. `found`: attempts in flight at the admission, if no time is counted otherwise."""
        if self.answers >= _REMEMBERED:
            for name in vars(self):
                setattr(self, name, getattr(self, name) / 2)
        self.answers += 1
        self._took_s += took_s
        if found:
            self.seconds += took_s / found

    @property
    def time_s(self) -> float:
        """The mean time of an answer."""
        return self._took_s / max(1.0, self.answers)

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.answers / self.seconds if self.seconds else 0.0

    def is_slower(self, low: "_Level") -> bool:
        """Whether an answer surely takes longer than at a low level."""
        if low.answers < _FEW:
            return False
        error = 3 * _SPREAD * math.sqrt(1 / low.answers + 1 / self.answers)
        return self.time_s > low.time_s * _LONGER * math.exp(error)


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
        self._in_flight, self._changed_at = 0, 0.0
        self.rest()

    def rest(self) -> None:
        """Start, or restart after a long time."""
        self.limit = _first_limit(self._settings)
        """The most attempts in flight; at least 1."""
        self._filled_at: float | None = None
        """When the last slot was first used."""
        self._ceiling: int | None = None
        """The limit that stands or is tried; None: the limit grows."""
        self._trial: _Trial | None = None
        self._level, self._low = _Level(), _Level()
        """The answers at the limit, and to attempts that found few in flight."""
        self._skips = 0
        """Answers that do not count, until each slot was used once."""
        self._is_up = False
        """Whether more are tried next."""
        self._pause, self._due = _PAUSE, 0.0
        """The pause between trials, and the rest of it, in times of an answer."""
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
        if in_flight >= self.limit and (self._filled_at is None or self._filled_at <= now):
            self.limit = min(self.limit + 1, self.maximum if self._ceiling is None else self._ceiling)
            self._filled_at = None

    def ended(self, in_flight: int, now: float, *, found: int, took_s: float | None) -> None:
        """Note an attempt's end, with the attempts left.

        `found`: attempts in flight at its admission, the attempt included; `took_s`: the time of an answer, None: there
        was none.
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
                self._level.answered(took_s, found=found)
                self._look(now)
        elif self._trial is not None and in_flight > self._ceiling and now > self._trial.drained_by:
            # Some answers take far longer than most, and the others wait for their slots.
            self._give_up(self._trial)
        elif is_full and self._skips:
            self._skips -= 1
        elif is_full:
            self._level.answered(took_s)
            if self._trial is None:
                self._look(now)
            else:
                self._judge(self._trial, now)

    def _pass_time(self, in_flight: int, now: float) -> None:
        if self._in_flight == self._ceiling and not self._skips:
            self._level.seconds += now - self._changed_at
        self._in_flight, self._changed_at = in_flight, now

    def _look(self, now: float) -> None:
        """Begin a trial if one is due."""
        level, low = self._level, self._low
        self._due -= 1 / self.limit
        if self._due > 0 or level.answers < _ENOUGH:
            return
        if self._ceiling is not None:
            self._step(now)
        elif level.is_slower(low):
            self._try(max(1, min(self.limit - 1, math.ceil(_LONGER * level.rate * low.time_s))), now)

    def _judge(self, trial: _Trial, now: float) -> None:
        """End a trial if its answers decide."""
        level, limit, before = self._level, self.limit, trial.limit
        expected = trial.level.rate * level.seconds
        if expected < limit:
            return
        halfway = expected * (1 + limit / before) / 2
        """Between the answers of before, and those if each took as long as before."""
        least = max(halfway, _EQUAL * expected)
        error = 1 + 2 * _SPREAD * math.sqrt(expected * (1 + expected / trial.level.answers))
        is_over = expected > max(3 * before, 4 * _ENOUGH)
        if level.answers - error > halfway or (is_over and level.answers > least):
            self._settle_on(limit, level)
            self._is_up = limit > before
            self._step(now)
        elif is_over or level.answers + error < least:
            self._give_up(trial)
            self._is_up = limit < before
            if self._is_up and self._ceiling is not None and self._level.time_s < _SHORT_S:
                self._settle_on(before + 1, self._level)

    def _step(self, now: float) -> None:
        """Try a quarter more or fewer, at least one; of few slots two fewer."""
        limit = self.limit
        is_up = self._is_up or limit == 1
        self._try(max(limit + 1, round(1.25 * limit)) if is_up else limit - max(limit // 4, min(limit // 2, 2)), now)

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
        self._due = self._pause
        self._silent_s = _SILENT * level.time_s or self._silent_s

    def crowded(self, in_flight: int, now: float, *, by_others: bool) -> None:
        """Cut the slots for a while, and learn no limit: others had unknown attempts in flight, or the edge refused.

        Where the edge refuses some attempts, each pass gives a slot back.
        """
        self.limit = max(1, min(self.limit, in_flight - 1) if by_others else self.limit - 1)
        self._filled_at = now + _CROWDED_S if by_others else None

    def opens_at(self, in_flight: int, now: float) -> float:
        """When a further attempt may go; infinite: when an attempt ends."""
        if in_flight < self.limit:
            return now
        if self.limit == self._ceiling:
            drained_by = self._trial.drained_by if self._trial and in_flight > self._ceiling else _NEVER
            return max(now, min(drained_by, self._heard_at + self._silent_s))
        if in_flight > self.limit or self._filled_at is None or self.limit == self.maximum:
            return _NEVER
        return max(now, self._filled_at + _PROOF_S)

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


def _first_limit(settings: ConcurrencySettings) -> int:
    return max(1, min(settings.initial, settings.maximum))
