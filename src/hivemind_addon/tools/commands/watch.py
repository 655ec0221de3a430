"""`hivemind status | status agents | status pools | top`: what a running proxy does now."""

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from hivemind_addon.kernel.values.command import names_agent, names_pool
from hivemind_addon.kernel.values.snapshot import BudgetView, PoolView
from hivemind_addon.proxy.api.account import account_view
from hivemind_addon.proxy.api.control import control_socket, decode_report
from hivemind_addon.proxy.api.pool_words import pool_state
from hivemind_addon.proxy.api.report import PoolStats, Report
from hivemind_addon.proxy.api.words import printable
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.terminal import is_screen, terminal_width
from hivemind_addon.tools.commands.group import ListGroup
from hivemind_addon.tools.commands.names import agent_names, pool_names
from hivemind_addon.tools.commands.options import any_port_option, port_option
from hivemind_addon.tools.commands.printing import Format, Row, format_option, print_rows
from hivemind_addon.tools.commands.proxy import one_line, report_of, reports_of
from hivemind_addon.tools.dash.agents import agent_rows, agents_grid, priority_of
from hivemind_addon.tools.dash.family import Node, family, lines
from hivemind_addon.tools.dash.picture import print_lines, print_picture
from hivemind_addon.tools.dash.pools import pools as pool_blocks

_POOL_COUNTS = ("admitted", "delivered", "throttled", "garbage", "tokens", "wasted_tokens")
_AGENT_COUNTS = ("delivered", "lost", "refused", "shed", "cancelled", "retries_absorbed")


@click.group(cls=ListGroup, usual="proxies")
def status() -> None:
    """What goes on now: of each proxy, of every agent, of every pool of limits.

    Without a subcommand it shows each proxy.

    \b
    Examples:
      hivemind status
      hivemind status agents 'reviewer-*'
      hivemind status pools api.anthropic.com
    """


@status.command(short_help="Each proxy: limits, what waits and why; the usual one")
@any_port_option
@click.option("--json", "as_json", is_flag=True, help="Print the report of each proxy as one line of JSON.")
@one_line
def proxies(port: int | None, *, as_json: bool) -> None:
    """Show what each proxy does now: limits, what waits and why, budgets, overrides that stand.

    \b
    Examples:
      hivemind status
      hivemind status --json | jq .snapshot.counters
      hivemind status --json > report.json   keep what is now, for a bug report
    """
    for number, report in enumerate(reports_of(port)):
        if as_json:
            click.echo(msgspec.json.encode(report).decode())
            continue
        if number:
            click.echo()
        print_picture(report, requests=True)


@click.command()
@port_option
@click.option("--once", is_flag=True, help="Print one picture. So it is where there is no terminal to draw on.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one line of JSON.")
@click.option(
    "--snapshot",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show a report that was kept with --json, instead of a running proxy.",
)
@one_line
def top(port: int, file: Path | None, *, once: bool, as_json: bool) -> None:
    """Watch a running proxy: limits and queues, every agent and what it waits for, what happened; and steer it.

    Press ? for the keys. It attaches to the proxy and leaves it alone when it ends.

    \b
    Examples:
      hivemind top
      hivemind top --json > report.json      keep what is now, for a bug report
      hivemind top --snapshot report.json    look at it
      COLUMNS=200 hivemind top --once | less
    """
    report = decode_report(file.read_bytes(), str(file)) if file else report_of(port)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    elif once or file or not is_screen():
        print_picture(report)
    else:
        from hivemind_addon.tools.dash.feed import Feed  # noqa: PLC0415 - what follows takes as long as the rest to load
        from hivemind_addon.tools.dash.live import Top  # noqa: PLC0415 - as above

        Top(Feed(control_socket(port)), clock=SystemClock()).run()


@status.command(short_help="Every agent: what it waits for, what it has used")
@click.argument("glob", default="*", shell_complete=agent_names)
@port_option
@format_option
@one_line
def agents(glob: str, port: int, form: Format) -> None:
    """Every agent: what it waits for and for how long, what it has used and cost, how much of its budget is spent.

    GLOB is an agent's name, or a pattern: quote it. Numbers are since the proxy began; `hivemind history` knows older
    ones. `starts in` is an estimate.

    \b
    Examples:
      hivemind status agents
      hivemind status agents 'reviewer-*'
      hivemind status agents --json | jq '.[] | select(.waiting > 0) | .agent'
      hivemind status agents --csv > agents.csv
    """
    report = report_of(port)
    known = family(report)
    chosen = [agent for agent in known if names_agent(glob, agent.name)]
    if known and not chosen:
        raise click.ClickException(f"no agent {glob!r}; there are {_some([agent.name for agent in known])}")
    if form is not Format.TABLE:
        print_rows([_agent_row(one, report) for one in chosen], {}, form)
    elif not chosen:
        click.echo("no agent has asked for anything yet")
    else:
        alone = [line for line in lines(chosen, frozenset()) if not line.depth]
        grid = agents_grid(terminal_width(), alone, report.snapshot.budgets)
        print_lines([grid.heading(), *agent_rows(grid, alone, report.snapshot.budgets)])
    if report.stats.more_sessions:
        click.echo(f"{report.stats.more_sessions:,} older sessions are not in this list", err=True)


def _agent_row(agent: Node, report: Report) -> Row:
    """For programs: whole numbers and seconds."""
    stats, waiting, first = agent.stats, agent.waiting, agent.next_request
    return {
        "agent": agent.name,
        "state": agent.state,
        "running": agent.in_flight,
        "waiting": len(waiting),
        "starts_in_s": agent.starts_in_s,
        "waited_s": agent.wait_s,
        "place": first.position if first else 0,
        "reason": first.reason if first else "",
        "why": first.why if first else "",
        "priority": priority_of(agent),
        "model": agent.model,
        **{name: getattr(stats, name) for name in _AGENT_COUNTS},
        "input_tokens": stats.usage.total_input_tokens,
        "cached_tokens": stats.usage.cache_read_tokens,
        "output_tokens": stats.usage.output_tokens,
        "tokens": stats.tokens,
        "wasted_tokens": stats.wasted_tokens,
        "usd": stats.micro_usd / 1e6,
        "wasted_usd": stats.wasted_micro_usd / 1e6,
        "all_priced": stats.is_priced,
        "budgets": [
            _budget_left(view) for view in report.snapshot.budgets if view.budget.holder == f"agent {agent.name}"
        ],
        "seen_ago_s": stats.seen_ago_s,
    }


def _budget_left(view: BudgetView) -> Row:
    account = account_view(view)
    left: dict[str, object] = {}
    if account.left_tokens is not None:
        left["tokens_left"] = account.left_tokens
    if account.left_micro_usd is not None:
        left["usd_left"] = account.left_micro_usd / 1e6
    if account.left_calls is not None:
        left["calls_left"] = account.left_calls
    return {"per": account.per.value, **left, "renews_in_s": account.renews_in_s}


@status.command(short_help="Every pool of limits: what is left, what waits")
@click.argument("glob", default="*", shell_complete=pool_names)
@port_option
@format_option
@one_line
def pools(glob: str, port: int, form: Format) -> None:
    """Every pool, what shares one set of limits: what is left of them, what runs and waits, what was learned.

    GLOB is a pool's name, its host, or a pattern of either: quote it.

    \b
    Examples:
      hivemind status pools
      hivemind status pools api.anthropic.com
      hivemind status pools '*/claude-opus*' --json | jq '.[].meters'
    """
    report = report_of(port)
    known = report.snapshot.pools
    chosen = tuple(pool for pool in known if names_pool(glob, pool.key))
    if known and not chosen:
        raise click.ClickException(
            f"no pool {glob!r}; there are {', '.join(printable(str(pool.key)) for pool in known)}"
        )
    if form is not Format.TABLE:
        stats_by_key = {stats.key: stats for stats in report.stats.pools}
        ordered = sorted(chosen, key=lambda pool: (-(pool.queued + pool.in_flight), str(pool.key)))
        print_rows([_pool_row(pool, stats_by_key.get(pool.key)) for pool in ordered], {}, form)
    elif not chosen:
        click.echo("nothing was sent to any provider yet")
    else:
        blocks = pool_blocks(replace(report, snapshot=replace(report.snapshot, pools=chosen)), terminal_width())
        print_lines([line for block in blocks for line in (block.head, *block.more)])


def _pool_row(pool: PoolView, stats: PoolStats | None) -> Row:
    """For programs."""
    told = msgspec.to_builtins(pool)
    of_view = (
        "in_flight",
        "limit",
        "maximum_from",
        "cap",
        "queued",
        "paused",
        "breaker",
        "breaker_tries_in_s",
        "blocked_for_s",
        "sharing",
    )
    return {
        "pool": str(pool.key),
        "account_name": pool.account_name,
        "state": pool_state(pool),
        **{name: told[name] for name in (*of_view, "account_block", "meters", "windows", "learned")},
        "wait_p50_s": stats.wait_p50_s if stats else None,
        "wait_p95_s": stats.wait_p95_s if stats else None,
        **{name: getattr(stats, name) if stats else 0 for name in _POOL_COUNTS},
        "input_tokens": stats.usage.total_input_tokens if stats else 0,
        "output_tokens": stats.usage.output_tokens if stats else 0,
        "input_tokens_per_minute": round(stats.input_tokens_per_minute, 1) if stats else 0.0,
        "output_tokens_per_minute": round(stats.output_tokens_per_minute, 1) if stats else 0.0,
        "usd": stats.micro_usd / 1e6 if stats else 0.0,
        "wasted_usd": stats.wasted_micro_usd / 1e6 if stats else 0.0,
    }


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names[:8])) + (", …" if len(names) > 8 else "")
