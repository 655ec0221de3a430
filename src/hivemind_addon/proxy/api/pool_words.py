"""The state of a pool in words: a word per state, on the command line, in `top`, for agents and in mitmproxy."""

import math

from msgspec.structs import replace

from hivemind_addon.kernel.values.snapshot import (
    CONCURRENCY,
    BreakerState,
    LimitNeed,
    MeterView,
    PoolView,
    RequestState,
    TicketView,
    WindowView,
)
from hivemind_addon.kernel.values.ticket import Reason
from hivemind_addon.proxy.api.words import about, count, lasting, ordinal, short, span


def pool_line(pool: PoolView) -> str:
    """`api.anthropic.com/org-1/sonnet: 4 of 5 in flight, 12 queued (requests: needs 1, 0 left, in about 4 s)`."""
    maximum = maximum_words(pool.maximum_from)
    return f"{pool.key}: " + ", ".join(
        filter(None, (slots_used(pool), maximum, cap_words(pool), queue_words(pool), *troubles(pool).values()))
    )


def pool_state(pool: PoolView) -> str:
    """The main reason that stops the pool from sending; else `busy` or `idle`."""
    usual = "busy" if pool.in_flight or pool.queued else "idle"
    return next(iter(troubles(pool).values()), usual)


def troubles(pool: PoolView) -> dict[Reason, str]:
    """All reasons that stop a pool from sending, the hardest first."""
    found: dict[Reason, str] = {}
    if pool.paused:
        found[Reason.PAUSED] = Reason.PAUSED.value
    if pool.account_block is not None:
        when = f"for {lasting(pool.account_block.ends_in_s)}" if pool.account_block.ends_in_s else "and tried again now"
        found[Reason.ACCOUNT_BLOCK] = f"{pool.account_block.words}, {when}: {pool.account_block.reason}"
    if pool.breaker != BreakerState.CLOSED.value:
        probe = "" if pool.breaker == BreakerState.OPEN.value else ", one request is trying"
        if pool.breaker_tries_in_s is not None:
            probe = f", one request tries in {span(pool.breaker_tries_in_s)}"
        found[Reason.BREAKER] = f"{Reason.BREAKER.value}{probe}"
    if pool.blocked_for_s > 0:
        found[Reason.BLOCKED] = f"{Reason.BLOCKED.value} {span(pool.blocked_for_s)}"
    return found


def slots_used(pool: PoolView) -> str:
    """`3 of 4 in flight`."""
    return f"{pool.in_flight} of {pool.limit} in flight"


def cap_words(pool: PoolView) -> str:
    """`capped at 4 by a person`; empty: no cap."""
    return "" if pool.cap is None else f"capped at {pool.cap} by a person"


def maximum_words(setting: str) -> str:
    """`our maximum: raise concurrency.maximum of profile anthropic`; empty: no setting of ours binds."""
    return f"our maximum: raise {setting}" if setting else ""


def queue_words(pool: PoolView) -> str:
    """`12 queued (input tokens: needs 7.1k, 3.9k left, in about 4 s)`: the reason is the next request's."""
    words = f"{pool.queued:,} queued"
    first = next((view for view in pool.tickets if view.position == 1), None)
    return words if first is None else f"{words} ({first.why}{_start(first.starts_in_s)})"


def why_words(reason: Reason, limit: LimitNeed | None, detail: str = "") -> str:
    """The reason that holds a request, the same in every view; `detail`: which budget, block or attempt.

    `input tokens: needs 7.1k, 3.9k left`, `requests: needs 1, 2 left, after 3 others`, `concurrency limit: 4 of 4 in
    flight`, plus a note if the maximum is our own; the bare reason where no limit decides.
    """
    if limit is None:
        return f"{reason.value}: {detail}" if detail else reason.value
    others = f", after {limit.before} other{'' if limit.before == 1 else 's'}" if limit.before else ""
    if limit.name == CONCURRENCY:
        if limit.left >= limit.needs:  # after an overload the limit is tried out slowly
            return f"{Reason.CONCURRENCY.value}{others}"
        maximum = ", our maximum" if limit.maximum_from else ""  # the pool's line names the setting to raise
        used = f"{short(limit.of - limit.left)} of {short(limit.of)} in flight"
        return f"{Reason.CONCURRENCY.value}: {used}{maximum}{others}"
    name = limit.name.replace("-", " ").replace("_", " ")
    # Earlier requests use the rest of a limit that would suffice for this request alone.
    left = short(math.floor(limit.left))  # no part of a request can be sent
    return f"{name}: needs {short(math.ceil(limit.needs))}, {left} left{others if limit.left >= limit.needs else ''}"


def with_words(pool: PoolView) -> PoolView:
    """The pool with `why` of every waiting ticket."""
    return replace(pool, tickets=tuple(_with_why(view, pool) for view in pool.tickets))


def _with_why(view: TicketView, pool: PoolView) -> TicketView:
    if view.state is RequestState.IN_FLIGHT:
        return view
    reason, detail = Reason(view.reason), ""
    if reason is Reason.BACKOFF and view.attempts:
        detail = f"attempt {view.attempts} failed"
    elif reason is Reason.FUNDS and view.budget is not None:
        detail = view.budget.holder
    elif (
        reason in (Reason.ACCOUNT_BLOCK, Reason.MODEL_BLOCK)
        and pool.account_block is not None
        and pool.account_block.ends_in_s
    ):
        detail = pool.account_block.reason
    return replace(view, why=why_words(reason, view.limit, detail))


def waiting_line(place: int, why: str, starts_in_s: float | None) -> str:
    """A request's place, the reason for the wait, and the likely start, in a line.

    `1st; input tokens: needs 7.1k, 3.9k left, in about 4 s`.
    """
    return f"{ordinal(place)}; {why}{_start(starts_in_s)}"


def held_words(place: int, reason: str) -> str:
    """The start of a wait: `queued, 3rd; rate limit`, `1st; backing off`."""
    state = "" if reason == RequestState.BACKING_OFF else f"{RequestState.QUEUED}, "
    return f"{state}{ordinal(place)}; {reason}"


def _start(starts_in_s: float | None) -> str:
    return "" if starts_in_s is None else f", in about {about(starts_in_s)}"


def meter_words(meter: MeterView) -> tuple[str, str]:
    """The rest of a limit, and the time until the limit is full: `40 of 50`, `full in 12 s`."""
    full = "full" if meter.level >= meter.limit > 0 else f"full in {span(meter.full_in_s)}"
    return f"{count(meter.level)} of {count(meter.limit)}", full


def window_words(window: WindowView) -> tuple[str, str]:
    """The usage of a subscription's window, and the time to the reset: `62% used`, `anew in 2 h 18 min`."""
    used = "unknown" if window.used is None else f"{window.used:.0%} used"
    return used, "" if window.resets_in_s is None else f"anew in {lasting(window.resets_in_s)}"
