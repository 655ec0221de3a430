"""What most of the field does, written anew for comparison: AIMD on concurrency, a pause after a 429, some retries.

Additive increase with each round of successes, one multiplicative decrease a round with each refusal or failure, and
nobody goes while a 429's retry-after lasts. No model of a limit, no deadline, no order but arrival; a call that was
tried four times is over. The numbers are those of `hivemind-scheduler` 0.2.0 (five at first and at most, halved, three
re-sends after 1, 2 and 4 s), but for its reaction to latency, with which it would do worse.
"""

import heapq
import random
from collections import deque

from hivemind_addon.api.events import AttemptStarted, Event, TicketEnded
from hivemind_addon.api.ticket import Attempt, AttemptResult, Hints, OutcomeKind, PoolKey, Reason, Ticket
from hivemind_addon.proxy.core.pool import PoolSettings
from hivemind_addon.proxy.core.retry import Admitted, Backoff, Finished, GiveUp, Verdict

_MOST_IN_FLIGHT = 5.0
_LEAST_IN_FLIGHT = 1.0
_INCREASE = 0.5
_DECREASE = 0.5
_ATTEMPTS = 4
_FIRST_BACKOFF_S = 1.0
_MAX_BACKOFF_S = 30.0
_JITTER = 0.25
_PAUSE_S = 1.0
"""After a 429 that does not say how long."""


class _Queue:
    """One pool's tickets, and how many may be in flight."""

    def __init__(self) -> None:
        self.waiting: deque[Ticket] = deque()
        self.in_flight = 0
        self.limit = _MOST_IN_FLIGHT
        self.paused_until = float("-inf")
        self.lowered_at = float("-inf")

    def has_room(self, now: float) -> bool:
        return bool(self.waiting) and self.in_flight < int(self.limit) and self.paused_until <= now


class AimdPause:
    """Takes the scheduler's calls."""

    def __init__(self, *, rng: random.Random) -> None:
        self._rng = rng
        self._queues: dict[PoolKey, _Queue] = {}
        self._attempts: dict[str, int] = {}
        """By ticket, of all that have not ended."""
        self._waits_since: dict[str, float] = {}
        self._waited_s: dict[str, float] = {}
        self._later: list[tuple[float, str, Ticket]] = []
        """Tickets that back off."""
        self._cancelled: set[str] = set()
        """Of them, those whose client went."""
        self._events: list[Event] = []
        self._polled_at = float("-inf")

    def __repr__(self) -> str:
        return f"<AimdPause {len(self._attempts)} tickets in {len(self._queues)} pools>"

    @property
    def is_idle(self) -> bool:
        """Nothing is queued and nothing is in flight."""
        return not self._attempts

    def submit(self, ticket: Ticket, settings: PoolSettings, now: float) -> None:  # noqa: ARG002
        """Queue a ticket."""
        self._attempts[ticket.id] = 0
        self._waited_s[ticket.id] = 0.0
        self._enqueue(ticket, now)

    def poll(self, now: float) -> list[Admitted]:
        """Admit who may go."""
        self._polled_at = now
        while self._later and self._later[0][0] <= now:
            _, _, ticket = heapq.heappop(self._later)
            if ticket.id in self._cancelled:
                self._cancelled.discard(ticket.id)
            else:
                self._queues[ticket.pool].waiting.append(ticket)
        admitted = []
        for queue in self._queues.values():
            while queue.has_room(now):
                ticket = queue.waiting.popleft()
                queue.in_flight += 1
                self._attempts[ticket.id] += 1
                waited_s = now - self._waits_since.pop(ticket.id)
                self._waited_s[ticket.id] += waited_s
                attempt = self._attempts[ticket.id]
                self._events.append(
                    AttemptStarted(
                        at=now,
                        ticket_id=ticket.id,
                        pool=ticket.pool,
                        attempt=attempt,
                        waited_s=waited_s,
                        in_flight=queue.in_flight,
                    )
                )
                admitted.append(Admitted(Attempt(ticket=ticket, number=attempt, admitted_at=now)))
        return admitted

    def next_wakeup(self) -> float | None:
        """When a backoff or a pause ends."""
        instants = [at for at, _, _ in self._later[:1]]
        instants += [
            queue.paused_until
            for queue in self._queues.values()
            if queue.waiting and queue.paused_until > self._polled_at
        ]
        return min(instants, default=None)

    def observe(self, attempt: Attempt, hints: Hints, now: float, *, answered: bool = True) -> None:
        """Headers teach it nothing."""

    def settle(self, attempt: Attempt, result: AttemptResult, now: float) -> Verdict:
        """End an attempt, and judge what follows."""
        ticket, outcome = attempt.ticket, result.outcome
        queue = self._queues[ticket.pool]
        queue.in_flight -= 1
        if outcome.kind is OutcomeKind.SUCCESS:
            queue.limit = min(_MOST_IN_FLIGHT, queue.limit + _INCREASE / queue.limit)
            self._forget(ticket, now, end="delivered", reason=outcome.reason)
            return Finished()
        if outcome.kind is OutcomeKind.CANCELLED:
            self._forget(ticket, now, end="cancelled", reason=outcome.reason)
            return Finished()
        if attempt.admitted_at >= queue.lowered_at:
            queue.limit = max(_LEAST_IN_FLIGHT, queue.limit * _DECREASE)
            queue.lowered_at = now
        if outcome.kind is OutcomeKind.THROTTLED:
            queue.paused_until = max(queue.paused_until, now + (outcome.retry_after_s or _PAUSE_S))
        if result.client_saw_bytes or not outcome.retryable or attempt.number >= _ATTEMPTS:
            reason = Reason.SPENT_ATTEMPTS if outcome.retryable else Reason.NOT_RETRYABLE
            self._forget(ticket, now, end="gave up", reason=reason.value)
            return GiveUp(reason)
        step_s = min(_FIRST_BACKOFF_S * 2 ** (attempt.number - 1), _MAX_BACKOFF_S)
        wait_s = max(step_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER), outcome.retry_after_s or 0.0)
        self._waits_since[ticket.id] = now
        heapq.heappush(self._later, (now + wait_s, ticket.id, ticket))
        return Backoff(until=now + wait_s, reason=outcome.reason)

    def cancel(self, ticket_id: str, now: float) -> bool:
        """The client of a queued ticket went."""
        if ticket_id not in self._waits_since:
            return False
        for queue in self._queues.values():
            ticket = next((ticket for ticket in queue.waiting if ticket.id == ticket_id), None)
            if ticket is not None:
                queue.waiting.remove(ticket)
                break
        else:
            ticket = next(ticket for _, name, ticket in self._later if name == ticket_id)
            self._cancelled.add(ticket_id)
        self._waited_s[ticket_id] += now - self._waits_since.pop(ticket_id)
        self._forget(ticket, now, end="cancelled", reason="client went")
        return True

    def drain_events(self) -> list[Event]:
        """Events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def _enqueue(self, ticket: Ticket, now: float) -> None:
        self._waits_since[ticket.id] = now
        self._queues.setdefault(ticket.pool, _Queue()).waiting.append(ticket)

    def _forget(self, ticket: Ticket, now: float, *, end: str, reason: str) -> None:
        self._events.append(
            TicketEnded(
                at=now,
                ticket_id=ticket.id,
                pool=ticket.pool,
                end=end,
                reason=reason,
                attempts=self._attempts.pop(ticket.id),
                ambiguous_resends=0,
                waited_s=self._waited_s.pop(ticket.id),
            )
        )
