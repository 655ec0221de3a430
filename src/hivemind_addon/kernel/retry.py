"""Retry policy: decides whether and when a failed attempt is retried. Pure; the pool calls it.

`judge` gives up once the client has seen a byte, when waiting cannot cure the end (by its owner), when the scheduler is
stopping, after too many failures, and when the client is about to leave. Else the ticket backs off: for the longer of
an exponential step and the provider's retry-after, unless others proved that wrong. The step after a rate limit is
short, because meters and hidden limits pace all tickets. There is no step while the provider is down, because the
breaker probes.

This file also holds the learned patience of clients.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from hivemind_addon.kernel.limits.owner import Owner
from hivemind_addon.kernel.values.decision import Backoff, Finished, GiveUp, Verdict
from hivemind_addon.kernel.values.ticket import AttemptResult, Outcome, OutcomeKind, Reason, Ticket

_FIRST_THROTTLED_S = 0.2
"""The step after the first rate-limit refusal; doubles with each further refusal in a row."""
_MOST_THROTTLED_S = 8.0
"""SDKs wait no longer either."""
_WORTH_ALONE = 0.5
"""How much a failure counts while the provider answers no other request either. So a ticket outlives an outage of
minutes, and a request that can never succeed still ends."""
_MOST_BY_EDGE = 3
"""Tries of a request that something in front of the provider refuses."""
_MOST_WITHOUT_END = 2
"""Tries of a request whose answer lacks the last event. Where answers always do, its client accepts that."""
_MARGIN_S = 0.25
_MARGIN_SERVICES = 1.5
_MARGIN_SHARE = 0.1
_MAX_DOUBLINGS = 30
"""Far above every `max_backoff_s`; keeps the power finite after thousands of overloads."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits on retries of a ticket. Refusals that waiting cures (429, 529) are retried until the deadline."""

    max_failures: int = 10
    """Attempts that may end in 500, 502, a cut or a reset before the client gets the provider's answer; twice as many
    while no other request is answered either. With 15 % random faults, 9 lose one request in a million."""
    max_ambiguous: int = 4
    """Retries after attempts that ended without a status and may have been billed."""
    first_backoff_s: float = 0.5
    """The step before the second attempt; doubles with each further attempt."""
    max_backoff_s: float = 30.0


class History(Struct, frozen=True):
    """The results of a ticket's attempts so far."""

    attempts: int = 0
    """Started attempts."""
    setbacks: int = 0
    """Attempts that ended in anything but a rate limit while the provider was up: the exponent of the backoff."""
    failures: float = 0
    """Setbacks without overloads. Each counts only in part (`_WORTH_ALONE`) if the provider may be the cause."""
    ambiguous_resends: int = 0
    """Attempts started after an ambiguous attempt."""
    last_was_ambiguous: bool = False
    throttled: int = 0
    """Rate-limit refusals in a row."""
    rebuffs: int = 0
    """Refusals by the edge, and answers without their last event; 1 more where no answer has a last event."""

    @property
    def ambiguous(self) -> int:
        """Attempts that ended without a status and may have been billed."""
        return self.ambiguous_resends + self.last_was_ambiguous

    def started(self) -> "History":
        """The history with another started attempt."""
        return replace(
            self,
            attempts=self.attempts + 1,
            ambiguous_resends=self.ambiguous_resends + self.last_was_ambiguous,
            last_was_ambiguous=False,
        )

    def ended(self, outcome: Outcome, owner: Owner, *, provider_down: bool, nobody_answered: bool = False) -> "History":
        """The history with the end of the running attempt.

        `nobody_answered`: nothing has shown since the ticket's last failures that the provider is up.
        """
        throttled = outcome.kind is OutcomeKind.THROTTLED
        setback = not throttled and not provider_down and owner is not Owner.PLAN
        worth = _WORTH_ALONE if nobody_answered else 1.0
        return replace(
            self,
            setbacks=self.setbacks + setback,
            failures=self.failures + (worth if setback and outcome.kind is not OutcomeKind.OVERLOADED else 0),
            last_was_ambiguous=outcome.ambiguous,
            throttled=self.throttled + 1 if throttled else 0,
            rebuffs=self.rebuffs + (owner is Owner.EDGE or outcome.lacks_end),
        )


def judge(
    policy: RetryPolicy,
    history: History,
    result: AttemptResult,
    now: float,
    rng: random.Random,
    *,
    owner: Owner,
    shed_at: float,
    provider_down: bool,
    nobody_answered: bool = False,
    believes_told: bool = True,
    stopping: bool = False,
) -> tuple[History, Verdict]:
    """Decide after the end of an attempt. Returns the history with this end, and the verdict.

    `history`: counts the attempt as started. `shed_at`: monotonic instant; no retry from then on, but a backoff may end
    later: `poll` sheds the ticket then. `provider_down`, `nobody_answered`: the pool's state after this end.
    """
    outcome = result.outcome
    if outcome.kind is OutcomeKind.SUCCESS or outcome.kind is OutcomeKind.CANCELLED:
        return history, Finished()
    retryable = outcome.retryable and owner is not Owner.REQUEST
    if owner is Owner.PLAN:
        believes_told = False  # the block has the instant to come back
        block_s = outcome.account_block_s
        # The client will still be there when the block ends, so the ticket waits in the pool.
        outlives = bool(block_s) and now + (block_s or 0.0) < shed_at and result.may_repeat
        retryable = outlives or (retryable and block_s is not None)
    if retryable and not result.may_repeat and not result.client_saw_bytes:
        return history, GiveUp(Reason.ANEW)
    history = history.ended(outcome, owner, provider_down=provider_down, nobody_answered=nobody_answered)
    if result.client_saw_bytes:
        return history, GiveUp(Reason.DELIVERED_BYTES)
    if not retryable:
        is_named = outcome.account_block_s is not None
        reason = Reason.ACCOUNT_BLOCK if is_named else Reason.LONG_WAIT
        return history, GiveUp(reason if owner is Owner.PLAN else Reason.NOT_RETRYABLE)
    if stopping:
        return history, GiveUp(Reason.STOPPING)
    if history.ambiguous > policy.max_ambiguous or (outcome.lacks_end and history.rebuffs >= _MOST_WITHOUT_END):
        return history, GiveUp(Reason.SPENT_AMBIGUOUS)
    if history.failures >= policy.max_failures or (owner is Owner.EDGE and history.rebuffs >= _MOST_BY_EDGE):
        return history, GiveUp(Reason.SPENT_ATTEMPTS)
    if now >= shed_at:
        return history, GiveUp(Reason.DEADLINE)
    wait_s = sane_retry_after_s(outcome.retry_after_s) if believes_told else 0.0
    if outcome.kind is OutcomeKind.THROTTLED or not provider_down:
        # Waiting at most half of the remaining time leaves time for two more attempts.
        wait_s = max(wait_s, min(rng.uniform(0.5, 1.0) * step_s(policy, history), (shed_at - now) / 2))
    return history, Backoff(until=now + wait_s, reason=outcome.reason)


def step_s(policy: RetryPolicy, history: History) -> float:
    """The longest step of the exponential backoff; short after a rate limit's refusal."""
    first_s, row, most_s = policy.first_backoff_s, history.setbacks, policy.max_backoff_s
    if history.throttled:
        first_s, row, most_s = _FIRST_THROTTLED_S, history.throttled, min(most_s, _MOST_THROTTLED_S)
    return min(first_s * 2.0 ** min(row - 1, _MAX_DOUBLINGS), most_s)


def last_moment(ticket: Ticket, service_s: float) -> float:
    """The latest instant at which a held ticket may go if an attempt takes `service_s` on average.

    `ticket.shed_at` is early because it assumes nothing about the provider; a fast provider leaves more time.
    """
    patience_s = ticket.deadline_at - ticket.arrived_at
    margin_s = min(_MARGIN_SHARE * patience_s, _MARGIN_S + _MARGIN_SERVICES * service_s)
    return max(ticket.shed_at, ticket.deadline_at - margin_s)


def sane_retry_after_s(retry_after_s: float | None) -> float:
    """The provider's retry-after; 0 if missing or impossible."""
    if retry_after_s is None or not math.isfinite(retry_after_s):
        return 0.0
    return max(0.0, retry_after_s)


_USUAL_S = (5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_ALIKE = 0.03
"""Two waits are equal if they differ by at most this fraction."""
_LEAST_S = 2.0
"""A client that leaves sooner shows no time-out."""
_DOUBTED = 0.25
"""`stayed ÷ left` above this: nobody is shed then."""
_LOST = 0.125
"""How much a shed client counts as a client that stayed, until the client comes back."""
_HELD_S = 300.0
"""Where the assumed time is doubted. The longest usual time-out of a read (undici, aiohttp, MCP's clients)."""
_MOST = 20.0
"""`left + stayed` above this halves both, so old observations count less."""
_MOST_TIMES = 8
_MOST_KINDS = 200
_ALONE = 0.5
"""How much the first client counts that leaves at an unusual time."""
_MARGIN = 0.05
"""Fraction of the time: the answer must arrive before."""


@dataclass(slots=True)
class LeavingTime:
    """A wait after which clients of the same kind leave."""

    after_s: Annotated[float, Meta(ge=1, le=86_400)]
    left: Annotated[float, Meta(ge=0, le=1e15)]
    stayed: Annotated[float, Meta(ge=0, le=1e15)] = 0.0

    def is_sure(self, *, assumed: bool) -> bool:
        """Whether nearly all clients have left then. An assumption counts as a client."""
        left = self.left + assumed
        return left >= 1 and self.stayed <= _DOUBTED * left

    def count(self, *, left: float = 0, stayed: float = 0) -> None:
        """Add observations."""
        self.left += left
        self.stayed = max(0.0, self.stayed + stayed)
        if self.left + self.stayed > _MOST:
            self.left /= 2
            self.stayed /= 2


class Patience:
    """Learns how long clients wait that do not announce it. A kind is an agent's clients of a product.

    Several programs with different time-outs stand behind a product, but rarely behind an agent, so no agent's
    clients are shed because another agent's left.

    The profile assumes a time for a kind. Most clients leave silently if no byte has come for a usual time: a single
    client that leaves then is enough to learn this time. At any other time a person may have given up, so two clients
    must leave after the same wait. A client that waits longer counts against each time that it outlasts, the assumed
    time included. A time is sure if `stayed` is at most a quarter of `left`; the assumed time counts as a client that
    left. The first sure time is the ticket's deadline, which changes the order, and sheds: the client gets a refusal
    shortly before, and keeps its position if it comes back, so it has no less than without a proxy. Where no time is
    sure, the client is held for `_HELD_S`. Guessing usual times before any client has left did harm.

    A shed client never shows that it would have waited. So a shed counts a little against the time, until the client
    comes back: where sheds lose clients, the next client is held, at no cost, since a shed loses clients as surely.
    Where shed clients come back, nobody is tried.
    """

    def __init__(self) -> None:
        self.times: dict[str, list[LeavingTime]] = {}
        """Kind of client → times; saved for the next run."""

    def believed(self, ticket: Ticket) -> Ticket:
        """The ticket with the deadline that its kind has shown."""
        if not ticket.client:
            return ticket
        assumed_s = ticket.deadline_at - ticket.arrived_at
        times = self.times.get(_kind(ticket), ())
        assumed = _alike(times, assumed_s)
        sure = [time.after_s for time in times if time.is_sure(assumed=time is assumed)]
        if assumed is None:
            sure.append(assumed_s)
        waits_s = min(sure, default=max(_HELD_S, assumed_s))
        if waits_s == assumed_s:
            return ticket
        shed_at = ticket.arrived_at + (1 - _MARGIN) * waits_s
        return replace(ticket, deadline_at=ticket.arrived_at + waits_s, shed_at=shed_at)

    def left(self, ticket: Ticket, waited_s: float) -> None:
        """Learn that a client left after this wait without a byte."""
        if ticket.client and waited_s >= _LEAST_S:
            time = self._time(ticket, waited_s)
            is_first = not time.left and _alike((time,), *_USUAL_S) is None
            time.after_s = min(time.after_s, waited_s)
            time.count(left=_ALONE if is_first else 1)

    def stayed(self, ticket: Ticket, waited_s: float) -> None:
        """Learn that a client was still there after this wait without a byte."""
        deadline_s = ticket.deadline_at - ticket.arrived_at
        if ticket.client and waited_s > (1 + _ALIKE) * deadline_s >= _LEAST_S:
            self._time(ticket, deadline_s)
        for time in self.times.get(_kind(ticket), ()):
            if waited_s > (1 + _ALIKE) * time.after_s:
                time.count(stayed=1)

    def shed(self, ticket: Ticket, *, came_back: bool = False) -> None:
        """Learn that a client was shed at the deadline, or came back later."""
        deadline_s = ticket.deadline_at - ticket.arrived_at
        if ticket.client and _LEAST_S <= deadline_s < _HELD_S:
            self._time(ticket, deadline_s).count(stayed=-_LOST if came_back else _LOST)

    def _time(self, ticket: Ticket, after_s: float) -> LeavingTime:
        """The time of a kind that is alike, or a new time."""
        if len(self.times) > _MOST_KINDS:
            del self.times[next(iter(self.times))]
        times = self.times.setdefault(_kind(ticket), [])
        time = _alike(times, after_s)
        if time is None:
            if len(times) == _MOST_TIMES:
                times.remove(min(times, key=lambda time: time.left))
            times.append(time := LeavingTime(after_s, left=0))
        return time


def _kind(ticket: Ticket) -> str:
    return f"{ticket.client} of {ticket.agent}"


def _alike(times: Iterable[LeavingTime], *waits_s: float) -> LeavingTime | None:
    """The first time that equals a wait."""
    return next(
        (time for time in times if any(abs(time.after_s - wait_s) <= _ALIKE * wait_s for wait_s in waits_s)), None
    )
