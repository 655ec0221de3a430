"""What steers others: budgets, priorities, options of the proxy, agents' own files. Only where a person allows it."""

import subprocess
import sys
from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct, convert

from hivemind_addon.kernel.values.command import AddBudget, ResetBudget, SetBudget, SetConfig, SetPriority, ShowConfig
from hivemind_addon.kernel.values.snapshot import BudgetView
from hivemind_addon.kernel.values.spend import Period
from hivemind_addon.kernel.values.spend import Scope as HolderKind
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.api.account import account_view
from hivemind_addon.tools.mcp.own import ActionResult
from hivemind_addon.tools.mcp.session import Permission
from hivemind_addon.tools.mcp.tool import Call, Effect, NoArguments, ToolFailed, tool

_BUDGETS = frozenset({Permission.BUDGETS})
_CONFIG = frozenset({Permission.CONFIG})
_MAX_BUDGETS = 200
_AS_ASKED = "as asked"
_PREFIX = "hivemind_"
_MOST_SETUP_S = 60
_MAX_CHARS = 20_000

Tokens = Annotated[int, Meta(ge=0, le=10**15)]
Usd = Annotated[float, Meta(ge=0, le=10**9)]
HolderName = Annotated[
    str, Meta(max_length=200, description="The agent's (or a glob: each has one of its own) or the group's; else empty")
]


class BudgetState(Struct, frozen=True):
    """One holder's budget in its present period."""

    holder: str
    per: str
    tokens: Annotated[int | None, Meta(description="The limit, with what was added; null: tokens are not limited")]
    tokens_spent: int
    tokens_reserved: Annotated[int, Meta(description="Expected of calls that run")]
    tokens_left: int | None
    usd: Annotated[float | None, Meta(description="The limit, with what was added; null: money is not limited")]
    usd_spent: float
    usd_reserved: float
    usd_left: float | None
    tokens_not_in_usd: Annotated[
        int, Meta(description="Of those spent, the tokens of models without a price, which usd does not count")
    ]
    calls: Annotated[int | None, Meta(description="The limit, with what was added; null: calls are not limited")]
    calls_spent: int
    calls_left: int | None
    renews_in_s: Annotated[float | None, Meta(description="Null: not by itself")]


class BudgetList(Struct, frozen=True):
    """All that are in force."""

    budgets: tuple[BudgetState, ...]


class BudgetAddition(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose, and how much more."""

    holder: HolderKind
    name: HolderName = ""
    per: Annotated[Period | None, Meta(description="Null: every budget that the holder has")] = None
    tokens: Tokens = 0
    usd: Usd = 0
    calls: Tokens = 0


class BudgetSetting(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose, and what it may spend."""

    holder: HolderKind
    name: HolderName = ""
    per: Period = Period.RUN
    tokens: Annotated[Tokens | None, Meta(description="Null: tokens are not limited")] = None
    usd: Annotated[Usd | None, Meta(description="Null: money is not limited")] = None
    calls: Annotated[
        Tokens | None, Meta(description="Null with the others null: what the agents file says counts again")
    ] = None


class BudgetReset(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose."""

    holder: HolderKind
    name: HolderName = ""
    per: Annotated[Period | None, Meta(description="Null: every budget that the holder has")] = None


class PriorityLevel(Enum):
    """What others can be served as."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    AS_ASKED = _AS_ASKED


class PriorityOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Whom, and how."""

    agent: Annotated[str, Meta(min_length=1, max_length=200, description="Its name as status shows it, or a glob")]
    priority: Annotated[PriorityLevel, Meta(description="`as asked`: what its requests ask for counts again")]
    seconds: Annotated[
        Annotated[float, Meta(ge=1, le=30 * 86_400)] | None,
        Meta(description="It ends by itself then; null: it stands until it is taken back"),
    ] = None


OptionValue = str | float | bool | tuple[str, ...] | None


class ProxyOption(Struct, frozen=True):
    """One option of the proxy."""

    name: str
    value: OptionValue
    default: OptionValue
    help: str
    settable: bool
    guarded: Annotated[
        bool, Meta(description="It names a file, runs a program or leads keys elsewhere: needs `--allow-commands` too")
    ] = True


class OptionList(Struct, frozen=True):
    """What the proxy runs with."""

    options: tuple[ProxyOption, ...]


class OptionSetting(Struct, frozen=True, forbid_unknown_fields=True):
    """Which, and to what."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    value: Annotated[str, Meta(max_length=4000, description="As `--set` takes it")]


@tool("Everybody's budgets", needs=_BUDGETS)
def budget_list(call: Call, _: NoArguments) -> BudgetList:
    """See every budget that is in force: limit, spent, reserved, when it renews. Changes nothing."""
    budgets = call.session.report().snapshot.budgets
    return BudgetList(tuple(_state(one) for one in budgets[:_MAX_BUDGETS]))


def _state(view: BudgetView) -> BudgetState:
    account = account_view(view)
    limit, left = account.limit_micro_usd, account.left_micro_usd
    return BudgetState(
        holder=account.holder,
        per=account.per.value,
        tokens=account.limit_tokens,
        tokens_spent=account.spent_tokens,
        tokens_reserved=account.reserved_tokens,
        tokens_left=account.left_tokens,
        usd=None if limit is None else limit / 1e6,
        usd_spent=account.spent_micro_usd / 1e6,
        usd_reserved=account.reserved_micro_usd / 1e6,
        usd_left=None if left is None else left / 1e6,
        tokens_not_in_usd=account.unpriced_tokens,
        calls=account.limit_calls,
        calls_spent=account.spent_calls,
        calls_left=account.left_calls,
        renews_in_s=None if account.renews_in_s is None else round(account.renews_in_s, 1),
    )


@tool("Raise a budget", effect=Effect.DESTROYS, needs=_BUDGETS)
def budget_add(call: Call, asked: BudgetAddition) -> ActionResult:
    """Add tokens, US dollars or calls to a holder's budget, for its present period only."""
    if not asked.tokens and not asked.usd and not asked.calls:
        raise ToolFailed("say how many tokens, US dollars or calls to add")
    command = AddBudget(
        asked.holder, asked.name, asked.per, asked.tokens, _micro(asked.usd), by=_asker(call), calls=asked.calls
    )
    return _done(call, command)


@tool("Give a budget", effect=Effect.DESTROYS, idempotent=True, needs=_BUDGETS)
def budget_set(call: Call, asked: BudgetSetting) -> ActionResult:
    """Set what an agent, a group or everyone may spend in a run, an hour, a day or a month."""
    money = None if asked.usd is None else _micro(asked.usd)
    return _done(
        call,
        SetBudget(asked.holder, asked.name, asked.per, asked.tokens, money, by=_asker(call), calls=asked.calls),
    )


@tool("Forgive what was spent", effect=Effect.DESTROYS, idempotent=True, needs=_BUDGETS)
def budget_reset(call: Call, asked: BudgetReset) -> ActionResult:
    """Begin a holder's period anew, as if nothing had been spent in it."""
    return _done(call, ResetBudget(asked.holder, asked.name, asked.per, by=_asker(call)))


@tool("Set anybody's priority", effect=Effect.CHANGES, idempotent=True, needs=frozenset({Permission.PRIORITY}))
def set_priority(call: Call, asked: PriorityOrder) -> ActionResult:
    """Serve agents before or after others, whatever they ask for."""
    level = None if asked.priority is PriorityLevel.AS_ASKED else Priority[asked.priority.name]
    return _done(call, SetPriority(asked.agent, level, for_s=asked.seconds, by=_asker(call)))


@tool("The proxy's options", needs=_CONFIG)
def config_list(call: Call, _: NoArguments) -> OptionList:
    """See the options that the running proxy has, and which of them can be changed. Changes nothing."""
    return OptionList(_options(call))


def _options(call: Call) -> tuple[ProxyOption, ...]:
    said = call.session.tell(ShowConfig())
    if not said.done:
        raise ToolFailed(said.text)
    return convert(said.value or (), tuple[ProxyOption, ...])


@tool("Change an option of the proxy", effect=Effect.DESTROYS, idempotent=True, needs=_CONFIG)
def config_set(call: Call, asked: OptionSetting) -> ActionResult:
    # The proxy takes names with and without their prefix.
    """Set one option of the running proxy. It holds for everybody, until the proxy is started anew. Those that name a
    file, run a program or lead keys elsewhere need `--allow-commands` besides.
    """
    meant = [one for one in _options(call) if one.name in (asked.name, f"{_PREFIX}{asked.name}")]
    if any(one.guarded for one in meant) and not call.session.scope.commands:
        raise ToolFailed(
            f"{asked.name} names a file, runs a program or leads keys elsewhere: to let you set it, the person who "
            "starts this server has to add `--allow-commands` to `hivemind mcp`"
        )
    return _done(call, SetConfig(asked.name, asked.value, by=_asker(call)))


def _asker(call: Call) -> str:
    return call.session.caller.agent


def _done(call: Call, command: AddBudget | SetBudget | ResetBudget | SetPriority | SetConfig) -> ActionResult:
    said = call.session.tell(command)
    if not said.done:
        raise ToolFailed(said.text)
    return ActionResult(done=True, text=said.text)


def _micro(usd: float) -> int:
    return round(usd * 1_000_000)


class SetupProgram(Enum):
    """What can be set up."""

    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    GEMINI = "gemini"
    CURSOR = "cursor"
    WINDSURF = "windsurf"
    COPILOT = "copilot"
    OPENCODE = "opencode"
    AIDER = "aider"
    ALL = "all"


class SetupAction(Enum):
    """What is to be done."""

    PRINT = "print"
    WRITE = "write"
    REMOVE = "remove"


class SetupRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """For which program, and what."""

    program: Annotated[SetupProgram, Meta(description="`all`: every one that is found on this machine")]
    action: Annotated[
        SetupAction,
        Meta(description="`print` changes nothing; `write` merges it into its files; `remove` takes out what it wrote"),
    ] = SetupAction.PRINT
    project: Annotated[bool, Meta(description="The project's files (this server's folder), not the user's own")] = False
    mcp_only: Annotated[bool, Meta(description="Only the entry of this server, not the proxy")] = False


class SetupResult(Struct, frozen=True):
    """What came of it."""

    done: Annotated[bool, Meta(description="False: something could not be done; the text says what")]
    text: str


@tool(
    "Put an agent's program behind the proxy",
    effect=Effect.DESTROYS,
    idempotent=True,
    needs=frozenset({Permission.SETUP}),
)
def setup(call: Call, wanted: SetupRequest) -> SetupResult:
    """Show what a program needs in its own files to go through the scheduler and to use this server, or write that:
    what is in the files stays, a diff is shown, a backup is kept. It counts from the program's next start.
    """
    command = [sys.executable, "-P", "-m", "hivemind_addon", "setup", wanted.program.value]
    command += ["--port", str(call.session.caller.port)]
    command += [f"--{wanted.action.value}"] if wanted.action is not SetupAction.PRINT else []
    command += [word for word, asked in (("--project", wanted.project), ("--mcp-only", wanted.mcp_only)) if asked]
    try:
        ran = subprocess.run(  # noqa: S603 - words of our own
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_MOST_SETUP_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"hivemind setup did not end within {_MOST_SETUP_S} s") from error
    return SetupResult(done=ran.returncode == 0, text=ran.stdout.decode(errors="replace")[-_MAX_CHARS:])


TOOLS = (budget_list, budget_add, budget_set, budget_reset, set_priority, config_list, config_set, setup)
