"""Retry policy: whether and when a failed attempt is tried again. Pure; the pool asks it.

In this order:

1. the client has seen a byte of the answer, or waiting cannot cure it    → give up
2. the scheduler stops                                                   → give up
3. too many attempts that may have been billed, or that failed           → give up
4. the client is about to give up itself                                 → give up: the provider's last answer goes out
5. else back off: the longer of an exponential step and the provider's retry-after, unless others proved that wrong

A rate limit's own step is short: meters and hidden limits pace everybody. A provider that is down has none: the
breaker probes. A backoff is the ticket's own and always ends: what keeps the whole pool is asked at its gate.

Beside it, as values, what the scheduler answers to a request.
"""

import math
import random
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from hivemind_addon.api.command import Cancel
from hivemind_addon.api.spend import Shortage
from hivemind_addon.api.ticket import Attempt, Outcome, OutcomeKind, Reason, Ticket
from hivemind_addon.proxy.core.breaker import Closure


class Admitted(Struct, frozen=True):
    """The ticket goes upstream now."""

    attempt: Attempt


class Shed(Struct, frozen=True):
    """The ticket ends here: the client gets a refusal that makes it come back."""

    ticket: Ticket
    reason: Reason
    come_back_s: float
    """When there is likely to be room, in seconds from now."""


class Refused(Struct, frozen=True):
    """The ticket ends here: a budget or the account is spent, or a person cancelled it.

    The client gets a refusal that it does not retry.
    """

    ticket: Ticket
    cause: Shortage | Closure | Cancel


class Finished(Struct, frozen=True):
    """The ticket is over; its answer is (or was) the client's."""


class Backoff(Struct, frozen=True):
    """The ticket is queued again, at its old place, and not before an instant."""

    until: float
    reason: str


class GiveUp(Struct, frozen=True):
    """The ticket is over: the provider's last answer goes to the client as it came."""

    reason: Reason


Verdict = Finished | Backoff | GiveUp
"""What `Scheduler.settle` answers."""


_FIRST_THROTTLED_S = 0.2
"""Before the second attempt after a rate limit's refusal; doubles with each one that follows."""
_WORTH_ALONE = 0.5
"""Of a failure that counts against a request where nobody else is answered either: outages of minutes are outlived, and
a request that can never succeed ends all the same."""
_MARGIN_S = 1.0
_MARGIN_SERVICES = 3
_MARGIN_SHARE = 0.1
_MAX_DOUBLINGS = 30
"""Far past every `max_backoff_s`; keeps the power finite after thousands of overloads."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How patient we are with one ticket. Refusals that waiting cures (429, 529) end only with the deadline."""

    max_failures: int = 10
    """Attempts that may end in 500, 502, a cut or a reset, before the provider's answer goes to the client;
    twice as many where nobody else is answered either. With 15 % random faults, 9 lose one request in a million."""
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
    failures: float = 0
    """Setbacks of the ticket's own: not overload. Those that may as well be the provider's count for a part."""
    ambiguous: int = 0
    """Ended without a status, and may have been billed."""
    ambiguous_resends: int = 0
    """Attempts started after an ambiguous one."""
    last_was_ambiguous: bool = False
    throttled: int = 0
    """Rate limits' refusals in a row."""

    def started(self) -> "History":
        """With one more attempt."""
        return History(
            attempts=self.attempts + 1,
            setbacks=self.setbacks,
            failures=self.failures,
            ambiguous=self.ambiguous,
            ambiguous_resends=self.ambiguous_resends + self.last_was_ambiguous,
            throttled=self.throttled,
        )

    def ended(self, outcome: Outcome, *, provider_down: bool, nobody_answered: bool = False) -> "History":
        """With the end of the running attempt.

        `nobody_answered`: since the ticket's last failures nothing has shown that the provider is up.
        """
        setback = outcome.kind is not OutcomeKind.THROTTLED and not provider_down
        worth = _WORTH_ALONE if nobody_answered else 1.0
        return replace(
            self,
            setbacks=self.setbacks + setback,
            failures=self.failures + (worth if setback and outcome.kind is not OutcomeKind.OVERLOADED else 0),
            ambiguous=self.ambiguous + outcome.ambiguous,
            last_was_ambiguous=outcome.ambiguous,
            throttled=self.throttled + 1 if outcome.kind is OutcomeKind.THROTTLED else 0,
        )


def decide(
    policy: RetryPolicy,
    history: History,
    outcome: Outcome,
    now: float,
    rng: random.Random,
    *,
    shed_at: float,
    provider_down: bool,
    believes_told: bool = True,
    stopping: bool = False,
    client_saw_bytes: bool = False,
) -> Backoff | GiveUp:
    """Judge an attempt that neither succeeded nor was cancelled; `history` has its end already.

    A backoff may end after `shed_at`: the poll sheds the ticket when its time comes. `believes_told`: nobody else has
    passed before the instant at which refusals told to come back.
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
    wait_s = sane_retry_after_s(outcome.retry_after_s) if believes_told else 0.0
    if outcome.kind is OutcomeKind.THROTTLED:
        step_s = min(_FIRST_THROTTLED_S * 2 ** min(history.throttled - 1, _MAX_DOUBLINGS), policy.max_backoff_s)
        wait_s = max(wait_s, min(rng.uniform(0.5, 1.0) * step_s, (shed_at - now) / 2))
    elif not provider_down:
        doublings = min(history.setbacks - 1, _MAX_DOUBLINGS)
        step_s = min(policy.first_backoff_s * 2**doublings, policy.max_backoff_s)
        # Half of the time that is left leaves time for another attempt, and for one after it.
        wait_s = max(wait_s, min(rng.uniform(0.5, 1.0) * step_s, (shed_at - now) / 2))
    return Backoff(until=now + wait_s, reason=outcome.reason)


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
