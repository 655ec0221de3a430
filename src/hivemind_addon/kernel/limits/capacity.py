"""What one pool may send: its attempts in flight, and what they have taught of the provider's limits.

    a head that came       teaches the meters, the long windows, and an account block's probe
    an attempt that ended  teaches the meters, the service time, the slots, the hidden limits, the breaker, the block

Each of these rooms decides on its own what it makes of it. Here they hear of the same attempts in the same order, and
what changed is told. Who waits, and who goes next, is not known here.

**The long windows** of a subscription (five hours, a week) are kept as the provider last told them. They are shown and
never paced by: how much a request takes of them is nobody's knowledge but the provider's, and what
is left of a week is for people to share out. A window that is spent shows as an account block (`breaker.py`).
"""

import math
import random
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

from hivemind_addon.kernel.inference.hidden_limits import NO_CAP, HiddenLimits
from hivemind_addon.kernel.inference.hypotheses import OF_OVERLOADS, OF_THROTTLES
from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.breaker import AccountBlock, Breaker, BreakerSettings
from hivemind_addon.kernel.limits.learned import LearnedPool
from hivemind_addon.kernel.limits.meters import FAILURES, Meters, ServiceTime, dominant_s, reading_s
from hivemind_addon.kernel.limits.refused_requests import RefusedRequests
from hivemind_addon.kernel.limits.sharing import Sharing
from hivemind_addon.kernel.limits.stated_limits import StatedLimit
from hivemind_addon.kernel.order.lanes import InFlight, QueueEntry
from hivemind_addon.kernel.overrides import Overrides
from hivemind_addon.kernel.retry import sane_retry_after_s
from hivemind_addon.kernel.values.events import (
    HIDDEN_LIMIT,
    AccountBlocked,
    AccountUnblocked,
    BreakerChanged,
    ConcurrencyChanged,
    Event,
    MaximumReached,
    MeterLearned,
    PoolBlocked,
    WindowUsed,
)
from hivemind_addon.kernel.values.snapshot import BreakerState, MeterView, WindowView
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    Demand,
    Dimension,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Ticket,
    WindowReading,
)

_LEAST_AFTER_OUTAGE = 2
_PROOF_S = 0.05
"""A limiter's refusal takes about so long."""
_CROWDED_S = 5.0
"""Where others may use the rest of a limit, no slot more is tried for so long after a refusal."""


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    """Where the concurrency limit starts and how far it may move."""

    initial: int = 4
    """With nothing known about the provider."""
    maximum: int = 4096
    """However much the provider takes; a third of the open files that the proxy may have is never exceeded."""
    maximum_from: str = "concurrency.maximum"
    """The setting that the maximum comes from, for people who want to raise it. Not written in files."""


class Slots:
    """How many attempts may be in flight while nothing is known against it: one more after the other.

    An attempt that fills all slots proves the last one when it was not refused for as long as a refusal takes: then
    there is one slot more. What the provider refuses is not known here; `hidden_limits.py` finds out what that means.
    """

    def __init__(self, settings: ConcurrencySettings) -> None:
        self._settings = settings
        self.maximum, self.maximum_from = max(1, settings.maximum), settings.maximum_from
        self.limit = _first_limit(settings)
        """Attempts that may be in flight; at least 1."""
        self._filled_at: float | None = None
        """When the last slot was first used."""
        self._crowded_until = -_NEVER

    def __repr__(self) -> str:
        return f"<Slots {self.limit}>"

    def sent(self, in_flight: int, now: float) -> None:
        """An attempt was admitted; `in_flight` counts it."""
        if in_flight > self.limit:
            # The last slot is proved: nothing was refused for a while.
            self.limit, self._filled_at = min(in_flight, self.maximum), None
        if in_flight == self.limit and self._filled_at is None:
            self._filled_at = now

    def passed(self, in_flight: int, now: float) -> None:
        """The provider took an attempt that had so many in flight at its admission, itself counted."""
        if in_flight >= self.limit and now >= self._crowded_until:
            self._grow()

    def crowded(self, in_flight: int, now: float) -> None:
        """The provider refused the last of so many, and how many others have in flight is not known.

        For a while there are fewer slots, and no limit is learned from it.
        """
        self.limit = max(1, min(self.limit, in_flight - 1))
        self._filled_at, self._crowded_until = None, now + _CROWDED_S

    def opens_at(self, in_flight: int, now: float) -> float:
        """When one more attempt may go; infinite: when another one ends."""
        if in_flight < self.limit:
            return now
        if in_flight > self.limit or self._filled_at is None or self.limit == self.maximum:
            return _NEVER
        return max(now, self._filled_at + _PROOF_S, self._crowded_until)

    def configure(self, settings: ConcurrencySettings) -> None:
        """Begin anew where nothing was proved yet; else keep the limit, within the new maximum."""
        is_new = self.limit == _first_limit(self._settings)
        self._settings = settings
        self.maximum, self.maximum_from = max(1, settings.maximum), settings.maximum_from
        before, self.limit = self.limit, _first_limit(settings) if is_new else min(self.limit, self.maximum)
        if self.limit != before:
            self._filled_at = None

    def recover(self, in_flight: int, now: float) -> None:
        """The provider is back after an outage: half of what it took before, and from there on as ever.

        What is in flight has outlived the outage: it keeps nobody waiting.
        """
        self.limit = min(self.limit, max(_LEAST_AFTER_OUTAGE, self.limit // 2, in_flight))
        self._filled_at = now if in_flight == self.limit else None

    def rest(self) -> None:
        """Much time has passed: start as at first."""
        self.limit = min(self.limit, max(1, self._settings.initial))
        self._filled_at = None

    def _grow(self) -> None:
        self.limit = min(self.limit + 1, self.maximum)
        self._filled_at = None


def _first_limit(settings: ConcurrencySettings) -> int:
    return max(1, min(settings.initial, settings.maximum))


_STEPS = 10
"""A window is told anew with each further tenth of it that is used."""
_MOST = 32
"""A provider has a handful."""


@dataclass(frozen=True, slots=True)
class _Told:
    reading: WindowReading
    resets_at: float | None


class Windows:
    """One pool's long windows, by name."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def __repr__(self) -> str:
        return f"<Windows {', '.join(self._told)}>"

    def learn(self, reading: WindowReading, now: float) -> bool:
        """Remember what one response said. True: people should hear of it."""
        known = self._told.get(reading.window)
        if known is None and len(self._told) >= _MOST:
            return False
        resets_at = None if reading.resets_in_s is None else now + reading.resets_in_s
        self._told[reading.window] = _Told(reading, resets_at)
        return known is None or _step(known.reading) != _step(reading) or known.reading.status != reading.status

    def views(self, now: float) -> tuple[WindowView, ...]:
        """The windows at one instant; one that has begun anew since it was told is not known any more."""
        return tuple(
            WindowView(
                name=name,
                used=told.reading.used,
                status=told.reading.status,
                resets_in_s=None if told.resets_at is None else told.resets_at - now,
                length_s=told.reading.length_s,
            )
            for name, told in self._told.items()
            if told.resets_at is None or told.resets_at > now
        )


def _step(reading: WindowReading) -> int | None:
    used = reading.used
    return None if used is None or not math.isfinite(used) else math.floor(used * _STEPS)


_NEVER = float("inf")
_EXPLAINED_OVER = 30.0
_MOST_EXPLAINED = 0.1
"""Somebody else on the key explains some refusals that meters explain too late; more are a limit that they do not tell
of."""
_FIRST_TRIAL_S = 5.0
"""After a rate limit's refusal no meter is doubted for so long; doubles with each that follows before one passes."""
_MOST_TRIAL_S = 300.0
_SURE_SERVICES = 1.5
"""In so many mean times an answer comes, mostly."""


class Capacity:
    """Only its pool changes it; whoever asks may look at its rooms.

    Each attempt is reserved, may be heard of, and is settled, once; after that `learn` from its end.
    """

    def __init__(
        self,
        *,
        key: PoolKey,
        concurrency: ConcurrencySettings,
        breaker: BreakerSettings,
        overrides: Overrides,
        rng: random.Random,
        emit: Callable[[Event], None],
        sharing: Sharing,
    ) -> None:
        """`sharing`: of the pools of the same account."""
        self.key = key
        """The pool's, as events name it."""
        self.bypassing = 0
        """Attempts upstream that nobody admitted."""
        self.flights = InFlight()
        self.service = ServiceTime()
        self.sharing = sharing
        self.meters = Meters(self.sharing.meters, self.flights, model_group=key.model_group)
        self.slots = Slots(concurrency)
        self.breaker = Breaker(breaker, rng=rng)
        self.throttles = HiddenLimits(OF_THROTTLES)
        """What rate limits' refusals teach beyond headers: of its own attempts; the account's learn beside it."""
        self.overloads = HiddenLimits(OF_OVERLOADS)
        """What overload teaches."""
        self.hidden = (self.throttles, self.overloads)
        """Both estimators of what no header tells that count: the pool's own, or the account's."""
        self.refused = RefusedRequests()
        """Those that a limit seems to have refused, whichever it was."""
        self.stated: tuple[StatedLimit, ...] = ()
        """What the profile states; the account counts it."""
        self.account_block = AccountBlock()
        self.windows = Windows()
        self._overrides = overrides
        self.paused = overrides.is_paused(key)
        """By a person."""
        self.cap = overrides.cap_of(key)
        """The most that a person lets the concurrency limit be."""
        self._emit = emit
        self._told_maximum = False
        """It is in the log that the maximum keeps attempts from going."""
        self.trial_at = -_NEVER
        """From when on one attempt may go alone that meters hold back for what they only assume."""
        self._trial_after_s = _FIRST_TRIAL_S
        self._explained = 0.0
        """Share of the attempts that were refused although the meters had let them go, and then knew why."""
        self.sharing.join(self)

    def __repr__(self) -> str:
        return f"<Capacity {self.in_flight}/{self.limit} in flight, {self.meters!r}>"

    @property
    def in_flight(self) -> int:
        """Attempts upstream, bypassing ones counted."""
        return len(self.flights.by_ticket) + self.bypassing

    def choose_hidden(self) -> None:
        """What is known of whose limits the hidden ones are may have changed."""
        sharing = self.sharing
        self.hidden = (
            sharing.throttles if sharing.has_one_rate else self.throttles,
            sharing.overloads if sharing.has_one_cap else self.overloads,
        )

    @property
    def limit(self) -> int:
        """The concurrency limit: what was learned, or less where a person said so."""
        throttles, overloads = self.hidden
        least = self.slots.limit
        if throttles.most_in_flight < least:
            least = throttles.most_in_flight
        if overloads.most_in_flight < least:
            least = overloads.most_in_flight
        return least if self.cap is None or self.cap > least else self.cap

    @property
    def maximum_from(self) -> str:
        """The setting of ours that keeps one more attempt from going; empty: there are slots, or the limit is another.

        That one was learned, is still growing, or a person capped it.
        """
        if self.in_flight < self.limit or self.limit < self.slots.maximum:
            return ""
        is_learned = min(hidden.most_in_flight for hidden in self.hidden) <= self.slots.maximum
        return "" if is_learned else self.slots.maximum_from

    def glance(self, now: float) -> "Capacity":
        """One to ask for a view: whatever is asked of it, nothing changes by it."""
        seen = copy(self)
        throttles, overloads = self.hidden
        seen.meters, seen.hidden = self.meters.as_of(now), (throttles.glance(), overloads.glance())
        return seen

    @property
    def growth(self) -> tuple[float, int]:
        """Slots that an attempt adds that passes where all are used, and the limit up to which it does."""
        throttles, overloads = self.hidden
        known = min(throttles.most_in_flight, overloads.most_in_flight)
        most = self.slots.maximum if known == NO_CAP else known
        return 1.0, most if self.cap is None else min(most, self.cap)

    @property
    def is_rate_hidden(self) -> bool:
        """Whether refusals tell of a rate limit that no header tells of."""
        throttles, overloads = self.hidden
        return throttles.is_of_a_rate or overloads.is_of_a_rate

    def is_near(self, demand: Demand, times: int, now: float) -> bool:
        """Whether less is left than so many times a demand, or what is left is only guessed."""
        if self.is_rate_hidden:
            return True
        return bool(self.meters.by_name) and self.meters.is_near(demand, times, now)

    @property
    def is_free(self) -> bool:
        """Whether nothing is known that may keep an attempt from going now, meters apart."""
        throttles, overloads = self.hidden
        in_flight = len(self.flights.by_ticket) + self.bypassing
        return not (
            self.paused
            or self.breaker.state is not BreakerState.CLOSED
            or self.account_block.closure is not None
            or in_flight >= self.slots.limit
            or (self.cap is not None and in_flight >= self.cap)
            or throttles.has_refused
            or overloads.has_refused
            or self.sharing.stated.limits
        )

    @property
    def is_full(self) -> bool:
        """Whether as many attempts are in flight as are known to be taken; what was learned may count all pools'."""
        if self.in_flight >= self.limit:
            return True
        common = self.sharing.overloads.limit if self.sharing.has_one_cap else None
        return common is not None and self.sharing.in_flight >= common.amount

    def slot_at(self, now: float) -> float:
        """When there is a slot for one more attempt; infinite: when another one ends, or a person says so."""
        if self.cap is not None and self.in_flight >= self.cap:
            return _NEVER
        return self.slots.opens_at(self.in_flight, now)

    def throttled_until(self, demand: Demand, now: float) -> float:
        """When what rate limits' refusals taught lets an attempt pass; infinite: when another one ends."""
        throttles = self.hidden[0]
        if not throttles.has_refused:
            return now
        return throttles.opens_at(demand, (self.sharing if self.sharing.has_one_rate else self).in_flight, now)

    def overloaded_until(self, demand: Demand, now: float) -> float:
        """The same of what overload taught."""
        overloads = self.hidden[1]
        if not overloads.has_refused:
            return now
        return overloads.opens_at(demand, (self.sharing if self.sharing.has_one_cap else self).in_flight, now)

    def is_probe(self, demand: Demand, now: float) -> bool:
        """Whether an attempt that goes now may be refused, for all that rate limits' refusals have taught."""
        in_flight = (self.sharing if self.sharing.has_one_rate else self).in_flight
        return self.hidden[0].may_refuse(demand, in_flight, now)

    def state(self, limits: Sequence[StatedLimit]) -> None:
        """What the profile states of the account's limits; what was stated before is over."""
        self.stated = tuple(limits)
        if limits or self.sharing.stated.limits:
            self.sharing.stated.state(limits)

    def stated_until(self, ticket: Ticket, now: float) -> float:
        """When what the profile states lets an attempt pass."""
        stated = self.sharing.stated
        return stated.opens_at(ticket, self.key.model_group, now) if stated.limits else now

    def stated_views(self, now: float) -> tuple[MeterView, ...]:
        """What the profile states, at one instant."""
        sharing = self.sharing
        if not sharing.stated.limits:
            return ()
        return sharing.stated.views(self.key.model_group, [one.key.model_group for one in sharing.members], now)

    @property
    def is_provider_down(self) -> bool:
        """Whether only probes go."""
        return self.breaker.state is not BreakerState.CLOSED

    def believes_told(self, kind: OutcomeKind, demand: Demand) -> bool:
        """Whether an attempt that ended so may be told truly when to come back, for all that others have met."""
        throttles, overloads = self.hidden
        if kind is OutcomeKind.THROTTLED:
            return throttles.believes_told(demand)
        return kind is not OutcomeKind.OVERLOADED or overloads.believes_told(demand)

    def hopeless_at(self, ticket: Ticket) -> float:
        """From when on no answer would come in time; what its own `shed_at` says where nothing was measured yet."""
        if not self.service.is_known:
            return ticket.shed_at
        return ticket.deadline_at - _SURE_SERVICES * self.service.mean_s

    # In seconds of the bottleneck ------------------------------------------------------------------------------------

    def cost_s(self, demand: Demand) -> float:
        """What an attempt is expected to take."""
        cost_s = dominant_s(demand, self.meters.by_name.values(), service_s=self.service.mean_s, slots=self.limit)
        return self._longest_s(cost_s, demand)

    def _longest_s(self, cost_s: float, demand: Demand, ticket: Ticket | None = None) -> float:
        """What a demand takes, or so many seconds of it that refusals taught or the profile states, if that is more."""
        throttles, overloads = self.hidden
        if throttles.has_refused or overloads.has_refused:
            cost_s = max(cost_s, throttles.cost_s(demand), overloads.cost_s(demand))
        stated = self.sharing.stated
        return max(cost_s, stated.cost_s(self.key.model_group, ticket)) if stated.limits else cost_s

    def saved_s(self, tokens: int) -> float:
        """What so many warm tokens save."""
        return reading_s(tokens, self.meters)

    def _took_s(self, attempt: Attempt, result: AttemptResult, now: float) -> float:
        """What an attempt took."""
        took = result.charged
        if took is None:
            took = Demand(requests=0) if result.outcome.kind in FAILURES else attempt.demand
        held_s = now - attempt.admitted_at
        cost_s = dominant_s(took, self.meters.by_name.values(), service_s=held_s, slots=self.limit)
        return self._longest_s(cost_s, took, attempt.ticket) if took.requests else cost_s

    # An attempt's way ------------------------------------------------------------------------------------------------

    def reserve(self, entry: QueueEntry, demand: Demand, now: float) -> Attempt:
        """A ticket's next attempt goes: all limits count it. While the provider is down it is the probe."""
        ticket, sharing = entry.ticket, self.sharing
        stamp, in_flight = sharing.next_stamp(), len(self.flights.by_ticket) + self.bypassing + 1
        attempt = entry.attempt = Attempt(
            ticket=ticket,
            number=entry.history.attempts,
            admitted_at=now,
            demand=demand,
            stamp=stamp,
            in_flight=in_flight,
            is_probe=self.breaker.state is not BreakerState.CLOSED,
        )
        self.meters.reserve(demand, stamp=stamp, now=now)
        if sharing.stated.limits:
            sharing.stated.sent(ticket, self.key.model_group, now)
        self.account_block.sent(ticket.id)
        self.slots.sent(in_flight, now)
        self.throttles.sent(stamp, demand, in_flight, now)
        self.overloads.sent(stamp, demand, in_flight, now)
        self.flights.add(entry)
        if len(sharing.members) > 1:
            sharing.sent(attempt, now)
        if attempt.is_probe:
            before = self.breaker.state
            self.breaker.probe_started(ticket.session, now)
            self._tell_breaker(before, "probe sent", now)
        return attempt

    def take_over(self, entry: QueueEntry, now: float, *, is_elsewhere: bool = False) -> None:
        """An attempt in flight was sent by another pool, which proved to be this one: meters and slots count it.

        It teaches no hidden limit, and is no probe: these have not seen it go. `is_elsewhere`: another process sent it.
        """
        assert entry.attempt is not None
        entry.attempt.stamp, entry.attempt.is_probe = self.sharing.next_stamp(), False
        self.flights.add(entry)
        self.meters.adopt(entry.attempt, now, is_elsewhere=is_elsewhere)

    def take_in_flight(self, entry: QueueEntry, demand: Demand, admitted_at: float, now: float) -> Attempt:
        """An attempt was sent by another process: it takes a slot, and more than there were if need be.

        That one was sure of so many, or had it wait.
        """
        attempt = entry.attempt = Attempt(
            ticket=entry.ticket,
            number=entry.history.attempts,
            admitted_at=admitted_at,
            demand=demand,
            in_flight=self.in_flight + 1,
        )
        self.take_over(entry, now, is_elsewhere=True)
        self.slots.sent(attempt.in_flight, now)
        return attempt

    def hear(self, hints: Hints, attempt: Attempt, now: float, *, answered: bool) -> None:
        """The head of an attempt's response arrived; `answered`: it is no refusal."""
        if hints.windows:
            self._note_windows(hints, now)
        if answered:
            if self.account_block.closure is not None:
                self._pass_account_block(attempt.ticket.id, now)
            self._passed(attempt, now)
        for reading in hints.readings:
            if meter := self.meters.learn(reading, attempt, self.flights, now, answered=answered):
                self._tell_learned(
                    meter.name, meter.kind.value, meter.limit, now, window_s=meter.window_s, dimension=meter.dimension
                )

    def settle(self, attempt: Attempt, result: AttemptResult, now: float) -> float:
        """An attempt is over: what was reserved becomes what is charged. Seconds of the bottleneck that it took."""
        self.flights.remove(attempt)
        self.meters.settle(attempt, result.charged, result.outcome, stamp=self.sharing.next_stamp(), now=now)
        if result.outcome.kind is OutcomeKind.SUCCESS:
            self.service.succeeded(max(0.0, now - attempt.admitted_at))
        return self._took_s(attempt, result, now)

    def _passed(self, attempt: Attempt, now: float) -> None:
        """The provider has taken an attempt."""
        limit, stamp = self.limit, attempt.stamp
        self.refused.passed(attempt)
        self.slots.passed(attempt.in_flight, now)
        self.throttles.passed(stamp, now)
        self.overloads.passed(stamp, now)
        if self.sharing.throttles.open:  # most accounts have one pool, and hear of nothing
            self.sharing.passed(attempt, now)
        before = self.breaker.state
        if self.breaker.answered(admitted_at=attempt.admitted_at):
            self._closed(before, "it answers", now)
        if self.limit != limit:
            self._tell_limit("it takes more", now)

    def learn(self, attempt: Attempt, result: AttemptResult, now: float) -> None:
        """Slots, hidden limits, breaker and account block learn from an attempt's end."""
        outcome = result.outcome
        limit = self.limit
        throttles, overloads = self.hidden
        known = throttles.known, overloads.known
        if outcome.kind is OutcomeKind.SUCCESS:
            self._succeeded(attempt, result, now)
        else:
            self._judge(attempt, result, now)
            self._judge_breaker(attempt, outcome, now)
        if self.limit != limit:
            self._tell_limit(outcome.reason, now)
        self._tell_hidden(known, now)
        if self.account_block.closure is not None or outcome.account_block_s is not None:
            self._judge_account_block(attempt.ticket.id, outcome, now)

    def _succeeded(self, attempt: Attempt, result: AttemptResult, now: float) -> None:
        self._explained -= self._explained / _EXPLAINED_OVER
        self._trial_after_s = _FIRST_TRIAL_S
        self._passed(attempt, now)
        self.throttles.ended(attempt.stamp, now, charged=result.charged)
        self.overloads.ended(attempt.stamp, now)
        if self.sharing.throttles.open:
            self.sharing.ended(attempt, result.charged, now)
        if len(self.sharing.members) > 1:
            self.sharing.judge(self, result.outcome, now)
        self.breaker.answered(admitted_at=attempt.admitted_at)  # and its end is one more sign of life

    def _judge(self, attempt: Attempt, result: AttemptResult, now: float) -> None:
        """It did not succeed."""
        outcome, charged = result.outcome, result.charged
        throttled = outcome.kind is OutcomeKind.THROTTLED
        explained = throttled and self.meters.explain(attempt.demand, now)
        self._explained += (explained - self._explained) / _EXPLAINED_OVER
        explained = (explained and self._explained < _MOST_EXPLAINED) or (throttled and result.by_others)
        overloaded = outcome.kind is OutcomeKind.OVERLOADED and outcome.status is not None
        if overloaded and result.by_others:
            self.slots.crowded(attempt.in_flight, now)
            overloaded = False
        tells, told_nothing = self.refused.refused(attempt) if throttled and not explained else (True, ())
        is_its_own = not tells
        if told_nothing:
            for hidden in (self.throttles, self.sharing.throttles):
                hidden.take_back(told_nothing, now)
        if throttled and not result.by_others and not is_its_own:
            self.trial_at = now + self._trial_after_s
            self._trial_after_s = min(2 * self._trial_after_s, _MOST_TRIAL_S)
        explained = explained or is_its_own
        if overloaded and not self.is_provider_down:
            self._refuse((self.overloads, self.sharing.overloads), attempt, outcome, now)
        elif throttled and not explained:
            closed_until = self.hidden[0].closed_until
            self._refuse((self.throttles, self.sharing.throttles), attempt, outcome, now)
            until = self.hidden[0].closed_until
            if until > max(now, closed_until):
                self._emit(PoolBlocked(at=now, pool=self.key, until=until, reason=outcome.reason))
        # One that was cut off without a word may have been counted though errors are not.
        is_failed = outcome.kind is OutcomeKind.FAILED and outcome.status is not None
        for throttles in (self.throttles, self.sharing.throttles):
            was_taken = not (overloaded or explained)
            throttles.ended(attempt.stamp, now, charged=charged, was_taken=was_taken, is_failed=is_failed)
        for overloads in (self.overloads, self.sharing.overloads):
            overloads.ended(attempt.stamp, now, was_taken=not throttled)
        self.sharing.judge(self, outcome, now)

    def _refuse(self, by: tuple[HiddenLimits, ...], attempt: Attempt, outcome: Outcome, now: float) -> None:
        for hidden in by:
            hidden.refused(attempt.stamp, sane_retry_after_s(outcome.retry_after_s), now)

    def _judge_breaker(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        before = self.breaker.state
        changed = self.breaker.attempt_ended(
            outcome.kind,
            session=attempt.ticket.session,
            probe=attempt.is_probe,
            admitted_at=attempt.admitted_at,
            now=now,
            unreached=outcome.unreached,
            pending=(other.admitted_at for other in self.flights.attempts),
        )
        if changed and self.is_provider_down:
            if before is BreakerState.CLOSED:
                # What an outage refuses tells of no limit.
                for hidden in (self.throttles, self.overloads):
                    hidden.forget_since(self.breaker.row_since, now)
                self.sharing.forget_since(self.breaker.row_since, now)
            self._tell_breaker(before, outcome.reason, now)
        elif changed:
            self._closed(before, outcome.reason, now)

    def look_at_probe(self, now: float) -> None:
        """A probe that has lived for long shows that the provider is back."""
        before = self.breaker.state
        if before is BreakerState.HALF_OPEN and self.breaker.look_at_probe(now):
            self._closed(before, "the probe is being answered", now)

    def _closed(self, before: BreakerState, reason: str, now: float) -> None:
        """The provider is back."""
        self.slots.recover(len(self.flights), now)
        self._tell_breaker(before, reason, now)

    def _judge_account_block(self, ticket_id: str, outcome: Outcome, now: float) -> None:
        """An attempt's end may be an account block, or end one."""
        if outcome.kind is OutcomeKind.SUCCESS:
            self._pass_account_block(ticket_id, now)
        if outcome.account_block_s is not None and self.account_block.hit(outcome.reason, outcome.account_block_s, now):
            closure = self.account_block.stands(now)
            until = now if closure is None else closure.until
            self._emit(AccountBlocked(at=now, pool=self.key, until=until, reason=outcome.reason))
        self.account_block.ended(ticket_id)

    def _pass_account_block(self, ticket_id: str, now: float) -> None:
        if self.account_block.answered(ticket_id):
            self._emit(AccountUnblocked(at=now, pool=self.key))

    def lift_block(self, now: float) -> bool:
        """A person says that the account is served again. True: it was refused."""
        if was_blocked := self.account_block.lift():
            self._emit(AccountUnblocked(at=now, pool=self.key))
        return was_blocked

    def _note_windows(self, hints: Hints, now: float) -> None:
        for reading in hints.windows:
            if self.windows.learn(reading, now):
                self._emit(
                    WindowUsed(
                        at=now,
                        pool=self.key,
                        window=reading.window,
                        used=reading.used,
                        status=reading.status,
                        resets_in_s=reading.resets_in_s,
                    )
                )

    # What happens to all of it at once -------------------------------------------------------------------------------

    def configure(self, concurrency: ConcurrencySettings, breaker: BreakerSettings, now: float) -> None:
        """The profile was changed."""
        limit, self._told_maximum = self.limit, False
        self.slots.configure(concurrency)
        self.breaker.configure(breaker, now)
        if self.limit != limit:
            self._tell_limit("the profile says so", now)

    def apply_overrides(self, now: float) -> None:
        """They have changed."""
        limit = self.limit
        self.paused = self._overrides.is_paused(self.key)
        self.cap = self._overrides.cap_of(self.key)
        if self.limit != limit:
            self._tell_limit("a person said so", now)

    def wake_up(self) -> None:
        """The machine has slept: who uses the provider now, nobody knows."""
        self.slots.rest()

    @property
    def learned(self) -> LearnedPool:
        """What outlives a run."""
        throttles, overloads = self.hidden
        return LearnedPool(
            host=self.key.host,
            account=self.key.account,
            model_group=self.key.model_group,
            throttles=throttles.limit,
            overloads=overloads.limit,
            meters=self.meters.learned,
            common=self.sharing.in_common,
        )

    def learn_from(self, learned: LearnedPool, now: float) -> None:
        """Another pool, which proved to be this one, has learned this: it counts where nothing is known here."""
        for hidden, limit in ((self.throttles, learned.throttles), (self.overloads, learned.overloads)):
            if hidden.limit is None:
                hidden.resume(limit, now)
        self.meters.resume(
            (meter for meter in learned.meters if self.meters.own(meter.name) is None), self.flights, now
        )

    def resume(self, learned: LearnedPool, now: float) -> None:
        """Begin with what an earlier run has learned, before the first attempt."""
        self.throttles.resume(learned.throttles, now)
        self.overloads.resume(learned.overloads, now)
        self.sharing.resume(learned, now)
        self.meters.resume(learned.meters, self.flights, now)
        self.meters.doubt_levels(now)

    def move(self, sharing: Sharing | None) -> None:
        """Its account proved to be another one; None: the pool is no more."""
        self.sharing.leave(self)
        if sharing is None:
            self.meters.move(None, self.flights)
        else:
            self.sharing = sharing
            self.meters.move(sharing.meters, self.flights)
            sharing.join(self)
            self.state(self.stated)

    # What is told ----------------------------------------------------------------------------------------------------

    def _tell_learned(
        self,
        meter: str,
        kind: str,
        limit: float,
        now: float,
        *,
        window_s: float,
        dimension: Dimension = Dimension.REQUESTS,
    ) -> None:
        self._emit(
            MeterLearned(
                at=now, pool=self.key, meter=meter, kind=kind, limit=limit, window_s=window_s, dimension=dimension
            )
        )

    def _tell_hidden(self, known: tuple[HiddenLimit | None, HiddenLimit | None], now: float) -> None:
        """What is known beside what was `known` before."""
        throttles, overloads = self.hidden
        if throttles.known is known[0] and overloads.known is known[1]:
            return
        for before, limit in zip(known, (throttles.known, overloads.known), strict=True):
            if limit is before or limit is None or limit.window_s is None or (before and before.is_like(limit)):
                continue
            self._tell_learned(
                HIDDEN_LIMIT, limit.kind, limit.amount, now, window_s=limit.window_s, dimension=limit.dimension
            )

    def _tell_limit(self, reason: str, now: float) -> None:
        self._emit(ConcurrencyChanged(at=now, pool=self.key, limit=self.limit, reason=reason))

    def tell_maximum(self, now: float) -> None:
        """A ticket waits for a slot: say once that only a setting of ours is in its way, where that is so.

        Before any attempt was answered nobody knows what the provider takes.
        """
        if not self._told_maximum and self.service.is_known and (setting := self.maximum_from):
            self._told_maximum = True
            self._emit(MaximumReached(at=now, pool=self.key, limit=self.limit, maximum_from=setting))

    def _tell_breaker(self, before: BreakerState, reason: str, now: float) -> None:
        state = self.breaker.state.value
        self._emit(BreakerChanged(at=now, pool=self.key, state=state, reason=reason, before=before.value))
