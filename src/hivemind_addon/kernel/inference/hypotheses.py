"""Bank of hypotheses that compete to explain refusals. Pure.

The hypotheses: nothing but chance; a number of attempts in flight; an amount in any span or window of some length; an
amount that drains at some rate; in requests or all tokens. Each is a level (`limiter_models.py`) over the
recent attempts: posterior = prior x likelihood.

Much evidence against the best hypothesis in a short time (a cumulative sum of log-likelihoods) shows a change of the
provider: earlier attempts need no explanation any more.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise
from operator import attrgetter

from hivemind_addon.kernel.inference.limiter_models import (
    UNEQUAL,
    AttemptHistory,
    BucketLevel,
    ConcurrencyLevel,
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
)
from hivemind_addon.kernel.inference.retry_afters import LONGEST_S, ROUNDING_S, RetryAfters

_NEVER = float("inf")
_EXPLAINED = 256
"""Attempts that the hypotheses have to explain."""
_JUDGED = 96
"""Most of these whose verdicts are weighed."""
_REMEMBERED = 640
"""Attempts that fill buckets and windows."""
_WINDOWS_S = (1.0, 5.0, 10.0, 20.0, 60.0, 300.0, 3600.0, 18_000.0, 86_400.0)
_LEAST_WINDOW_S = 0.5
_UNUSUAL = 0.1
"""Relative probability of a window of another length."""
_LONGER = 5.0
"""Longest windows considered, as a multiple of the remembered span."""
_LENGTHS = 3
"""Usual window lengths considered for a series of ends."""
_LINGERS = 0.4
"""Relative probability of any linger."""
_NEAR = (0.8, 1.0, 1.25)
"""Multiples of the likeliest linger that are considered too."""
_ROUGH_S = 3.0
"""The least linger with such neighbours."""
SURE = 0.97
"""Probability that counts as unanimous."""
LIKELY = 0.5
_NEGLIGIBLE = -5.0
"""Log-odds to the best below which a hypothesis is dropped."""
_PLAUSIBLE = 8
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
_AT_THE_DOOR_S = 0.2
"""Limiters refuse before any work: a refusal slower than this, and than half an answer's time, is more likely chance,
by these log-odds:"""
_INSIDE = 2.0
_INSTANT_S = 0.005
"""An end and a sending this close may reach the provider in either order."""
_CHANGE = 7.0
"""Log-likelihood against the best hypothesis that proves a change of the provider."""
_SETTLED = 8
"""Attempts that pass until many may go at a time again."""
_ENOUGH_NEW = 8
"""A new refusal per so many known ones teaches something, even if the new ones repeat others or are chance."""
_UNEXPLAINED = 1.0
"""Log-likelihood that the best hypothesis must lack before counted refusals are considered."""
_REFUSALS_COUNT = 0.05
"""Probability that a limiter counts refused attempts."""
_FREE_FAILURES = 0.5
"""Probability that a limiter does not count failed attempts."""
_LEFT_UNEXPLAINED = 4.0
"""Log-likelihood that counted refusals may lack of a full explanation: they improve many wrong hypotheses a little."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Probability of each kind of limit before any observation; the rest is chance."""

    rate: float
    concurrency: float
    lingers_s: Sequence[float] = (0.5, 3.0)
    """How long a slot may stay taken after the attempt's end, beside not at all. Long lingers look like windows."""


OF_THROTTLES = Prior(rate=0.6, concurrency=0.1)
"""For refusals by rate limits."""
OF_OVERLOADS = Prior(rate=0.0, concurrency=0.5, lingers_s=(0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0))
"""For refusals by overload."""


type _Counts = Callable[[Sent], bool]
"""Whether a limiter counts an attempt."""


def _usual(sent: Sent) -> bool:
    return not sent.refused


def _all(sent: Sent) -> bool:  # noqa: ARG001
    return True


def _successes(sent: Sent) -> bool:
    return not sent.refused and not sent.is_failed


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
    counts: _Counts = _usual

    @property
    def is_of_a_rate(self) -> bool:
        """Whether this limits attempts sent over time, not attempts in flight."""
        return self.level is not None and not isinstance(self.level, ConcurrencyLevel)

    def opens_at(
        self, history: AttemptHistory, units: Sequence[float], in_flight: int, now: float, *, with_margin: bool
    ) -> float:
        """When this hypothesis lets an attempt pass; infinite: when another attempt ends. `with_margin`: surely."""
        if self.level is None:
            return now
        amount, unit = self.fit.amount, units[self.level.measure]
        if isinstance(self.level, BucketLevel):
            # An attempt that takes a bucket's last units meets each rounding error.
            margin = min(unit, _MARGIN_SHARE * (amount - unit)) if with_margin else 0.0
            amount -= max(_SPARED * unit, margin)
        return self.level.opens_at(history, unit, max(1.0, amount), in_flight, now)

    @property
    def limit(self) -> HiddenLimit | None:
        """The limit that this hypothesis assumes."""
        amount = max(1.0, self.fit.amount)
        match self.level:
            case ConcurrencyLevel():
                return HiddenLimit(0, amount)
            case BucketLevel(measure=measure, per_s=per_s):
                return HiddenLimit(measure, amount, amount / per_s, is_bucket=True)
            case SlidingLevel(measure=measure, window_s=window_s) | WindowLevel(measure=measure, window_s=window_s):
                return HiddenLimit(measure, amount, window_s)
        return None


class Bank:
    """Attempts, and the hypotheses that explain their refusals."""

    def __init__(self, prior: Prior, retry_afters: RetryAfters) -> None:
        self.retry_afters = retry_afters
        self.open: dict[int, Sent] = {}
        """Attempts in flight, by stamp."""
        self.hypotheses: list[Hypothesis] = []
        """Plausible hypotheses, the best first; empty: nothing was ever refused."""
        self.others: list[Hypothesis] = []
        """Plausible hypotheses for the refusals that the best hypothesis leaves unexplained."""
        self.refused_after_s = 0.0
        """Mean time until a refusal arrives."""
        self.longest_row_s = 0.0
        """Longest time for which everything was refused."""
        self._prior = prior
        self._attempts: deque[Sent] = deque(maxlen=_REMEMBERED)
        self._changes: list[float] = [-_NEVER]
        """When the provider changed; attempts since the last change have to be explained."""
        self._histories: dict[_Counts, AttemptHistory] = {}
        """All attempts, as counted by the plausible hypotheses; empty after a change of any attempt."""
        self._reopened: deque[float] = deque(maxlen=8)
        """When attempts passed after others had been refused."""
        self._unweighed = self._known_refusals = 0
        """Refusals since the last competition, and up to then."""
        self._weighed_at = -_NEVER
        self._passed_after_s = 0.0
        """Mean time until an answer begins."""
        self._outgrown: Hypothesis | None = None
        """The hypothesis of a known limit that no longer holds."""

    def sent(self, sent: Sent) -> None:
        """Count an attempt that goes."""
        self._attempts.append(sent)
        for history in self._histories.values():
            history.add(sent)
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
        self._unweighed += 1
        self._histories = {}

    def ended(
        self, sent: Sent, now: float, *, units: tuple[float, ...] | None, was_taken: bool, is_failed: bool
    ) -> None:
        """End an attempt that took `units` by measure; None: as many as expected."""
        sent.ended_at = now
        sent.is_failed = is_failed
        sent.is_void = not was_taken
        if not sent.refused:
            self._freed(sent, now)
            if units is not None and units != sent.units:
                # Output is known only at the end, and only the provider counts input exactly.
                sent.units = units
                self._histories = {}
        if sent.is_void or is_failed:
            self._histories = {}
        for history in self._histories.values():
            history.ended(sent)

    def knows_enough(self, sent: Sent, now: float) -> bool:
        """Whether a refusal teaches little: few refusals are new, and this repeats others, or all is chance."""
        if self._unweighed * _ENOUGH_NEW >= self._known_refusals or not self.hypotheses:
            return False
        best = self.hypotheses[0]
        is_all_chance = best.level is None and best.weight >= SURE
        return sent.sent_at < self._weighed_at or (is_all_chance and self.row_length(now) <= 1)

    def forget_since(self, at: float) -> None:
        """Forget refusals since `at`, and those before back to the last pass: they were an outage and no limit."""
        began_at = at
        for sent in reversed(self._attempts):
            if sent.refused:
                sent.is_void, began_at = True, min(began_at, sent.sent_at)
            elif sent.refused is False and sent.sent_at < at:
                break
        while self._changes[-1] >= began_at:
            # The provider has not changed, either.
            self._changes.pop()
            self._outgrown = None

    def take_back(self, stamps: Sequence[int]) -> None:
        """Forget the refusals of these attempts: no limit caused them."""
        for sent in self._attempts:
            if sent.stamp in stamps:
                sent.is_void = True

    def resume(self, limit: HiddenLimit, held: Sent | None = None, *, weight: float = 0.9) -> None:
        """Continue with a limit from an earlier run, which holds these units, at this probability."""
        if held is not None:
            self._attempts.append(held)
        chance = fit_chance(0, 0)
        known = Hypothesis(limit.level(), Fit(limit.amount, 0.0, chance.chance), weight=weight)
        self._settle_on([known, Hypothesis(None, chance, weight=1 - weight)])

    @property
    def verdict_s(self) -> float:
        """An attempt that is not refused for this long has passed."""
        if not self.refused_after_s:
            return _FIRST_VERDICT_S
        return min(max(_LEAST_VERDICT_S, 2 * self.refused_after_s), _MOST_VERDICT_S)

    @property
    def limit(self) -> HiddenLimit | None:
        """The limit that explains best; None: only chance explains."""
        return self.hypotheses[0].limit if self.hypotheses else None

    @property
    def limit_in_flight(self) -> float:
        """Attempts in flight that the best limit lets pass; infinite if the limit is of another kind."""
        limit = self.limit
        return limit.amount if limit is not None and limit.window_s is None else _NEVER

    def turns_at(self, now: float) -> float | None:
        """When the best limit lets many attempts pass again; None if attempts pass all the time."""
        best = self.hypotheses[0] if self.hypotheses else None
        if best is None or not isinstance(best.level, SlidingLevel | WindowLevel):
            return None
        return best.level.turns_at(self.history(best.counts), now)

    def row_length(self, now: float) -> int:
        """Refusals since the last pass; attempts sent within a round trip count once."""
        if not self._known_refusals and not self._unweighed:
            return 0  # no remembered attempt was refused
        row, counted_at = 0, _NEVER
        for sent in reversed(self._attempts):
            verdict = None if sent.is_void else self._verdict(sent, now)
            if verdict is False:
                break
            if verdict and sent.sent_at < counted_at - self.refused_after_s:
                row, counted_at = row + 1, sent.sent_at
        return row

    def may_follow_at(self, since: float, now: float) -> float:
        """When another attempt may go: no more attempts are without a verdict than have passed since then."""
        passed = 0
        pending: list[float] = []
        for sent in reversed(self._attempts):
            if sent.sent_at < since or passed >= _SETTLED:
                break
            verdict = self._verdict(sent, now)
            passed += verdict is False
            if verdict is None and sent.stamp in self.open:
                pending.append(sent.sent_at)
        return now if len(pending) <= passed else pending[-1] + self.verdict_s

    def reopened(self, passed: Sent) -> None:
        """Note an attempt that passed just after others had been refused."""
        first = last = None
        for sent in reversed(self._attempts):
            if sent.sent_at >= passed.sent_at or sent.is_void:
                continue
            if not sent.refused:
                break
            first, last = sent, last or sent
        if first is not None and last is not None:
            self.longest_row_s = max(self.longest_row_s, last.sent_at - first.sent_at)
            if not self._reopened or passed.sent_at > self._reopened[-1]:
                self._reopened.append(passed.sent_at)

    def weigh(self, now: float) -> bool | None:
        """Let the hypotheses compete to explain the remembered attempts. None: no limit has changed.

        True: a limit no longer holds, and the new amount is unknown.
        """
        has_grown: bool | None = None
        self._unweighed, self._weighed_at = 0, now
        history = self._usual_history()
        explained = history.explained
        self._known_refusals = sum(1 for sent in explained if sent.refused)
        hypotheses = self._compete(history, now)
        cut = self._changed_at(hypotheses[0], history, now)
        if cut is not None:
            at = bisect_left(history.judged, cut)
            before = AttemptHistory(history.attempts[:cut], _usual, history.first, history.judged[:at])
            since = AttemptHistory(history.attempts, _usual, cut, history.judged[at:])
            newer = self._compete(since, now)
            changed = self._compete(before, now)[0].score + newer[0].score
            if changed > _CHANGE + hypotheses[0].score:
                self._changes.append(history.sent_at[cut])
                for sent in since.attempts[cut:]:
                    sent.odds = None
                has_grown = False
                self._outgrown = hypotheses[0] if hypotheses[0].level is not None else None
                history, hypotheses = since, newer
        if not any(sent.refused for sent in history.explained):
            if self._outgrown is None and any(sent.refused for sent in history.attempts):
                return has_grown  # a limit that is kept refuses nothing for a long time
            has_grown = has_grown if self._outgrown is None else True
            hypotheses = [] if self._outgrown is None else [self._proved(self._outgrown, history, now)]
        self._settle_on(hypotheses)
        rest = self._unexplained(hypotheses[0], history) if hypotheses and hypotheses[0].level is not None else None
        if rest is not None and any(sent.refused for sent in rest.explained):
            # Another limit refuses attempts that this limit lets pass.
            self.others = self._compete(rest, now)
        return has_grown

    def _unexplained(self, best: Hypothesis, history: AttemptHistory) -> AttemptHistory:
        """All attempts except the refusals that a hypothesis explains."""
        assert best.level is not None
        found = best.level.found(history.counted_by(best.counts))
        pairs = zip(found, history.judged, strict=True)
        rest = [index for at, index in pairs if not (history.attempts[index].refused and at > best.fit.amount)]
        return AttemptHistory(history.attempts, _usual, history.first, rest)

    def _settle_on(self, hypotheses: list[Hypothesis]) -> None:
        self.hypotheses, self.others = hypotheses, []
        self._histories = {}

    def history(self, counts: _Counts) -> AttemptHistory:
        """All attempts, as a hypothesis counts them."""
        history = self._histories.get(counts)
        if history is None:
            attempts = [sent for sent in self._attempts if not sent.is_void]
            history = self._histories[counts] = AttemptHistory(attempts, counts, max(0, len(attempts) - _EXPLAINED))
        return history

    def _usual_history(self) -> AttemptHistory:
        attempts = [sent for sent in self._attempts if not sent.is_void]
        first = max(len(attempts) - _EXPLAINED, bisect_left(attempts, self._changes[-1], key=attrgetter("sent_at")))
        return AttemptHistory(attempts, _usual, first, _telling(attempts, first))

    def _freed(self, sent: Sent, now: float) -> None:
        """Correct the attempts sent just before a slot got free, which did not find the slot taken.

        At a cap, within a round trip; elsewhere that would make refused attempts seem to have found more.
        """
        has_cap = self.limit_in_flight < _NEVER
        # A slower refusal came after some work, and not from a limiter.
        is_at_door = has_cap and self.refused_after_s <= _AT_THE_DOOR_S
        since = now - (max(_INSTANT_S, self.refused_after_s) if is_at_door else _INSTANT_S)
        for later in reversed(self._attempts):
            if later.stamp <= sent.stamp or later.sent_at < since:
                break
            later.in_flight = max(1, later.in_flight - 1)
            if has_cap:
                later.odds = None  # computed for another level

    def _proved(self, outgrown: Hypothesis, history: AttemptHistory, now: float) -> Hypothesis:
        """A limit that has grown, with the amount that attempts have proved; trials raise it step by step."""
        assert outgrown.level is not None
        pairs = zip(outgrown.level.found(history), history.explained, strict=True)
        amount = max((at for at, sent in pairs if self._verdict(sent, now) is False), default=1.0)
        return Hypothesis(outgrown.level, Fit(amount, 0.0, fit_chance(0, 0).chance), weight=1.0)

    def _compete(self, history: AttemptHistory, now: float) -> list[Hypothesis]:
        """The plausible hypotheses with their probabilities, the best first."""
        verdicts = [self._verdict(sent, now) for sent in history.explained]
        known = [index for index, verdict in enumerate(verdicts) if verdict is not None]
        refused = [index for index in known if verdicts[index]]
        chance = fit_chance(len(refused), len(known))
        rate, concurrency = self._prior.rate, self._prior.concurrency
        if rate and self.retry_afters.longest_s > _LONG_RETRY_AFTER_S:
            rate += (1 - rate - concurrency) / 2
        prior = math.log(1 - rate - concurrency)
        if self.refused_after_s > max(_AT_THE_DOOR_S, self._passed_after_s / 2):
            prior += _INSIDE
        hypotheses = [Hypothesis(None, chance, chance.score + prior + _vanity(history.explained, verdicts))]
        if not refused:
            return hypotheses
        slots = [(ConcurrencyLevel(0.0), 1.0)]
        part = _LINGERS / len(self._prior.lingers_s)
        slots += [(ConcurrencyLevel(linger_s), part) for linger_s in self._lingers_s()]
        hypotheses += _fitted(slots, concurrency, history, known, refused)
        if rate:
            rates = [pair for measure in _measures(history.explained) for pair in self._rates(measure, history, now)]
            hypotheses += _fitted(rates, rate, history, known, refused)
            if any(sent.is_failed for sent in history.explained):
                hypotheses += _fitted(rates, rate * _FREE_FAILURES, history.counted_by(_successes), known, refused)
            most = fit_all(len(refused), len(known))
            if max(hypotheses, key=attrgetter("score")).fit.score < most - _UNEXPLAINED:
                of_requests = [(level, part) for level, part in rates if level.measure == 0]
                counted = _fitted(of_requests, rate * _REFUSALS_COUNT, history.counted_by(_all), known, refused)
                hypotheses += [one for one in counted if one.fit.score > most - _LEFT_UNEXPLAINED]
        plausible = nlargest(_PLAUSIBLE, hypotheses, attrgetter("score"))
        best = plausible[0].score
        kept = [one for one in plausible if one.score - best > _NEGLIGIBLE]
        total = sum(math.exp(hypothesis.score - best) for hypothesis in kept)
        for hypothesis in kept:
            hypothesis.weight = math.exp(hypothesis.score - best) / total
        return kept

    def _lingers_s(self) -> Iterable[float]:
        """How long a slot may stay taken: usual times, and times near the likeliest."""
        found = [one.level.linger_s for one in self.hypotheses if isinstance(one.level, ConcurrencyLevel)]
        best_s = 0.0 if self._prior.rate else next(filter(None, found), 0.0)
        near_s = [round(best_s * factor, 1) for factor in _NEAR] if best_s >= _ROUGH_S else ()
        return dict.fromkeys((*self._prior.lingers_s, *near_s))

    def _rates(self, measure: int, history: AttemptHistory, now: float) -> Iterator[tuple[Level, float]]:
        """Levels that may limit a rate, with their relative probabilities."""
        explained, told = history.explained, self.retry_afters
        span_s = now - explained[0].sent_at
        for window_s in _WINDOWS_S:
            yield SlidingLevel(measure, window_s), 1.0
            if window_s > _LONGER * span_s:
                break
        is_told = bool(told.ends) and told.is_trusted
        ends, least_s = (told.ends, told.longest_s) if is_told else (self._reopened, self.longest_row_s)
        lengths_s = _lengths_s(ends, least_s, is_told=is_told)
        for window_s in lengths_s:
            # The longer a window, the less likely is an end so near.
            part = lengths_s[0] / window_s * (1.0 if window_s in _WINDOWS_S else _UNUSUAL)
            yield WindowLevel(measure, window_s, tuple(ends)), part
        for per_s in self._drains(measure, history):
            yield BucketLevel(measure, per_s), 1.0

    def _drains(self, measure: int, history: AttemptHistory) -> Iterable[float]:
        """Rates at which a bucket may drain: units that passed between refusals."""
        records, sums = history.attempts, history.sums(measure)
        refused = [index for index in history.judged if records[index].refused]
        rates = set()
        last = refused[-1]
        for first in {refused[0], refused[max(0, len(refused) - 4)]}:
            passed_s = records[last].sent_at - records[first].sent_at
            units = sums[last] - sums[first]
            if passed_s > 0 and units > 0:
                rates.add(units / passed_s)
            reported_s = (records[last].told_at or 0.0) - (records[first].told_at or _NEVER)
            if reported_s > 0:
                more = records[last].units[measure] - records[first].units[measure]
                rates.add(max(units + more, 1.0) / reported_s)
        if self.retry_afters.longest_s >= 1 and measure == 0:
            rates.add(1 / self.retry_afters.longest_s)
        level = self.hypotheses[0].level if self.hypotheses else None
        if isinstance(level, BucketLevel) and level.measure == measure:
            rates.add(level.per_s)
        return sorted({round(rate, 2 - math.floor(math.log10(rate))) for rate in rates})

    def _verdict(self, sent: Sent, now: float) -> bool | None:
        """Whether an attempt was refused; None: not known."""
        if sent.refused is not None:
            return sent.refused
        return False if sent.stamp in self.open and now >= sent.sent_at + self.verdict_s else None

    def _changed_at(self, best: Hypothesis, history: AttemptHistory, now: float) -> int | None:
        """Index of the first attempt that contradicts the best hypothesis; None: the attempts do not."""
        against, answered_at = 0.0, -_NEVER
        since: int | None = None
        chance, amount = best.fit.chance, best.fit.amount
        levels = [0.0] * len(history.judged)
        if best.level is not None:
            levels = best.level.found(history.counted_by(best.counts))
        for index, sent, found in zip(history.judged, history.explained, levels, strict=True):
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
                since = index
        return since if against > _CHANGE and since is not None and since > history.judged[0] else None


def _telling(attempts: Sequence[Sent], first: int) -> Sequence[int]:
    """Indexes of the attempts since `first` that tell most: refusals, their neighbours, and some of the others."""
    indexes = range(first, len(attempts))
    if len(indexes) <= _JUDGED:
        return indexes
    refused = [index for index in indexes if attempts[index].refused][-(_JUDGED // 3) :]
    near = {index + step for index in refused for step in (0, -1, 1)} | {first, *indexes[-8:]}
    others = [index for index in indexes if index not in near and not attempts[index].refused]
    every = max(1, math.ceil(len(others) / max(1, _JUDGED - len(near))))
    return sorted(near.union(others[::every]) & set(indexes))


def _fitted(
    levels: Sequence[tuple[Level, float]],
    share: float,
    history: AttemptHistory,
    known: Sequence[int],
    refused: Sequence[int],
) -> Iterator[Hypothesis]:
    """The levels that explain better than chance. `known`, `refused`: indexes of explained attempts."""
    total, bucket = sum(part for _, part in levels), -_NEVER
    for level, part in levels:
        found = level.found(history)
        step = 1.0 if level.measure == 0 else 0.0
        # A limiter that lets nothing pass has no cap: others hold the slots, or the provider is down.
        least = 1.0 if isinstance(level, ConcurrencyLevel) else 0.0
        best = fit(map(found.__getitem__, known), map(found.__getitem__, refused), step=step, least=least)
        if best.amount == _NEVER:
            continue
        prior = math.log(share * part / total)
        fitted = Hypothesis(level, best, best.score + prior, counts=history.counts)
        yield fitted
        if isinstance(level, BucketLevel) and fitted.score > bucket:
            bucket = fitted.score
            exact = BucketLevel(level.measure, level.per_s, best.amount)
            found = exact.found(history)
            exactly = fit_at(best.amount, map(found.__getitem__, known), map(found.__getitem__, refused))
            if exactly.score > best.score:
                fitted.level, fitted.fit, fitted.score = exact, exactly, exactly.score + prior


def _lengths_s(ends: Sequence[float], least: float, *, is_told: bool) -> list[float]:
    """Possible lengths of windows with such ends."""
    if not ends:
        return []
    lengths = set([length_s for length_s in _WINDOWS_S if length_s >= least][:_LENGTHS] or _WINDOWS_S[-1:])
    known = list(ends)[-4:]
    apart_s = [round(after - before, 1) for before, after in pairwise(known) if after - before <= LONGEST_S]
    lengths.update(length_s for length_s in apart_s if length_s >= max(least - ROUNDING_S, _LEAST_WINDOW_S))
    if is_told and apart_s:
        # No window ends within another.
        lengths = {length_s for length_s in lengths if length_s <= min(apart_s) + ROUNDING_S} or lengths
    return sorted(lengths)


def _measures(records: Sequence[Sent]) -> Iterable[int]:
    """Measures that may be limited: always requests, and all tokens where attempts differ in them."""
    sizes = [sent.units[2] for sent in records]
    return (0, 2) if max(sizes, default=0.0) > UNEQUAL * max(1.0, min(sizes, default=0.0)) else (0,)


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
