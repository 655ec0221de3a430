"""The capacity of one pool: its attempts in flight, and the provider's limits as the attempts have shown them.

    a response's head      teaches the meters, the long windows, the probe of an account block
    an attempt's end       teaches the meters, the service time, the slots, the hidden limits, the breaker, the block

Each of these models decides alone. The capacity passes the attempts to them in order, and emits events about changes.
The queue and the next ticket are unknown here.

**The long windows** of a subscription (five hours, a week) are stored as the provider last reported them. They are
shown and never paced by: only the provider knows how much of a window a request takes, and people share out the rest of
a week. A spent window appears as an account block (`account_block.py`).
"""

import math
import random
from collections.abc import Callable, Sequence
from copy import copy

from hivemind_addon.kernel.inference.hidden_limits import HiddenLimits
from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.account_block import AccountBlock
from hivemind_addon.kernel.limits.breaker import Breaker, BreakerSettings
from hivemind_addon.kernel.limits.learned import LearnedPool
from hivemind_addon.kernel.limits.meter import Meter
from hivemind_addon.kernel.limits.meters import FAILURES, Meters, ServiceTime, dominant_s, reading_s
from hivemind_addon.kernel.limits.owner import Owner, owner_of, plan_wait_s
from hivemind_addon.kernel.limits.refused_requests import RefusedRequests
from hivemind_addon.kernel.limits.sharing import EndedAttempt, Share, Sharing
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.limits.stated_limits import StatedLimit
from hivemind_addon.kernel.order.entry import InFlight, QueueEntry
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
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Ticket,
    WindowReading,
)

_STEPS = 10
"""Each further tenth of a window is an event."""
_MOST = 32
"""The most windows to store; a provider has a handful."""


class Windows:
    """The long windows of one pool, by name."""

    def __init__(self) -> None:
        self._readings: dict[str, tuple[WindowReading, float | None]] = {}
        """By name, the last reading and the instant of the reset."""

    def learn(self, reading: WindowReading, now: float) -> bool:
        """Store a reading. Returns whether the change is worth an event."""
        known, _ = self._readings.get(reading.window, (None, None))
        if known is None and len(self._readings) >= _MOST:
            return False
        resets_at = None if reading.resets_in_s is None else now + reading.resets_in_s
        self._readings[reading.window] = reading, resets_at
        return known is None or _step(known) != _step(reading) or known.status != reading.status

    def views(self, now: float) -> tuple[WindowView, ...]:
        """The windows at one instant, without those that have been reset since the reading."""
        return tuple(
            WindowView(name, reading.used, reading.status, None if at is None else at - now, reading.length_s)
            for name, (reading, at) in self._readings.items()
            if at is None or at > now
        )


def _step(reading: WindowReading) -> int | None:
    used = reading.used
    return None if used is None or not math.isfinite(used) else math.floor(used * _STEPS)


_NEVER = float("inf")
_EXPLAINED_OVER = 30.0
_MOST_EXPLAINED = 0.1
"""Other users of the key explain some refusals that meters explain afterwards; a larger share shows a hidden limit."""
_FEW_REFUSED = 0.05
"""Headers overrule an inferred window while a smaller share of the attempts that the meters admit is refused."""
_SURE_SERVICES = 1.5
"""Most answers come within this many mean service times."""


class Capacity:
    """Changed by the pool only; others may read the parts.

    Each attempt is reserved, may be heard, and is settled, once; then `learn` from the end.
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
        infers: bool = True,
    ) -> None:
        """`sharing`: shared by the pools of the account. `infers`: see PoolSettings."""
        self.key = key
        """The pool's key in events."""
        self._bypassing, self._infers = 0, infers
        self.flights = InFlight()
        self.service = ServiceTime()
        self.sharing = sharing
        self._concurrency = concurrency
        self.meters = Meters(self.sharing.meters, self.flights, model_group=key.model_group)
        self.breaker = Breaker(breaker, rng=rng)
        self.refused = RefusedRequests()
        """The requests refused for a limit."""
        self.overloaded = RefusedRequests()
        """The requests refused for an overload."""
        self.lack_ends = False
        """Whether the answers to a request lacked their last event each time, and no stream has had it since."""
        self.stated: tuple[StatedLimit, ...] = ()
        """The limits that the profile states; the account counts them."""
        self.account_block = AccountBlock()
        self.windows = Windows()
        self._overrides = overrides
        self.paused = overrides.is_paused(key)
        """Whether a person paused the pool."""
        self.cap = overrides.cap_of(key)
        """A person's cap of the concurrency limit."""
        self._emit = emit
        self._told_maximum = False
        """Whether `MaximumReached` was emitted."""
        self._tested_at = 0.0
        """`tested_at` of the earlier run."""
        self._explained = 0.0
        """The share of attempts that were refused although the meters admitted them, and then explained the refusal."""
        self._refused = 0.0
        """The share of attempts that a rate limit refused although the meters admitted them."""
        self._draw_on(sharing.join(self, concurrency))

    def __repr__(self) -> str:
        return f"<Capacity {self.in_flight}/{self.limit} in flight, {self.meters!r}>"

    @property
    def in_flight(self) -> int:
        """Attempts in flight, bypassing attempts included."""
        return len(self.flights.by_ticket) + self._bypassing

    @property
    def taken(self) -> int:
        """Attempts that take slots: the account's; on a machine that holds several models, those of this model."""
        machine = self.sharing.machine
        return self.in_flight if machine is not None and machine.has_slots_each else self.share.in_flight

    @property
    def bypassing(self) -> int:
        """Attempts in flight that bypass the scheduler."""
        return self._bypassing

    @bypassing.setter
    def bypassing(self, bypassing: int) -> None:
        self.share.in_flight += bypassing - self._bypassing
        self._bypassing = bypassing

    def _draw_on(self, share: Share) -> None:
        self.share = share
        """The limits by refusals: of the account, or of this pool only."""
        self.slots, self.throttles, self.overloads = share.slots, share.throttles, share.overloads

    @property
    def hidden(self) -> tuple[HiddenLimits, HiddenLimits]:
        """The limits inferred from rate limits' refusals and from overloads."""
        return self.throttles, self.overloads

    @property
    def limit(self) -> int:
        """The concurrency limit: as learned, or a person's lower cap."""
        least = min(self.slots.limit, self.throttles.most_in_flight, self.overloads.most_in_flight)
        return least if self.cap is None else min(least, self.cap)

    @property
    def maximum_from(self) -> str:
        """The setting of ours that keeps a further attempt from going; empty: slots are free, or another limit binds.

        Other limits are learned, still growing, or capped by a person.
        """
        if self.taken < self.limit or self.limit < self.slots.maximum:
            return ""
        is_learned = min(self.throttles.most_in_flight, self.overloads.most_in_flight) <= self.slots.maximum
        return "" if is_learned else self.slots.maximum_from

    def glance(self, now: float) -> "Capacity":
        """A copy for views: no question to the copy changes anything."""
        seen = copy(self)
        seen.meters = self.meters.as_of(now)
        seen.throttles, seen.overloads = self.throttles.glance(), self.overloads.glance()
        return seen

    @property
    def is_rate_hidden(self) -> bool:
        """Whether refusals show a rate limit that no header reports."""
        return self.throttles.is_of_a_rate or self.overloads.is_of_a_rate

    def is_near(self, demand: Demand, times: int, now: float) -> bool:
        """Whether less is left than this many times a demand, or the rest is unknown."""
        return self.is_rate_hidden or (bool(self.meters.by_name) and self.meters.is_near(demand, times, now))

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return self.free_slots <= 0

    @property
    def free_slots(self) -> int:
        """Free slots: the account's, all models counted, and those within a person's cap of this pool."""
        least = min(self.slots.limit, self.throttles.most_in_flight, self.overloads.most_in_flight) - self.taken
        return least if self.cap is None else min(least, self.cap - self.in_flight)

    def slot_at(self, now: float) -> float:
        """When there is a free slot; infinite: when an attempt ends, or a person raises the cap."""
        if self.cap is not None and self.in_flight >= self.cap:
            return _NEVER
        machine = self.sharing.machine
        opens_at = self.slots.opens_at(self.taken, now)
        return opens_at if machine is None else max(opens_at, machine.opens_at(self.flights, now))

    def announced_until(self, demand: Demand, now: float) -> float:
        """When the wait that refusals announced admits an attempt."""
        ends_at = self.share.wait.ends_at(self, self.throttles.verdict_s, now)
        if ends_at <= now or not self.believes_told(OutcomeKind.THROTTLED, demand):
            return now
        return ends_at if self.taken else min(ends_at, max(now, self.throttles.retry_afters.look_at(now)))

    def throttled_until(self, demand: Demand, now: float) -> float:
        """When the limit inferred from rate limits' refusals admits an attempt; infinite: at another attempt's end."""
        throttles = self.throttles
        if not throttles.has_refused or self.refused.are_chance:
            return now
        opens_at = throttles.opens_at(demand, self.taken, now)
        limit = throttles.limit
        if opens_at > now and limit is not None and self._refused < _FEW_REFUSED:
            return now if self.meters.contradict(limit, demand, now) else opens_at
        return opens_at

    def overloaded_until(self, demand: Demand, now: float) -> float:
        """The same for the limit inferred from overloads."""
        if not self.overloads.has_refused:
            return now
        left = self.share.left_slots
        held = left.held(now)
        opens_at = self.overloads.opens_at(demand, self.taken + held, now)
        return min(opens_at, left.opens_at(now)) if held else opens_at

    def is_probe(self, demand: Demand, now: float) -> bool:
        """Whether an attempt that goes now may be refused, by the limit inferred from rate limits' refusals."""
        return self.throttles.may_refuse(demand, self.taken, now)

    def state(self, limits: Sequence[StatedLimit]) -> None:
        """Replace the limits of the account that the profile states."""
        self.stated = tuple(limits)
        if limits or self.sharing.stated.limits:
            self.sharing.stated.state(limits)

    def stated_until(self, ticket: Ticket, now: float) -> float:
        """When the stated limits admit an attempt."""
        stated = self.sharing.stated
        return stated.opens_at(ticket, self.key.model_group, now) if stated.limits else now

    def stated_views(self, now: float) -> tuple[MeterView, ...]:
        """The stated limits at one instant."""
        sharing = self.sharing
        if not sharing.stated.limits:
            return ()
        return sharing.stated.views(self.key.model_group, [member.key.model_group for member in sharing.members], now)

    @property
    def is_provider_down(self) -> bool:
        """Whether only probes go."""
        return self.breaker.state is not BreakerState.CLOSED

    def believes_told(self, kind: OutcomeKind, demand: Demand) -> bool:
        """Whether the retry-after of an outcome of this kind is believable, by the experience with others."""
        if kind is OutcomeKind.THROTTLED:
            return not self.refused.are_chance and self.throttles.believes_told(demand)
        return kind is not OutcomeKind.OVERLOADED or self.overloads.believes_told(demand)

    def hopeless_at(self, ticket: Ticket) -> float:
        """The instant after which no answer would come in time; the ticket's `shed_at` before any measurement."""
        if not self.service.is_known:
            return ticket.shed_at
        return ticket.deadline_at - _SURE_SERVICES * self.service.mean_s

    # In seconds of the bottleneck ------------------------------------------------------------------------------------

    def cost_s(self, demand: Demand) -> float:
        """The expected cost of an attempt."""
        cost_s = dominant_s(demand, self.meters.by_name.values(), service_s=self.service.mean_s, slots=self.limit)
        return self._longest_s(cost_s, demand)

    def _longest_s(self, cost_s: float, demand: Demand, ticket: Ticket | None = None) -> float:
        """The largest of a demand's costs: `cost_s`, by the hidden limits, by the stated limits."""
        throttles, overloads = self.hidden
        if throttles.has_refused or overloads.has_refused:
            cost_s = max(cost_s, throttles.cost_s(demand), overloads.cost_s(demand))
        stated = self.sharing.stated
        return max(cost_s, stated.cost_s(self.key.model_group, ticket)) if stated.limits else cost_s

    def saved_s(self, tokens: int) -> float:
        """The seconds that this many warm tokens save."""
        return self._longest_s(reading_s(tokens, self.meters), Demand(0, input_tokens=tokens, total_tokens=tokens))

    def _took_s(self, attempt: Attempt, result: AttemptResult, now: float) -> float:
        """The actual cost of an attempt."""
        took = result.charged
        if took is None:
            took = Demand(requests=0) if result.outcome.kind in FAILURES else attempt.demand
        held_s = self._served_s(attempt, now)
        cost_s = dominant_s(took, self.meters.by_name.values(), service_s=held_s, slots=self.limit)
        return self._longest_s(cost_s, took, attempt.ticket) if took.requests else cost_s

    def _served_s(self, attempt: Attempt, now: float) -> float:
        """How long an attempt was served, a model's load apart."""
        machine = self.sharing.machine
        return now - attempt.admitted_at if machine is None else machine.served_s(self.flights, attempt, now)

    # An attempt's way ------------------------------------------------------------------------------------------------

    def reserve(self, entry: QueueEntry, demand: Demand, now: float) -> Attempt:
        """Start a ticket's next attempt: all limits count it. While the provider is down, the attempt is the probe."""
        ticket, sharing, share = entry.ticket, self.sharing, self.share
        stamp = sharing.next_stamp()
        in_flight = self.taken + 1
        share.in_flight += 1
        attempt = entry.attempt = Attempt(
            ticket=ticket,
            number=entry.history.attempts,
            admitted_at=now,
            demand=demand,
            stamp=stamp,
            in_flight=in_flight,
            own=self.in_flight + 1,
            is_probe=self.breaker.state is not BreakerState.CLOSED,
        )
        self.meters.reserve(demand, stamp=stamp, now=now)
        if sharing.stated.limits:
            sharing.stated.sent(ticket, self.key.model_group, now)
        if sharing.machine is not None:
            sharing.machine.sent(self.flights, now)
        self.account_block.sent(ticket.id)
        self.slots.sent(in_flight, now)
        self.throttles.sent(stamp, demand, in_flight, now)
        self.overloads.sent(stamp, demand, in_flight + share.left_slots.held(now), now)
        share.wait.sent(now)
        self.flights.add(entry)
        if attempt.is_probe:
            before = self.breaker.state
            self.breaker.probe_started(ticket.session, now)
            self._tell_breaker(before, "probe sent", now)
        return attempt

    def take_over(self, entry: QueueEntry, now: float, *, is_elsewhere: bool = False) -> None:
        """Take over an attempt in flight of a pool that proved to be this pool: meters and slots count it.

        The attempt teaches no hidden limit and is no probe, as its start was not seen. `is_elsewhere`: sent by another
        process.
        """
        assert entry.attempt is not None
        entry.attempt.stamp, entry.attempt.is_probe = self.sharing.next_stamp(), False
        self.flights.add(entry)
        self.share.in_flight += 1
        if self.sharing.machine is not None:
            self.sharing.machine.sent(self.flights, now)
        self.meters.adopt(entry.attempt, now, is_elsewhere=is_elsewhere)

    def take_in_flight(self, entry: QueueEntry, demand: Demand, admitted_at: float, now: float) -> Attempt:
        """Count an attempt that another process sent; the other process had the slot, which is added if need be."""
        attempt = entry.attempt = Attempt(
            ticket=entry.ticket,
            number=entry.history.attempts,
            admitted_at=admitted_at,
            demand=demand,
            in_flight=self.taken + 1,
            own=self.in_flight + 1,
        )
        self.take_over(entry, now, is_elsewhere=True)
        self.slots.sent(attempt.in_flight, now)
        return attempt

    def hear(self, hints: Hints, attempt: Attempt, now: float, *, answered: bool) -> None:
        """Learn from the head of a response; `answered`: not a refusal."""
        for window in hints.windows:
            if self.windows.learn(window, now):
                resets_in_s = window.resets_in_s
                self._emit(WindowUsed(now, self.key, window.window, window.used, window.status, resets_in_s))
        if answered:
            if self.account_block.closure is not None:
                self._pass_account_block(attempt.ticket.id, now)
            self._passed(attempt, now)
            if hints.readings:
                self.meters.miss(hints.readings, now)
        for reading in hints.readings:
            if meter := self.meters.learn(reading, attempt, now, answered=answered):
                self._tell_learned(meter.name, meter.kind.value, meter.limit, meter, now)

    def settle(self, attempt: Attempt, result: AttemptResult, now: float) -> float:
        """End an attempt: the charge replaces the reservation. Returns the cost in seconds of the bottleneck."""
        self.flights.remove(attempt)
        self.share.in_flight -= 1
        if self.sharing.machine is not None:
            self.sharing.machine.ended(self.flights, attempt, now)
        self.meters.settle(attempt, result.charged, result.outcome, stamp=self.sharing.next_stamp(), now=now)
        if result.outcome.kind is OutcomeKind.SUCCESS:
            self.service.succeeded(max(0.0, self._served_s(attempt, now)))
        return self._took_s(attempt, result, now)

    def _passed(self, attempt: Attempt, now: float) -> None:
        """Note that the provider accepted an attempt."""
        limit, stamp = self.limit, attempt.stamp
        if not attempt.has_passed:
            attempt.has_passed = True
            if self.sharing.machine is not None:
                self.sharing.machine.answered(self.flights, attempt, now)
            self.refused.passed(attempt)
            self.overloaded.passed(attempt)
            for other in self.sharing.members:
                if other is not self:
                    other.refused.passed_elsewhere(attempt)
        if self.refused.are_chance and self.throttles.limit and self.share.is_refused_by_chance:
            self.throttles.forget_since(0.0, now)
        if self.account_block.suspected_by is not None:
            self.account_block.passed(attempt)
        self.slots.passed(attempt.in_flight, now)
        self.throttles.passed(stamp, now)
        self.overloads.passed(stamp, now)
        self.share.wait.passed(self, attempt)
        before = self.breaker.state
        if self.breaker.answered(admitted_at=attempt.admitted_at):
            self._closed(before, "it answers", now)
        if self.limit != limit:
            self._tell_limit("it takes more", now)

    def learn(self, attempt: Attempt, result: AttemptResult, now: float) -> Owner:
        """Let slots, hidden limits, breaker and account block learn from an attempt's end. Returns the end's owner."""
        outcome, owner = result.outcome, Owner.UNKNOWN
        limit = self.limit
        known = self.throttles.known, self.overloads.known
        took_s = max(0.0, now - attempt.admitted_at) if outcome.kind is OutcomeKind.SUCCESS else None
        self.slots.ended(self.share.in_flight, now, found=attempt.in_flight, took_s=took_s)
        if self.limit != limit:
            limit = self.limit
            self._tell_limit("by the answers per second", now)
        if outcome.kind is OutcomeKind.SUCCESS:
            self._succeeded(attempt, result, now)
            self.share.ended.append(EndedAttempt(self, attempt, outcome.kind, result.charged, now))
        else:
            owner = self._owner_of(attempt, result, now)
            wait_s = sane_retry_after_s(outcome.retry_after_s)
            is_refusal = outcome.kind in (OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED)
            kind = None if is_refusal and owner not in (Owner.LIMIT, Owner.CAPACITY) else outcome.kind
            self.share.ended.append(
                EndedAttempt(self, attempt, kind, result.charged, now, now + wait_s if wait_s else _NEVER)
            )
            self._judge(owner, attempt, result, now)
            self._judge_breaker(owner, attempt, outcome, now)
        if self.limit != limit:
            self._tell_limit(outcome.reason, now)
        self._tell_hidden(known, now)
        if self.account_block.closure is not None or owner is Owner.PLAN:
            self._judge_account_block(owner, attempt, outcome, now)
        return owner

    def _succeeded(self, attempt: Attempt, result: AttemptResult, now: float) -> None:
        self._explained -= self._explained / _EXPLAINED_OVER
        self._refused -= self._refused / _EXPLAINED_OVER
        self._passed(attempt, now)
        self.lack_ends = self.lack_ends and not attempt.ticket.streamed
        self.throttles.ended(attempt.stamp, now, charged=result.charged)
        self.overloads.ended(attempt.stamp, now)
        self.breaker.answered(admitted_at=attempt.admitted_at)  # the end is another sign of life

    def _owner_of(self, attempt: Attempt, result: AttemptResult, now: float) -> Owner:
        """The owner of an attempt's refusal or failure, by all that the pool knows."""
        outcome, demand = result.outcome, attempt.demand
        is_believed = self.account_block.is_believed and self.throttles.believes_told(demand)
        left_s = attempt.ticket.deadline_at - now if is_believed else _NEVER
        owner = owner_of(outcome, left_s, by_others=result.by_others)
        explains = outcome.kind is OutcomeKind.THROTTLED and self.meters.fits_at(demand, now) > now
        self._refused += ((outcome.kind is OutcomeKind.THROTTLED) - self._refused) / _EXPLAINED_OVER
        self._explained += (explains - self._explained) / _EXPLAINED_OVER
        if owner is Owner.CAPACITY:
            shown_by, told_nothing = self.overloaded.refused(attempt, now)
            if told_nothing:
                self.overloads.take_back(told_nothing, now)
            return owner if shown_by is Owner.LIMIT or self.overloaded.are_chance else Owner.UNKNOWN
        if owner is not Owner.LIMIT:
            return owner
        if explains and self._explained < _MOST_EXPLAINED:
            return Owner.METER
        owner, told_nothing = self.refused.refused(attempt, now, self.flights.attempts)
        if told_nothing:
            self.throttles.take_back(told_nothing, now)
        return owner

    def _judge(self, owner: Owner, attempt: Attempt, result: AttemptResult, now: float) -> None:
        """Learn from an attempt without success."""
        outcome, stamp = result.outcome, attempt.stamp
        if owner is Owner.EDGE:
            if attempt.number == 1 or result.by_others:  # a request that is refused again may be the cause
                self.slots.crowded(attempt.in_flight, now, by_others=result.by_others)
        elif owner is Owner.CAPACITY and not self.share.is_provider_down:
            cap, mean_s = self.overloads.most_in_flight, self.service.mean_s
            if self.share.left_slots.explain(attempt.in_flight, cap, mean_s, now):
                owner = Owner.UNKNOWN  # no lower limit
            else:
                self._refuse(self.overloads, attempt, outcome, now)
        elif outcome.kind is OutcomeKind.CANCELLED:
            self.share.left_slots.left(attempt.admitted_at, self.service.mean_s, now)
        elif owner is Owner.LIMIT:
            closed_until = self.throttles.closed_until
            self._refuse(self.throttles, attempt, outcome, now)
            until = self.throttles.closed_until
            if until > max(now, closed_until):
                self._emit(PoolBlocked(at=now, pool=self.key, until=until, reason=outcome.reason))
        is_refusal = outcome.kind in (OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED)
        has_run = owner in (Owner.REQUEST, Owner.UNKNOWN) and not is_refusal
        # An attempt without a status may have been counted even where failures are not.
        is_failed = outcome.kind is OutcomeKind.FAILED and outcome.status is not None
        was_taken = has_run or owner is Owner.LIMIT
        self.throttles.ended(stamp, now, charged=result.charged, was_taken=was_taken, is_failed=is_failed)
        self.overloads.ended(stamp, now, was_taken=has_run or owner is Owner.CAPACITY)

    def _refuse(self, by: HiddenLimits, attempt: Attempt, outcome: Outcome, now: float) -> None:
        wait_s = sane_retry_after_s(outcome.retry_after_s)
        if self._infers:
            by.refused(attempt.stamp, wait_s, now)
        if outcome.kind is OutcomeKind.THROTTLED:
            self.share.wait.refused(self, attempt, wait_s, now)
        why, row = self.sharing.evidence(self, outcome.kind, by.verdict_s, now)
        if why:
            self._draw_on(self.sharing.separate(self, self._concurrency, why, row))

    def _judge_breaker(self, owner: Owner, attempt: Attempt, outcome: Outcome, now: float) -> None:
        before = self.breaker.state
        changed = self.breaker.attempt_ended(
            OutcomeKind.IGNORED if owner is Owner.EDGE else outcome.kind,
            session=attempt.ticket.session,
            probe=attempt.is_probe,
            admitted_at=attempt.admitted_at,
            now=now,
            unreached=outcome.unreached,
            pending=(other.admitted_at for other in self.flights.attempts),
            elsewhere=sum(other.breaker.failures for other in self.share.members if other is not self),
        )
        if changed and self.is_provider_down:
            if before is BreakerState.CLOSED:
                # Refusals in an outage are no evidence of a limit.
                if self.share.since >= self.breaker.row_since:
                    self._draw_on(self.sharing.rejoin(self))
                for hidden in self.hidden:
                    hidden.forget_since(self.breaker.row_since, now)
            self._tell_breaker(before, outcome.reason, now)
        elif changed:
            self._closed(before, outcome.reason, now)

    def look_at_probe(self, now: float) -> None:
        """Close the breaker if a probe has run for long, which shows that the provider is back."""
        before = self.breaker.state
        if before is BreakerState.HALF_OPEN and self.breaker.look_at_probe(now):
            self._closed(before, "the probe is being answered", now)

    def _closed(self, before: BreakerState, reason: str, now: float) -> None:
        """Restart the slots after the breaker closed."""
        self.slots.recover(self.share.in_flight, now)
        self._tell_breaker(before, reason, now)

    def _judge_account_block(self, owner: Owner, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """Begin or end an account block by an attempt's end."""
        block, ticket_id = self.account_block, attempt.ticket.id
        if outcome.kind is OutcomeKind.SUCCESS:
            self._pass_account_block(ticket_id, now)
        is_named = outcome.account_block_s is not None
        if owner is Owner.PLAN and (is_named or block.is_confirmed_by(attempt, now)):
            reason = outcome.words or outcome.reason
            until = block.hit(reason, plan_wait_s(outcome, 0.0) or 0.0, now, is_named=is_named)
            if until is not None:
                self._emit(AccountBlocked(at=now, pool=self.key, until=until, reason=reason))
        block.ended(ticket_id)

    def _pass_account_block(self, ticket_id: str, now: float) -> None:
        if self.account_block.answered(ticket_id, now):
            self._emit(AccountUnblocked(at=now, pool=self.key))

    def lift_block(self, now: float) -> bool:
        """End an account block for a person. False: there was none."""
        if was_blocked := self.account_block.lift():
            self._emit(AccountUnblocked(at=now, pool=self.key))
        return was_blocked

    # Changes of the whole pool ---------------------------------------------------------------------------------------

    def configure(self, concurrency: ConcurrencySettings, breaker: BreakerSettings, now: float) -> None:
        """Apply a changed profile."""
        limit, self._told_maximum = self.limit, False
        self._concurrency = concurrency
        self.slots.configure(concurrency)
        self.breaker.configure(breaker, now)
        if self.limit != limit:
            self._tell_limit("the profile says so", now)

    def apply_overrides(self, now: float) -> None:
        """Apply changed overrides."""
        limit = self.limit
        self.paused = self._overrides.is_paused(self.key)
        self.cap = self._overrides.cap_of(self.key)
        if self.limit != limit:
            self._tell_limit("a person said so", now)

    def wake_up(self) -> None:
        """Restart the slots after a sleep of the machine, in which the provider's load may have changed."""
        self.slots.rest()

    @property
    def learned(self) -> LearnedPool:
        """The learned state that outlives a run."""
        return LearnedPool(
            host=self.key.host,
            account=self.key.account,
            model_group=self.key.model_group,
            throttles=self.throttles.limit,
            overloads=self.overloads.limit,
            meters=self.meters.learned,
            tested_at=self._tested_at,
            why_separate=self.share.why,
        )

    def learn_from(self, learned: LearnedPool, now: float) -> None:
        """Add the learned state of a pool that proved to be this pool, where nothing is known here."""
        self._continue_with(learned, now)
        self.meters.resume((meter for meter in learned.meters if meter.name not in self.meters.by_name), now)

    def resume(self, learned: LearnedPool, now: float) -> None:
        """Begin with the learned state of an earlier run, before the first attempt."""
        self._tested_at = learned.tested_at
        if learned.why_separate:
            self._draw_on(self.sharing.separate(self, self._concurrency, learned.why_separate))
        self._continue_with(learned, now)
        self.meters.resume(learned.meters, now)
        self.meters.doubt_levels(now)

    def _continue_with(self, learned: LearnedPool, now: float) -> None:
        if self.throttles.limit is None:
            self.throttles.resume(learned.throttles, now, held=learned.held(now), is_old=learned.is_old)
        if self.overloads.limit is None:
            self.overloads.resume(learned.overloads, now, is_old=learned.is_old)

    def move(self, sharing: Sharing | None, now: float) -> None:
        """Move to another account, which proved to be the same; None: the pool is not used again."""
        self.sharing.leave(self)
        self.meters.move(None if sharing is None else sharing.meters, now)
        if sharing is not None:
            self.sharing = sharing
            self._draw_on(sharing.join(self, self._concurrency))
            self.state(self.stated)

    # Events ----------------------------------------------------------------------------------------------------------

    def _tell_learned(self, name: str, kind: str, amount: float, of: Meter | HiddenLimit, now: float) -> None:
        self._emit(MeterLearned(now, self.key, name, kind, amount, of.window_s, of.dimension))

    def _tell_hidden(self, known: tuple[HiddenLimit | None, HiddenLimit | None], now: float) -> None:
        """Emit the hidden limits that differ from `known`."""
        for before, limit in zip(known, (self.throttles.known, self.overloads.known), strict=True):
            if limit is before or limit is None or limit.window_s is None or (before and before.is_like(limit)):
                continue
            self._tell_learned(HIDDEN_LIMIT, limit.kind, limit.amount, limit, now)

    def _tell_limit(self, reason: str, now: float) -> None:
        self._emit(ConcurrencyChanged(at=now, pool=self.key, limit=self.limit, reason=reason))

    def tell_maximum(self, now: float) -> None:
        """Emit once that a ticket waits for a slot which only a setting of ours withholds.

        Before the first answer nobody knows the provider's limit.
        """
        if not self._told_maximum and self.service.is_known and (setting := self.maximum_from):
            self._told_maximum = True
            self._emit(MaximumReached(at=now, pool=self.key, limit=self.limit, maximum_from=setting))

    def _tell_breaker(self, before: BreakerState, reason: str, now: float) -> None:
        state = self.breaker.state.value
        self._emit(BreakerChanged(at=now, pool=self.key, state=state, reason=reason, before=before.value))
