"""Limits that no header reports, inferred from refusals. Each estimator handles a single kind of refusal.

A bank of hypotheses (`hypotheses.py`) explains the recent attempts. Each refusal, and each attempt that passes against
expectation, makes the hypotheses compete again. Their predictions decide:

    the plausible hypotheses say                  consequence
    go, unanimously                               the attempt goes
    go, more likely than not                      it goes as a probe; probes go singly, a round trip apart
    wait, but some say go                         it waits; at times it goes as a probe that may be refused
    wait, unanimously                             it waits until they say go

A probe's verdict separates the hypotheses, so few probes are needed. Refused probes are paid from a balance that grows
with the attempts that pass. After 12 s to five minutes in which a limit holds others back, a *trial* goes, an attempt
beyond the limit, in case the limit has grown. After a refusal by a rate limit, and after a long wait for a rate limit,
an attempt goes alone, and each that passes lets another go at a time: at a cap the end of an attempt does that.
Retry-afters are further evidence (`retry_afters.py`).
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from hivemind_addon.kernel.inference.hypotheses import LIKELY, SURE, Bank, Prior
from hivemind_addon.kernel.inference.limiter_models import HiddenLimit, Sent
from hivemind_addon.kernel.inference.retry_afters import RetryAfters
from hivemind_addon.kernel.values.events import HIDDEN_LIMIT
from hivemind_addon.kernel.values.snapshot import CONCURRENCY, MeterView
from hivemind_addon.kernel.values.ticket import Demand

_NEVER = float("inf")
NO_CAP = sys.maxsize
"""No cap on attempts in flight."""
_POSSIBLE = 0.05
_RISKED = 0.2
"""Refusals expected among the probes in flight, where probes are likely to pass."""
_PROBES = 3.0
"""Refused probes allowed at first, and the highest balance."""
_PROBES_PER_PASS = 0.015
_LONG_HOLD_S = 0.5
"""After a rate limit's longer hold the first attempt goes alone; the others follow as attempts pass."""
_TRIALS = ((12.0, 10, 30.0), (60.0, 30, 120.0), (300.0, 90, 300.0))
"""Time, and attempts that pass while others are held back, until the next trial, and the time where fewer pass; by
refused trials in a row."""
_CHANGING_S = 900.0
"""For this time after a change of the provider the rarest trials do not apply: a limit that fell rises again."""
_RESUMED_S = 30.0
"""No probe tests a limit that is known from elsewhere for this time."""
_GUARD_FIRST_S = 0.5
_GUARD_MOST_S = 15.0
_SURPRISE = 0.05
"""Share of attempts that pass although a hypothesis expects a refusal."""
_FIRST_SHARE = 0.05
_SHARE_OVER = 50.0


class _Votes(NamedTuple):
    go: float
    """Probability that an attempt passes now."""
    likely_at: float
    possible_at: float


class _Trials:
    """Attempts beyond the limit while the limit holds others back, in case the limit has grown.

    A refused trial makes the next rarer, a successful trial makes the next attempt a trial, too.
    """

    def __init__(self) -> None:
        self.passed = 0
        """Attempts that passed since the last trial while a limit held others back."""
        self._newest: Sent | None = None
        self._at = -_NEVER
        """When the last trial was sent, or the limit was found."""
        self._refused = 0.0
        """Refused trials in a row."""
        self._changed_at = -_NEVER
        """When a limit last changed."""
        self.is_growing = False
        """Whether trials follow each other at once: the limit grows, and no hypothesis predicts anything."""

    def is_trial(self, sent: Sent) -> bool:
        """Whether an attempt is the newest trial."""
        return sent is self._newest

    def due_at(self, longest_row_s: float) -> float:
        """When the next trial is due; `longest_row_s`: longest time for which everything was refused."""
        if self.is_growing:
            return -_NEVER
        rarest = -2 if self._at < self._changed_at + _CHANGING_S else -1
        wait_s, passes, few_pass_s = _TRIALS[min(int(self._refused), len(_TRIALS) + rarest)]
        return self._at + (wait_s if self.passed >= passes else max(few_pass_s, longest_row_s))

    def sent(self, sent: Sent, now: float) -> None:
        self._newest, self._at, self.passed = sent, now, 0

    def back_at(self, bank: Bank) -> float:
        """When the newest trial has passed unless refused before; infinite: no trial is in flight."""
        newest = self._newest
        if newest is None or newest.refused is not None or newest.stamp not in bank.open:
            return _NEVER
        return newest.sent_at + bank.verdict_s

    def has_passed(self, limit_in_flight: float) -> None:
        """Learn that a trial passed: the limit has grown, unless a slot got free just then."""
        if self._newest is not None and self._newest.in_flight <= limit_in_flight < _NEVER:
            self._at, self.passed = -_NEVER, _TRIALS[-1][1]  # this trial proves nothing; the next may
        else:
            self.is_growing, self._refused = True, 0.0
        self._newest = None

    def was_refused(self, shown: float) -> None:
        """Learn that the newest trial was refused; `shown`: how far that confirms the limit, at most 1."""
        self._refused += shown
        self.is_growing = False

    def begin_again(self, now: float) -> None:
        """Restart the schedule for another limit: an immediate trial would only confirm a limit just found."""
        self._at, self._refused, self.is_growing = now, 0.0, False

    def changed(self, now: float, *, is_growing: bool) -> None:
        """Restart the schedule for a limit that has changed."""
        self.begin_again(now)
        self._changed_at, self.is_growing = now, is_growing


class _Probes:
    """Probes: attempts that may be refused, and so separate hypotheses."""

    def __init__(self) -> None:
        self.saved = _PROBES
        """Balance of refused probes."""
        self.at = -_NEVER
        """Earliest time of the next probe that most hypotheses oppose."""
        self._wait_s = 0.0
        self._pending: list[Sent] = []
        """Probes without a verdict."""

    def sent(self, sent: Sent) -> None:
        self._pending.append(sent)

    def all_are(self, sent: "list[Sent]") -> None:
        """Make all attempts in flight probes: their verdicts come before any new probe's."""
        self._pending = sent

    def attempt_passed(self) -> None:
        """Learn that any attempt passed."""
        self._wait_s = 0.0
        self.saved = min(_PROBES, self.saved + _PROBES_PER_PASS)

    def was_refused(self, verdict_s: float, now: float) -> None:
        """Learn that a probe was refused."""
        self.saved = max(0.0, self.saved - 1)
        self._wait_s = max(2 * self._wait_s, 2 * verdict_s)
        self.at = now + self._wait_s

    def free_at(self, go: float, bank: Bank, now: float) -> float:
        """When another probe may go; the likelier probes pass, the more may be in flight."""
        most = max(1, int(_RISKED / (1 - go)))
        pending = (sent for sent in reversed(self._pending) if sent.stamp in bank.open and sent.refused is None)
        newest = list(islice(pending, most))
        if len(newest) == most:
            return newest[-1].sent_at + bank.verdict_s
        self._pending = newest[::-1]
        return now


class HiddenLimits:
    """Limits of a pool, inferred from refusals of one kind. Each attempt is `sent`, has a verdict, and is `ended`."""

    def __init__(self, prior: Prior) -> None:
        self.limit: HiddenLimit | None = None
        """The limit that explains best; None: only chance explains."""
        self.known: HiddenLimit | None = None
        """`limit`, if likelier than all other hypotheses together, chance included."""
        self.most_in_flight = NO_CAP
        """The limit's cap on attempts in flight."""
        self.is_of_a_rate = False
        """Whether the limit counts attempts sent over time."""
        self.has_refused = False
        """Whether any remembered attempt was refused; else all may go."""
        self._is_taught = False
        """Whether any attempt was ever refused, or a limit is known from elsewhere."""
        self.retry_afters = RetryAfters()
        self._bank = Bank(prior, self.retry_afters)
        self._trials = _Trials()
        self._probes = _Probes()
        self._share = _FIRST_SHARE
        """Share of all attempts that are refused."""
        self._usual_share = _FIRST_SHARE
        """`_share` before everything was refused."""
        self._guard_until = -_NEVER
        self._held_since: float | None = None
        """Since when all waiting attempts have been held back."""
        self._careful_since = _NEVER
        """When a rate limit last refused an attempt, or an attempt went after a long hold: from then on a few go at a
        time."""

    def __repr__(self) -> str:
        return f"<HiddenLimits {self.limit}>"

    # What is sent, and what comes of it ------------------------------------------------------------------------------

    @property
    def verdict_s(self) -> float:
        """An attempt that is not refused for this long has passed."""
        return self._bank.verdict_s

    def sent(self, stamp: int, demand: Demand, in_flight: int, now: float) -> None:
        """Count an admitted attempt, which `in_flight` includes."""
        sent = Sent(stamp, now, _units(demand), in_flight, most_in_flight=in_flight)
        if _is_cap(self.limit):
            self._judge_trial(now)
        if self.has_refused:
            self._expect(sent, now)
        self._bank.sent(sent)

    def _expect(self, sent: Sent, now: float) -> None:
        """Record the predictions for an attempt that goes, and the attempt's purpose."""
        go = self._votes(sent.units, sent.in_flight - 1, now, with_margin=False).go
        best = self._bank.hypotheses[0]
        sent.is_probe = go < SURE
        passes = go * (1 - best.fit.chance) + (1 - go) * _SURPRISE
        if not self._trials.is_growing:
            sent.odds = (1 - passes, self._share)
        if sent.is_probe:
            self._probes.sent(sent)
            # At a cap each such probe is a trial, whichever hypothesis is the reason.
            if go < LIKELY and (self._trial_at <= now or _is_cap(self.limit)):
                self._trials.sent(sent, now)
        held_s = 0.0 if self._held_since is None else now - self._held_since
        if self.is_of_a_rate and held_s >= max(_LONG_HOLD_S, 2 * self.verdict_s):
            self._careful_since = now
        self._held_since = None

    def passed(self, stamp: int, now: float) -> None:
        """Learn that the provider took an attempt: the answer began, or the attempt succeeded."""
        sent = self._bank.open.get(stamp)
        if sent is None or sent.refused is not None:
            return
        self._bank.passed(sent, now)
        self._share -= self._share / _SHARE_OVER
        if not self._is_taught:
            self._usual_share = self._share
            return
        self.retry_afters.passed(sent)
        if not self._bank.row_length(now):
            self._usual_share = self._share
            self._guard_until = -_NEVER
        self._probes.attempt_passed()
        if self._held_since is not None:
            self._trials.passed += 1
        if self._trials.is_trial(sent):
            self._trials.has_passed(self._bank.limit_in_flight)
        if sent.is_probe:
            self._probes.at = now
            self._bank.reopened(sent)
            self._weigh(now)

    def refused(self, stamp: int, retry_after_s: float, now: float) -> None:
        """Learn that the provider refused an attempt; `retry_after_s` is 0 if the refusal reports none."""
        sent = self._bank.open.get(stamp)
        if sent is None:
            return
        self._is_taught = True
        is_first = not self._bank.hypotheses
        self._bank.refused(sent, now)
        self._share += (1 - self._share) / _SHARE_OVER
        row_length = self._bank.row_length(now)
        self.retry_afters.refused(sent, retry_after_s, now, row_length=row_length, is_first=is_first)
        is_cap, is_trial = _is_cap(self.limit), self._trials.is_trial(sent)
        if is_trial:
            # Where chance refuses much, a single refusal proves little.
            chance = _FIRST_SHARE if is_first else self._bank.hypotheses[0].fit.chance
            self._trials.was_refused(min(1.0, math.log(chance) / math.log(_FIRST_SHARE)))
        if sent.is_probe and (is_cap or not is_trial):
            self._probes.was_refused(self.verdict_s, now)
        if is_first:
            self._trials.begin_again(now)
            self._probes.all_are(list(self._bank.open.values()))
        if not self._bank.knows_enough(sent, now):
            self._weigh(now)
        if self.is_of_a_rate:
            self._careful_since = now
        self._guard(now)

    def ended(
        self, stamp: int, now: float, *, charged: Demand | None = None, was_taken: bool = True, is_failed: bool = False
    ) -> None:
        """End an attempt. `was_taken` False: something else refused the attempt, so it counts for nothing here.

        `charged`: the provider's charge; None: as expected. `is_failed`: the provider answered with an error that is no
        refusal.
        """
        sent = self._bank.open.pop(stamp, None)
        if sent is not None:
            units = None if charged is None else _units(charged)
            self._bank.ended(sent, now, units=units, was_taken=was_taken, is_failed=is_failed)

    def _weigh(self, now: float) -> None:
        has_grown = self._bank.weigh(now)
        if has_grown is not None:
            self._trials.changed(now, is_growing=has_grown)
        self._take_over_limit()

    def _take_over_limit(self) -> None:
        self.has_refused = bool(self._bank.hypotheses)
        limit = self.limit = self._bank.limit
        self.known = limit if limit is not None and self._bank.hypotheses[0].weight > LIKELY else None
        self.is_of_a_rate = limit is not None and limit.window_s is not None
        self.most_in_flight = NO_CAP if limit is None or self.is_of_a_rate else int(limit.amount)

    def _judge_trial(self, now: float) -> None:
        """Treat a trial that is not refused for `verdict_s` as passed."""
        if self._trials.back_at(self._bank) <= now:
            self._trials.has_passed(self._bank.limit_in_flight)
            self._weigh(now)

    def _guard(self, now: float) -> None:
        """Hold all attempts for a while when everything is refused, whatever the hypotheses say."""
        row = self._bank.row_length(now)
        if self.limit is not None:
            # The hypotheses are wrong in some way, and may be again.
            surplus, first_s = row - 2, self.verdict_s
        else:
            chance = min(max(self._usual_share, 0.05), 0.8)
            surplus, first_s = row - max(4, math.ceil(math.log(0.01) / math.log(chance))), _GUARD_FIRST_S
        if surplus >= 0:
            self._guard_until = now + min(first_s * 2 ** min(surplus, 10), _GUARD_MOST_S)

    def forget_since(self, at: float, now: float) -> None:
        """Forget refusals since `at`, and those before back to the last pass: they were an outage and no limit."""
        self._is_taught = True
        self._bank.forget_since(at)
        self._guard_until = -_NEVER
        self._weigh(now)

    def take_back(self, stamps: Sequence[int], now: float) -> None:
        """Forget the refusals of these attempts, which were refused for their content."""
        self._bank.take_back(stamps)
        self._guard_until = -_NEVER
        self._weigh(now)

    def resume(self, limit: HiddenLimit | None, now: float, *, held: Sent | None = None, is_old: bool = False) -> None:
        """Continue with a limit from an earlier run, or from another pool of the account.

        `held`: the units in use; `is_old`: the limit is no likelier than chance.
        """
        if limit is not None:
            self._is_taught = True
            # The limit is tested when a trial is due, and soon where few attempts go.
            self._trials.begin_again(now)
            self._probes.at = now + _RESUMED_S
            self._bank.resume(limit, held, weight=0.5 if is_old else 0.9)
            self._take_over_limit()

    def glance(self) -> "HiddenLimits":
        """A copy for views, whose answers change nothing."""
        return _Glance(self) if self.has_refused else self

    def view(self, now: float) -> MeterView | None:
        """The limit that explains best, as a meter; None: only chance explains."""
        limit = self.limit
        if limit is None:
            return None
        if limit.window_s is None:
            return MeterView(name=CONCURRENCY, kind=limit.kind, limit=limit.amount, level=limit.amount, full_in_s=0.0)
        best = self._bank.hypotheses[0]
        level, history = best.level or limit.level(), self._bank.history(best.counts)

        def opens_in_s(units: float) -> float:
            return level.opens_at(history, units, limit.amount, 0, now) - now

        left = bisect_right(range(int(limit.amount)), 0.0, key=lambda units: opens_in_s(units + 1))
        return MeterView(
            name=HIDDEN_LIMIT,
            kind=limit.kind,
            limit=limit.amount,
            level=float(left),
            full_in_s=max(0.0, opens_in_s(limit.amount)),
            window_s=limit.window_s,
            dimension=limit.dimension,
        )

    # What may go -----------------------------------------------------------------------------------------------------

    def opens_at(self, demand: Demand, in_flight: int, now: float) -> float:
        """First instant at which an attempt may go, if nothing else changes; infinite: when another attempt ends."""
        if not self.has_refused:
            return now
        self._judge_trial(now)
        opens_at = max(
            self._opens_at(_units(demand), in_flight, now), self._bank.may_follow_at(self._careful_since, now)
        )
        if opens_at > now:
            if self._held_since is None:
                self._held_since = now
            if not in_flight:
                look_at = min(self.retry_afters.look_at(now), self._trial_at)
                opens_at = min(opens_at, max(now, self._guard_until, look_at))
            opens_at = min(opens_at, self._trials.back_at(self._bank))
        return opens_at

    def may_refuse(self, demand: Demand, in_flight: int, now: float) -> bool:
        """Whether an attempt that goes now is a probe: some plausible hypothesis expects a refusal."""
        return self.has_refused and self._votes(_units(demand), in_flight, now, with_margin=False).go < SURE

    def _opens_at(self, units: Sequence[float], in_flight: int, now: float) -> float:
        votes = self._votes(units, in_flight, now)
        if votes.go >= SURE:
            return max(now, self._guard_until)
        not_before = max(now, self._guard_until, self._probes.free_at(votes.go, self._bank, now))
        if votes.go >= LIKELY:
            return not_before
        opens_at = max(min(votes.likely_at, self._trial_at), not_before)
        if self._probes.saved >= 1:
            opens_at = min(opens_at, max(votes.possible_at, not_before, self._probes.at))
        return opens_at

    @property
    def _trial_at(self) -> float:
        due_at = self._trials.due_at(self._bank.longest_row_s)
        # If retry-afters have proved true, nothing passes before the end.
        return max(due_at, self.retry_afters.until) if self.retry_afters.is_proved else due_at

    def _votes(self, units: Sequence[float], in_flight: int, now: float, *, with_margin: bool = True) -> _Votes:
        """Predictions for an attempt. Each known limit has to let the attempt pass."""
        trust, until = self.retry_afters.trust(now), self.retry_afters.until
        all_go, likely_at, possible_at = 1.0, now, now
        for hypotheses in filter(None, (self._bank.hypotheses, self._bank.others)):
            opens = []
            for hypothesis in hypotheses:
                history = self._bank.history(hypothesis.counts)
                at = hypothesis.opens_at(history, units, in_flight, now, with_margin=with_margin)
                opens.append((at, hypothesis.weight * (1 - trust)))
                opens.append((max(at, until) if hypothesis.is_of_a_rate else at, hypothesis.weight * trust))
            opens.sort()
            all_go *= sum(weight for at, weight in opens if at <= now)
            likely_at = max(likely_at, _reached_at(opens, LIKELY))
            possible_at = max(possible_at, _reached_at(opens, _POSSIBLE))
        return _Votes(all_go, likely_at, possible_at)

    # What others want to know ----------------------------------------------------------------------------------------

    def believes_told(self, demand: Demand) -> bool:
        """Whether retry-afters are true for attempts of this size, as far as is known."""
        return self.retry_afters.believes(_units(demand))

    @property
    def closed_until(self) -> float:
        """Until when nothing is expected to pass; in the past if something is."""
        return max(self.told_until, self._guard_until)

    @property
    def told_until(self) -> float:
        """Farthest reported end, if retry-afters are trusted."""
        return self.retry_afters.until if self.retry_afters.is_trusted and self.has_refused else -_NEVER

    def turns_at(self, now: float) -> float | None:
        """When the best limit lets many attempts pass again; None if attempts pass all the time."""
        return self._bank.turns_at(now)

    def cost_s(self, demand: Demand) -> float:
        """Seconds of this limit that a demand takes."""
        limit = self.limit
        if limit is None or limit.window_s is None:
            return 0.0
        return min(demand.of(limit.dimension), limit.amount) / limit.amount * limit.window_s


class _Glance(HiddenLimits):
    """A copy that only answers: it judges no trial and leaves the original unchanged."""

    def __init__(self, of: HiddenLimits) -> None:
        vars(self).update(vars(of))

    def _judge_trial(self, now: float) -> None:
        pass


def _is_cap(limit: HiddenLimit | None) -> bool:
    """Whether the limit counts attempts in flight."""
    return limit is not None and limit.window_s is None


def _reached_at(opens: Sequence[tuple[float, float]], share: float) -> float:
    """First instant at which hypotheses with this share of the weight let an attempt pass."""
    so_far = 0.0
    for at, weight in opens:
        so_far += weight
        if so_far >= share - 1e-9:
            return at
    return _NEVER


def _units(demand: Demand) -> tuple[float, ...]:
    return (1.0, float(demand.input_tokens), float(demand.total_tokens))
