"""The tools of hivemind-scheduler 0.2.0 by their names and arguments; what they do is done by ours.

A dot is legal in a tool's name (MCP 2025-11-25), but not every client takes it: see docs/mcp.md.
"""

from dataclasses import replace
from enum import Enum
from glob import escape
from typing import Annotated, Any

from msgspec import Meta, Struct

from hivemind_addon.kernel.values.spend import Budget, Period
from hivemind_addon.kernel.values.spend import Scope as HolderKind
from hivemind_addon.plugins.fleets import task_tools
from hivemind_addon.plugins.fleets.task_tools import (
    TaskBatch,
    TaskIds,
    TaskList,
    TaskRequest,
    TasksSubmitted,
    Word,
    WorkLevel,
)
from hivemind_addon.plugins.fleets.tasks import client
from hivemind_addon.tools.mcp import own, steering
from hivemind_addon.tools.mcp.own import ActionResult, OwnMetrics, OwnStatus
from hivemind_addon.tools.mcp.steering import (
    BudgetList,
    BudgetSetting,
    HolderName,
    OptionList,
    OptionSetting,
    PriorityLevel,
    PriorityOrder,
    SetupProgram,
    SetupRequest,
    SetupResult,
    Tokens,
)
from hivemind_addon.tools.mcp.tool import Call, Effect, McpTool, NoArguments, ToolFailed, tool

_MAX_COMMAND_CHARS = 30_000
_MAX_TASKS = 200


class HmTask(Struct, frozen=True, forbid_unknown_fields=True):
    """A command for a shell."""

    command: Annotated[str, Meta(min_length=1, max_length=_MAX_COMMAND_CHARS, description="A shell runs it")]
    priority: WorkLevel = WorkLevel.NORMAL
    token_budget: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="What its model calls may use in all; null: unlimited")
    ] = None
    estimated_tokens: Annotated[int, Meta(ge=1)] | None = None
    dependencies: Annotated[tuple[Word, ...], Meta(max_length=100, description="Ids of tasks that come before")] = ()


class HmBatch(Struct, frozen=True, forbid_unknown_fields=True):
    """Several of them."""

    tasks: Annotated[tuple[HmTask, ...], Meta(min_length=1, max_length=_MAX_TASKS)]


class HmTaskId(Struct, frozen=True, forbid_unknown_fields=True):
    """Which task, if it is about one."""

    task_id: Annotated[str, Meta(max_length=200, description="Empty: how the queue stands")] = ""


class HmStatus(Struct, frozen=True):
    """How the queue stands, or one task."""

    queue: OwnStatus | None
    tasks: TaskList | None


class HmPriority(Struct, frozen=True, forbid_unknown_fields=True):
    """Which task, and how it is to be served."""

    task_id: Word
    priority: WorkLevel


class HmBudgetAction(Enum):
    """What is to be done with a budget."""

    STATUS = "status"
    SET_AGENT = "set_agent"
    SET_TOTAL = "set_total"


class HmBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose, and how much."""

    action: HmBudgetAction = HmBudgetAction.STATUS
    agent_id: HolderName = ""
    budget: Annotated[Tokens | None, Meta(description="For set_agent")] = None
    total_budget: Annotated[Tokens | None, Meta(description="For set_total")] = None


class HmConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed; nothing: what there is."""

    max_concurrency: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    upstream_url: Annotated[str, Meta(max_length=4000)] | None = None
    total_token_budget: Tokens | None = None
    default_agent_budget: Tokens | None = None


class HmProgram(Enum):
    """What can be set up."""

    CLAUDE_CODE = "claude-code"
    CURSOR = "cursor"
    WINDSURF = "windsurf"
    CODEX = "codex"
    COPILOT = "copilot"


class HmSetup(Struct, frozen=True, forbid_unknown_fields=True):
    """For which program."""

    tool: HmProgram


@tool("Start a command as a task", effect=Effect.DESTROYS, needs=task_tools.submit.needs)
def hm_submit(call: Call, job: HmTask) -> TasksSubmitted:
    """Run a shell command as a task, through the scheduler's queue and limits. As submit, which takes an agent and a
    prompt as well. Returns at once with its id; hm.status tells how it stands. It costs money.
    """
    return task_tools.submit.run(call, _request(job))


@tool("Start many commands as tasks", effect=Effect.DESTROYS, needs=task_tools.batch.needs)
def hm_batch(call: Call, jobs: HmBatch) -> TasksSubmitted:
    """Run many shell commands as tasks, as batch. Returns at once with all ids. It costs money."""
    return task_tools.batch.run(call, TaskBatch(tuple(map(_request, jobs.tasks))))


def _request(job: HmTask) -> TaskRequest:
    return TaskRequest(
        command=("sh", "-c", job.command),
        priority=job.priority,
        budget_tokens=job.token_budget,
        estimated_tokens=job.estimated_tokens,
        # An id is `fleet/name`.
        depends_on=tuple(one.rpartition("/")[2] for one in job.dependencies),
    )


@tool("How the queue or a task stands")
def hm_status(call: Call, which: HmTaskId) -> HmStatus:
    """See how the queue stands, as status, or how a task that you submitted does, as task_status. Changes nothing."""
    if not which.task_id:
        return HmStatus(queue=own.status.run(call, NoArguments()), tasks=None)
    if not call.session.scope.has(task_tools.task_status.needs):
        raise ToolFailed("hm.status: tasks are not allowed here: add `--allow submit` to `hivemind mcp`")
    return HmStatus(queue=None, tasks=task_tools.task_status.run(call, TaskIds((which.task_id,))))


@tool("Set a task's priority", effect=Effect.CHANGES, idempotent=True, needs=steering.set_priority.needs)
def hm_priority(call: Call, asked: HmPriority) -> ActionResult:
    """Serve the model calls of a task before or after others, as set_priority."""
    name = client.task(asked.task_id).agent_name
    return steering.set_priority.run(call, PriorityOrder(escape(name), PriorityLevel(asked.priority.value)))


@tool("See and set budgets", effect=Effect.DESTROYS, idempotent=True, needs=steering.budget_set.needs)
def hm_budget(call: Call, asked: HmBudget) -> BudgetList:
    """See the budgets, or set in tokens what an agent or all together may use in this run of the proxy; as budget_list
    and budget_set. Gives the budgets as they are then.
    """
    match asked.action:
        case HmBudgetAction.SET_AGENT:
            if not asked.agent_id or asked.budget is None:
                raise ToolFailed("hm.budget: set_agent needs agent_id and budget")
            _take(steering.budget_set.run(call, BudgetSetting(HolderKind.AGENT, asked.agent_id, tokens=asked.budget)))
        case HmBudgetAction.SET_TOTAL:
            if asked.total_budget is None:
                raise ToolFailed("hm.budget: set_total needs total_budget")
            _take(steering.budget_set.run(call, BudgetSetting(HolderKind.EVERYONE, tokens=asked.total_budget)))
        case HmBudgetAction.STATUS:
            pass
    every = steering.budget_list.run(call, NoArguments())
    if not asked.agent_id:
        return every
    holder = Budget(HolderKind.AGENT, asked.agent_id, Period.RUN).holder
    return BudgetList(tuple(one for one in every.budgets if one.holder == holder))


@tool("What you have used")
def hm_metrics(call: Call, _: NoArguments) -> OwnMetrics:
    """Your own requests, tokens, cost, waits and retries, as metrics. Changes nothing."""
    return own.metrics.run(call, NoArguments())


@tool("See and change options", effect=Effect.DESTROYS, idempotent=True, needs=steering.config_set.needs)
def hm_config(call: Call, asked: HmConfig) -> OptionList:
    """See the proxy's options, or change these, as config_list and config_set. Gives the options as they are then."""
    wanted = {
        "max_concurrency": asked.max_concurrency,
        "upstream": asked.upstream_url,
        "total_budget": asked.total_token_budget,
        "agent_budget": asked.default_agent_budget,
    }
    for name, value in wanted.items():
        if value is not None:
            _take(steering.config_set.run(call, OptionSetting(name, str(value))))
    return steering.config_list.run(call, NoArguments())


@tool("What a program needs", needs=steering.setup.needs)
def hm_setup(call: Call, wanted: HmSetup) -> SetupResult:
    """Show what a program needs in its own files to go through the scheduler, as setup, which can write it, too.
    Changes nothing.
    """
    return steering.setup.run(call, SetupRequest(SetupProgram(wanted.tool.value)))


def _take(result: ActionResult) -> None:
    """Raises ToolFailed where nothing was done."""
    if not result.done:
        raise ToolFailed(result.text)


def _dotted(one: McpTool[Any, Any]) -> McpTool[Any, Any]:
    return replace(one, name=one.name.replace("_", ".", 1))


_ALL: tuple[McpTool[Any, Any], ...] = (
    hm_submit,
    hm_batch,
    hm_status,
    hm_priority,
    hm_budget,
    hm_metrics,
    hm_config,
    hm_setup,
)
TOOLS = tuple(_dotted(one) for one in _ALL)
