"""What a pool does, in words: one word for one state, on the command line, in `top`, for agents and in mitmproxy."""

from hivemind_addon.api.snapshot import CONCURRENCY, BreakerState, MeterView, PoolView, TicketView, WindowView
from hivemind_addon.api.ticket import Reason
from hivemind_addon.api.words import about, count, lasting, span


def pool_line(pool: PoolView) -> str:
    """`api.anthropic.com/org-1/sonnet: 4 of 5 in flight, 12 queued (rate limit, next in about 4 s)`."""
    return f"{pool.key}: " + ", ".join(
        filter(None, (slots_used(pool), cap_words(pool), queue_words(pool), *troubles(pool).values()))
    )


def pool_state(pool: PoolView) -> str:
    """What keeps it from sending, the hardest first; else `busy` or `idle`."""
    usual = "busy" if pool.in_flight or pool.queued else "idle"
    return next(iter(troubles(pool).values()), usual)


def troubles(pool: PoolView) -> dict[Reason, str]:
    """Everything that keeps a pool from sending, the hardest first."""
    found: dict[Reason, str] = {}
    if pool.paused:
        found[Reason.PAUSED] = Reason.PAUSED.value
    if pool.account_block is not None:
        when = f"for {lasting(pool.account_block.ends_in_s)}" if pool.account_block.ends_in_s else "and tried again now"
        found[Reason.ACCOUNT_BLOCK] = f"account refused {when}: {pool.account_block.reason}"
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
    """`capped at 4 by a person`; empty: it is not."""
    return "" if pool.cap is None else f"capped at {pool.cap} by a person"


def queue_words(pool: PoolView) -> str:
    """`12 queued (rate limit, next in about 4 s)`."""
    words = f"{pool.queued:,} queued"
    first = next((view for view in pool.tickets if view.position == 1), None)
    if first is None:
        return words
    start = "" if first.starts_in_s is None else f", next in about {about(first.starts_in_s)}"
    return f"{words} ({waiting_words(first)}{start})"


def waiting_words(view: TicketView, *, in_column: bool = False) -> str:
    """Why a ticket waits: `input tokens: needs 7.10k, 3.90k left`; where no limit decides, the reason itself.

    `in_column`: in few characters, `input tokens 7.10k, 3.90k left`.
    """
    limit = view.limit
    if limit is None or limit.name == CONCURRENCY:
        return Reason.CONCURRENCY.value if limit else view.reason
    name = limit.name.replace("-", " ").replace("_", " ")
    needs, left = count(limit.needs), f"{count(limit.left)} left"
    if in_column:
        return f"{name} {needs}, {left}"
    # Of what is enough for itself those before it take.
    return f"{name}: needs {needs}, {left}{' for all' if limit.left >= limit.needs else ''}"


def meter_words(meter: MeterView) -> tuple[str, str]:
    """What is left of a limit, and when it is whole again: `40 of 50`, `full in 12 s`."""
    full = "full" if meter.level >= meter.limit > 0 else f"full in {span(meter.full_in_s)}"
    return f"{count(meter.level)} of {count(meter.limit)}", full


def window_words(window: WindowView) -> tuple[str, str]:
    """What is used of a subscription's window, and when it begins anew: `62% used`, `anew in 2 h 18 min`."""
    used = "unknown" if window.used is None else f"{window.used:.0%} used"
    return used, "" if window.resets_in_s is None else f"anew in {lasting(window.resets_in_s)}"
