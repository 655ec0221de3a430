"""`hivemind agents`: one row an agent, from the report of a running proxy."""

from collections.abc import Sequence

import click

from hivemind_addon.api.command import names_agent
from hivemind_addon.api.report import Report
from hivemind_addon.api.snapshot import BudgetView
from hivemind_addon.api.spend import Scope
from hivemind_addon.api.ticket import Priority
from hivemind_addon.api.words import count, dollars, span
from hivemind_addon.tools.commands.names import agent_names
from hivemind_addon.tools.commands.printing import Format, Row, format_option, print_rows
from hivemind_addon.tools.commands.proxy import one_line, port_option, report_of
from hivemind_addon.tools.dash.agents import spent_share, state_of
from hivemind_addon.tools.dash.family import Node, family
from hivemind_addon.tools.dash.glyphs import plain

_TABLE = {
    "agent": "agent",
    "state": "state",
    "starts": "starts in",
    "priority": "prio",
    "done": "done",
    "lost": "lost",
    "refused": "refused",
    "input": "in",
    "output": "out",
    "cost": "cost",
    "vain": "in vain",
    "left": "budget left",
}
_ENDED = ("lost", "refused", "vain")
"""Columns that a table has where there is anything in them."""
_SPARE = ("output", "priority", "input", "done", "lost", "refused")
_CSV = (
    "agent",
    "state",
    "running",
    "waiting",
    "starts_in_s",
    "waited_s",
    "priority",
    "model",
    "delivered",
    "lost",
    "refused",
    "shed",
    "cancelled",
    "retries_absorbed",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "tokens",
    "wasted_tokens",
    "usd",
    "wasted_usd",
    "seen_ago_s",
)


@click.command()
@click.argument("glob", default="*", shell_complete=agent_names)
@port_option
@format_option
@one_line
def agents(glob: str, port: int, form: Format) -> None:
    """Every agent: what it waits for and for how long, what it has used and cost, what is left of its budget.

    GLOB is an agent's name, or a pattern: quote it. Numbers are since the proxy began; `hivemind history` knows older
    ones. `starts in` is an estimate.

    \b
    Examples:
      hivemind agents
      hivemind agents 'reviewer-*'
      hivemind agents --json | jq '.[] | select(.waiting > 0) | .agent'
      hivemind agents --csv > agents.csv
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    report = report_of(port)
    known = family(report)
    chosen = [agent for agent in known if names_agent(glob, agent.name)]
    if known and not chosen:
        raise click.ClickException(f"no agent {glob!r}; there are {_some([agent.name for agent in known])}")
    if form is Format.TABLE:
        rows = [_worded(one, report) for one in chosen]
        print_rows(
            rows,
            {key: heading for key, heading in _TABLE.items() if key not in _ENDED or any(row[key] for row in rows)},
            form,
            none="no agent has asked for anything yet",
            spare=_SPARE,
        )
    else:
        print_rows([_plain(one, report) for one in chosen], {key: key for key in _CSV}, form)
    if report.tally.more_sessions:
        click.echo(f"{report.tally.more_sessions:,} older sessions are not in this list", err=True)


def _plain(agent: Node, report: Report) -> Row:
    """For programs: whole numbers and seconds."""
    waiting = [one for one in agent.tickets if one.state != "in flight"]
    starts = [one.starts_in_s for one in waiting if one.starts_in_s is not None]
    return {
        "agent": agent.name,
        "state": "waiting" if waiting else "running" if agent.tickets else "idle",
        "running": agent.in_flight,
        "waiting": len(waiting),
        "starts_in_s": min(starts, default=None),
        "waited_s": agent.wait_s,
        "reason": min(waiting, key=lambda one: one.position).reason if waiting else "",
        "priority": _priority(agent),
        "model": agent.model,
        "delivered": agent.delivered,
        "lost": agent.lost,
        "refused": agent.refused,
        "shed": agent.shed,
        "cancelled": agent.cancelled,
        "retries_absorbed": agent.retries_absorbed,
        "input_tokens": agent.usage.total_input_tokens,
        "cached_tokens": agent.usage.cache_read_tokens,
        "output_tokens": agent.usage.output_tokens,
        "tokens": agent.tokens,
        "wasted_tokens": agent.wasted_tokens,
        "usd": agent.micro_usd / 1e6,
        "wasted_usd": agent.wasted_micro_usd / 1e6,
        "all_priced": agent.is_priced,
        "budgets": [_budget(view) for view in _budgets(agent, report)],
        "seen_ago_s": agent.seen_ago_s,
    }


def _worded(agent: Node, report: Report) -> Row:
    """For people."""
    row = _plain(agent, report)
    starts_in_s = row["starts_in_s"]
    waits = row["waiting"]
    budgets = _budgets(agent, report)
    return {
        "agent": plain(agent.name),
        "state": state_of(agent).text,
        "starts": f"~{span(starts_in_s)}" if isinstance(starts_in_s, float) else "?" if waits else "",
        "priority": row["priority"],
        "done": agent.delivered,
        "lost": agent.lost or None,
        "refused": agent.refused or None,
        "input": count(agent.usage.total_input_tokens),
        "output": count(agent.usage.output_tokens),
        "cost": _cost(agent),
        "vain": dollars(agent.wasted_micro_usd) if agent.wasted_micro_usd else None,
        "left": _left(max(budgets, key=spent_share)) if budgets else "",
    }


def _priority(agent: Node) -> str:
    if not agent.tickets:
        return ""
    return Priority(min(one.ticket.priority for one in agent.tickets)).name.lower()


def _cost(agent: Node) -> str:
    if not agent.micro_usd:
        return "" if agent.is_priced else "?"
    return dollars(agent.micro_usd) + ("" if agent.is_priced else "+")


def _budgets(agent: Node, report: Report) -> Sequence[BudgetView]:
    """The agent's own."""
    views = report.snapshot.budgets
    return [view for view in views if view.budget.scope is Scope.AGENT and view.budget.name == agent.name]


def _budget(view: BudgetView) -> dict[str, object]:
    budget = view.budget
    left: dict[str, object] = {}
    if budget.tokens is not None:
        left["tokens_left"] = max(0, budget.tokens + view.added.tokens - view.spent.tokens)
    if budget.micro_usd is not None:
        left["usd_left"] = max(0, budget.micro_usd + view.added.micro_usd - view.spent.micro_usd) / 1e6
    return {"per": budget.per.value, **left, "renews_in_s": view.renews_in_s}


def _left(view: BudgetView) -> str:
    """Of the budget of which least is left."""
    told = _budget(view)
    tokens, usd = told.get("tokens_left"), told.get("usd_left")
    parts = [f"{count(tokens)} tok" if isinstance(tokens, int) else ""]
    parts += [dollars(round(usd * 1e6)) if isinstance(usd, float) else ""]
    return f"{' '.join(filter(None, parts))} / {view.budget.per.value}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(plain, names[:8])) + (", …" if len(names) > 8 else "")
