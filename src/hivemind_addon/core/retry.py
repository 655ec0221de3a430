"""Retry policy: whether and when a failed attempt is tried again. Pure; the pool asks it.

In this order:

1. the client has seen a byte of the answer, or waiting cannot cure it    → give up
2. the scheduler stops                                                   → give up
3. too many attempts that may have been billed, or that failed           → give up
4. the client is about to give up itself                                 → give up: the provider's last answer goes out
5. else back off: the longest of the provider's retry-after, the pool's own pause, and an exponential step

A rate limit has no step of its own: the pool's pause and its meters pace everybody. Nor has a provider that is
down: the breaker's probe does.
"""

import math
import random
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from hivemind_addon.core.decision import Backoff, GiveUp, Reason
from hivemind_addon.core.ticket import Outcome, OutcomeKind, Ticket

_MARGIN_S = 1.0
_MARGIN_SERVICES = 3
_MARGIN_SHARE = 0.1
_MAX_DOUBLINGS = 30
"""Far past every `max_backoff_s`; keeps the power finite after thousands of overloads."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How patient we are with one ticket. Refusals that waiting cures (429, 529) end only with the deadline."""

    max_failures: int = 10
    """Attempts that may end in 500, 502, a cut or a reset, before the provider's answer goes to the client.
    With 15 % random faults, 9 lose one request in a million."""
    max_ambiguous: int = 4
    """Re-sends after an attempt that ended without a status and may have been billed."""
    first_backoff_s: float = 0.5
    """Before the second attempt; doubles from one to the next."""
    max_backoff_s: float = 30.0


class History(Struct, frozen=True):
    """What became of a ticket's attempts so far."""

    attempts: int = 0
    """Started."""
    setbacks: int = 0
    """Ended in anything but a rate limit, while the provider was up: the exponent of the backoff."""
    failures: int = 0
    """Setbacks of the ticket's own: not overload."""
    ambiguous: int = 0
    """Ended without a status, and may have been billed."""
    ambiguous_resends: int = 0
    """Attempts started after an ambiguous one."""
    last_was_ambiguous: bool = False

    def started(self) -> "History":
        """With one more attempt."""
        return History(
            attempts=self.attempts + 1,
            setbacks=self.setbacks,
            failures=self.failures,
            ambiguous=self.ambiguous,
            ambiguous_resends=self.ambiguous_resends + self.last_was_ambiguous,
        )

    def ended(self, outcome: Outcome, *, provider_down: bool) -> "History":
        """With the end of the running attempt."""
        setback = outcome.kind is not OutcomeKind.THROTTLED and not provider_down
        return replace(
            self,
            setbacks=self.setbacks + setback,
            failures=self.failures + (setback and outcome.kind is not OutcomeKind.OVERLOADED),
            ambiguous=self.ambiguous + outcome.ambiguous,
            last_was_ambiguous=outcome.ambiguous,
        )


def decide(
    policy: RetryPolicy,
    history: History,
    outcome: Outcome,
    now: float,
    rng: random.Random,
    *,
    shed_at: float,
    pool_ready_at: float,
    provider_down: bool,
    stopping: bool = False,
    client_saw_bytes: bool = False,
) -> Backoff | GiveUp:
    """Judge an attempt that neither succeeded nor was cancelled; `history` has its end already.

    `pool_ready_at` is when the pool itself may send again, as far as it knows. A backoff may end after `shed_at`:
    the poll sheds the ticket when its time comes.
    """
    if client_saw_bytes:
        return GiveUp(Reason.DELIVERED_BYTES)
    if not outcome.retryable:
        return GiveUp(Reason.NOT_RETRYABLE)
    if stopping:
        return GiveUp(Reason.STOPPING)
    if history.ambiguous > policy.max_ambiguous:
        return GiveUp(Reason.SPENT_AMBIGUOUS)
    if history.failures >= policy.max_failures:
        return GiveUp(Reason.SPENT_ATTEMPTS)
    if now >= shed_at:
        return GiveUp(Reason.DEADLINE)
    wait_s = sane_retry_after_s(outcome.retry_after_s)
    if outcome.kind is not OutcomeKind.THROTTLED and not provider_down:
        doublings = min(history.setbacks - 1, _MAX_DOUBLINGS)
        step_s = min(policy.first_backoff_s * 2**doublings, policy.max_backoff_s)
        # Half of the time that is left leaves time for another attempt, and for one after it.
        wait_s = max(wait_s, min(rng.uniform(0.5, 1.0) * step_s, (shed_at - now) / 2))
    return Backoff(until=max(now + wait_s, pool_ready_at), reason=outcome.reason)


def last_moment(ticket: Ticket, service_s: float) -> float:
    """Until when a held ticket may still go, where an attempt takes `service_s` on average.

    Its own `shed_at` is careful because it knows nothing of the provider; one that answers fast leaves more time.
    """
    patience_s = ticket.deadline_at - ticket.arrived_at
    margin_s = min(_MARGIN_SHARE * patience_s, _MARGIN_S + _MARGIN_SERVICES * service_s)
    return max(ticket.shed_at, ticket.deadline_at - margin_s)


def sane_retry_after_s(retry_after_s: float | None) -> float:
    """The provider's retry-after; 0 where it said nothing or nothing possible."""
    if retry_after_s is None or not math.isfinite(retry_after_s):
        return 0.0
    return max(0.0, retry_after_s)
