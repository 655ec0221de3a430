"""Retry policy: whether and when a failed attempt is tried again. Pure; the pool asks it.

In this order:

1. the client has seen a byte of the answer, or waiting cannot cure it    → give up
2. the scheduler stops                                                   → give up
3. too many attempts that may have been billed, or that failed           → give up
4. the client is about to give up itself                                 → give up: the provider's last answer goes out
5. else back off: the longer of an exponential step and the provider's retry-after, unless others proved that wrong

Before all that (`judge`): an attempt that succeeded or was cancelled ends its ticket, and so does one of which the
provider would not take the same request again.

A rate limit's own step is short: meters and hidden limits pace everybody. A provider that is down has none: the
breaker probes. A backoff is the ticket's own and always ends: what keeps the whole pool is asked at its gate.

Beside it, as values, what the scheduler answers to a request; and the patience of clients, as far as it was learned.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from hivemind_addon.kernel.values.command import Cancel
from hivemind_addon.kernel.values.spend import Shortage
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, Outcome, OutcomeKind, Reason, Ticket


class ActiveBlock(Struct, frozen=True, tag="account-block"):
    """Why the account is refused, and until when."""

    reason: str
    until: float
    """Monotonic instant; where its end is not told, when one looks again."""
    is_end_told: bool = True


class Admitted(Struct, frozen=True, tag=True):
    """The ticket goes upstream now."""

    attempt: Attempt


class Shed(Struct, frozen=True, tag=True):
    """The ticket ends here: the client gets a refusal that makes it come back."""

    ticket: Ticket
    reason: Reason
    come_back_s: float
    """When there is likely to be room, in seconds from now."""


class Refused(Struct, frozen=True, tag=True):
    """The ticket ends here: a budget or the account is spent, or a person cancelled it.

    The client gets a refusal that it does not retry.
    """

    ticket: Ticket
    cause: Shortage | ActiveBlock | Cancel


class Finished(Struct, frozen=True, tag=True):
    """The ticket is over; its answer is (or was) the client's."""


class Backoff(Struct, frozen=True, tag=True):
    """The ticket is queued again, at its old place, and not before an instant."""

    until: float
    reason: str


class GiveUp(Struct, frozen=True, tag=True):
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
        is_accounts = outcome.account_block_s is not None
        setback = outcome.kind is not OutcomeKind.THROTTLED and not provider_down and not is_accounts
        worth = _WORTH_ALONE if nobody_answered else 1.0
        return replace(
            self,
            setbacks=self.setbacks + setback,
            failures=self.failures + (worth if setback and outcome.kind is not OutcomeKind.OVERLOADED else 0),
            ambiguous=self.ambiguous + outcome.ambiguous,
            last_was_ambiguous=outcome.ambiguous,
            throttled=self.throttled + 1 if outcome.kind is OutcomeKind.THROTTLED else 0,
        )


def judge(
    policy: RetryPolicy,
    history: History,
    result: AttemptResult,
    now: float,
    rng: random.Random,
    *,
    shed_at: float,
    provider_down: bool,
    nobody_answered: bool = False,
    believes_told: bool = True,
    stopping: bool = False,
) -> tuple[History, Verdict]:
    """What follows the end of a ticket's running attempt, and its history with that end.

    `history`: the attempt is started in it. `shed_at`: monotonic instant from which on nothing is tried again.
    `provider_down`, `nobody_answered`: of the pool, which has learned of this end already. `believes_told`: see
    `decide`.
    """
    outcome = result.outcome
    if outcome.kind is OutcomeKind.SUCCESS or outcome.kind is OutcomeKind.CANCELLED:
        return history, Finished()
    if outcome.account_block_s and now + outcome.account_block_s < shed_at and result.may_repeat:
        # Its client will still be there when the block ends: it waits for that in its pool.
        outcome = replace(outcome, retryable=True)
    if outcome.account_block_s is not None:
        believes_told = False  # the block tells when to come back
    if outcome.retryable and not result.may_repeat and not result.client_saw_bytes:
        return history, GiveUp(Reason.ANEW)
    history = history.ended(outcome, provider_down=provider_down, nobody_answered=nobody_answered)
    verdict = decide(
        policy,
        history,
        outcome,
        now,
        rng,
        shed_at=shed_at,
        provider_down=provider_down,
        believes_told=believes_told,
        stopping=stopping,
        client_saw_bytes=result.client_saw_bytes,
    )
    return history, verdict


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


_USUAL_S = (60.0, 120.0, 300.0, 600.0)
_ALIKE = 0.03
"""Two waits are of one time when they differ by no more, as a share of it."""
_LEAST_S = 20.0
"""Who leaves sooner tells of no time-out."""
_LIKELY = 0.2
_MOST = 20.0
"""Of those that left and stayed together; at more both are halved: what was seen long ago counts for less."""
_MOST_TIMES = 8
_MOST_KINDS = 200
_ALONE = 0.5
"""What the first one counts for that leaves at no usual time."""
_MARGIN = 0.05
"""Of the time: an answer has to be there before."""


@dataclass(slots=True)
class LeavingTime:
    """One time after which clients of a kind leave."""

    after_s: Annotated[float, Meta(ge=1, le=86_400)]
    left: Annotated[float, Meta(ge=0, le=1e15)]
    stayed: Annotated[float, Meta(ge=0, le=1e15)] = 0.0

    @property
    def is_likely(self) -> bool:
        """Whether enough have left then."""
        return self.left >= 1 and self.left >= _LIKELY * (self.left + self.stayed)

    def count(self, *, left: int = 0, stayed: int = 0) -> None:
        """One more."""
        self.left += left
        self.stayed += stayed
        if self.left + self.stayed > _MOST:
            self.left /= 2
            self.stayed /= 2


class Patience:
    """How long clients wait that do not say it, of all kinds. One that announced its patience is of no kind: empty.

    Most clients leave silently when no byte has come for a usual time: 60, 120, 300 or 600 s. One of a kind (its user
    agent's product) that leaves at a usual time is believed; at any other it may be a person who gives up, so that it
    takes two that leave alike. One that waits longer speaks against it:

        share of a time = left / (left + stayed)          from `_LIKELY` on it is a time at which a client may leave

    Only the order goes by it, and nobody is refused because of it: so who stays is seen to stay, and a wrong time is
    forgotten. To guess usual times before anybody has left did not pay: who is let pass for leaving at 60 s takes the
    place of one that does leave at 120 (`stress` with silent clients, windows: 18 of 240 agents lost instead of 3).
    """

    def __init__(self) -> None:
        self._times: dict[str, list[LeavingTime]] = {}

    def __repr__(self) -> str:
        return f"<Patience of {len(self._times)} kinds of clients>"

    def leaves_after_s(self, client: str, waited_s: float) -> float:
        """The next wait after which a client may leave that has waited so long, less a margin; infinite: none known."""
        times = self._times.get(client)
        if times is None:
            return math.inf
        likely = ((1 - _MARGIN) * time.after_s for time in times if time.is_likely)
        return min((after_s for after_s in likely if after_s > waited_s), default=math.inf)

    def left(self, client: str, waited_s: float) -> bool:
        """A client left after such a wait, in which no byte had come. Whether a time became likely by that."""
        if not client or waited_s < _LEAST_S:
            return False
        times = self._times.setdefault(client, [])
        time = next((time for time in times if _are_alike(time.after_s, waited_s)), None)
        if time is not None:
            was_likely = time.is_likely
            time.after_s = min(time.after_s, waited_s)
            time.count(left=1)
            return time.is_likely and not was_likely
        if len(times) == _MOST_TIMES:
            times.remove(min(times, key=lambda time: time.left))
        if len(self._times) > _MOST_KINDS:
            del self._times[next(iter(self._times))]
        is_usual = any(_are_alike(usual_s, waited_s) for usual_s in _USUAL_S)
        times.append(LeavingTime(waited_s, left=1.0 if is_usual else _ALONE))
        return is_usual

    def stayed(self, client: str, waited_s: float) -> None:
        """A client was still there after such a wait, in which no byte had come."""
        for time in self._times.get(client, ()):
            if waited_s > (1 + _ALIKE) * time.after_s:
                time.count(stayed=1)

    @property
    def learned(self) -> dict[str, list[LeavingTime]]:
        """What outlives a run, by kind of client."""
        return self._times

    def resume(self, learned: Mapping[str, list[LeavingTime]]) -> None:
        """Begin with what an earlier run has learned."""
        self._times.update(learned)


def _are_alike(one_s: float, other_s: float) -> bool:
    return abs(one_s - other_s) <= _ALIKE * one_s
