"""Limits that no header tells of, found out from what is refused. One estimator of one kind of refusal.

A bank of hypotheses (`limiter_models.py`) explains the recent attempts: nothing but chance; so many in flight; so many
in any span or window of some length, also as sliding counters have it; so many that drain away at some rate; in
requests, input tokens or all tokens.
Each refusal, and each attempt that passes against expectation, makes them compete anew: posterior = prior x likelihood.

    the hypotheses that matter say                what follows
    go, with one voice                            the attempt goes
    go, more likely than not                      it goes as a probe: one at a time, a round trip apart
    wait, but some say go                         it waits; at times one goes as a probe that may be refused
    wait, with one voice                          it waits until they say go

A probe's verdict tells the hypotheses apart, so that few are needed; refused ones are paid from an account that grows
with the attempts that pass. A told retry-after is believed as long as what is sent before its end is refused. When many
attempts that limits held back have passed, one more than the limit allows is tried, in case the limit has grown.

What speaks against the best hypothesis again and again within a short time (a cumulative sum of log-likelihoods) is a
change of the provider: what was seen before is forgotten.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hivemind_addon.api.ticket import Demand, Dimension
from hivemind_addon.proxy.core.limiter_models import (
    BucketLevel,
    ConcurrencyLevel,
    CounterLevel,
    Fit,
    Level,
    Sent,
    SlidingLevel,
    WindowLevel,
    fit,
    fit_all,
    fit_at,
    fit_chance,
)

_NEVER = float("inf")
_REMEMBERED = 256
"""Attempts that hypotheses have to explain."""
_OLDER = 1024
"""Attempts before these that still fill a bucket or a window."""
_WINDOWS_S = (1.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 18_000.0, 86_400.0)
_LEAST_WINDOW_S = 0.5
_UNUSUAL = 0.1
"""How likely a window of any other length is beside these."""
_LONGER = 5.0
"""Windows so many times as long as what is remembered are thought of."""
_LINGER_S = {0.0: 1.0, 0.5: 0.2, 2.0: 0.1, 5.0: 0.1}
"""How long a slot stays taken after its attempt's end, and how likely that is beside the others."""
_SURE = 0.97
_LIKELY = 0.5
_POSSIBLE = 0.05
_RISKED = 0.2
"""Probes that may be expected to be refused at one time, where they are likely to pass."""
_NEGLIGIBLE = -5.0
"""Log-odds to the best below which a hypothesis is left out."""
_PROBES = 3.0
"""Refused probes that are allowed at first, and the most that are saved up."""
_PROBES_PER_PASS = 0.015
_LEAST_VERDICT_S = 0.05
_FIRST_VERDICT_S = 0.25
_MOST_VERDICT_S = 2.0
_LONG_RETRY_AFTER_S = 5.0
"""A longer one tells of a rate limit."""
_LONGEST_S = 86_400.0
_SPARED = 0.05
"""Of an attempt's units that stay in a bucket."""
_MARGIN_SHARE = 0.25
"""Room for one attempt more stays in it, and at most such a share of what else it holds: what is wrong about sizes, the
rate, and what others take is met by this margin, and costs once the time in which it fills."""
_SLACK_S = 0.2
_SLACK = 0.05
"""A told instant and the one that a hypothesis computes are the same where they differ by less."""
_MOST_DISAGREEMENT = 6.0
"""The log-likelihood that a hypothesis loses at most for telling other instants; each costs one."""
_AT_THE_DOOR_S = 0.2
"""Limiters refuse before any work is done: a refusal that takes half as long as an answer, and longer than this, comes
from farther in, and is more likely chance, by so much of log-odds:"""
_INSIDE = 2.0
_ROUNDING_S = 1.25
"""A retry-after in whole seconds is up to one too long, and its way here takes a moment."""
_ROUNDED = 0.3
"""Or by so much of it, where it is short."""
_INSTANT_S = 0.005
"""What ends and what is sent so close together met in the provider in either order."""
_CHANGE = 7.0
"""Log-likelihood against the best hypothesis that shows that the provider has changed."""
_BORED_S = 60.0
"""So long nobody waits for a guess before one goes to see; twice as long with each that is refused then."""
_MOST_BORED = 6
_LONGEST_GUESS_S = 3600.0
"""No guess is longer, whatever was seen."""
_LONG_HOLD_S = 0.5
"""After so long a wait the first one goes alone, and the others follow when it was not refused."""
_TRIAL_AFTER = 10
"""Attempts that pass while others are held back, before one more than the limit allows is tried; three times as many
when that is refused."""
_MOST_TRIAL_AFTER = 100
_MOST_TRIAL_AFTER_CAPPED = 70
"""The same for attempts in flight: caps move more often than rates, and few of them pass where one is low."""
_GUARD_FIRST_S = 0.5
_GUARD_MOST_S = 15.0
_TOLD_TRUST = 2.0
_TOLD_KEPT = 1.0
"""A refusal before the instant that was told speaks for the teller."""
_PROVED = 0.4
"""One that is refused after so much of the time that was told proves the teller."""
_FIRST_LOOK = 1 / 8
"""After so much of a told time that is long one goes to see; then after twice as long."""
_TOLD_BROKEN = 3.0
"""An attempt that passed before it speaks against."""
_STRETCH = 1.5
_MOST_STRETCH = 10.0
_TOLD_MOST = 8.0
_MOST_LIMITS = 3
_ENOUGH_NEW = 8
"""Where refusals are chance, one more in so many of them teaches something."""
_SURPRISE = 0.05
"""Of the attempts that a hypothesis expects to be refused, those that pass all the same."""
_MUCH_NEARER = 4.0
"""Where most ends that refusals told were so many times as near as the farthest, there may be two limits."""
_UNSEEN = 0.003
"""How likely a limit of one length is, among those of a rate, whose windows end when nobody looks; and a counter."""
_UNSEEN_LENGTHS = 3
_COUNTER_WAIT = 1.1
"""What a counter's first unit takes to come back is up to so many times its window."""
_SHIFTS = ((0.0, 0.25, 0.5, 0.75), (-0.08, 0.08), (-0.02, 0.02), (-0.005, 0.005))
"""Of a window, by which its end is looked for, step by step nearer."""
_UNEXPLAINED = 1.0
"""Log-likelihood that the best of the others has to leave for these to be weighed, and for refusals that count."""
_REFUSALS_COUNT = 0.05
"""How likely it is that a limiter counts what it refuses."""
_LEFT_UNEXPLAINED = 4.0
"""Log-likelihood that this may lack of a full explanation: it mends many a wrong one a little."""
_FIRST_SHARE = 0.05
_SHARE_OVER = 50.0
_UNEQUAL = 1.3
"""Attempts whose sizes differ by less teach nothing about tokens."""


_DIMENSIONS = (Dimension.REQUESTS, Dimension.INPUT_TOKENS, Dimension.TOTAL_TOKENS)
"""Of measures."""


@dataclass(frozen=True, slots=True)
class Prior:
    """How likely each kind of limit is before anything was seen; the rest is chance."""

    rate: float
    concurrency: float


OF_THROTTLES = Prior(rate=0.6, concurrency=0.1)
"""Of what rate limits' refusals tell."""
OF_OVERLOADS = Prior(rate=0.0, concurrency=0.5)
"""Of what overload tells."""


@dataclass(slots=True, eq=False)
class _Hypothesis:
    level: Level | None
    """None: nothing but chance."""
    fit: Fit
    score: float = 0.0
    """Logarithm of prior x likelihood."""
    weight: float = 0.0
    """Its probability among the plausible ones."""
    rarity: float = 0.0
    """Logarithm of how likely it is beside the usual ones of its kind."""

    @property
    def is_of_a_rate(self) -> bool:
        return self.level is not None and not isinstance(self.level, ConcurrencyLevel)

    def opens_at(self, units: Sequence[float], in_flight: int, now: float, *, with_margin: bool) -> float:
        if self.level is None:
            return now
        amount = self.fit.amount
        if isinstance(self.level, BucketLevel | CounterLevel):
            # Whoever takes the last drop meets each rounding.
            unit = units[self.level.measure]
            margin = min(unit, _MARGIN_SHARE * (amount - unit)) if with_margin else 0.0
            amount -= max(_SPARED * unit, margin)
        return self.level.opens_at(units[self.level.measure], max(1.0, amount), in_flight, now)


@dataclass(frozen=True, slots=True)
class _Votes:
    go: float
    """How likely an attempt passes now."""
    likely_at: float
    """From when on it is more likely than not."""
    possible_at: float
    """From when on it is possible at all."""


@dataclass(frozen=True, slots=True)
class HiddenLimit:
    """The limit that explains refusals best, for views, costs and forecasts."""

    measure: int
    amount: float
    window_s: float | None = None
    """None: of attempts in flight."""
    is_bucket: bool = False

    @property
    def dimension(self) -> Dimension:
        """What it counts."""
        return _DIMENSIONS[self.measure]

    @property
    def kind(self) -> str:
        """How it comes back."""
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
        """The level that it limits, with nothing sent."""
        if self.window_s is None:
            return ConcurrencyLevel(0.0)
        if self.is_bucket:
            return BucketLevel(self.measure, self.amount / self.window_s)
        return SlidingLevel(self.measure, self.window_s)

    def is_tighter_than(self, other: "HiddenLimit") -> bool:
        """Whether it lets clearly less of the same pass in the long run."""
        if (self.measure, self.window_s is None) != (other.measure, other.window_s is None):
            return False
        return self.amount / (self.window_s or 1.0) * _UNEQUAL < other.amount / (other.window_s or 1.0)

    def is_like(self, other: "HiddenLimit") -> bool:
        """Whether people need not hear of the difference."""
        return (
            (self.measure, self.is_bucket, self.window_s is None)
            == (other.measure, other.is_bucket, other.window_s is None)
            and math.isclose(self.amount, other.amount, rel_tol=_UNEQUAL - 1)
            and math.isclose(self.window_s or 0, other.window_s or 0, rel_tol=_UNEQUAL - 1)
        )


class HiddenLimits:
    """What refusals of one kind teach about one pool. Each attempt is `sent`, has a verdict, and is `ended`."""

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._history: deque[Sent] = deque()
        self._older: deque[Sent] = deque(maxlen=_OLDER)
        """What was taken before: it fills limits, and has to be explained no more."""
        self._open: dict[int, Sent] = {}
        """Attempts in flight, by stamp."""
        self._layers: list[list[_Hypothesis]] = []
        """For each limit that is known the plausible hypotheses, the best first; empty: nothing was ever refused."""
        self._told: deque[float] = deque(maxlen=32)
        """Ends that refusals told, those that are one counted once."""
        self._told_waits_s: deque[float] = deque(maxlen=32)
        """How far away these ends were."""
        self._reopened: deque[float] = deque(maxlen=8)
        """When attempts passed after others had been refused."""
        self._ends: dict[tuple[object, int, float], float] = {}
        """When windows end most likely whose ends nobody saw, by their kind, what they count, and their length."""
        self._longest_row_s = 0.0
        """For how long everything was refused."""
        self._failures_count, self._refusals_count = True, False
        """What limits count beside what is answered."""
        self._unweighed = self._known_refusals = 0
        """Refusals since the hypotheses last competed, and until then."""
        self._share = _FIRST_SHARE
        """Of all attempts, that is refused."""
        self._usual_share = _FIRST_SHARE
        """The same before everything was refused."""
        self._told_at = -_NEVER
        self._told_until = -_NEVER
        self._told_units: tuple[float, ...] = ()
        """Of the attempt that was told so."""
        self._told_is_proved = False
        """Whether one was refused late in a time that was told."""
        self._look: Sent | None = None
        """The last one that went to see whether a told instant is true."""
        self._row_since = self._refused_sent_at = -_NEVER
        """Since when all that was sent was refused, and when the last one of these was sent."""
        self._passed_early = (0.0,) * len(_DIMENSIONS)
        """The most units of an attempt that passed before the instant that was told."""
        self._told_score = _TOLD_TRUST
        self._told_stretch = 1.0
        """A retry-after is so many times too short."""
        self._longest_told_s = 0.0
        self._guard_until = -_NEVER
        self._pending: list[Sent] = []
        """Probes whose verdict is not known."""
        self._probes = _PROBES
        self._probe_wait_s = 0.0
        self._probe_at = -_NEVER
        self._refused_after_s = 0.0
        """How long a refusal takes to come back."""
        self._passed_after_s = 0.0
        """How long an answer takes to begin."""
        self._held_back = 0
        """Attempts that passed while a limit held others back, since the last trial."""
        self._trial_after = self._trial_before = float(_TRIAL_AFTER)
        self._trial: Sent | None = None
        self._tried_at = -_NEVER
        """When the last trial was sent, or the first refusal came."""
        self._refused_trials = 0.0
        """In a row."""
        self._before_change: list[Sent] = []
        """What was forgotten last."""
        self._outgrown: Level | None = None
        """Of the limit that was known, and is no longer true."""
        self._held_since: float | None = None
        """Since when all that want to go have been held back."""
        self._last_hold_s = 0.0
        """How long all were held back before the last attempt."""
        self._bored = 0
        """Attempts that were refused after such a time, since the last one passed."""
        self._scout: Sent | None = None
        """The first that went after all had been held back."""

    def __repr__(self) -> str:
        best = self.limit
        return f"<HiddenLimits {best}>" if best else "<HiddenLimits none known>"

    # What is sent, and what comes of it ------------------------------------------------------------------------------

    @property
    def verdict_s(self) -> float:
        """An attempt that was not refused for so long has passed."""
        if not self._refused_after_s:
            return _FIRST_VERDICT_S
        return min(max(_LEAST_VERDICT_S, 2 * self._refused_after_s), _MOST_VERDICT_S)

    def sent(self, stamp: int, demand: Demand, in_flight: int, now: float) -> None:
        """An attempt was admitted; `in_flight` counts it."""
        if self._limit_in_flight < _NEVER:
            self._judge_trial(now)
        sent = Sent(stamp, now, _units(demand), in_flight, most_in_flight=in_flight)
        if self._layers:
            go = self._votes(sent.units, in_flight - 1, now, with_margin=False).go
            sent.is_probe = go < _SURE
            passes = go * (1 - self._layers[-1][0].fit.chance) + (1 - go) * _SURPRISE
            if self._trial_after > 1:
                # Else the limit grows, and nobody foretells anything.
                sent.odds = (1 - passes, self._share)
            if sent.is_probe:
                self._pending.append(sent)
                if go < _LIKELY and (self._trial_at <= now or self._limit_in_flight < _NEVER):
                    # Before a cap each tries one more than it allows, whichever hypothesis is why.
                    self._trial, self._held_back, self._tried_at = sent, 0, now
            for level in self._levels():
                level.add(sent)
            if self._held_since is not None and self._look_at(now) <= now:
                self._look = sent
            was_held = self._held_since is not None and now - self._held_since >= max(_LONG_HOLD_S, 2 * self.verdict_s)
            if was_held or (self._scout is not None and self._scout.refused and self.limit is not None):
                self._scout = sent
            self._last_hold_s = 0.0 if self._held_since is None else now - self._held_since
            self._held_since = None
        self._history.append(sent)
        if len(self._history) > _REMEMBERED:
            oldest = self._history.popleft()
            if not oldest.is_void and self._is_taken(oldest):
                self._older.append(oldest)
        self._open[stamp] = sent

    def passed(self, stamp: int, now: float) -> None:
        """The provider has taken an attempt: its answer began, or it succeeded."""
        sent = self._open.get(stamp)
        if sent is None or sent.refused is not None:
            return
        sent.refused = False
        if sent.sent_at > self._row_since:
            self._row_since = -_NEVER
        self._share -= self._share / _SHARE_OVER
        self._passed_after_s = _mean(self._passed_after_s, now - sent.sent_at)
        if not self._row_length(now):
            self._usual_share = self._share
            self._guard_until = -_NEVER
        self._bored = 0
        self._probe_wait_s = 0.0
        self._probes = min(_PROBES, self._probes + _PROBES_PER_PASS)
        is_early = self._told_at < sent.sent_at < self._told_until - min(_ROUNDING_S, _ROUNDED * self._longest_told_s)
        # A smaller one may pass sooner.
        if is_early and all(unit >= told for unit, told in zip(sent.units, self._told_units, strict=True)):
            self._passed_early = tuple(map(max, zip(sent.units, self._passed_early, strict=True)))
            self._told_score = max(-_TOLD_MOST, self._told_score - _TOLD_BROKEN)
        if self._held_since is not None:
            self._held_back += 1
        if sent is self._trial:
            self._trial_passed()
        if sent.is_probe:
            self._probe_at = now
            self._reopen(sent)
            self._weigh(now)

    def refused(self, stamp: int, retry_after_s: float, now: float) -> None:
        """The provider has refused an attempt; `retry_after_s` is 0 where it does not say when to come back."""
        sent = self._open.get(stamp)
        if sent is None:
            return
        sent.refused = True
        if self._limit_in_flight < _NEVER:
            # It found all slots taken, whatever has ended since.
            sent.in_flight = sent.most_in_flight
        if not self._layers or self._row_since == -_NEVER:
            self._row_since = now
        self._refused_sent_at = sent.sent_at
        self._bored += self._last_hold_s > _BORED_S
        self._share += (1 - self._share) / _SHARE_OVER
        self._refused_after_s = _mean(self._refused_after_s, now - sent.sent_at)
        if not self._refusals_count:
            for level in self._levels():
                level.take_back(sent)
        if self._told_at < sent.sent_at < self._told_until:
            self._told_score = min(_TOLD_MOST, self._told_score + _TOLD_KEPT)
            # At once after it was told so it shows little.
            self._told_is_proved |= sent.sent_at - self._row_since > _PROVED * (self._told_until - self._row_since)
        self._hear(sent, retry_after_s, now)
        if sent is self._trial:
            # Where much is refused by chance, one refusal shows little.
            shown = min(1.0, math.log(self._layers[-1][0].fit.chance) / math.log(_FIRST_SHARE)) if self._layers else 1.0
            self._refused_trials += shown
            more = 3**shown * max(self._trial_before, self._trial_after)
            self._trial_after = min(more, _MOST_TRIAL_AFTER)
        if sent.is_probe and sent is not self._look and (sent is not self._trial or self._limit_in_flight < _NEVER):
            self._probes = max(0.0, self._probes - 1)
            self._probe_wait_s = max(2 * self._probe_wait_s, 2 * self.verdict_s)
            self._probe_at = now + self._probe_wait_s
        if not self._layers:
            self._tried_at, self._refused_trials = now, 0.0
            # What is on its way tells more before anything else has to.
            self._pending = list(self._open.values())
        self._unweighed += 1
        if (
            self._unweighed * _ENOUGH_NEW >= self._known_refusals
            or not self._is_all_chance
            or self._row_length(now) > 1
        ):
            self._weigh(now)
        self._guard(now)

    def ended(
        self, stamp: int, now: float, *, charged: Demand | None = None, was_taken: bool = True, is_failed: bool = False
    ) -> None:
        """An attempt is over. `was_taken` False: something else refused it, so it counts for nothing here.

        `charged`: what the provider takes for it; None: what was expected. `is_failed`: the provider answered with an
        error that is no refusal.
        """
        sent = self._open.pop(stamp, None)
        if sent is None:
            return
        sent.ended_at = now
        sent.is_failed = is_failed
        sent.is_void = not was_taken
        if not sent.refused:
            self._freed(sent, now)
            if charged is not None:
                self._correct(sent, _units(charged))
        if not was_taken or (is_failed and not self._failures_count):
            for level in self._levels():
                level.take_back(sent)

    def _correct(self, sent: Sent, units: tuple[float, ...]) -> None:
        """How long an answer is shows at its end, and nobody but the provider counts the tokens of its question."""
        for level in self._levels():
            level.correct(sent, units[level.measure])
        sent.units = units

    def _judge_trial(self, now: float) -> None:
        """A trial that was not refused for so long has passed."""
        if self._trial_back_at <= now:
            self._trial_passed()
            self._weigh(now)

    def _trial_passed(self) -> None:
        """One more than the limit allows was not refused: unless a slot got free just then, there is more."""
        if self._trial is not None and self._trial.in_flight <= self._limit_in_flight < _NEVER:
            # It proves nothing; the next one may.
            self._held_back = math.ceil(self._trial_due_after)
        else:
            # The next one is a trial, too.
            self._trial_before = max(_TRIAL_AFTER, self._trial_before, self._trial_after) / 3
            self._trial_after = self._held_back = 1
            self._refused_trials = 0.0
        self._trial = None

    def _freed(self, sent: Sent, now: float) -> None:
        """A slot is free again: what was sent just before did not find it taken, as was thought.

        Before a cap that is within a round trip. Elsewhere that would make the refused ones seem to have found more.
        """
        has_cap = self._limit_in_flight < _NEVER
        # Who is refused later than that was not refused at the door.
        is_at_door = has_cap and self._refused_after_s <= _AT_THE_DOOR_S
        since = now - (max(_INSTANT_S, self._refused_after_s) if is_at_door else _INSTANT_S)
        for one in reversed(self._history):
            if one.stamp <= sent.stamp or one.sent_at < since:
                break
            one.in_flight = max(1, one.in_flight - 1)
            if has_cap:
                one.odds = None  # They were of another level.

    def forget_since(self, at: float, now: float) -> None:
        """What was refused since an instant was an outage and no limit, as what was before it since one passed."""
        for sent in reversed(self._history):
            if sent.refused:
                sent.is_void = True
            elif sent.refused is False and sent.sent_at < at:
                break
        if not any(sent.refused and not sent.is_void for sent in self._history):
            # No change of the provider, either.
            known = [*self._before_change, *self._history]
            self._history = deque(known[-_REMEMBERED:])
            self._before_change, self._outgrown = [], None
        self._guard_until = -_NEVER
        self._weigh(now)

    def resume(self, limit: HiddenLimit | None, now: float) -> None:
        """Go on with what an earlier run has learned, or another pool of the same account."""
        if limit is not None:
            # It is tried when a trial is due, and where few go soon: that one more is refused at once is no news.
            self._tried_at, self._probe_at = now, now + _BORED_S / 2
            chance = fit_chance(0, 0)
            known = Fit(limit.amount, 0.0, chance.chance)
            self._layers = [[_Hypothesis(limit.level(), known, weight=0.9), _Hypothesis(None, chance, weight=0.1)]]

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept: what was learned stays, how much of it is used is not known."""
        self._tried_at -= delta_s
        self.resume(self.limit, self._tried_at)
        self._history.clear()
        self._before_change = []
        self._told_until -= delta_s
        self._row_since -= delta_s
        self._refused_sent_at -= delta_s
        self._guard_until -= delta_s

    # What may go -----------------------------------------------------------------------------------------------------

    def opens_at(self, demand: Demand, in_flight: int, now: float) -> float:
        """The first instant at which an attempt may go, if nothing else changes; infinite: when another one ends."""
        if not self._layers:
            return now
        self._judge_trial(now)
        opens_at = max(self._opens_at(_units(demand), in_flight, now), self._scout_back_at(now))
        if opens_at > now:
            if self._held_since is None:
                self._held_since = now
            if not in_flight:
                opens_at = min(opens_at, self._bored_at(now))
            opens_at = min(opens_at, self._trial_back_at)
        return opens_at

    def _bored_at(self, now: float) -> float:
        """When one goes whatever is thought, for no guess may let everybody wait for ever.

        That is long after all that was seen of this limiter; after a refusal it takes twice as long.
        """
        assert self._held_since is not None
        bored_at = self._held_since + self._boring_s * 2.0 ** min(self._bored, _MOST_BORED)
        return max(now, self._guard_until, min(bored_at, self._look_at(now)))

    def _look_at(self, now: float) -> float:
        """When one goes to see whether a told instant is true, of a teller of which that is not known yet."""
        if self._told_is_proved or now >= self._told_until or self._row_since == -_NEVER:
            return _NEVER
        told_s, tried_s = self._told_until - self._row_since, self._refused_sent_at - self._row_since
        look_at = self._row_since + max(_FIRST_LOOK * told_s, 2 * tried_s)
        return look_at if told_s >= _BORED_S and look_at < self._told_until else _NEVER

    @property
    def _boring_s(self) -> float:
        """A guess is not held for longer without a look: twice what was seen of this limiter."""
        told_s = self._longest_told_s if self._told_score > 0 else 0.0
        return max(_BORED_S, 2 * told_s, 2 * min(self._longest_row_s, _LONGEST_GUESS_S))

    def _opens_at(self, units: Sequence[float], in_flight: int, now: float) -> float:
        votes = self._votes(units, in_flight, now)
        if votes.go >= _SURE:
            return max(now, self._guard_until)
        not_before = max(now, self._guard_until, self._probe_free_at(votes.go, now))
        if votes.go >= _LIKELY:
            return not_before
        opens_at = max(min(votes.likely_at, self._trial_at), not_before)
        if self._probes >= 1:
            opens_at = min(opens_at, max(votes.possible_at, not_before, self._probe_at))
        return opens_at

    @property
    def _trial_at(self) -> float:
        """When one more than the limit allows is tried: after so many attempts, or so much time where few go."""
        limit = self.limit
        is_bucket = limit is not None and limit.is_bucket
        if self._held_back >= self._trial_due_after:
            # What a bucket lacks it has when it says so, and not before, if that was ever seen to be true.
            return self._told_until if is_bucket and self._told_is_proved and self._told_score > 0 else -_NEVER
        # A bucket has room all the time, if less than is thought: there no length of a window has to pass.
        since_s = _BORED_S if is_bucket else self._boring_s
        return self._tried_at + since_s * math.pow(2.0, min(self._refused_trials, float(_MOST_BORED)))

    @property
    def _trial_due_after(self) -> float:
        """Attempts that pass before a trial."""
        if self._limit_in_flight < _NEVER:
            return min(2 * self._trial_after - 1, _MOST_TRIAL_AFTER_CAPPED)
        return min(self._trial_after, _MOST_TRIAL_AFTER)

    @property
    def _limit_in_flight(self) -> float:
        """Attempts in flight that the limit which explains best lets pass; infinite where it is of another kind."""
        limit = self.limit
        return limit.amount if limit is not None and limit.window_s is None else _NEVER

    def _votes(self, units: Sequence[float], in_flight: int, now: float, *, with_margin: bool = True) -> _Votes:
        """What the hypotheses say of an attempt. Each limit that is known has to let it pass."""
        trust = 1 / (1 + math.exp(-self._told_score)) if now < self._told_until else 0.0
        all_go, likely_at, possible_at = 1.0, now, now
        for hypotheses in self._layers:
            opens = []
            for one in hypotheses:
                at = one.opens_at(units, in_flight, now, with_margin=with_margin)
                opens.append((at, one.weight * (1 - trust)))
                opens.append((max(at, self._told_until) if one.is_of_a_rate else at, one.weight * trust))
            opens.sort()
            all_go *= sum(weight for at, weight in opens if at <= now)
            likely_at = max(likely_at, _reached_at(opens, _LIKELY))
            possible_at = max(possible_at, _reached_at(opens, _POSSIBLE))
        return _Votes(all_go, likely_at, possible_at)

    def _levels(self) -> Iterator[Level]:
        return (one.level for hypotheses in self._layers for one in hypotheses if one.level is not None)

    def _scout_back_at(self, now: float) -> float:
        """When the first one that went after a long wait has shown whether others may follow."""
        scout = self._scout
        if scout is None or scout.refused is not None or scout.stamp not in self._open:
            return now
        return scout.sent_at + self.verdict_s

    @property
    def _trial_back_at(self) -> float:
        """When the trial has passed, unless its refusal comes before; infinite: none has been sent."""
        trial = self._trial
        if trial is None or trial.refused is not None or trial.stamp not in self._open:
            return _NEVER
        return trial.sent_at + self.verdict_s

    def _probe_free_at(self, go: float, now: float) -> float:
        """From when on another probe may go: as many at one time as the odds are that they pass."""
        self._pending = [sent for sent in self._pending if sent.stamp in self._open and sent.refused is None]
        most = max(1, int(_RISKED / (1 - go)))
        verdicts_at = sorted(sent.sent_at + self.verdict_s for sent in self._pending)
        return now if len(verdicts_at) < most else verdicts_at[-most]

    # What explains it ------------------------------------------------------------------------------------------------

    def _hear(self, sent: Sent, retry_after_s: float, now: float) -> None:
        if retry_after_s <= 0:
            return
        if self._row_length(now) > 1 and sent.sent_at >= self._told_until:
            # It came back when it was told to, and was refused again.
            self._told_stretch = min(self._told_stretch * _STRETCH, _MOST_STRETCH)
        until = now + min(retry_after_s * self._told_stretch, _LONGEST_S)
        sent.told_at = now + min(retry_after_s, _LONGEST_S)
        self._longest_told_s = max(self._longest_told_s, retry_after_s)
        if until >= self._told_until:
            self._told_until, self._told_units = until, sent.units
        self._told_at = now
        if not self._told or abs(self._told[-1] - until) > _ROUNDING_S:
            self._told.append(until)
            self._told_waits_s.append(retry_after_s)

    def _reopen(self, passed: Sent) -> None:
        """An attempt passed: note it if others had been refused just before."""
        first = last = None
        for sent in reversed(self._history):
            if sent.sent_at >= passed.sent_at or sent.is_void:
                continue
            if not sent.refused:
                break
            first, last = sent, last or sent
        if first is not None and last is not None:
            self._longest_row_s = max(self._longest_row_s, last.sent_at - first.sent_at)
            if not self._reopened or passed.sent_at > self._reopened[-1]:
                self._reopened.append(passed.sent_at)

    def _guard(self, now: float) -> None:
        """Let nothing go for a while when everything is refused, whatever the hypotheses say."""
        row = self._row_length(now)
        if self._layers and self._layers[0][0].level is not None:
            # They are wrong in some way, and may be again.
            surplus, first_s = row - 2, self.verdict_s
        else:
            chance = min(max(self._usual_share, 0.05), 0.8)
            surplus, first_s = row - max(4, math.ceil(math.log(0.01) / math.log(chance))), _GUARD_FIRST_S
        if surplus >= 0:
            self._guard_until = now + min(first_s * 2 ** min(surplus, 10), _GUARD_MOST_S)

    def _row_length(self, now: float) -> int:
        """Times that attempts were refused since the last one passed; what was sent within a round trip is one."""
        row, counted_at = 0, _NEVER
        for sent in reversed(self._history):
            verdict = None if sent.is_void else self._verdict(sent, now)
            if verdict is False:
                break
            if verdict and sent.sent_at < counted_at - self._refused_after_s:
                row, counted_at = row + 1, sent.sent_at
        return row

    @property
    def _is_all_chance(self) -> bool:
        return bool(self._layers) and self._layers[0][0].level is None and self._layers[0][0].weight >= _SURE

    def _weigh(self, now: float) -> None:
        """Let the hypotheses compete over what is known."""
        before_now = self.limit
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
                self._trial_after = self._trial_before = float(_TRIAL_AFTER)
                self._outgrown = hypotheses[0].level
                records, hypotheses = since, newer
        self._layers = []
        while any(sent.refused for sent in records):
            self._layers.append(hypotheses)
            if hypotheses[0].level is None or len(self._layers) == _MOST_LIMITS:
                break
            # Another limit may refuse what this one would let pass.
            records = self._unexplained(hypotheses[0], records)
            if any(sent.refused for sent in records):
                hypotheses = self._compete(records, now, is_first=False)
        if not self._layers and self._outgrown is not None:
            self._layers = [[self._proved(self._outgrown, records, now)]]
        if before_now is not None and self.limit is not None and self.limit.is_tighter_than(before_now):
            # That trials of the other limit were refused says nothing of this one.
            self._trial_after = self._trial_before = float(_TRIAL_AFTER)
            self._refused_trials = 0.0

    def _as_two(self, first: _Hypothesis, records: Sequence[Sent], now: float) -> float:
        """The score of two limits at once: one may begin to refuse late that was there all the time."""
        if not first.is_of_a_rate:
            return -_NEVER
        rest = self._unexplained(first, records)
        explained = len(records) - len(rest)
        second = self._compete(rest, now, is_first=False)[0].score
        return first.score - first.fit.score + fit_all(explained, explained) + second

    def _proved(self, outgrown: Level, records: Sequence[Sent], now: float) -> _Hypothesis:
        """A limit that has grown, as far as attempts have shown: from there on it is tried step by step."""
        level = _again(outgrown)
        assert level is not None
        found = level.replay(records, [self._is_taken(sent) for sent in records])
        passed = [at for at, sent in zip(found, records, strict=True) if self._verdict(sent, now) is False]
        amount = max(passed, default=1.0)
        self._trial_after = 1.0
        return _Hypothesis(level, Fit(amount, 0.0, fit_chance(0, 0).chance), weight=1.0)

    @property
    def remembers_since(self) -> float:
        """The oldest attempt that has to be explained was sent then; infinite: there is none."""
        return self._history[0].sent_at if self._history else _NEVER

    def explains(self, since: float, now: float) -> tuple[float, bool]:
        """How well the best hypothesis explains what was sent since an instant, and whether it is more than chance.

        As a log-likelihood, whichever kind of limit was likely before.
        """
        records = [sent for sent in self._history if sent.sent_at >= since and not sent.is_void]
        best = self._compete(records, now)[0]
        return best.fit.score + best.rarity, best.level is not None

    def _compete(self, records: Sequence[Sent], now: float, *, is_first: bool = True) -> list[_Hypothesis]:
        verdicts = [self._verdict(sent, now) for sent in records]
        known = [index for index, verdict in enumerate(verdicts) if verdict is not None]
        refused = [index for index in known if verdicts[index]]
        taken = [self._is_taken(sent) for sent in records]
        chance = fit_chance(len(refused), len(known))
        rate = self._prior.rate
        if rate and self._longest_told_s > _LONG_RETRY_AFTER_S:
            rate += (1 - rate - self._prior.concurrency) / 2
        prior = math.log(1 - rate - self._prior.concurrency)
        if self._refused_after_s > max(_AT_THE_DOOR_S, self._passed_after_s / 2):
            prior += _INSIDE
        hypotheses = [_Hypothesis(None, chance, chance.score + prior + _vanity(records, verdicts))]
        measures = list(self._measures(records))
        families: tuple[tuple[float, list[tuple[Level, float]]], ...] = (
            (self._prior.concurrency, [(ConcurrencyLevel(linger_s), part) for linger_s, part in _LINGER_S.items()]),
            (
                rate,
                [one for measure in measures for one in self._rates(measure, records, now, is_first=is_first)]
                if rate
                else [],
            ),
        )
        for share, levels in families:
            total = sum(part for _, part in levels)
            for level, part in levels:
                explains = self._fitted(level, records, taken, known, refused)
                if explains is not None:
                    explains.score += math.log(share * part / total)
                    explains.rarity = math.log(part)
                    hypotheses.append(explains)
        best, explained = -_NEVER, chance.score
        for one in sorted(hypotheses, key=lambda one: -one.score):
            # To hear the told instants costs more than all else: none that is out already gets better by it.
            if one.score - best <= _NEGLIGIBLE:
                break
            if one.level is not None:
                agreement = self._agreement(one.level, one.fit.amount, records)
                one.score += agreement
                explained = max(explained, one.fit.score + agreement)
            best = max(best, one.score)
        if rate and is_first and explained < fit_all(len(refused), len(known)) - _UNEXPLAINED:
            # What explains everything needs no rival.
            for measure in measures:
                for unseen in self._unseen(measure, records, taken, known, refused):
                    unseen.score += math.log(rate * _UNSEEN)
                    unseen.rarity = math.log(_UNSEEN)
                    hypotheses.append(unseen)
        return _plausible(hypotheses)

    def _fitted(
        self, level: Level, records: Sequence[Sent], taken: Sequence[bool], known: Sequence[int], refused: Sequence[int]
    ) -> _Hypothesis | None:
        """How well a level explains the records; None: chance explains them better. The indexes are of records."""
        self._preload(level)
        found = level.replay(records, taken)
        step = 1.0 if level.measure == 0 else 0.0
        # Whoever lets nothing pass at all has no cap: others hold its slots, or it is down.
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
                return _Hypothesis(exact, exactly, exactly.score)
        return _Hypothesis(level, best, best.score)

    def _preload(self, level: Level) -> None:
        """Let a level begin with what older attempts left in it."""
        if not isinstance(level, ConcurrencyLevel):
            level.replay(self._older, [True] * len(self._older))

    def _agreement(self, level: Level, amount: float, records: Sequence[Sent]) -> float:
        """How well a level tells what refusals told: when it opens again."""
        told = [sent for sent in records if sent.told_at is not None and sent.ended_at < _NEVER]
        if self._told_score <= 0 or self._told_stretch > 1 or not told:
            return 0.0
        waits_s = [sent.told_at - sent.ended_at for sent in told if sent.told_at is not None]
        is_whole = all(abs(wait_s - round(wait_s)) < 1e-6 for wait_s in waits_s)
        again, agreement = _again(level), 0.0
        assert again is not None
        self._preload(again)
        for sent in records:
            if sent.told_at is not None:
                opens_at = again.opens_at(sent.units[again.measure], amount, sent.in_flight, sent.sent_at)
                slack_s = _ROUNDING_S if is_whole else _SLACK_S + _SLACK * (sent.told_at - sent.sent_at)
                agreement -= abs(opens_at - sent.told_at) > slack_s
            again.replay([sent], [self._is_taken(sent)])
        return max(agreement, -_MOST_DISAGREEMENT)

    def _is_taken(self, sent: Sent) -> bool:
        """Whether it counts for a limit, as far as is known."""
        if sent.refused:
            return self._refusals_count
        return self._failures_count or not sent.is_failed

    def _rates(
        self, measure: int, records: Sequence[Sent], now: float, *, is_first: bool
    ) -> Iterator[tuple[Level, float]]:
        """Levels that may limit a rate, and how likely each is beside the others."""
        span_s = now - records[0].sent_at if records else 0.0
        for window_s in _WINDOWS_S:
            yield SlidingLevel(measure, window_s), 1.0
            if window_s > _LONGER * span_s:
                break
        for is_told, ends, least_s in self._window_ends(records, is_first=is_first):
            lengths_s = list(self._windows(ends, least_s, is_told=is_told))
            for window_s in lengths_s:
                # The longer a window the less likely its end is so near.
                part = lengths_s[0] / window_s * (1.0 if window_s in _WINDOWS_S else _UNUSUAL)
                yield WindowLevel(measure, window_s, tuple(ends), is_tiled=True), part
                if is_told:
                    yield WindowLevel(measure, window_s, tuple(ends), is_tiled=False), part
        for per_s in self._drains(measure, records, is_first=is_first):
            yield BucketLevel(measure, per_s), 1.0

    def _window_ends(self, records: Sequence[Sent], *, is_first: bool) -> Iterator[tuple[bool, Sequence[float], float]]:
        """Ends that windows of one limit may have, whether they were told, and how long such a window is at least.

        Where there are two limits the refusals of each tell its own ends: those of the second one are told by what the
        first one leaves unexplained, and those of a shorter one are near.
        """
        told = list(zip(self._told, self._told_waits_s, strict=True))
        if is_first:
            yield True, self._told, self._longest_told_s
            middle_s = sorted(self._told_waits_s)[len(told) // 2] if told else 0.0
            if middle_s * _MUCH_NEARER < self._longest_told_s:
                most_s = next((one for one in _WINDOWS_S if one >= middle_s), middle_s)
                near = [(end, wait_s) for end, wait_s in told if wait_s <= most_s]
                yield True, [end for end, _ in near], max(wait_s for _, wait_s in near) if near else 0.0
                yield True, [end for end, wait_s in told if wait_s > most_s], self._longest_told_s
        else:
            heard = [sent.told_at for sent in records if sent.refused and sent.told_at is not None]
            own = [one for one in told if any(abs(one[0] - at) <= _ROUNDING_S for at in heard)]
            yield True, [end for end, _ in own], max((wait_s for _, wait_s in own), default=0.0)
        yield False, self._reopened, self._longest_row_s

    def _windows(self, ends: Sequence[float], least: float, *, is_told: bool) -> Iterable[float]:
        """Lengths that windows with such ends may have."""
        if not ends:
            return ()
        longer = [one for one in _WINDOWS_S if one >= least]
        lengths = set(longer[: 4 if is_told else 7] or _WINDOWS_S[-1:])
        known = list(ends)[-4:]
        apart_s = [round(after - before, 1) for before, after in pairwise(known) if after - before <= _LONGEST_S]
        lengths.update(length_s for length_s in apart_s if length_s >= max(least - _ROUNDING_S, _LEAST_WINDOW_S))
        if is_told and apart_s:
            # No window ends within another one.
            lengths = {length_s for length_s in lengths if length_s <= min(apart_s) + _ROUNDING_S} or lengths
        return sorted(lengths)

    def _unseen(
        self, measure: int, records: Sequence[Sent], taken: Sequence[bool], known: Sequence[int], refused: Sequence[int]
    ) -> Iterator[_Hypothesis]:
        """Windows and sliding counters, the likeliest of each length, where nothing tells when they end."""
        opened = self._told or self._reopened
        if not opened:
            return
        least = max(self._longest_row_s, self._longest_told_s) / _COUNTER_WAIT
        for window_s in [one for one in _WINDOWS_S if one >= least][:_UNSEEN_LENGTHS]:
            # The first unit of the window before was gone then.
            before = [sent for sent in records if opened[0] - 2 * window_s <= sent.sent_at < opened[0]]
            end = opened[0] - window_s / max(1, sum(map(self._is_taken, before)))
            for kind in (CounterLevel, _tiled):
                likeliest: _Hypothesis | None = None
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
        """Rates at which a bucket may drain: what passed between refusals."""
        refused = [index for index, sent in enumerate(records) if sent.refused]
        if not refused:
            return ()
        rates = set()
        last = refused[-1]
        for first in {refused[0], refused[len(refused) // 2], refused[max(0, len(refused) - 4)]}:
            passed_s = records[last].sent_at - records[first].sent_at
            units = sum(sent.units[measure] for sent in records[first:last] if self._is_taken(sent))
            if passed_s > 0 and units:
                rates.add(units / passed_s)
            told_s = (records[last].told_at or 0.0) - (records[first].told_at or _NEVER)
            if told_s > 0:
                more = records[last].units[measure] - records[first].units[measure]
                rates.add(max(units + more, 1.0) / told_s)
        if is_first and self._longest_told_s >= 1 and measure == 0:
            rates.add(1 / self._longest_told_s)
        for hypotheses in self._layers:
            level = hypotheses[0].level
            if isinstance(level, BucketLevel) and level.measure == measure:
                rates.add(level.per_s)
        return sorted({round(rate, 2 - math.floor(math.log10(rate))) for rate in rates})

    def _measures(self, records: Sequence[Sent]) -> Iterable[int]:
        """What may be limited: always requests, and tokens where attempts differ in them."""
        yield 0
        for measure in (1, 2):
            sizes = [sent.units[measure] for sent in records]
            if sizes and max(sizes) > _UNEQUAL * max(1.0, min(sizes)):
                yield measure

    def _verdict(self, sent: Sent, now: float) -> bool | None:
        """Whether an attempt was refused; None: that is not known."""
        if sent.refused is not None:
            return sent.refused
        return False if sent.stamp in self._open and now >= sent.sent_at + self.verdict_s else None

    def _unexplained(self, best: _Hypothesis, records: Sequence[Sent]) -> list[Sent]:
        """Those that a hypothesis expects to pass, and those that were not refused."""
        level = _again(best.level)
        assert level is not None
        self._preload(level)
        found = level.replay(records, [self._is_taken(sent) for sent in records])
        amount = best.fit.amount
        if isinstance(level, CounterLevel):
            # The end of its windows is known nearly: one that it lets pass only just shows no other limit.
            amount -= min(sent.units[level.measure] for sent in records)
        return [sent for sent, at in zip(records, found, strict=True) if not (at > amount and sent.refused)]

    def _changed_at(self, best: _Hypothesis, records: Sequence[Sent], now: float) -> float | None:
        """From when on the attempts speak against the best hypothesis; None: they do not."""
        level = _again(best.level)
        if level is not None:
            self._preload(level)
        against, answered_at = 0.0, -_NEVER
        since: float | None = None
        chance, amount = best.fit.chance, best.fit.amount
        taken = [self._is_taken(sent) for sent in records]
        levels = level.replay(records, taken) if level is not None else [0.0] * len(records)
        for sent, found in zip(records, levels, strict=True):
            verdict = self._verdict(sent, now)
            if verdict is None:
                continue
            if found > amount:
                against += -3.0 if verdict else 3.0
            elif verdict and best.is_of_a_rate and sent.sent_at < answered_at:
                # What was sent before the last such refusal was heard of tells the same once more.
                continue
            else:
                against += math.log(0.5 / chance) if verdict else math.log(0.5 / (1 - chance))
                answered_at = sent.ended_at if verdict else answered_at
            if against <= 0:
                against, since = 0.0, None
            elif since is None:
                since = sent.sent_at
        return since if against > _CHANGE and since is not None and since > records[0].sent_at else None

    def believes_told(self, demand: Demand) -> bool:
        """Whether refusals tell the truth of when to come back, as far as attempts have shown that were as large."""
        is_larger = any(mine > theirs for mine, theirs in zip(_units(demand), self._passed_early, strict=True))
        return is_larger or self._told_score > 0

    @property
    def closed_until(self) -> float:
        """Until when nothing is expected to pass; in the past where something is."""
        told_until = self._told_until if self._told_score > 0 and self._layers else -_NEVER
        return max(told_until, self._guard_until)

    def turns_at(self, now: float) -> float | None:
        """When the limit that explains best lets many pass again; None where it does so all the time."""
        level = self._layers[0][0].level if self._layers else None
        return level.turns_at(now) if isinstance(level, SlidingLevel | WindowLevel) else None

    def cost_s(self, demand: Demand) -> float:
        """Seconds of this limit that a demand takes."""
        limit = self.limit
        if limit is None or limit.window_s is None:
            return 0.0
        return min(demand.of(limit.dimension), limit.amount) / limit.amount * limit.window_s

    # For views -------------------------------------------------------------------------------------------------------

    @property
    def known(self) -> HiddenLimit | None:
        """The limit that is likelier than all others together, chance among them; None: none is so far."""
        return self.limit if self._layers and self._layers[0][0].weight > _LIKELY else None

    @property
    def limit(self) -> HiddenLimit | None:
        """The limit that explains best; None: there is none but chance."""
        level = self._layers[0][0].level if self._layers else None
        if level is None:
            return None
        amount = self._layers[0][0].fit.amount
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


def _reached_at(opens: Sequence[tuple[float, float]], share: float) -> float:
    """The instant at which hypotheses of so much weight let an attempt pass."""
    so_far = 0.0
    for at, weight in opens:
        so_far += weight
        if so_far >= share - 1e-9:
            return at
    return _NEVER


def _mean(mean: float, newest: float) -> float:
    return newest if mean == 0 else mean + 0.2 * (newest - mean)


def _units(demand: Demand) -> tuple[float, ...]:
    return (1.0, float(demand.input_tokens), float(demand.total_tokens))


def _vanity(records: Sequence[Sent], verdicts: Sequence[bool | None]) -> float:
    """How much better all-is-chance foretold what happened than the hypotheses did; 0 where it did worse.

    With hindsight some limiter explains any row of chances. What it foretells shows what it is worth.
    """
    better = 0.0
    for sent, refused in zip(records, verdicts, strict=True):
        if sent.odds is not None and refused is not None:
            ours, chance = sent.odds
            better += math.log(chance / ours) if refused else math.log((1 - chance) / (1 - ours))
    return max(0.0, better)


def _again(level: Level | None) -> Level | None:
    """The same level, with nothing sent."""
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


def _plausible(hypotheses: list[_Hypothesis]) -> list[_Hypothesis]:
    """The ones that matter, with their probabilities; the best first."""
    best = max(one.score for one in hypotheses)
    kept = [one for one in hypotheses if one.score - best > _NEGLIGIBLE]
    total = sum(math.exp(one.score - best) for one in kept)
    for one in kept:
        one.weight = math.exp(one.score - best) / total
    return sorted(kept, key=lambda one: -one.weight)


def _tiled(measure: int, window_s: float, end: float) -> WindowLevel:
    return WindowLevel(measure, window_s, (end,), is_tiled=True)
