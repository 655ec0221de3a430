"""Tools that steer others: budgets, priorities, options of the proxy, agents' own files; where a person allows them."""

import subprocess
import sys
from typing import Annotated, Literal

from msgspec import Meta, Struct, convert

from hivemind_addon.kernel.values.command import AddBudget, ResetBudget, SetBudget, SetPriority
from hivemind_addon.kernel.values.spend import Period
from hivemind_addon.kernel.values.spend import Scope as HolderKind
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.api.account import account_view
from hivemind_addon.proxy.api.command import AccountView, Command, OptionView, SetConfig, ShowConfig
from hivemind_addon.tools.mcp.session import Permission, ToolFailed
from hivemind_addon.tools.mcp.tool import ActionResult, Call, Effect, tool

_MAX_BUDGETS = 200
_PREFIX = "hivemind_"
_MAX_SETUP_S = 60
_MAX_CHARS = 20_000

Tokens = Annotated[int, Meta(ge=0, le=10**15)]
Usd = Annotated[float, Meta(ge=0, le=10**9)]
HolderName = Annotated[
    str,
    Meta(max_length=200, description="The agent's (or a glob: each has a separate budget) or the group's; else empty"),
]
AnyPeriod = Annotated[Period | None, Meta(description="Null: every budget that the holder has")]
SetupProgram = Literal["claude-code", "codex", "gemini", "cursor", "windsurf", "copilot", "opencode", "aider", "all"]


class BudgetList(Struct, frozen=True):
    """All that are in force."""

    budgets: tuple[AccountView, ...]


class OptionList(Struct, frozen=True):
    """The options of the proxy."""

    options: tuple[OptionView, ...]


@tool("Everybody's budgets", Permission.BUDGETS)
def budget_list(call: Call) -> BudgetList:
    """See every budget that is in force: limit, spent, reserved, when it renews. Changes nothing."""
    return BudgetList(tuple(map(account_view, call.session.report().snapshot.budgets[:_MAX_BUDGETS])))


@tool("Raise a budget", Permission.BUDGETS, effect=Effect.DESTROYS)
def budget_add(
    call: Call,
    holder: HolderKind,
    name: HolderName = "",
    per: AnyPeriod = None,
    tokens: Tokens = 0,
    usd: Usd = 0,
    calls: Tokens = 0,
) -> ActionResult:
    """Add tokens, US dollars or calls to a holder's budget, for the present period only."""
    if not tokens and not usd and not calls:
        raise ToolFailed("say how many tokens, US dollars or calls to add")
    return _done(
        call, AddBudget(holder, name, per, tokens, round(usd * 1e6), by=call.session.caller.agent, calls=calls)
    )


@tool("Give a budget", Permission.BUDGETS, effect=Effect.DESTROYS, idempotent=True)
def budget_set(
    call: Call,
    holder: HolderKind,
    name: HolderName = "",
    per: Period = Period.RUN,
    tokens: Annotated[Tokens | None, Meta(description="Null: tokens are not limited")] = None,
    usd: Annotated[Usd | None, Meta(description="Null: money is not limited")] = None,
    calls: Annotated[
        Tokens | None, Meta(description="Null with the others null: what the agents file says counts again")
    ] = None,
) -> ActionResult:
    """Set what an agent, a group or everyone may spend in a run, an hour, a day or a month."""
    money = None if usd is None else round(usd * 1e6)
    return _done(call, SetBudget(holder, name, per, tokens, money, by=call.session.caller.agent, calls=calls))


@tool("Forgive what was spent", Permission.BUDGETS, effect=Effect.DESTROYS, idempotent=True)
def budget_reset(call: Call, holder: HolderKind, name: HolderName = "", per: AnyPeriod = None) -> ActionResult:
    """Begin a holder's period anew, as if nothing had been spent in it."""
    return _done(call, ResetBudget(holder, name, per, by=call.session.caller.agent))


@tool("Set anybody's priority", Permission.PRIORITY, effect=Effect.CHANGES, idempotent=True)
def set_priority(
    call: Call,
    agent: Annotated[str, Meta(min_length=1, max_length=200, description="Its name as status shows it, or a glob")],
    priority: Annotated[
        Literal["critical", "high", "normal", "low", "as asked"],
        Meta(description="`as asked`: what its requests ask for counts again"),
    ],
    seconds: Annotated[
        Annotated[float, Meta(ge=1, le=30 * 86_400)] | None,
        Meta(description="It ends by itself then; null: it stands until it is taken back"),
    ] = None,
) -> ActionResult:
    """Serve agents before or after others, whatever they ask for."""
    level = None if priority == "as asked" else Priority[priority.upper()]
    return _done(call, SetPriority(agent, level, for_s=seconds, by=call.session.caller.agent))


@tool("The proxy's options", Permission.CONFIG)
def config_list(call: Call) -> OptionList:
    """See the options that the running proxy has, and which of them can be changed. Changes nothing."""
    return OptionList(_options(call))


def _options(call: Call) -> tuple[OptionView, ...]:
    return convert(call.session.tell(ShowConfig()).value or (), tuple[OptionView, ...])


@tool("Change an option of the proxy", Permission.CONFIG, effect=Effect.DESTROYS, idempotent=True)
def config_set(
    call: Call,
    name: Annotated[str, Meta(min_length=1, max_length=200)],
    value: Annotated[str, Meta(max_length=4000, description="As `--set` takes it")],
) -> ActionResult:
    # The proxy takes names with and without their prefix.
    """Set one option of the running proxy. It holds for everybody, until the proxy is started anew. Those that name a
    file, run a program or lead keys elsewhere need `--allow-commands` besides.
    """
    meant = [one for one in _options(call) if one.name in (name, f"{_PREFIX}{name}")]
    if any(one.guarded for one in meant) and not call.session.scope.commands:
        raise ToolFailed(
            f"{name} names a file, runs a program or leads keys elsewhere: to let you set it, the person who "
            "starts this server has to add `--allow-commands` to `hivemind mcp`"
        )
    return _done(call, SetConfig(name, value, by=call.session.caller.agent))


def _done(call: Call, command: Command) -> ActionResult:
    return ActionResult(done=True, text=call.session.tell(command).text)


@tool("Put an agent's program behind the proxy", Permission.SETUP, effect=Effect.DESTROYS, idempotent=True)
def setup(
    call: Call,
    program: Annotated[SetupProgram, Meta(description="`all`: every one that is found on this machine")],
    action: Annotated[
        Literal["print", "write", "remove"],
        Meta(description="`print` changes nothing; `write` merges it into its files; `remove` takes out what it wrote"),
    ] = "print",
    project: Annotated[
        bool, Meta(description="The project's files (this server's folder), not the user's own")
    ] = False,
    mcp_only: Annotated[bool, Meta(description="Only the entry of this server, not the proxy")] = False,
) -> ActionResult:
    """Show the entries that a program needs in its own files to go through the scheduler and to use this server, or
    write them: the rest of the files stays, a diff is shown, a backup is kept. They count from the program's next
    start. done false: something could not be done; the text has the reason.
    """
    command = [sys.executable, "-P", "-m", "hivemind_addon", "setup", program, "--port", str(call.session.caller.port)]
    command += [f"--{action}"] if action != "print" else []
    command += [word for word, asked in (("--project", project), ("--mcp-only", mcp_only)) if asked]
    try:
        ran = subprocess.run(  # noqa: S603 - words of our own
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_MAX_SETUP_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"hivemind setup did not end within {_MAX_SETUP_S} s") from error
    return ActionResult(done=ran.returncode == 0, text=ran.stdout.decode(errors="replace")[-_MAX_CHARS:])
