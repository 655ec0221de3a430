"""Tasks: an agent has others work for it, through the same scheduler, and waits for what they come to."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, convert, to_builtins

from hivemind_addon.plugins.fleets.tasks import client
from hivemind_addon.plugins.fleets.tasks.model import FleetView, State, TaskSpec, TaskView
from hivemind_addon.proxy.api.words import several
from hivemind_addon.tools.mcp.session import Permission, Session
from hivemind_addon.tools.mcp.tool import MAX_ROWS, Call, Effect, ToolFailed, tool

_TASKS = frozenset({Permission.SUBMIT, Permission.BATCH})
_MAX_PROMPT_CHARS = 30_000
"""It becomes one argument of a command; Linux takes 128 KiB, and a letter has up to four bytes."""
_MAX_BATCH = 200
_MAX_WAIT_S = 600
_MAX_RESULT_CHARS = 4_000

Word = Annotated[str, Meta(min_length=1, max_length=200)]


class WorkLevel(Enum):
    """How soon it gets its turn."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


_RAISED = (WorkLevel.CRITICAL, WorkLevel.HIGH)


class TaskRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One task: an agent kind and its prompt; or a command, where the person who starts this server allows it."""

    agent: Annotated[
        str, Meta(max_length=100, description="Which agent runs: claude-code, codex, gemini, aider or opencode")
    ] = ""
    prompt: Annotated[
        str,
        Meta(
            max_length=_MAX_PROMPT_CHARS,
            description="What it is to do, complete: it knows nothing of this conversation",
        ),
    ] = ""
    command: Annotated[
        tuple[Annotated[str, Meta(max_length=_MAX_PROMPT_CHARS)], ...],
        Meta(max_length=500, description="Instead of both: a program and its arguments; no shell reads them"),
    ] = ()
    name: Annotated[str, Meta(max_length=60, description="Letters, digits, - and _; empty: one is made")] = ""
    depends_on: Annotated[tuple[Word, ...], Meta(max_length=100, description="Names of tasks that come before")] = ()
    priority: WorkLevel = WorkLevel.NORMAL
    estimated_tokens: Annotated[int, Meta(ge=1)] | None = None
    budget_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="What its model calls may use in all; null: unlimited")
    ] = None
    budget_usd: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="What its model calls may cost; null: unlimited")
    ] = None
    group: Annotated[str, Meta(max_length=100, description="Worker group whose queue it is in")] = ""
    directory: Annotated[str, Meta(max_length=4000, description="Where it runs; empty: where this server does")] = ""
    timeout_s: Annotated[float, Meta(gt=0, le=30 * 86_400)] | None = None
    retries: Annotated[int, Meta(ge=0, le=20, description="Of failures that look transient")] = 2


class TaskBatch(Struct, frozen=True, forbid_unknown_fields=True):
    """Several tasks."""

    tasks: Annotated[
        tuple[TaskRequest, ...],
        Meta(min_length=1, max_length=_MAX_BATCH, description="Each with the arguments of submit"),
    ]


class TasksSubmitted(Struct, frozen=True):
    """They run as soon as there is room."""

    ids: Annotated[tuple[str, ...], Meta(description="In the order of the tasks; for task_wait and task_status")]
    text: str


class TaskIds(Struct, frozen=True, forbid_unknown_fields=True):
    """Which tasks."""

    ids: Annotated[tuple[Word, ...], Meta(max_length=_MAX_BATCH, description="None: those that you submitted")] = ()


class TaskWait(Struct, frozen=True, forbid_unknown_fields=True):
    """Which tasks, and how long."""

    ids: Annotated[tuple[Word, ...], Meta(max_length=_MAX_BATCH, description="None: those that you submitted")] = ()
    seconds: Annotated[
        float, Meta(ge=0, le=_MAX_WAIT_S, description="At most; keep it below your tool calls' time limit")
    ] = 50


class OneTask(Struct, frozen=True, forbid_unknown_fields=True):
    """Which task."""

    id: Word


class TaskState(Struct, frozen=True):
    """One task as it is now."""

    id: str
    state: Annotated[str, Meta(description="waiting, running, lending, done, failed, skipped or cancelled")]
    reason: Annotated[str, Meta(description="Why it waits, or how it ended")]
    attempts: int
    exit_status: int | None
    result: Annotated[str, Meta(description="The end of what it wrote")]
    log: Annotated[str, Meta(description="The file that has all of it")]


class TaskList(Struct, frozen=True):
    """Tasks as they are now."""

    over: Annotated[bool, Meta(description="Whether nothing more happens to any of them")]
    text: str
    tasks: tuple[TaskState, ...]


class TaskEnded(Struct, frozen=True):
    """What was done."""

    text: str


@tool("Start a task", effect=Effect.DESTROYS, needs=frozenset({Permission.SUBMIT}))
def submit(call: Call, job: TaskRequest) -> TasksSubmitted:
    """Have another agent work on a prompt of its own, beside you, through the same scheduler and limits. Returns at
    once with its id; task_wait gives its result. Prefer it to starting agents in a shell: they are queued, retried
    and paid from a budget. It costs money.
    """
    return _start(call.session, (job,))


@tool("Start many tasks", effect=Effect.DESTROYS, needs=frozenset({Permission.BATCH}))
def batch(call: Call, jobs: TaskBatch) -> TasksSubmitted:
    """Start many tasks at once. Those that name others in depends_on start when these are done, and are skipped when
    one of them fails. Returns at once with all ids. It costs money.
    """
    return _start(call.session, jobs.tasks)


def _start(session: Session, jobs: Sequence[TaskRequest]) -> TasksSubmitted:
    specs = [_spec(job, number, session) for number, job in enumerate(jobs)]
    caller = session.caller
    ids = client.submit(specs, parent=caller.task, runner=_runner(session), port=caller.port)
    session.submitted.update(ids)
    return TasksSubmitted(tuple(ids), f"{several(len(ids), 'task')} taken; task_wait tells when they are over")


def _spec(job: TaskRequest, number: int, session: Session) -> TaskSpec:
    which = f"task {job.name or number + 1}"
    if job.command and not session.scope.commands:
        raise ToolFailed(
            f"{which}: raw commands are not allowed here: name an agent and a prompt, or the person who starts this "
            "server has to add `--allow-commands` to `hivemind mcp`"
        )
    if bool(job.command) == bool(job.agent and job.prompt):
        raise ToolFailed(f"{which}: it needs an agent and a prompt, or instead of both a command")
    if job.priority in _RAISED and Permission.PRIORITY not in session.scope.allowed:
        raise ToolFailed(
            f"{which}: priority {job.priority.value} goes before others: the person who starts this server has to add "
            "`--allow priority` to `hivemind mcp`"
        )
    return convert(to_builtins(job), TaskSpec)


def _runner(session: Session) -> Path | None:
    return Path(session.caller.runner) if session.caller.runner else None


@tool("How tasks stand", needs=_TASKS)
def task_status(call: Call, which: TaskIds) -> TaskList:
    """See which tasks wait, run, or are over, why, and the end of what they wrote. Changes nothing."""
    return _told([client.task(one) for one in _meant(call.session, which.ids)])


@tool("Wait for tasks", needs=_TASKS)
def task_wait(call: Call, asked: TaskWait) -> TaskList:
    """Wait until tasks are over, at most for so many seconds, and get their results. While you wait your own place in
    the fleet is lent to them. over false: they are not; call it again.
    """
    session = call.session
    ids = _meant(session, asked.ids)
    call.progress(0, asked.seconds, f"waiting for {several(len(ids), 'task')}")
    views = client.wait(
        ids,
        waiter=session.caller.task,
        timeout_s=asked.seconds,
        runner=_runner(session),
        connected=call.ends,
    )
    return _told(views)


@tool("End a task", effect=Effect.DESTROYS, idempotent=True, needs=_TASKS)
def task_cancel(call: Call, one: OneTask) -> TaskEnded:
    """End a task that you submitted, with all processes that it started. What it did so far stays."""
    session = call.session
    if one.id not in session.submitted and not (
        session.caller.task and client.task(one.id).parent == session.caller.task
    ):
        raise ToolFailed(
            f"{one.id} is no task that you submitted; a person ends it with `hivemind task cancel {one.id}`"
        )
    return TaskEnded(client.cancel(one.id))


def _meant(session: Session, ids: Sequence[str]) -> list[str]:
    if ids:
        return list(dict.fromkeys(ids))
    mine = {*session.submitted, *_children(session)}
    if not mine:
        raise ToolFailed("you have submitted no task: name ids, or submit one")
    return sorted(mine)


def _children(session: Session) -> list[str]:
    """What its task submitted before this server was started, as after a retry."""
    task = session.caller.task
    if not task:
        return []
    fleets: list[FleetView] = client.status(fleet=task.partition("/")[0])
    return [one.id for fleet in fleets for one in fleet.tasks if one.parent == task]


def _told(views: Sequence[TaskView]) -> TaskList:
    over = [one for one in views if one.state.is_over]
    bad = sum(one.state in (State.FAILED, State.SKIPPED, State.CANCELLED) for one in over)
    text = f"{len(over)} of {several(len(views), 'task')} over"
    text += f", {bad} of them not done" if bad else ""
    return TaskList(len(over) == len(views), text, tuple(_state(one) for one in views[:MAX_ROWS]))


def _state(one: TaskView) -> TaskState:
    return convert(to_builtins(one) | {"result": one.result[-_MAX_RESULT_CHARS:]}, TaskState)


TOOLS = (
    submit,
    batch,
    task_status,
    task_wait,
    task_cancel,
)
