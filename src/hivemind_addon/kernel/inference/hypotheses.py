"""Bank of hypotheses that compete to explain refusals. Pure.

The hypotheses: nothing but chance; a number of attempts in flight; an amount in any span or window of some length, also
by sliding counters; an amount that drains at some rate; in requests, input tokens or all tokens. Each is a level
(`limiter_models.py`) replayed over the recent attempts: posterior = prior x likelihood. Another limit may explain the
rest: so there are layers.

Much evidence against the best hypothesis in a short time (a cumulative sum of log-likelihoods) shows a change of the
provider: earlier attempts are forgotten.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise

from hivemind_addon.kernel.inference.limiter_models import (
    UNEQUAL,
    BucketLevel,
    ConcurrencyLevel,
    CounterLevel,
    Fit,
    HiddenLimit,
    Level,
    Sent,
    SlidingLevel,
    WindowLevel,
    fit,
    fit_all,
    fit_at,
    fit_chance,
    glance,
)
from hivemind_addon.kernel.inference.retry_afters import LONGEST_S, ROUNDING_S, RetryAfters

_NEVER = float("inf")
_REMEMBERED = 256
"""Attempts that the hypotheses have to explain."""
_OLDER = 1024
"""Earlier attempts that still fill buckets and windows."""
_WINDOWS_S = (1.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 18_000.0, 86_400.0)
_LEAST_WINDOW_S = 0.5
_UNUSUAL = 0.1
"""Relative probability of a window of another length."""
_LONGER = 5.0
"""Longest windows considered, as a multiple of the remembered span."""
_LINGER_S = {0.0: 1.0, 0.5: 0.2, 2.0: 0.1, 5.0: 0.1}
"""How long a slot stays taken after the attempt's end, and how likely that is beside the others."""
SURE = 0.97
"""Probability that counts as unanimous."""
LIKELY = 0.5
"""More likely than not."""
_NEGLIGIBLE = -5.0
"""Log-odds to the best below which a hypothesis is dropped."""
_LEAST_VERDICT_S = 0.05
_FIRST_VERDICT_S = 0.25
_MOST_VERDICT_S = 2.0
_LONG_RETRY_AFTER_S = 5.0
"""A longer retry-after suggests a rate limit."""
_SPARED = 0.05
"""Share of an attempt's units that stay in a bucket."""
_MARGIN_SHARE = 0.25
"""Room for one more attempt stays too, up to this share of the rest: a margin for errors of sizes and rate and for
others' usage, which costs the time to fill only once."""
_SLACK_S = 0.2
_SLACK = 0.05
"""A reported and a computed instant that differ by less are the same."""
_MOST_DISAGREEMENT = 6.0
"""Most log-likelihood that a hypothesis loses by computing other instants than reported; each costs 1."""
_AT_THE_DOOR_S = 0.2
"""Limiters refuse before any work: a refusal slower than this, and than half an answer's time, is more likely chance,
by these log-odds:"""
_INSIDE = 2.0
_INSTANT_S = 0.005
"""An end and a sending this close may reach the provider in either order."""
_CHANGE = 7.0
"""Log-likelihood against the best hypothesis that proves a change of the provider."""
_MOST_LIMITS = 3
_ENOUGH_NEW = 8
"""Where refusals are chance, a new refusal per so many known ones teaches something."""
_MUCH_NEARER = 4.0
"""If most reported ends were this many times nearer than the farthest, there may be two limits."""
_UNSEEN = 0.003
"""Relative probability of each rate limit whose windows end unseen, and of each counter."""
_UNSEEN_LENGTHS = 3
_COUNTER_WAIT = 1.1
"""A counter's first unit returns after up to this many windows."""
_SHIFTS = ((0.0, 0.25, 0.5, 0.75), (-0.08, 0.08), (-0.02, 0.02), (-0.005, 0.005))
"""Shares of a window that the search for the window's end moves by, step by step nearer."""
_UNEXPLAINED = 1.0
"""Log-likelihood that the best hypothesis must lack before unseen windows or counted refusals are considered."""
_REFUSALS_COUNT = 0.05
"""Probability that a limiter counts refused attempts."""
_LEFT_UNEXPLAINED = 4.0
"""Log-likelihood that counted refusals may lack of a full explanation: they improve many wrong hypotheses a little."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Probability of each kind of limit before any observation; the rest is chance."""

    rate: float
    concurrency: float


OF_THROTTLES = Prior(rate=0.6, concurrency=0.1)
"""For refusals by rate limits."""
OF_OVERLOADS = Prior(rate=0.0, concurrency=0.5)
"""For refusals by overload."""


@dataclass(slots=True, eq=False)
class Hypothesis:
    """An explanation of refusals with its probability and its prediction for the next attempt."""

    level: Level | None
    """None: nothing but chance."""
    fit: Fit
    score: float = 0.0
    """Logarithm of prior x likelihood."""
    weight: float = 0.0
    """Probability among the plausible hypotheses."""
    rarity: float = 0.0
    """Logarithm of the probability relative to the usual hypotheses of the same kind."""

    @property
    def is_of_a_rate(self) -> bool:
        """Whether this limits attempts sent over time, not attempts in flight."""
        return self.level is not None and not isinstance(self.level, ConcurrencyLevel)

    def opens_at(self, units: Sequence[float], in_flight: int, now: float, *, with_margin: bool) -> float:
        """When this hypothesis lets an attempt pass; infinite: when another attempt ends. `with_margin`: surely."""
        if self.level is None:
            return now
        amount = self.fit.amount
        if isinstance(self.level, BucketLevel | CounterLevel):
            # An attempt that takes a bucket's last units meets each rounding error.
            unit = units[self.level.measure]
            margin = min(unit, _MARGIN_SHARE * (amount - unit)) if with_margin else 0.0
            amount -= max(_SPARED * unit, margin)
        return self.level.opens_at(units[self.level.measure], max(1.0, amount), in_flight, now)


@dataclass(frozen=True, slots=True)
class Weighed:
    """Changes made by a competition."""

    has_changed: bool
    """The provider has changed: earlier attempts are forgotten."""
    has_grown: bool
    """A limit no longer holds, and the new amount is unknown."""
    is_tighter: bool
    """The best limit admits clearly less than the previous best."""


class Bank:
    """Attempts, and the hypotheses that explain their refusals."""

    def __init__(self, prior: Prior, retry_afters: RetryAfters) -> None:
        self.retry_afters = retry_afters
        self.open: dict[int, Sent] = {}
        """Attempts in flight, by stamp."""
        self.layers: list[list[Hypothesis]] = []
        """Plausible hypotheses for each known limit, the best first; empty: nothing was ever refused."""
        self._levels: list[Level] = []
        """Levels of all hypotheses."""
        self.limit: HiddenLimit | None = None
        """The limit that explains best; None: only chance explains."""
        self.known: HiddenLimit | None = None
        """`limit`, if likelier than all other hypotheses together, chance included."""
        self.refused_after_s = 0.0
        """Mean time until a refusal arrives."""
        self.longest_row_s = 0.0
        """Longest time for which everything was refused."""
        self._prior = prior
        self._history: deque[Sent] = deque()
        self._older: deque[Sent] = deque(maxlen=_OLDER)
        """Earlier attempts that were taken: they fill limits, but need no explanation."""
        self._reopened: deque[float] = deque(maxlen=8)
        """When attempts passed after others had been refused."""
        self._ends: dict[tuple[object, int, float], float] = {}
        """Likeliest ends of unseen windows, by kind, measure and length."""
        self._failures_count, self._refusals_count = True, False
        """Whether limits count failed and refused attempts."""
        self._unweighed = self._known_refusals = 0
        """Refusals since the last competition, and up to then."""
        self._passed_after_s = 0.0
        """Mean time until an answer begins."""
        self._before_change: list[Sent] = []
        """Attempts forgotten last."""
        self._outgrown: Level | None = None
        """Level of a known limit that no longer holds."""

    def __repr__(self) -> str:
        return f"<Bank {self.limit}>" if self.limit else "<Bank, nothing known>"

    def sent(self, sent: Sent) -> None:
        """Count an attempt that goes."""
        for level in self._levels:
            level.add(sent)
        self._history.append(sent)
        if len(self._history) > _REMEMBERED:
            oldest = self._history.popleft()
            if not oldest.is_void and self.is_taken(oldest):
                self._older.append(oldest)
        self.open[sent.stamp] = sent

    def passed(self, sent: Sent, now: float) -> None:
        """Learn that an attempt was taken."""
        sent.refused = False
        self._passed_after_s = _mean(self._passed_after_s, now - sent.sent_at)

    def refused(self, sent: Sent, now: float) -> None:
        """Learn that an attempt was refused."""
        sent.refused = True
        if self.limit_in_flight < _NEVER:
            # The attempt found all slots taken, whatever has ended since.
            sent.in_flight = sent.most_in_flight
        self.refused_after_s = _mean(self.refused_after_s, now - sent.sent_at)
        if not self._refusals_count:
            for level in self._levels:
                level.take_back(sent)
        self._unweighed += 1

    def ended(
        self, sent: Sent, now: float, *, units: tuple[float, ...] | None, was_taken: bool, is_failed: bool
    ) -> None:
        """End an attempt that took `units` by measure; None: as many as expected."""
        sent.ended_at = now
        sent.is_failed = is_failed
        sent.is_void = not was_taken
        if not sent.refused:
            self._freed(sent, now)
            if units is not None:
                self._correct(sent, units)
        if not was_taken or (is_failed and not self._failures_count):
            for level in self._levels:
                level.take_back(sent)

    def glance(self) -> "Bank":
        """A copy whose hypotheses answer for a view; it learns nothing more."""
        seen = copy(self)
        seen.layers = [
            [replace(entry, level=None if entry.level is None else glance(entry.level)) for entry in layer]
            for layer in self.layers
        ]
        return seen

    def knows_enough(self, now: float) -> bool:
        """Whether another refusal teaches nothing: all is chance, and few refusals are new."""
        is_due = self._unweighed * _ENOUGH_NEW >= self._known_refusals
        return not is_due and self._is_all_chance and self.row_length(now) <= 1

    def forget_since(self, at: float) -> None:
        """Forget refusals since `at`, and those before back to the last pass: they were an outage and no limit."""
        for sent in reversed(self._history):
            if sent.refused:
                sent.is_void = True
            elif sent.refused is False and sent.sent_at < at:
                break
        if not any(sent.refused and not sent.is_void for sent in self._history):
            # The provider has not changed, either.
            known = [*self._before_change, *self._history]
            self._history = deque(known[-_REMEMBERED:])
            self._before_change, self._outgrown = [], None

    def take_back(self, stamps: Sequence[int]) -> None:
        """Forget the refusals of these attempts: no limit caused them."""
        for sent in self._history:
            if sent.stamp in stamps:
                sent.is_void = True

    def resume(self, limit: HiddenLimit, held: Sent | None = None) -> None:
        """Continue with a limit from an earlier run, which holds these units."""
        level = limit.level()
        if held is not None:
            level.preload([held])
        chance = fit_chance(0, 0)
        known = Fit(limit.amount, 0.0, chance.chance)
        self.layers = [[Hypothesis(level, known, weight=0.9), Hypothesis(None, chance, weight=0.1)]]
        self._settle_on_best()

    @property
    def verdict_s(self) -> float:
        """An attempt that is not refused for this long has passed."""
        if not self.refused_after_s:
            return _FIRST_VERDICT_S
        return min(max(_LEAST_VERDICT_S, 2 * self.refused_after_s), _MOST_VERDICT_S)

    @property
    def limit_in_flight(self) -> float:
        """Attempts in flight that the best limit lets pass; infinite if the limit is of another kind."""
        limit = self.limit
        return limit.amount if limit is not None and limit.window_s is None else _NEVER

    def _settle_on_best(self) -> None:
        self._levels = [entry.level for layer in self.layers for entry in layer if entry.level is not None]
        self.limit = self._best()
        self.known = self.limit if self.layers and self.layers[0][0].weight > LIKELY else None

    def _best(self) -> HiddenLimit | None:
        level = self.layers[0][0].level if self.layers else None
        if level is None:
            return None
        amount = self.layers[0][0].fit.amount
        match level:
            case ConcurrencyLevel():
                return HiddenLimit(0, max(1.0, amount))
            case BucketLevel(measure=measure, per_s=per_s):
                return HiddenLimit(measure, max(1.0, amount), max(1.0, amount) / per_s, is_bucket=True)
            case (
                SlidingLevel(measure=measure, window_s=window_s)
                | WindowLevel(measure=measure, window_s=window_s)
                | CounterLevel(measure=measure, window_s=window_s)
            ):
                return HiddenLimit(measure, max(1.0, amount), window_s)
        return None

    def row_length(self, now: float) -> int:
        """Refusals since the last pass; attempts sent within a round trip count once."""
        if not self._known_refusals and not self._unweighed:
            return 0  # no remembered attempt was refused
        row, counted_at = 0, _NEVER
        for sent in reversed(self._history):
            verdict = None if sent.is_void else self._verdict(sent, now)
            if verdict is False:
                break
            if verdict and sent.sent_at < counted_at - self.refused_after_s:
                row, counted_at = row + 1, sent.sent_at
        return row

    def reopened(self, passed: Sent) -> None:
        """Note an attempt that passed just after others had been refused."""
        first = last = None
        for sent in reversed(self._history):
            if sent.sent_at >= passed.sent_at or sent.is_void:
                continue
            if not sent.refused:
                break
            first, last = sent, last or sent
        if first is not None and last is not None:
            self.longest_row_s = max(self.longest_row_s, last.sent_at - first.sent_at)
            if not self._reopened or passed.sent_at > self._reopened[-1]:
                self._reopened.append(passed.sent_at)

    @property
    def _is_all_chance(self) -> bool:
        return bool(self.layers) and self.layers[0][0].level is None and self.layers[0][0].weight >= SURE

    def _correct(self, sent: Sent, units: tuple[float, ...]) -> None:
        """Correct an attempt's units: output is known only at the end, and only the provider counts input exactly."""
        for level in self._levels:
            level.correct(sent, units[level.measure])
        sent.units = units

    def _freed(self, sent: Sent, now: float) -> None:
        """Correct the attempts sent just before a slot got free, which did not find the slot taken.

        At a cap, within a round trip; elsewhere that would make refused attempts seem to have found more.
        """
        history = self._history
        if not history or history[-1].stamp <= sent.stamp:
            return  # nothing was sent since
        has_cap = self.limit_in_flight < _NEVER
        # A slower refusal came after some work, and not from a limiter.
        is_at_door = has_cap and self.refused_after_s <= _AT_THE_DOOR_S
        since = now - (max(_INSTANT_S, self.refused_after_s) if is_at_door else _INSTANT_S)
        for later in reversed(history):
            if later.stamp <= sent.stamp or later.sent_at < since:
                break
            later.in_flight = max(1, later.in_flight - 1)
            if has_cap:
                later.odds = None  # computed for another level

    def weigh(self, now: float) -> Weighed:
        """Let the hypotheses compete to explain the remembered attempts."""
        before_now, has_changed, has_grown = self.limit, False, False
        self._failures_count, self._refusals_count = True, False
        self._unweighed = 0
        self._known_refusals = sum(1 for sent in self._history if sent.refused)
        records = [sent for sent in self._history if not sent.is_void]
        hypotheses = self._compete(records, now)
        if any(sent.is_failed for sent in records):
            self._failures_count = not self._failures_count
            others = self._compete(records, now)
            if others[0].score > hypotheses[0].score:
                hypotheses = others
            else:
                self._failures_count = not self._failures_count
        most = fit_all(self._known_refusals, len(records))
        if self._prior.rate and hypotheses[0].fit.score < most - _UNEXPLAINED:
            self._refusals_count = True
            others = self._compete(records, now)
            self._refusals_count = False
            score = others[0].score + math.log(_REFUSALS_COUNT)
            is_complete = others[0].is_of_a_rate and others[0].fit.score > most - _LEFT_UNEXPLAINED
            if is_complete and score > hypotheses[0].score:
                self._refusals_count = True
                hypotheses = others
        cut = self._changed_at(hypotheses[0], records, now)
        if cut is not None:
            before = [sent for sent in records if sent.sent_at < cut]
            since = [sent for sent in records if sent.sent_at >= cut]
            newer = self._compete(since, now)
            changed = self._compete(before, now)[0].score + newer[0].score
            if changed > _CHANGE + max(hypotheses[0].score, self._as_two(hypotheses[0], records, now)):
                self._before_change = before
                self._history = deque(sent for sent in self._history if sent.sent_at >= cut)
                self._older.clear()
                for sent in since:
                    sent.odds = None
                has_changed = True
                self._outgrown = hypotheses[0].level
                records, hypotheses = since, newer
        self.layers = []
        while any(sent.refused for sent in records):
            self.layers.append(hypotheses)
            if hypotheses[0].level is None or len(self.layers) == _MOST_LIMITS:
                break
            # Another limit may refuse attempts that this limit lets pass.
            records = self._unexplained(hypotheses[0], records)
            if any(sent.refused for sent in records):
                hypotheses = self._compete(records, now, is_first=False)
        if not self.layers and self._outgrown is not None:
            self.layers = [[self._proved(self._outgrown, records, now)]]
            has_grown = True
        self._settle_on_best()
        is_tighter = before_now is not None and self.limit is not None and self.limit.is_tighter_than(before_now)
        return Weighed(has_changed, has_grown, is_tighter)

    def _as_two(self, first: Hypothesis, records: Sequence[Sent], now: float) -> float:
        """Score of two limits at once: a limit that existed all the time may begin to refuse late."""
        if not first.is_of_a_rate:
            return -_NEVER
        rest = self._unexplained(first, records)
        explained = len(records) - len(rest)
        second = self._compete(rest, now, is_first=False)[0].score
        return first.score - first.fit.score + fit_all(explained, explained) + second

    def _proved(self, outgrown: Level, records: Sequence[Sent], now: float) -> Hypothesis:
        """A limit that has grown, with the amount that attempts have proved; trials raise it step by step."""
        level = _again(outgrown)
        assert level is not None
        found = level.replay(records, [self.is_taken(sent) for sent in records])
        passed = [at for at, sent in zip(found, records, strict=True) if self._verdict(sent, now) is False]
        amount = max(passed, default=1.0)
        return Hypothesis(level, Fit(amount, 0.0, fit_chance(0, 0).chance), weight=1.0)

    @property
    def remembers_since(self) -> float:
        """When the oldest attempt was sent that has to be explained; infinite: there is none."""
        return self._history[0].sent_at if self._history else _NEVER

    def explains(self, since: float, now: float) -> tuple[float, bool]:
        """How well the best hypothesis explains the attempts since `since`, and whether it is more than chance.

        As a log-likelihood, without the prior of the limit's kind.
        """
        records = [sent for sent in self._history if sent.sent_at >= since and not sent.is_void]
        best = self._compete(records, now)[0]
        return best.fit.score + best.rarity, best.level is not None

    def _compete(self, records: Sequence[Sent], now: float, *, is_first: bool = True) -> list[Hypothesis]:
        verdicts = [self._verdict(sent, now) for sent in records]
        known = [index for index, verdict in enumerate(verdicts) if verdict is not None]
        refused = [index for index in known if verdicts[index]]
        taken = [self.is_taken(sent) for sent in records]
        chance = fit_chance(len(refused), len(known))
        rate = self._prior.rate
        if rate and self.retry_afters.longest_s > _LONG_RETRY_AFTER_S:
            rate += (1 - rate - self._prior.concurrency) / 2
        prior = math.log(1 - rate - self._prior.concurrency)
        if self.refused_after_s > max(_AT_THE_DOOR_S, self._passed_after_s / 2):
            prior += _INSIDE
        hypotheses = [Hypothesis(None, chance, chance.score + prior + _vanity(records, verdicts))]
        measures = list(self._measures(records))
        families: tuple[tuple[float, list[tuple[Level, float]]], ...] = (
            (self._prior.concurrency, [(ConcurrencyLevel(linger_s), part) for linger_s, part in _LINGER_S.items()]),
            (
                rate,
                [pair for measure in measures for pair in self._rates(measure, records, now, is_first=is_first)]
                if rate
                else [],
            ),
        )
        for share, levels in families:
            total = sum(part for _, part in levels)
            for level, part in levels:
                fitted = self._fitted(level, records, taken, known, refused)
                if fitted is not None:
                    fitted.score += math.log(share * part / total)
                    fitted.rarity = math.log(part)
                    hypotheses.append(fitted)
        best, explained = -_NEVER, chance.score
        for hypothesis in sorted(hypotheses, key=lambda hypothesis: -hypothesis.score):
            # Reported instants are the most expensive check and never raise a score: dropped hypotheses stay dropped.
            if hypothesis.score - best <= _NEGLIGIBLE:
                break
            if hypothesis.level is not None:
                agreement = self._agreement(hypothesis.level, hypothesis.fit.amount, records)
                hypothesis.score += agreement
                explained = max(explained, hypothesis.fit.score + agreement)
            best = max(best, hypothesis.score)
        if rate and is_first and explained < fit_all(len(refused), len(known)) - _UNEXPLAINED:
            # A hypothesis that explains everything needs no rival.
            for measure in measures:
                for unseen in self._unseen(measure, records, taken, known, refused):
                    unseen.score += math.log(rate * _UNSEEN)
                    unseen.rarity = math.log(_UNSEEN)
                    hypotheses.append(unseen)
        return _plausible(hypotheses)

    def _fitted(
        self, level: Level, records: Sequence[Sent], taken: Sequence[bool], known: Sequence[int], refused: Sequence[int]
    ) -> Hypothesis | None:
        """Fit a level to the records; None: chance explains them better. `known`, `refused`: indexes of records."""
        self._preload(level)
        found = level.replay(records, taken)
        step = 1.0 if level.measure == 0 else 0.0
        # A limiter that lets nothing pass has no cap: others hold the slots, or the provider is down.
        least = 1.0 if isinstance(level, ConcurrencyLevel) else 0.0
        best = fit(map(found.__getitem__, known), map(found.__getitem__, refused), step=step, least=least)
        if best.amount == _NEVER:
            return None
        if isinstance(level, BucketLevel):
            exact = BucketLevel(level.measure, level.per_s, best.amount)
            self._preload(exact)
            found = exact.replay(records, taken)
            exactly = fit_at(best.amount, map(found.__getitem__, known), map(found.__getitem__, refused))
            if exactly.score > best.score:
                return Hypothesis(exact, exactly, exactly.score)
        return Hypothesis(level, best, best.score)

    def _preload(self, level: Level) -> None:
        """Begin a level with the remains of older attempts."""
        if self._older:
            level.preload(list(self._older))

    def _agreement(self, level: Level, amount: float, records: Sequence[Sent]) -> float:
        """How well a level's openings agree with the retry-afters of refusals; at best 0."""
        reporting = [sent for sent in records if sent.told_at is not None and sent.ended_at < _NEVER]
        if not self.retry_afters.are_exact or not reporting:
            return 0.0
        waits_s = [sent.told_at - sent.ended_at for sent in reporting if sent.told_at is not None]
        is_whole = all(abs(wait_s - round(wait_s)) < 1e-6 for wait_s in waits_s)
        again, agreement = _again(level), 0.0
        assert again is not None
        self._preload(again)
        for sent in records:
            if sent.told_at is not None:
                opens_at = again.opens_at(sent.units[again.measure], amount, sent.in_flight, sent.sent_at)
                slack_s = ROUNDING_S if is_whole else _SLACK_S + _SLACK * (sent.told_at - sent.sent_at)
                agreement -= abs(opens_at - sent.told_at) > slack_s
            again.replay([sent], [self.is_taken(sent)])
        return max(agreement, -_MOST_DISAGREEMENT)

    def is_taken(self, sent: Sent) -> bool:
        """Whether an attempt counts for a limit, as far as is known."""
        if sent.refused:
            return self._refusals_count
        return self._failures_count or not sent.is_failed

    def _rates(
        self, measure: int, records: Sequence[Sent], now: float, *, is_first: bool
    ) -> Iterator[tuple[Level, float]]:
        """Levels that may limit a rate, with their relative probabilities."""
        span_s = now - records[0].sent_at if records else 0.0
        for window_s in _WINDOWS_S:
            yield SlidingLevel(measure, window_s), 1.0
            if window_s > _LONGER * span_s:
                break
        for is_reported, ends, least_s in self._window_ends(records, is_first=is_first):
            lengths_s = list(self._windows(ends, least_s, is_reported=is_reported))
            for window_s in lengths_s:
                # The longer a window, the less likely is an end so near.
                part = lengths_s[0] / window_s * (1.0 if window_s in _WINDOWS_S else _UNUSUAL)
                yield WindowLevel(measure, window_s, tuple(ends), is_tiled=True), part
                if is_reported:
                    yield WindowLevel(measure, window_s, tuple(ends), is_tiled=False), part
        for per_s in self._drains(measure, records, is_first=is_first):
            yield BucketLevel(measure, per_s), 1.0

    def _window_ends(self, records: Sequence[Sent], *, is_first: bool) -> Iterator[tuple[bool, Sequence[float], float]]:
        """Possible ends of a limit's windows: whether they were reported, the ends, and the least window length.

        Where there are two limits, the refusals of each report its own ends: those of the second limit come with
        refusals that the first leaves unexplained, and those of a shorter limit are near.
        """
        reported = list(zip(self.retry_afters.ends, self.retry_afters.waits_s, strict=True))
        if is_first:
            yield True, self.retry_afters.ends, self.retry_afters.longest_s
            middle_s = sorted(self.retry_afters.waits_s)[len(reported) // 2] if reported else 0.0
            if middle_s * _MUCH_NEARER < self.retry_afters.longest_s:
                most_s = next((length_s for length_s in _WINDOWS_S if length_s >= middle_s), middle_s)
                near = [(end, wait_s) for end, wait_s in reported if wait_s <= most_s]
                yield True, [end for end, _ in near], max(wait_s for _, wait_s in near) if near else 0.0
                yield True, [end for end, wait_s in reported if wait_s > most_s], self.retry_afters.longest_s
        else:
            unexplained = [sent.told_at for sent in records if sent.refused and sent.told_at is not None]
            own = [pair for pair in reported if any(abs(pair[0] - at) <= ROUNDING_S for at in unexplained)]
            yield True, [end for end, _ in own], max((wait_s for _, wait_s in own), default=0.0)
        yield False, self._reopened, self.longest_row_s

    def _windows(self, ends: Sequence[float], least: float, *, is_reported: bool) -> Iterable[float]:
        """Possible lengths of windows with such ends."""
        if not ends:
            return ()
        longer = [length_s for length_s in _WINDOWS_S if length_s >= least]
        lengths = set(longer[: 4 if is_reported else 7] or _WINDOWS_S[-1:])
        known = list(ends)[-4:]
        apart_s = [round(after - before, 1) for before, after in pairwise(known) if after - before <= LONGEST_S]
        lengths.update(length_s for length_s in apart_s if length_s >= max(least - ROUNDING_S, _LEAST_WINDOW_S))
        if is_reported and apart_s:
            # No window ends within another.
            lengths = {length_s for length_s in lengths if length_s <= min(apart_s) + ROUNDING_S} or lengths
        return sorted(lengths)

    def _unseen(
        self, measure: int, records: Sequence[Sent], taken: Sequence[bool], known: Sequence[int], refused: Sequence[int]
    ) -> Iterator[Hypothesis]:
        """The likeliest window and sliding counter of each length, where nothing shows when they end."""
        opened = self.retry_afters.ends or self._reopened
        if not opened:
            return
        least = max(self.longest_row_s, self.retry_afters.longest_s) / _COUNTER_WAIT
        for window_s in [length_s for length_s in _WINDOWS_S if length_s >= least][:_UNSEEN_LENGTHS]:
            # The first unit of the previous window was gone then.
            before = [sent for sent in records if opened[0] - 2 * window_s <= sent.sent_at < opened[0]]
            end = opened[0] - window_s / max(1, sum(map(self.is_taken, before)))
            for kind in (CounterLevel, _tiled):
                likeliest: Hypothesis | None = None
                around = self._ends.get((kind, measure, window_s), end)
                for shifts in _SHIFTS:
                    for at in [(around + shift * window_s) % window_s for shift in shifts]:
                        found = self._fitted(kind(measure, window_s, at), records, taken, known, refused)
                        if found is not None and (likeliest is None or found.score > likeliest.score):
                            around, likeliest = at, found
                if likeliest is not None:
                    self._ends[kind, measure, window_s] = around
                    likeliest.score += self._agreement(kind(measure, window_s, around), likeliest.fit.amount, records)
                    yield likeliest

    def _drains(self, measure: int, records: Sequence[Sent], *, is_first: bool) -> Iterable[float]:
        """Rates at which a bucket may drain: units that passed between refusals."""
        refused = [index for index, sent in enumerate(records) if sent.refused]
        if not refused:
            return ()
        rates = set()
        last = refused[-1]
        for first in {refused[0], refused[len(refused) // 2], refused[max(0, len(refused) - 4)]}:
            passed_s = records[last].sent_at - records[first].sent_at
            units = sum(sent.units[measure] for sent in records[first:last] if self.is_taken(sent))
            if passed_s > 0 and units:
                rates.add(units / passed_s)
            reported_s = (records[last].told_at or 0.0) - (records[first].told_at or _NEVER)
            if reported_s > 0:
                more = records[last].units[measure] - records[first].units[measure]
                rates.add(max(units + more, 1.0) / reported_s)
        if is_first and self.retry_afters.longest_s >= 1 and measure == 0:
            rates.add(1 / self.retry_afters.longest_s)
        for hypotheses in self.layers:
            level = hypotheses[0].level
            if isinstance(level, BucketLevel) and level.measure == measure:
                rates.add(level.per_s)
        return sorted({round(rate, 2 - math.floor(math.log10(rate))) for rate in rates})

    def _measures(self, records: Sequence[Sent]) -> Iterable[int]:
        """Measures that may be limited: always requests, and tokens where attempts differ in them."""
        yield 0
        for measure in (1, 2):
            sizes = [sent.units[measure] for sent in records]
            if sizes and max(sizes) > UNEQUAL * max(1.0, min(sizes)):
                yield measure

    def _verdict(self, sent: Sent, now: float) -> bool | None:
        """Whether an attempt was refused; None: not known."""
        if sent.refused is not None:
            return sent.refused
        return False if sent.stamp in self.open and now >= sent.sent_at + self.verdict_s else None

    def _unexplained(self, best: Hypothesis, records: Sequence[Sent]) -> list[Sent]:
        """All attempts except the refusals that a hypothesis explains."""
        level = _again(best.level)
        assert level is not None
        self._preload(level)
        found = level.replay(records, [self.is_taken(sent) for sent in records])
        amount = best.fit.amount
        if isinstance(level, CounterLevel):
            # The end of a counter's windows is known only nearly: an attempt that just passes proves no other limit.
            amount -= min(sent.units[level.measure] for sent in records)
        return [sent for sent, at in zip(records, found, strict=True) if not (at > amount and sent.refused)]

    def _changed_at(self, best: Hypothesis, records: Sequence[Sent], now: float) -> float | None:
        """Since when the attempts contradict the best hypothesis; None: they do not."""
        level = _again(best.level)
        if level is not None:
            self._preload(level)
        against, answered_at = 0.0, -_NEVER
        since: float | None = None
        chance, amount = best.fit.chance, best.fit.amount
        taken = [self.is_taken(sent) for sent in records]
        levels = level.replay(records, taken) if level is not None else [0.0] * len(records)
        for sent, found in zip(records, levels, strict=True):
            verdict = self._verdict(sent, now)
            if verdict is None:
                continue
            if found > amount:
                against += -3.0 if verdict else 3.0
            elif verdict and best.is_of_a_rate and sent.sent_at < answered_at:
                # An attempt sent before the last such refusal arrived repeats the same evidence.
                continue
            else:
                against += math.log(0.5 / chance) if verdict else math.log(0.5 / (1 - chance))
                answered_at = sent.ended_at if verdict else answered_at
            if against <= 0:
                against, since = 0.0, None
            elif since is None:
                since = sent.sent_at
        return since if against > _CHANGE and since is not None and since > records[0].sent_at else None


def _mean(mean: float, newest: float) -> float:
    return newest if mean == 0 else mean + 0.2 * (newest - mean)


def _vanity(records: Sequence[Sent], verdicts: Sequence[bool | None]) -> float:
    """How much better pure chance predicted the verdicts than the hypotheses did; 0 if worse.

    In hindsight some limiter explains any series of chance refusals. Its predictions show its worth.
    """
    better = 0.0
    for sent, refused in zip(records, verdicts, strict=True):
        if sent.odds is not None and refused is not None:
            ours, chance = sent.odds
            better += math.log(chance / ours) if refused else math.log((1 - chance) / (1 - ours))
    return max(0.0, better)


def _again(level: Level | None) -> Level | None:
    """An empty level of the same kind."""
    match level:
        case None:
            return None
        case ConcurrencyLevel(linger_s=linger_s):
            return ConcurrencyLevel(linger_s)
        case SlidingLevel(measure=measure, window_s=window_s):
            return SlidingLevel(measure, window_s)
        case WindowLevel(measure=measure, window_s=window_s, ends=ends, is_tiled=is_tiled):
            return WindowLevel(measure, window_s, ends, is_tiled)
        case CounterLevel(measure=measure, window_s=window_s, ends_at=ends_at):
            return CounterLevel(measure, window_s, ends_at)
        case BucketLevel(measure=measure, per_s=per_s, amount=amount):
            return BucketLevel(measure, per_s, amount)
    raise AssertionError(level)


def _plausible(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """The plausible hypotheses with their probabilities, the best first."""
    best = max(hypothesis.score for hypothesis in hypotheses)
    kept = [hypothesis for hypothesis in hypotheses if hypothesis.score - best > _NEGLIGIBLE]
    total = sum(math.exp(hypothesis.score - best) for hypothesis in kept)
    for hypothesis in kept:
        hypothesis.weight = math.exp(hypothesis.score - best) / total
    return sorted(kept, key=lambda hypothesis: -hypothesis.weight)


def _tiled(measure: int, window_s: float, end: float) -> WindowLevel:
    return WindowLevel(measure, window_s, (end,), is_tiled=True)
