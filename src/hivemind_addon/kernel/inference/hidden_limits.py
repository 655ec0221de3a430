"""Limits that no header tells of, found out from what is refused. One estimator of one kind of refusal.

A bank of hypotheses (`hypotheses.py`) explains the recent attempts. Each refusal, and each attempt that passes against
expectation, makes them compete anew. Here is what follows from what they say:

    the hypotheses that matter say                what follows
    go, with one voice                            the attempt goes
    go, more likely than not                      it goes as a probe: one at a time, a round trip apart
    wait, but some say go                         it waits; at times one goes as a probe that may be refused
    wait, with one voice                          it waits until they say go

A probe's verdict tells the hypotheses apart, so that few are needed; refused ones are paid from an account that grows
with the attempts that pass. When many attempts that limits held back have passed, one more than the limit allows is
tried, a *trial*, in case the limit has grown. After a long wait the first one goes alone, a *scout*. What is told by
refusals is one more witness (`retry_afters.py`); one goes to *look* whether it is true.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hivemind_addon.kernel.inference.hypotheses import LIKELY, SURE, Bank, Prior, Weighed
from hivemind_addon.kernel.inference.limiter_models import HiddenLimit, Sent, SlidingLevel, WindowLevel
from hivemind_addon.kernel.inference.retry_afters import RetryAfters
from hivemind_addon.kernel.values.ticket import Demand

_NEVER = float("inf")
NO_CAP = sys.maxsize
"""Of attempts in flight."""
_POSSIBLE = 0.05
_RISKED = 0.2
"""Probes that may be expected to be refused at one time, where they are likely to pass."""
_PROBES = 3.0
"""Refused probes that are allowed at first, and the most that are saved up."""
_PROBES_PER_PASS = 0.015
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
_SURPRISE = 0.05
"""Of the attempts that a hypothesis expects to be refused, those that pass all the same."""
_FIRST_SHARE = 0.05
_SHARE_OVER = 50.0


@dataclass(frozen=True, slots=True)
class _Votes:
    go: float
    """How likely an attempt passes now."""
    likely_at: float
    """From when on it is more likely than not."""
    possible_at: float
    """From when on it is possible at all."""


class _Trials:
    """When one more is tried than the limit allows, and what came of those that were."""

    def __init__(self) -> None:
        self.passed = 0
        """Attempts that passed while a limit held others back, since the last one."""
        self._after = self._before = float(_TRIAL_AFTER)
        self._newest: Sent | None = None
        self._at = -_NEVER
        """When the last one was sent, or the first refusal came."""
        self._refused = 0.0
        """In a row."""

    def __repr__(self) -> str:
        return f"<Trials, {self.passed} of {self._after:g} passed>"

    @property
    def is_growing(self) -> bool:
        """Whether each one that passes is followed by the next: the limit grows, and nobody foretells anything."""
        return self._after <= 1

    def is_trial(self, sent: Sent) -> bool:
        """Whether an attempt is the newest one."""
        return sent is self._newest

    def due_at(self, limit: HiddenLimit | None, told: RetryAfters, boring_s: float) -> float:
        """When the next one is due: after so many attempts, or so much time where few go."""
        is_bucket = limit is not None and limit.is_bucket
        if self.passed >= self._due_after(_is_cap(limit)):
            # What a bucket lacks it has when it says so, and not before, if that was ever seen to be true.
            return told.until if is_bucket and told.is_proved else -_NEVER
        # A bucket has room all the time, if less than is thought: there no length of a window has to pass.
        since_s = _BORED_S if is_bucket else boring_s
        return self._at + since_s * math.pow(2.0, min(self._refused, float(_MOST_BORED)))

    def _due_after(self, is_cap: bool) -> float:
        if is_cap:
            return min(2 * self._after - 1, _MOST_TRIAL_AFTER_CAPPED)
        return min(self._after, _MOST_TRIAL_AFTER)

    def sent(self, sent: Sent, now: float) -> None:
        """One goes."""
        self._newest, self.passed, self._at = sent, 0, now

    def back_at(self, open_stamps: "dict[int, Sent]", verdict_s: float) -> float:
        """When the newest has passed, unless its refusal comes before; infinite: none is on its way."""
        newest = self._newest
        if newest is None or newest.refused is not None or newest.stamp not in open_stamps:
            return _NEVER
        return newest.sent_at + verdict_s

    def has_passed(self, limit_in_flight: float) -> None:
        """One more than the limit allows was not refused: unless a slot got free just then, there is more."""
        if self._newest is not None and self._newest.in_flight <= limit_in_flight < _NEVER:
            # It proves nothing; the next one may.
            self.passed = math.ceil(self._due_after(is_cap=True))
        else:
            # The next one is a trial, too.
            self._before = max(_TRIAL_AFTER, self._before, self._after) / 3
            self._after = self.passed = 1
            self._refused = 0.0
        self._newest = None

    def was_refused(self, shown: float) -> None:
        """The newest was; `shown`: by how much that shows that the limit still stands, at most 1."""
        self._refused += shown
        self._after = min(3**shown * max(self._before, self._after), _MOST_TRIAL_AFTER)

    def first_refused(self, now: float) -> None:
        """Something was refused for the first time."""
        self._at, self._refused = now, 0.0

    def begin_again(self, now: float) -> None:
        """A limit is known from elsewhere: that one more is refused at once would be no news."""
        self._at = now

    def judge(self, weighed: Weighed) -> None:
        """The limit is another one."""
        if weighed.has_changed:
            self._after = self._before = float(_TRIAL_AFTER)
        if weighed.has_grown:
            self._after = 1.0
        if weighed.is_tighter:
            # That trials of the other limit were refused says nothing of this one.
            self._after = self._before = float(_TRIAL_AFTER)
            self._refused = 0.0


class _Probes:
    """Attempts that may be refused, and what tells hypotheses apart by them."""

    def __init__(self) -> None:
        self.saved = _PROBES
        """Refused ones that are paid for."""
        self.at = -_NEVER
        """No sooner goes the next one that most hypotheses speak against."""
        self._wait_s = 0.0
        self._pending: list[Sent] = []
        """Those whose verdict is not known."""

    def __repr__(self) -> str:
        return f"<Probes, {self.saved:.1f} saved>"

    def sent(self, sent: Sent) -> None:
        """One goes."""
        self._pending.append(sent)

    def all_are(self, sent: "list[Sent]") -> None:
        """What is on its way tells more before anything else has to."""
        self._pending = sent

    def attempt_passed(self) -> None:
        """Any attempt passed."""
        self._wait_s = 0.0
        self.saved = min(_PROBES, self.saved + _PROBES_PER_PASS)

    def was_refused(self, verdict_s: float, now: float) -> None:
        """One was."""
        self.saved = max(0.0, self.saved - 1)
        self._wait_s = max(2 * self._wait_s, 2 * verdict_s)
        self.at = now + self._wait_s

    def free_at(self, go: float, open_stamps: "dict[int, Sent]", verdict_s: float, now: float) -> float:
        """From when on another one may go: as many at one time as the odds are that they pass."""
        self._pending = [sent for sent in self._pending if sent.stamp in open_stamps and sent.refused is None]
        most = max(1, int(_RISKED / (1 - go)))
        verdicts_at = sorted(sent.sent_at + verdict_s for sent in self._pending)
        return now if len(verdicts_at) < most else verdicts_at[-most]


class HiddenLimits:
    """What refusals of one kind teach about one pool. Each attempt is `sent`, has a verdict, and is `ended`."""

    def __init__(self, prior: Prior) -> None:
        self.limit: HiddenLimit | None = None
        """The limit that explains best; None: there is none but chance."""
        self.known: HiddenLimit | None = None
        """The same, where it is likelier than all others together, chance among them."""
        self.most_in_flight = NO_CAP
        """What the limit says of attempts in flight."""
        self.is_of_a_rate = False
        """Whether the limit counts what is sent in some time."""
        self.has_refused = False
        """Whether anything that is remembered was; else all may go."""
        self._is_taught = False
        """Whether anything was ever refused, or is known from elsewhere."""
        self._told = RetryAfters()
        self._bank = Bank(prior, self._told)
        self.open: Mapping[int, Sent] = self._bank.open
        """The attempts that it has heard of and that are in flight, by stamp."""
        self._trials = _Trials()
        self._probes = _Probes()
        self._share = _FIRST_SHARE
        """Of all attempts, that is refused."""
        self._usual_share = _FIRST_SHARE
        """The same before everything was refused."""
        self._guard_until = -_NEVER
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
        return self._bank.verdict_s

    def sent(self, stamp: int, demand: Demand, in_flight: int, now: float) -> None:
        """An attempt was admitted; `in_flight` counts it."""
        sent = Sent(stamp, now, _units(demand), in_flight, most_in_flight=in_flight)
        if _is_cap(self.limit):
            self._judge_trial(now)
        if self.has_refused:
            self._expect(sent, now)
        self._bank.sent(sent)

    def _expect(self, sent: Sent, now: float) -> None:
        """Note what the hypotheses say of an attempt that goes, and what its verdict will tell."""
        go = self._votes(sent.units, sent.in_flight - 1, now, with_margin=False).go
        best = self._bank.layers[-1][0]
        sent.is_probe = go < SURE
        passes = go * (1 - best.fit.chance) + (1 - go) * _SURPRISE
        if not self._trials.is_growing:
            sent.odds = (1 - passes, self._share)
        if sent.is_probe:
            self._probes.sent(sent)
            # Before a cap each tries one more than it allows, whichever hypothesis is why.
            if go < LIKELY and (self._trial_at <= now or _is_cap(self.limit)):
                self._trials.sent(sent, now)
        if self._held_since is not None and self._told.look_at(now) <= now:
            self._told.looks(sent)
        was_held = self._held_since is not None and now - self._held_since >= max(_LONG_HOLD_S, 2 * self.verdict_s)
        if was_held or (self._scout is not None and self._scout.refused and self.limit is not None):
            self._scout = sent
        self._last_hold_s = 0.0 if self._held_since is None else now - self._held_since
        self._held_since = None

    def passed(self, stamp: int, now: float) -> None:
        """The provider has taken an attempt: its answer began, or it succeeded."""
        sent = self.open.get(stamp)
        if sent is None or sent.refused is not None:
            return
        self._bank.passed(sent, now)
        self._share -= self._share / _SHARE_OVER
        if not self._is_taught:
            self._usual_share = self._share
            return
        self._told.passed(sent)
        if not self._bank.row_length(now):
            self._usual_share = self._share
            self._guard_until = -_NEVER
        self._bored = 0
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
        """The provider has refused an attempt; `retry_after_s` is 0 where it does not say when to come back."""
        sent = self._bank.open.get(stamp)
        if sent is None:
            return
        self._is_taught = True
        is_first = not self._bank.layers
        self._bank.refused(sent, now)
        self._bored += self._last_hold_s > _BORED_S
        self._share += (1 - self._share) / _SHARE_OVER
        row_length = self._bank.row_length(now)
        self._told.refused(sent, retry_after_s, now, row_length=row_length, is_first=is_first)
        is_cap, is_trial = _is_cap(self.limit), self._trials.is_trial(sent)
        if is_trial:
            # Where much is refused by chance, one refusal shows little.
            chance = _FIRST_SHARE if is_first else self._bank.layers[-1][0].fit.chance
            self._trials.was_refused(min(1.0, math.log(chance) / math.log(_FIRST_SHARE)))
        if sent.is_probe and not self._told.is_look(sent) and (is_cap or not is_trial):
            self._probes.was_refused(self.verdict_s, now)
        if is_first:
            self._trials.first_refused(now)
            self._probes.all_are(list(self._bank.open.values()))
        if not self._bank.knows_enough(now):
            self._weigh(now)
        self._guard(now)

    def ended(
        self, stamp: int, now: float, *, charged: Demand | None = None, was_taken: bool = True, is_failed: bool = False
    ) -> None:
        """An attempt is over. `was_taken` False: something else refused it, so it counts for nothing here.

        `charged`: what the provider takes for it; None: what was expected. `is_failed`: the provider answered with an
        error that is no refusal.
        """
        sent = self._bank.open.pop(stamp, None)
        if sent is not None:
            units = None if charged is None else _units(charged)
            self._bank.ended(sent, now, units=units, was_taken=was_taken, is_failed=is_failed)

    def _weigh(self, now: float) -> None:
        self._trials.judge(self._bank.weigh(now))
        self._take_over_limit()

    def _take_over_limit(self) -> None:
        self.has_refused = bool(self._bank.layers)
        limit = self.limit = self._bank.limit
        self.known = self._bank.known
        self.is_of_a_rate = limit is not None and limit.window_s is not None
        self.most_in_flight = NO_CAP if limit is None or self.is_of_a_rate else int(limit.amount)

    def _judge_trial(self, now: float) -> None:
        """A trial that was not refused for so long has passed."""
        if self._trial_back_at <= now:
            self._trials.has_passed(self._bank.limit_in_flight)
            self._weigh(now)

    def _guard(self, now: float) -> None:
        """Let nothing go for a while when everything is refused, whatever the hypotheses say."""
        row = self._bank.row_length(now)
        if self.limit is not None:
            # They are wrong in some way, and may be again.
            surplus, first_s = row - 2, self.verdict_s
        else:
            chance = min(max(self._usual_share, 0.05), 0.8)
            surplus, first_s = row - max(4, math.ceil(math.log(0.01) / math.log(chance))), _GUARD_FIRST_S
        if surplus >= 0:
            self._guard_until = now + min(first_s * 2 ** min(surplus, 10), _GUARD_MOST_S)

    def forget_since(self, at: float, now: float) -> None:
        """What was refused since an instant was an outage and no limit, as what was before it since one passed."""
        self._is_taught = True
        self._bank.forget_since(at)
        self._guard_until = -_NEVER
        self._weigh(now)

    def take_back(self, stamps: Sequence[int], now: float) -> None:
        """These attempts were refused for what they are: that told of no limit."""
        self._bank.take_back(stamps)
        self._guard_until = -_NEVER
        self._weigh(now)

    def resume(self, limit: HiddenLimit | None, now: float) -> None:
        """Go on with what an earlier run has learned, or another pool of the same account."""
        if limit is not None:
            self._is_taught = True
            # It is tried when a trial is due, and where few go soon.
            self._trials.begin_again(now)
            self._probes.at = now + _BORED_S / 2
            self._bank.resume(limit)
            self._take_over_limit()

    def glance(self) -> "HiddenLimits":
        """One to ask for a view: whatever is asked of it, nothing changes by it."""
        return _Glance(self) if self.has_refused else self

    # What may go -----------------------------------------------------------------------------------------------------

    def opens_at(self, demand: Demand, in_flight: int, now: float) -> float:
        """The first instant at which an attempt may go, if nothing else changes; infinite: when another one ends."""
        if not self.has_refused:
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

    def may_refuse(self, demand: Demand, in_flight: int, now: float) -> bool:
        """Whether an attempt that goes now is a probe: not all hypotheses that matter say that it passes."""
        return self.has_refused and self._votes(_units(demand), in_flight, now, with_margin=False).go < SURE

    def _bored_at(self, now: float) -> float:
        """When one goes whatever is thought, for no guess may let everybody wait for ever.

        That is long after all that was seen of this limiter; after a refusal it takes twice as long.
        """
        assert self._held_since is not None
        bored_at = self._held_since + self._boring_s * 2.0 ** min(self._bored, _MOST_BORED)
        return max(now, self._guard_until, min(bored_at, self._told.look_at(now)))

    @property
    def _boring_s(self) -> float:
        """A guess is not held for longer without a look: twice what was seen of this limiter."""
        told_s = self._told.longest_s if self._told.is_trusted else 0.0
        return max(_BORED_S, 2 * told_s, 2 * min(self._bank.longest_row_s, _LONGEST_GUESS_S))

    def _opens_at(self, units: Sequence[float], in_flight: int, now: float) -> float:
        votes = self._votes(units, in_flight, now)
        if votes.go >= SURE:
            return max(now, self._guard_until)
        free_at = self._probes.free_at(votes.go, self._bank.open, self.verdict_s, now)
        not_before = max(now, self._guard_until, free_at)
        if votes.go >= LIKELY:
            return not_before
        opens_at = max(min(votes.likely_at, self._trial_at), not_before)
        if self._probes.saved >= 1:
            opens_at = min(opens_at, max(votes.possible_at, not_before, self._probes.at))
        return opens_at

    @property
    def _trial_at(self) -> float:
        return self._trials.due_at(self.limit, self._told, self._boring_s)

    @property
    def _trial_back_at(self) -> float:
        return self._trials.back_at(self._bank.open, self.verdict_s)

    def _votes(self, units: Sequence[float], in_flight: int, now: float, *, with_margin: bool = True) -> _Votes:
        """What the hypotheses say of an attempt. Each limit that is known has to let it pass."""
        trust = self._told.trust(now)
        all_go, likely_at, possible_at = 1.0, now, now
        for hypotheses in self._bank.layers:
            opens = []
            for one in hypotheses:
                at = one.opens_at(units, in_flight, now, with_margin=with_margin)
                opens.append((at, one.weight * (1 - trust)))
                opens.append((max(at, self._told.until) if one.is_of_a_rate else at, one.weight * trust))
            opens.sort()
            all_go *= sum(weight for at, weight in opens if at <= now)
            likely_at = max(likely_at, _reached_at(opens, LIKELY))
            possible_at = max(possible_at, _reached_at(opens, _POSSIBLE))
        return _Votes(all_go, likely_at, possible_at)

    def _scout_back_at(self, now: float) -> float:
        """When the first one that went after a long wait has shown whether others may follow."""
        scout = self._scout
        if scout is None or scout.refused is not None or scout.stamp not in self._bank.open:
            return now
        return scout.sent_at + self.verdict_s

    # What others want to know ----------------------------------------------------------------------------------------

    def believes_told(self, demand: Demand) -> bool:
        """Whether refusals tell the truth of when to come back, as far as attempts have shown that were as large."""
        return self._told.believes(_units(demand))

    @property
    def closed_until(self) -> float:
        """Until when nothing is expected to pass; in the past where something is."""
        return max(self.told_until, self._guard_until)

    @property
    def told_until(self) -> float:
        """Until when refusals told to wait, as far as they are believed."""
        return self._told.until if self._told.is_trusted and self._bank.layers else -_NEVER

    def turns_at(self, now: float) -> float | None:
        """When the limit that explains best lets many pass again; None where it does so all the time."""
        level = self._bank.layers[0][0].level if self._bank.layers else None
        return level.turns_at(now) if isinstance(level, SlidingLevel | WindowLevel) else None

    def cost_s(self, demand: Demand) -> float:
        """Seconds of this limit that a demand takes."""
        limit = self.limit
        if limit is None or limit.window_s is None:
            return 0.0
        return min(demand.of(limit.dimension), limit.amount) / limit.amount * limit.window_s

    @property
    def remembers_since(self) -> float:
        """The oldest attempt that has to be explained was sent then; infinite: there is none."""
        return self._bank.remembers_since

    def explains(self, since: float, now: float) -> tuple[float, bool]:
        """How well the best hypothesis explains what was sent since an instant, and whether it is more than chance.

        As a log-likelihood, whichever kind of limit was likely before.
        """
        return self._bank.explains(since, now)


class _Glance(HiddenLimits):
    """A copy that only answers: it judges no trial, and nobody is held back by what it says."""

    def __init__(self, of: HiddenLimits) -> None:
        vars(self).update(vars(of))
        self._bank = of._bank.glance()  # noqa: SLF001  its own kind

    def _judge_trial(self, now: float) -> None:
        pass


def _is_cap(limit: HiddenLimit | None) -> bool:
    """Whether it counts attempts in flight."""
    return limit is not None and limit.window_s is None


def _reached_at(opens: Sequence[tuple[float, float]], share: float) -> float:
    """The instant at which hypotheses of so much weight let an attempt pass."""
    so_far = 0.0
    for at, weight in opens:
        so_far += weight
        if so_far >= share - 1e-9:
            return at
    return _NEVER


def _units(demand: Demand) -> tuple[float, ...]:
    return (1.0, float(demand.input_tokens), float(demand.total_tokens))
