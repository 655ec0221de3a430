"""Queues before lanes: the usual way of the field, and AgentRM's schedulers, written anew as policies.

- `AimdPause`: the usual way of the field. Additive increase of the attempts in flight with each round of successes,
  one multiplicative decrease a round with refusals and failures, and nothing goes while a 429's retry-after lasts.
- `AgentRmFifo`, `AgentRmMlfq`: AgentRM (arXiv 2603.13110, March 2026); there is no public code. Known from the
  abstract: a multi-level feedback queue with zombie reaping and rate-limit-aware admission control. Known at second
  hand: turns run in a fixed number of lanes; four queues with quanta 1, 2, 4 and 8 and a boost every 100 ticks; AIMD as
  the answer to rate limits. Assumed here: five lanes, or fewer if the pool's settings allow fewer; a lane holds a call
  to its end; a quantum is counted in calls, and a tick is a call; reaped calls, refused calls and failures are sent
  again three times at most. The baseline has neither reaper nor AIMD nor re-sends.
"""

import heapq
import math
from collections import OrderedDict

from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, GiveUp
from hivemind_addon.kernel.values.ticket import Attempt, OutcomeKind, Reason

NEVER = math.inf
_FIRST_BACKOFF_S, _MAX_BACKOFF_S, _JITTER = 1.0, 30.0, 0.25


def _backoff_s(number, outcome, rng):
    """The wait after attempt `number`, exponential with jitter, and at least the provider's retry-after."""
    step_s = _FIRST_BACKOFF_S * 2.0 ** (number - 1) * rng.uniform(1 - _JITTER, 1 + _JITTER)
    return max(min(step_s, _MAX_BACKOFF_S), outcome.retry_after_s or 0.0)


class Lanes:
    """A pool's queue, first come, first served, before a fixed number of lanes."""

    most = 5
    """Attempts in flight."""

    def __init__(self, settings):
        self.limit = max(1, min(self.most, settings.concurrency.maximum))
        self.opens_at = -NEVER
        """No attempt goes before."""
        self.in_flight = 0
        self.waiting = OrderedDict()

    def take(self, now):
        """The next ticket, which goes now; None: no ticket may go."""
        if not self.waiting or self.in_flight >= int(self.limit) or self.opens_at > now:
            return None
        self.in_flight += 1
        return self.next()

    def next(self):
        """Remove the next of the waiting tickets."""
        return self.waiting.popitem(last=False)[1]

    def ended(self, attempt, outcome, now):
        """Learn from an attempt's end."""
        self.in_flight -= 1


class QueuePolicy:
    """Lanes for each pool, and re-sends after a growing pause."""

    lanes = Lanes
    attempts = 1
    """The most attempts of a call."""
    watches = False
    reaps_after_s = None

    def __init__(self, rng):
        self._rng = rng
        self._pools = {}
        self._numbers = {}
        """By ticket: attempts so far."""
        self._later = []
        """Tickets that back off."""
        self._polled_at = -NEVER

    def submit(self, ticket, settings, now):
        self._pools.setdefault(ticket.pool, self.lanes(settings)).waiting[ticket.id] = ticket
        self._numbers[ticket.id] = 0

    def poll(self, now):
        self._polled_at = now
        while self._later and self._later[0][0] <= now:
            _, _, ticket = heapq.heappop(self._later)
            if ticket.id in self._numbers:
                self._pools[ticket.pool].waiting[ticket.id] = ticket
        admitted = []
        for pool in self._pools.values():
            while (goes := pool.take(now)) is not None:
                self._numbers[goes.id] += 1
                admitted.append(Admitted(Attempt(goes, self._numbers[goes.id], now)))
        return admitted

    def next_wakeup(self):
        opens = [pool.opens_at for pool in self._pools.values() if pool.waiting and pool.opens_at > self._polled_at]
        return min([*opens, *(at for at, _, _ in self._later[:1])], default=None)

    def observe(self, attempt, hints, now, *, answered=True):
        """Headers teach nothing."""

    def settle(self, attempt, result, now):
        ticket, outcome = attempt.ticket, result.outcome
        self._pools[ticket.pool].ended(attempt, outcome, now)
        if outcome.kind in (OutcomeKind.SUCCESS, OutcomeKind.CANCELLED):
            del self._numbers[ticket.id]
            return Finished()
        if result.client_saw_bytes or not outcome.retryable or attempt.number >= self.attempts:
            del self._numbers[ticket.id]
            return GiveUp(Reason.SPENT_ATTEMPTS if outcome.retryable else Reason.NOT_RETRYABLE)
        until = now + _backoff_s(attempt.number, outcome, self._rng)
        heapq.heappush(self._later, (until, ticket.id, ticket))
        return Backoff(until, outcome.reason)

    def cancel(self, ticket_id, now):
        for pool in self._pools.values():
            pool.waiting.pop(ticket_id, None)
        return self._numbers.pop(ticket_id, None) is not None


class AimdLanes(Lanes):
    """AIMD on the attempts in flight, and a pause after a 429."""

    increase, decrease, pause_s = 0.5, 0.5, 1.0
    """The pause: after a 429 without a retry-after."""
    lowered_by = frozenset(OutcomeKind) - {OutcomeKind.SUCCESS, OutcomeKind.CANCELLED}

    def __init__(self, settings):
        super().__init__(settings)
        self._most, self._lowered_at = self.limit, -NEVER

    def ended(self, attempt, outcome, now):
        """Learn from an attempt's end."""
        super().ended(attempt, outcome, now)
        if outcome.kind is OutcomeKind.SUCCESS:
            self.limit = min(self._most, self.limit + self.increase / self.limit)
        elif outcome.kind in self.lowered_by:
            if attempt.admitted_at >= self._lowered_at:
                self.limit = max(1.0, self.limit * self.decrease)
                self._lowered_at = now
            if outcome.kind is OutcomeKind.THROTTLED:
                self.opens_at = max(self.opens_at, now + (outcome.retry_after_s or self.pause_s))


class AimdPause(QueuePolicy):
    """as the field does: AIMD on concurrency, a pause after a 429, three re-sends"""

    lanes = AimdLanes
    attempts = 4


class AgentRmFifo(QueuePolicy):
    """AgentRM's baseline: first come, first served in lanes, which a hanging call holds"""


class FeedbackLanes(AimdLanes):
    """The agent that had least of late goes first, by four levels."""

    quanta = (1, 2, 4, 8)
    """Calls of an agent at each level, from the first; the agent stays at the last."""
    boost_calls = 100
    lowered_by = frozenset({OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED})

    def __init__(self, settings):
        super().__init__(settings)
        self._standing = {}
        """Agent → the level, and the calls at this level."""
        self._calls = 0
        """Since the last boost."""

    def _level(self, ticket):
        return self._standing.get(ticket.agent, (0, 0))[0]

    def next(self):
        """Remove the next of the waiting tickets: the oldest of the first level."""
        ticket = self.waiting.pop(min(self.waiting.values(), key=self._level).id)
        level, had = self._standing.get(ticket.agent, (0, 0))
        is_spent = had + 1 >= self.quanta[level] and level + 1 < len(self.quanta)
        self._standing[ticket.agent] = (level + 1, 0) if is_spent else (level, had + 1)
        self._calls += 1
        if self._calls == self.boost_calls:
            self._calls = 0
            self._standing.clear()
        return ticket


class AgentRmMlfq(QueuePolicy):
    """AgentRM's feedback queue in lanes, with its reaper, AIMD and three re-sends"""

    lanes = FeedbackLanes
    attempts = 4
    reaps_after_s = 30.0
