"""What `hivemind status` shows people: pure, from a report to tables."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hivemind_addon.core.snapshot import BudgetView, PoolView, TicketView, WallView, WindowView
from hivemind_addon.core.spend import Spend, amount
from hivemind_addon.observe.report import Report
from hivemind_addon.words import lasting

MAX_TICKETS = 40
"""Rows; the rest is counted."""


def status_view(report: Report) -> RenderableType:
    """Pools with their limits, the tickets that wait and why, the ones in flight, and budgets."""
    snapshot, proxy = report.snapshot, report.proxy
    count = snapshot.counters
    parts: list[RenderableType] = [
        Text(
            f"{'stopping' if snapshot.stopping else 'serving'} on {', '.join(proxy.listens)} (process {proxy.pid}): "
            f"{count.tickets:,} requests, {count.delivered:,} delivered, {count.attempts:,} attempts, "
            f"{count.throttled:,} refused upstream, {count.guard_trips:,} guard trips"
        )
    ]
    if snapshot.pools:
        parts.append(_pools(snapshot.pools))
        parts += _tickets(snapshot.pools)
    else:
        parts.append(Text("no model call yet"))
    if snapshot.budgets:
        parts.append(_budgets(snapshot.budgets))
    return Group(*parts)


def _pools(pools: tuple[PoolView, ...]) -> Table:
    table = Table("pool", "in flight", "queued", "limits", "breaker", title="pools", title_justify="left")
    for pool in pools:
        lines = [f"{meter.name}: {meter.level:,.0f} of {meter.limit:,.0f}" for meter in pool.meters]
        lines += [_window(window) for window in pool.windows]
        if pool.paused:
            lines.append("paused by a person")
        if pool.cap is not None:
            lines.append(f"at most {pool.cap} at once, as a person said")
        if pool.blocked_for_s > 0:
            lines.append(f"asked to wait {pool.blocked_for_s:.0f} s")
        if pool.wall is not None:
            lines.append(f"spent: {pool.wall.reason}, {_end_of(pool.wall)}")
        table.add_row(
            _plain(str(pool.key)),
            f"{pool.in_flight} of {pool.limit}",
            str(pool.queued),
            _plain("\n".join(lines) or "none known"),
            _plain(pool.breaker),
        )
    return table


def _window(window: WindowView) -> str:
    """A subscription's window: `5h: 62 % used, allowed, renews in 2 h 18 min`."""
    said = [] if window.used is None else [f"{window.used:.0%} used"]
    said += [window.status] if window.status else []
    said += [] if window.resets_in_s is None else [f"renews in {lasting(window.resets_in_s)}"]
    return f"{window.name}: {', '.join(said) or 'nothing is known'}"


def _end_of(wall: WallView) -> str:
    return f"for {lasting(wall.ends_in_s)}" if wall.ends_in_s else "being tried again"


def _tickets(pools: tuple[PoolView, ...]) -> Iterator[RenderableType]:
    tickets = [ticket for pool in pools for ticket in pool.tickets]
    if not tickets:
        return
    tickets.sort(key=lambda one: (one.state == "in flight", str(one.ticket.pool), one.position))
    table = Table("id", "place", "agent", "model", "waits", "attempt", "why", title="requests", title_justify="left")
    for one in tickets[:MAX_TICKETS]:
        table.add_row(*_row(one))
    yield table
    if len(tickets) > MAX_TICKETS:
        yield Text(f"and {len(tickets) - MAX_TICKETS:,} more")


def _row(one: TicketView) -> Iterator[RenderableType]:
    yield _plain(one.ticket.id)
    yield _plain(str(one.position) if one.position else "-")
    yield _plain(one.ticket.agent)
    yield _plain(one.ticket.model)
    yield _plain(f"{one.waited_s:.0f} s")
    yield _plain(str(one.attempts))
    yield _plain(one.reason or one.state)


def _budgets(budgets: tuple[BudgetView, ...]) -> Table:
    table = Table("budget", "spent", "set aside", "of", "renews", title="budgets", title_justify="left")
    for view in budgets:
        budget = view.budget
        renews = "at the next start" if view.renews_in_s is None else f"in {lasting(view.renews_in_s)}"
        limit = Spend(tokens=budget.tokens or 0, micro_usd=budget.micro_usd or 0)
        table.add_row(
            _plain(f"{budget.holder}, per {budget.per.value}"),
            *(_plain(_amounts(one)) for one in (view.spent, view.reserved, limit)),
            renews,
        )
    return table


def _amounts(spend: Spend) -> str:
    said = [amount(unit, value) for unit, value in (("tokens", spend.tokens), ("micro_usd", spend.micro_usd)) if value]
    return ", ".join(said) or "nothing"


def _plain(text: str) -> Text:
    """Names come from requests: they are no markup and no control characters."""
    return Text("".join(char if char.isprintable() or char == "\n" else "?" for char in text))
