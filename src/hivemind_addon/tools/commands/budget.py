"""`hivemind budget list | add | set | reset`: the spending of agents, and the amounts that a person allows."""

import functools
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation

import click
import msgspec

from hivemind_addon.kernel.values.command import AddBudget, ResetBudget, SetBudget
from hivemind_addon.kernel.values.snapshot import BudgetView, Snapshot
from hivemind_addon.kernel.values.spend import MOST_AMOUNT, Period, Scope
from hivemind_addon.proxy.api.account import account_view, limits_of, words_of
from hivemind_addon.proxy.api.replies import asker
from hivemind_addon.proxy.api.words import PRICE_CURE, amount, lasting, printable
from hivemind_addon.tools.commands.group import ListGroup
from hivemind_addon.tools.commands.names import agent_names
from hivemind_addon.tools.commands.options import json_option, port_option
from hivemind_addon.tools.commands.printing import Format, format_option, print_rows
from hivemind_addon.tools.commands.proxy import one_line, report_of, tell

_MICRO = 1_000_000
_SUFFIXES = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_COLUMNS = {
    "holder": "holder",
    "per": "per",
    "spent": "spent",
    "limit": "limit",
    "left": "left",
    "reserved": "set aside",
    "unpriced": "not counted",
    "renews": "renews in",
}
_NONE = "no budget was used yet; `hivemind budget set` gives one, an agents file too"


def _read_number(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A whole number of tokens or calls: `500000`, `500_000`, `500k`, `5M`."""
    del ctx, param
    if value is None:
        return None
    factor = _SUFFIXES.get(value[-1:].lower(), 1)
    return _whole(value[:-1] if factor > 1 else value, factor, value)


def _read_dollars(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Dollars, exactly, in millionths: `5`, `0.25`, `$20`."""
    del ctx, param
    return None if value is None else _whole(value.removeprefix("$"), _MICRO, value)


def _whole(text: str, factor: int, value: str) -> int:
    try:
        number = Decimal(text.replace(",", "")) * factor
    except InvalidOperation:
        raise click.BadParameter(
            f"{value!r} is no amount: write 500000, 500k or 5M tokens or calls, or 2.50 dollars"
        ) from None
    if not number.is_finite() or not 0 <= number <= MOST_AMOUNT:
        raise click.BadParameter(f"{value!r} is no amount that a budget can have")
    if number != number.to_integral_value():
        raise click.BadParameter(
            f"{value!r} is finer than what is counted: whole tokens and calls, millionths of a dollar"
        )
    return int(number)


def _holder[R](command: Callable[..., R]) -> Callable[..., R]:
    """AGENT, `--group` or `--everyone`; the command gets `scope` and `name`."""

    @click.argument("agent", default="", shell_complete=agent_names)
    @click.option("--group", default="", metavar="NAME", help="The budget that a group of the agents file shares.")
    @click.option("--everyone", is_flag=True, help="The budget that all agents share.")
    @functools.wraps(command)
    def with_holder(*, agent: str, group: str, everyone: bool, **others: object) -> R:
        if (agent != "") + (group != "") + everyone != 1:
            raise click.UsageError("say whose: AGENT, or --group NAME, or --everyone")
        scope = Scope.EVERYONE if everyone else Scope.GROUP if group else Scope.AGENT
        return command(scope=scope, name=group or agent, **others)

    return with_holder


_any_per = click.option(
    "--per", type=click.Choice([one.value for one in Period]), help="Which of its budgets; all that it has without it."
)
_tokens = click.option(
    "--tokens", metavar="N", callback=_read_number, help="Input, cached or not, and output: 500000, 500k, 5M."
)
_usd = click.option(
    "--usd",
    "micro_usd",
    metavar="DOLLARS",
    callback=_read_dollars,
    help="Money, by the known prices (docs/budgets.md).",
)

_calls = click.option(
    "--calls", metavar="N", callback=_read_number, help="Requests that were run, of models and of tools: 500, 2k."
)


@click.group(cls=ListGroup)
def budget() -> None:
    """Show the spending of each budget, and change budgets while the proxy runs.

    Without a subcommand, list the budgets. The agents file holds lasting budgets (docs/agents.md); docs/budgets.md
    explains the counting.

    \b
    Examples:
      hivemind budget
      hivemind budget add agent-7 --tokens 500k
      hivemind budget set --everyone --usd 5 --per day
    """


@budget.command("list")
@port_option
@format_option
@one_line
def list_(port: int, form: Format) -> None:
    """Show the amounts spent and left of each budget that a request has used.

    JSON and CSV count money in millionths of a dollar.

    \b
    Examples:
      hivemind budget list
      hivemind budget list --json | jq '.[] | select(.left_tokens == 0) | .holder'
      hivemind budget list --csv > budgets.csv
    """
    try:
        report = report_of(port)
    except click.ClickException as error:
        raise click.ClickException(f"{error.message}; `hivemind history budgets` tells how they stood") from None
    views = report.snapshot.budgets
    if form is not Format.TABLE:
        print_rows([msgspec.to_builtins(account_view(view)) for view in views], {}, form)
        return
    rows = _rows(views)
    rare = ("reserved", "unpriced")
    used = {key: name for key, name in _COLUMNS.items() if key not in rare or any(row[key] for row in rows)}
    print_rows(rows, used, form, none=_NONE, spare=("reserved",))
    if "unpriced" in used:
        click.echo(f"not counted: tokens of a model without a price; {PRICE_CURE}")
    guesses = {model: guess for view in views for model, guess in view.guesses.items()}
    if guesses:
        named = ", ".join(f"{printable(model)} at the price of {guesses[model]}" for model in guesses)
        click.echo(f"guessed: {named}; {PRICE_CURE}")
    for line in _given(report.snapshot):
        click.echo(line)


@budget.command()
@_holder
@_tokens
@_usd
@_calls
@_any_per
@port_option
@json_option
def add(
    scope: Scope,
    name: str,
    tokens: int | None,
    micro_usd: int | None,
    calls: int | None,
    per: str | None,
    port: int,
    *,
    as_json: bool,
) -> None:
    """Raise a budget, in the present period only.

    Requests that wait for the budget go at once; a refused agent goes on by sending the request again. AGENT is a
    name from `hivemind budget`, or a glob.

    \b
    Examples:
      hivemind budget add agent-7 --tokens 500k
      hivemind budget add 'reviewer-*' --usd 2.50 --per day
      hivemind budget add --everyone --usd 20
      hivemind budget add agent-7 --calls 100
    """
    if not tokens and not micro_usd and not calls:
        raise click.UsageError("say how much: --tokens 500k, --usd 5, or --calls 100")
    period = Period(per) if per else None
    command = AddBudget(scope, name, period, tokens or 0, micro_usd or 0, calls=calls or 0)
    tell(command, port, as_json=as_json)


@budget.command("set")
@_holder
@_tokens
@_usd
@_calls
@click.option(
    "--per",
    type=click.Choice([one.value for one in Period]),
    default=Period.RUN.value,
    show_default=True,
    help="How long it has to last.",
)
@click.option("--auto", is_flag=True, help="Take back what was set: the agents file counts again.")
@port_option
@json_option
def set_(
    scope: Scope,
    name: str,
    tokens: int | None,
    micro_usd: int | None,
    calls: int | None,
    per: str,
    port: int,
    *,
    auto: bool,
    as_json: bool,
) -> None:
    """Set a budget, which replaces the agents file's budget for the same period.

    The budget applies at once, also to waiting requests and after a restart, until a person takes it back. AGENT is a
    name or a glob: each matching agent has a budget of its own. Holders that had a budget for this period keep the
    spending; holders without a budget begin at zero now, and the answer says so.

    \b
    Examples:
      hivemind budget set agent-7 --tokens 5M --per day
      hivemind budget set --group reviewers --usd 20
      hivemind budget set --everyone --usd 5 --per day
      hivemind budget set agent-7 --per day --auto
    """
    if auto == any(one is not None for one in (tokens, micro_usd, calls)):
        raise click.UsageError("say how much, with --tokens, --usd, --calls or several; or take it back with --auto")
    tell(SetBudget(scope, name, Period(per), tokens, micro_usd, calls=calls), port, as_json=as_json)


@budget.command()
@_holder
@_any_per
@port_option
@json_option
def reset(scope: Scope, name: str, per: str | None, port: int, *, as_json: bool) -> None:
    """Forgive spending: a new period begins with the next request.

    Added amounts are gone, too. Running requests are booked in the new period when they end.

    \b
    Examples:
      hivemind budget reset agent-7
      hivemind budget reset --group reviewers --per day
      hivemind budget reset '*'
    """
    tell(ResetBudget(scope, name, Period(per) if per else None), port, as_json=as_json)


def _rows(views: Sequence[BudgetView]) -> list[dict[str, object]]:
    """A row for each limited unit."""
    return [
        {
            "holder": view.budget.name if view.budget.scope is Scope.AGENT else view.budget.holder,
            "per": view.budget.per.value,
            "spent": _cell(one.unit, one.spent),
            "limit": _cell(one.unit, one.limit),
            "left": _cell(one.unit, one.left) if one.left else "nothing",
            "reserved": _cell(one.unit, one.reserved) if one.reserved else "",
            "unpriced": amount("tokens", view.spent.unpriced_tokens)
            if one.unit == "micro_usd" and view.spent.unpriced_tokens
            else "",
            "renews": "next run" if view.renews_in_s is None else lasting(view.renews_in_s),
        }
        for view in views
        for one in view.balances
    ]


def _cell(unit: str, value: int) -> str:
    """An amount without the word tokens, which is clear beside dollars."""
    return amount(unit, value).removesuffix(" tokens")


def _given(snapshot: Snapshot) -> list[str]:
    """A line for each budget that a person set at run time."""
    return [
        f"set {asker(by, budget.name if budget.scope is Scope.AGENT else '')}: "
        f"{budget.holder} {limits_of(budget)} {words_of(budget.per)}"
        for budget, by in ((one.budget, one.by) for one in snapshot.given)
    ]
