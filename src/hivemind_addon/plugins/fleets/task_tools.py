"""Tools for tasks: an agent has others work for it, through the same scheduler, and waits for their results."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, convert, to_builtins
from msgspec.structs import replace

from hivemind_addon.plugins.fleets.tasks import client
from hivemind_addon.plugins.fleets.tasks.model import FleetView, State, TaskSpec, TaskView
from hivemind_addon.proxy.api.words import several
from hivemind_addon.tools.mcp.session import Permission, Session, ToolFailed
from hivemind_addon.tools.mcp.tool import MAX_ROWS, ActionResult, Call, Effect, tool

_TASKS = (Permission.SUBMIT, Permission.BATCH)
_MAX_BATCH = 200
_MAX_RESULT_CHARS = 4_000

Prompt = Annotated[str, Meta(max_length=30_000)]
"""The prompt becomes one argument of a command; Linux takes 128 KiB, and a letter has up to four bytes."""
Word = Annotated[str, Meta(min_length=1, max_length=200)]
TaskIds = Annotated[tuple[Word, ...], Meta(max_length=_MAX_BATCH, description="None: those that you submitted")]


class TaskRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A task: an agent kind and a prompt; or a command, where the person who starts this server allows commands."""

    agent: Annotated[
        str, Meta(max_length=100, description="Which agent runs: claude-code, codex, gemini, aider or opencode")
    ] = ""
    prompt: Annotated[Prompt, Meta(description="What it is to do, complete: it knows nothing of this conversation")] = (
        ""
    )
    command: Annotated[
        tuple[Prompt, ...],
        Meta(max_length=500, description="Instead of both: a program and its arguments; no shell reads them"),
    ] = ()
    name: Annotated[str, Meta(max_length=60, description="Letters, digits, - and _; empty: one is made")] = ""
    depends_on: Annotated[tuple[Word, ...], Meta(max_length=100, description="Names of tasks that come before")] = ()
    priority: Annotated[Literal["critical", "high", "normal", "low"], Meta(description="How soon it gets its turn")] = (
        "normal"
    )
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


class TasksSubmitted(Struct, frozen=True):
    """The tasks run as soon as there is room."""

    ids: Annotated[tuple[str, ...], Meta(description="In the order of the tasks; for task_wait and task_status")]
    text: str


class TaskList(Struct, frozen=True):
    """Tasks as they are now."""

    over: Annotated[bool, Meta(description="Whether nothing more happens to any of them")]
    text: str
    tasks: Annotated[tuple[TaskView, ...], Meta(description="result: the end of what it wrote; log: the file of all")]


@tool("Start a task", Permission.SUBMIT, effect=Effect.DESTROYS, takes=TaskRequest)
def submit(call: Call, **task: Any) -> TasksSubmitted:
    """Have another agent work on a prompt of its own, beside you, through the same scheduler and limits. Returns at
    once with its id; task_wait gives its result. Prefer it to starting agents in a shell: they are queued, retried
    and paid from a budget. It costs money.
    """
    return _start(call.session, [TaskRequest(**task)])


@tool("Start many tasks", Permission.BATCH, effect=Effect.DESTROYS)
def batch(
    call: Call,
    tasks: Annotated[
        tuple[TaskRequest, ...],
        Meta(min_length=1, max_length=_MAX_BATCH, description="Each with the arguments of submit"),
    ],
) -> TasksSubmitted:
    """Start many tasks at once. Those that name others in depends_on start when these are done, and are skipped when
    one of them fails. Returns at once with all ids. It costs money.
    """
    return _start(call.session, tasks)


def _start(session: Session, tasks: Sequence[TaskRequest]) -> TasksSubmitted:
    specs = [_spec(task, number, session) for number, task in enumerate(tasks)]
    caller = session.caller
    ids = client.submit(specs, parent=caller.task, runner=_runner(session), port=caller.port)
    session.submitted.update(ids)
    return TasksSubmitted(tuple(ids), f"{several(len(ids), 'task')} taken; task_wait tells when they are over")


def _spec(task: TaskRequest, number: int, session: Session) -> TaskSpec:
    which = f"task {task.name or number + 1}"
    if task.command and not session.scope.commands:
        raise ToolFailed(
            f"{which}: raw commands are not allowed here: name an agent and a prompt, or the person who starts this "
            "server has to add `--allow-commands` to `hivemind mcp`"
        )
    if bool(task.command) == bool(task.agent and task.prompt):
        raise ToolFailed(f"{which}: it needs an agent and a prompt, or instead of both a command")
    if task.priority in ("critical", "high") and Permission.PRIORITY not in session.scope.allowed:
        raise ToolFailed(
            f"{which}: priority {task.priority} goes before others: the person who starts this server has to add "
            "`--allow priority` to `hivemind mcp`"
        )
    return convert(to_builtins(task), TaskSpec)


def _runner(session: Session) -> Path | None:
    return Path(session.caller.runner) if session.caller.runner else None


@tool("How tasks stand", *_TASKS)
def task_status(call: Call, ids: TaskIds = ()) -> TaskList:
    """See which tasks wait, run, or are over, why, and the end of their output. Changes nothing."""
    return _listed(map(client.task, _meant(call.session, ids)))


@tool("Wait for tasks", *_TASKS)
def task_wait(
    call: Call,
    ids: TaskIds = (),
    seconds: Annotated[
        float, Meta(ge=0, le=600, description="At most; keep it below your tool calls' time limit")
    ] = 50,
) -> TaskList:
    """Wait until tasks are over, at most for so many seconds, and get their results. While you wait your own place in
    the fleet is lent to them. over false: they are not; call it again.
    """
    session = call.session
    meant = _meant(session, ids)
    call.progress(0, seconds, f"waiting for {several(len(meant), 'task')}")
    return _listed(
        client.wait(meant, waiter=session.caller.task, timeout_s=seconds, runner=_runner(session), connected=call.ends)
    )


@tool("End a task", *_TASKS, effect=Effect.DESTROYS, idempotent=True)
def task_cancel(call: Call, id: Word) -> ActionResult:  # noqa: A002 - the argument's public name
    """End a task that you submitted, with all processes that it started. Results so far stay."""
    session = call.session
    if id not in session.submitted and not (session.caller.task and client.task(id).parent == session.caller.task):
        raise ToolFailed(f"{id} is no task that you submitted; a person ends it with `hivemind task cancel {id}`")
    return ActionResult(done=True, text=client.cancel(id))


def _meant(session: Session, ids: Sequence[str]) -> list[str]:
    if ids:
        return list(dict.fromkeys(ids))
    mine = {*session.submitted, *_children(session)}
    if not mine:
        raise ToolFailed("you have submitted no task: name ids, or submit one")
    return sorted(mine)


def _children(session: Session) -> list[str]:
    """The ids of those that the caller's task submitted before this server was started, as after a retry."""
    task = session.caller.task
    if not task:
        return []
    fleets: list[FleetView] = client.status(fleet=task.partition("/")[0])
    return [one.id for fleet in fleets for one in fleet.tasks if one.parent == task]


def _listed(found: Iterable[TaskView]) -> TaskList:
    views = list(found)
    over = [one for one in views if one.state.is_over]
    bad = sum(one.state is not State.DONE for one in over)
    text = f"{len(over)} of {several(len(views), 'task')} over"
    text += f", {bad} of them not done" if bad else ""
    tasks = tuple(replace(one, result=one.result[-_MAX_RESULT_CHARS:]) for one in views[:MAX_ROWS])
    return TaskList(len(over) == len(views), text, tasks)
