"""What steers others: budgets, priorities, options of the proxy. Only where a person allows it."""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct, convert

from hivemind_addon.api.account import account_view
from hivemind_addon.api.command import AddBudget, ResetBudget, SetBudget, SetConfig, SetPriority, ShowConfig
from hivemind_addon.api.snapshot import BudgetView
from hivemind_addon.api.spend import Period
from hivemind_addon.api.spend import Scope as HolderKind
from hivemind_addon.api.ticket import Priority
from hivemind_addon.tools.mcp.own import Done
from hivemind_addon.tools.mcp.scope import Permission
from hivemind_addon.tools.mcp.tool import Call, Effect, McpTool, Nothing, ToolFailed

_BUDGETS = frozenset({Permission.BUDGETS})
_CONFIG = frozenset({Permission.CONFIG})
_MAX_BUDGETS = 200
_AS_ASKED = "as asked"
_PREFIX = "hivemind_"

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
    renews_in_s: Annotated[float | None, Meta(description="Null: not by itself")]


class BudgetList(Struct, frozen=True):
    """All that are in force."""

    budgets: tuple[BudgetState, ...]


class Add(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose, and how much more."""

    holder: HolderKind
    name: HolderName = ""
    per: Annotated[Period | None, Meta(description="Null: every budget that the holder has")] = None
    tokens: Tokens = 0
    usd: Usd = 0


class Set(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose, and what it may spend."""

    holder: HolderKind
    name: HolderName = ""
    per: Period = Period.RUN
    tokens: Annotated[Tokens | None, Meta(description="Null: tokens are not limited")] = None
    usd: Annotated[Usd | None, Meta(description="Null with tokens null: what the agents file says counts again")] = None


class Reset(Struct, frozen=True, forbid_unknown_fields=True):
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


class Serve(Struct, frozen=True, forbid_unknown_fields=True):
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


class Options(Struct, frozen=True):
    """What the proxy runs with."""

    options: tuple[ProxyOption, ...]


class SetOption(Struct, frozen=True, forbid_unknown_fields=True):
    """Which, and to what."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    value: Annotated[str, Meta(max_length=4000, description="As `--set` takes it")]


def _budget_list(call: Call, _: Nothing) -> BudgetList:
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
        renews_in_s=None if account.renews_in_s is None else round(account.renews_in_s, 1),
    )


def _budget_add(call: Call, asked: Add) -> Done:
    if not asked.tokens and not asked.usd:
        raise ToolFailed("say how many tokens or US dollars to add")
    command = AddBudget(asked.holder, asked.name, asked.per, asked.tokens, _micro(asked.usd), by=_asker(call))
    return _done(call, command)


def _budget_set(call: Call, asked: Set) -> Done:
    money = None if asked.usd is None else _micro(asked.usd)
    return _done(call, SetBudget(asked.holder, asked.name, asked.per, asked.tokens, money, by=_asker(call)))


def _budget_reset(call: Call, asked: Reset) -> Done:
    return _done(call, ResetBudget(asked.holder, asked.name, asked.per, by=_asker(call)))


def _set_priority(call: Call, asked: Serve) -> Done:
    level = None if asked.priority is PriorityLevel.AS_ASKED else Priority[asked.priority.name]
    return _done(call, SetPriority(asked.agent, level, for_s=asked.seconds, by=_asker(call)))


def _config_list(call: Call, _: Nothing) -> Options:
    return Options(_options(call))


def _options(call: Call) -> tuple[ProxyOption, ...]:
    said = call.session.tell(ShowConfig())
    if not said.done:
        raise ToolFailed(said.text)
    return convert(said.value or (), tuple[ProxyOption, ...])


def _config_set(call: Call, asked: SetOption) -> Done:
    # The proxy takes names with and without their prefix.
    meant = [one for one in _options(call) if one.name in (asked.name, f"{_PREFIX}{asked.name}")]
    if any(one.guarded for one in meant) and not call.session.scope.commands:
        raise ToolFailed(
            f"{asked.name} names a file, runs a program or leads keys elsewhere: to let you set it, the person who "
            "starts this server has to add `--allow-commands` to `hivemind mcp`"
        )
    return _done(call, SetConfig(asked.name, asked.value, by=_asker(call)))


def _asker(call: Call) -> str:
    return call.session.caller.agent


def _done(call: Call, command: AddBudget | SetBudget | ResetBudget | SetPriority | SetConfig) -> Done:
    said = call.session.tell(command)
    if not said.done:
        raise ToolFailed(said.text)
    return Done(done=True, text=said.text)


def _micro(usd: float) -> int:
    return round(usd * 1_000_000)


TOOLS = (
    McpTool(
        name="budget_list",
        title="Everybody's budgets",
        description="See every budget that is in force: limit, spent, reserved, when it renews. Changes nothing.",
        takes=Nothing,
        gives=BudgetList,
        run=_budget_list,
        idempotent=True,
        needs=_BUDGETS,
    ),
    McpTool(
        name="budget_add",
        title="Raise a budget",
        description="Add tokens or US dollars to a holder's budget, for its present period only.",
        takes=Add,
        gives=Done,
        run=_budget_add,
        effect=Effect.DESTROYS,
        needs=_BUDGETS,
    ),
    McpTool(
        name="budget_set",
        title="Give a budget",
        description="Set what an agent, a group or everyone may spend in a run, an hour, a day or a month.",
        takes=Set,
        gives=Done,
        run=_budget_set,
        effect=Effect.DESTROYS,
        idempotent=True,
        needs=_BUDGETS,
    ),
    McpTool(
        name="budget_reset",
        title="Forgive what was spent",
        description="Begin a holder's period anew, as if nothing had been spent in it.",
        takes=Reset,
        gives=Done,
        run=_budget_reset,
        effect=Effect.DESTROYS,
        idempotent=True,
        needs=_BUDGETS,
    ),
    McpTool(
        name="set_priority",
        title="Set anybody's priority",
        description="Serve agents before or after others, whatever they ask for.",
        takes=Serve,
        gives=Done,
        run=_set_priority,
        effect=Effect.CHANGES,
        idempotent=True,
        needs=frozenset({Permission.PRIORITY}),
    ),
    McpTool(
        name="config_list",
        title="The proxy's options",
        description="See the options that the running proxy has, and which of them can be changed. Changes nothing.",
        takes=Nothing,
        gives=Options,
        run=_config_list,
        idempotent=True,
        needs=_CONFIG,
    ),
    McpTool(
        name="config_set",
        title="Change an option of the proxy",
        description=(
            "Set one option of the running proxy. It holds for everybody, until the proxy is started anew. Those that "
            "name a file, run a program or lead keys elsewhere need `--allow-commands` besides."
        ),
        takes=SetOption,
        gives=Done,
        run=_config_set,
        effect=Effect.DESTROYS,
        idempotent=True,
        needs=_CONFIG,
    ),
)
