"""What admits calls in place of the scheduler: a queue, a gate, some re-sends. For comparison.

    ticket ──► order: who is next ──► gate: whether anybody goes ──► attempt ──► Finished | GiveUp | Backoff

The caller chooses order and gate: `aimd_pause.py` and `lab/papers/queues.py` put together what others do. There is no
model of a limit, no deadline, and nobody is shed.
"""

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, GiveUp, Verdict
from hivemind_addon.kernel.values.events import AttemptStarted, Event, TicketEnded
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Reason,
    Ticket,
)

_FIRST_BACKOFF_S = 1.0
_MAX_BACKOFF_S = 30.0
_JITTER = 0.25


class WaitingOrder(Protocol):
    """Tickets that may go, and which one is next."""

    def __len__(self) -> int: ...

    def put(self, ticket: Ticket) -> None:
        """It has come, or come again."""

    def take(self) -> Ticket:
        """The next one, which goes now. There is one."""

    def remove(self, ticket_id: str) -> Ticket | None:
        """Its client went; None: it is not here."""


class AttemptGate(Protocol):
    """How many attempts may be in flight, and whether anybody may go."""

    @property
    def limit(self) -> int:
        """Attempts that may be in flight."""

    @property
    def opens_at(self) -> float:
        """Nobody goes before; the past where all may."""

    def ended(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """An attempt has ended."""


class ArrivalOrder:
    """First come, first served; who comes again is the last."""

    def __init__(self) -> None:
        self._tickets: OrderedDict[str, Ticket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def put(self, ticket: Ticket) -> None:
        """See WaitingOrder."""
        self._tickets[ticket.id] = ticket

    def take(self) -> Ticket:
        """See WaitingOrder."""
        return self._tickets.popitem(last=False)[1]

    def remove(self, ticket_id: str) -> Ticket | None:
        """See WaitingOrder."""
        return self._tickets.pop(ticket_id, None)


class _PoolQueue:
    """One pool's."""

    def __init__(self, order: WaitingOrder, gate: AttemptGate) -> None:
        self.order = order
        self.gate = gate
        self.in_flight = 0

    def lets_go(self, now: float) -> bool:
        return len(self.order) > 0 and self.in_flight < self.gate.limit and self.gate.opens_at <= now


class QueueAdmission:
    """Takes the scheduler's calls."""

    def __init__(
        self,
        *,
        rng: random.Random,
        order: Callable[[], WaitingOrder],
        gate: Callable[[PoolSettings], AttemptGate],
        attempts: int,
    ) -> None:
        """`attempts`: of a call that fails and may be sent again, at most."""
        self._rng = rng
        self._new_order = order
        self._new_gate = gate
        self._most_attempts = attempts
        self._queues: dict[PoolKey, _PoolQueue] = {}
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
        return f"<QueueAdmission {len(self._attempts)} tickets in {len(self._queues)} pools>"

    @property
    def is_idle(self) -> bool:
        """Nothing is queued and nothing is in flight."""
        return not self._attempts

    def submit(self, ticket: Ticket, settings: PoolSettings, now: float) -> None:
        """Queue a ticket."""
        self._attempts[ticket.id] = 0
        self._waited_s[ticket.id] = 0.0
        self._waits_since[ticket.id] = now
        if ticket.pool not in self._queues:
            self._queues[ticket.pool] = _PoolQueue(self._new_order(), self._new_gate(settings))
        self._queues[ticket.pool].order.put(ticket)

    def poll(self, now: float) -> list[Admitted]:
        """Admit who may go."""
        self._polled_at = now
        while self._later and self._later[0][0] <= now:
            _, _, ticket = heapq.heappop(self._later)
            if ticket.id in self._cancelled:
                self._cancelled.discard(ticket.id)
            else:
                self._queues[ticket.pool].order.put(ticket)
        admitted = []
        for queue in self._queues.values():
            while queue.lets_go(now):
                ticket = queue.order.take()
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
            queue.gate.opens_at
            for queue in self._queues.values()
            if len(queue.order) and queue.gate.opens_at > self._polled_at
        ]
        return min(instants, default=None)

    def observe(self, attempt: Attempt, hints: Hints, now: float, *, answered: bool = True) -> None:
        """Headers teach it nothing."""

    def settle(self, attempt: Attempt, result: AttemptResult, now: float) -> Verdict:
        """End an attempt, and judge what follows."""
        ticket, outcome = attempt.ticket, result.outcome
        queue = self._queues[ticket.pool]
        queue.in_flight -= 1
        queue.gate.ended(attempt, outcome, now)
        if outcome.kind is OutcomeKind.SUCCESS:
            self._forget(ticket, now, end="delivered", reason=outcome.reason)
            return Finished()
        if outcome.kind is OutcomeKind.CANCELLED:
            self._forget(ticket, now, end="cancelled", reason=outcome.reason)
            return Finished()
        if result.client_saw_bytes or not outcome.retryable or attempt.number >= self._most_attempts:
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
        removed = (queue.order.remove(ticket_id) for queue in self._queues.values())
        ticket = next((one for one in removed if one is not None), None)
        if ticket is None:
            ticket = next(ticket for _, name, ticket in self._later if name == ticket_id)
            self._cancelled.add(ticket_id)
        self._waited_s[ticket_id] += now - self._waits_since.pop(ticket_id)
        self._forget(ticket, now, end="cancelled", reason="client went")
        return True

    def drain_events(self) -> list[Event]:
        """Events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

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
