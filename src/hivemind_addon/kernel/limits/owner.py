"""The owner of a refusal or failure: the thing that has to change before the same call passes. Pure.

Each end of an attempt gets one owner before anything learns from the end, and only the owner decides what learns:

    REQUEST     the request, whenever it is sent     nothing learns; the answer goes to the client as it came
    LIMIT       a rate limit not explained yet       the hidden limits learn
    METER       a rate limit that headers report     nothing learns
    PLAN        the account: a plan's window, a      the account block; held if the client outlives the wait, else
                day's quota, the money               refused at once
    EDGE        something in front of the provider,  fewer slots for some seconds; three tries
                or other processes' attempts
    CAPACITY    the server: overload, or a limit on  the hidden cap and the breaker learn
                attempts at once
    UNKNOWN     a failure, or a refusal of a request the breaker learns from failures
                while others as large pass
"""

import math
from enum import Enum

from msgspec.structs import replace

from hivemind_addon.kernel.values.ticket import AttemptResult, Outcome, OutcomeKind

_LONG_S = 600.0
"""The windows of rate limits are shorter; a wait as long as this ends with a plan's window, a day or a month."""
_ENDPOINTS_OWN = (None, 401, 402, 429)
"""Statuses of final refusals that are about the certificate, the key or the money of the account."""


class Owner(Enum):
    """The owners, as described above."""

    REQUEST = "request"
    LIMIT = "limit"
    METER = "meter"
    PLAN = "plan"
    EDGE = "edge"
    CAPACITY = "capacity"
    UNKNOWN = "unknown"

    __hash__ = object.__hash__  # Enum's `__hash__` is written in Python


def owner_of(outcome: Outcome, patience_s: float, *, by_others: bool = False) -> Owner:
    """The owner as far as a single end shows; LIMIT may turn out to be METER, REQUEST or UNKNOWN.

    `patience_s`: the time that the client still waits, infinite if retry-afters of this kind proved wrong. `by_others`:
    other processes may have attempts in flight.
    """
    if outcome.of_edge or (by_others and outcome.kind is OutcomeKind.OVERLOADED):
        return Owner.EDGE
    if plan_wait_s(outcome, patience_s) is not None:
        return Owner.PLAN
    match outcome.kind:
        case OutcomeKind.THROTTLED:
            return Owner.UNKNOWN if by_others else Owner.LIMIT
        case OutcomeKind.OVERLOADED:
            return Owner.CAPACITY
        case OutcomeKind.IGNORED if not outcome.retryable:
            return Owner.REQUEST
    return Owner.UNKNOWN


def plan_wait_s(outcome: Outcome, patience_s: float) -> float | None:
    """The wait for the account's long window, 0 if the end is not stated; None: the outcome reports no such wait."""
    if outcome.account_block_s is not None or outcome.kind is not OutcomeKind.THROTTLED:
        return outcome.account_block_s
    wait_s = outcome.retry_after_s or 0.0
    return wait_s if max(_LONG_S, patience_s) < wait_s < math.inf else None


def as_block(result: AttemptResult, patience_s: float) -> AttemptResult:
    """A final refusal by an endpoint as a block of that endpoint, retryable at equal ones; else the result itself."""
    outcome = result.outcome
    wait_s = plan_wait_s(outcome, patience_s)
    is_final = outcome.kind is OutcomeKind.IGNORED and not outcome.retryable and not outcome.garbage
    if wait_s is None and not (is_final and (outcome.of_account or outcome.status in _ENDPOINTS_OWN)):
        return result
    return replace(result, outcome=replace(outcome, retryable=True, account_block_s=wait_s or 0.0))
