"""A fleet as people see it: one table, one line for a change, one for the end. Pure."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hivemind_addon.plugins.fleets.tasks.model import FleetView, State, TaskView
from hivemind_addon.proxy.api.words import brief

_STYLES = {
    State.WAITING: "dim",
    State.RUNNING: "bold cyan",
    State.LENDING: "cyan",
    State.DONE: "green",
    State.FAILED: "bold red",
    State.SKIPPED: "yellow",
    State.CANCELLED: "yellow",
}
_SHOWN_FIRST = (State.RUNNING, State.LENDING, State.FAILED, State.WAITING, State.SKIPPED, State.CANCELLED, State.DONE)
"""Where not all tasks fit."""
_NAME_CHARS = 40


def table_of(fleet: FleetView, now_wall: float, *, rows: int | None = None) -> RenderableType:
    """All tasks, or in as many lines as `rows` those that say most."""
    table = Table(header_style="bold")
    table.add_column("task", overflow="fold", max_width=_NAME_CHARS)
    table.add_column("state", no_wrap=True)
    table.add_column("tries", justify="right", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    # A row that wraps would push others off the screen.
    table.add_column("why", overflow="fold" if rows is None else "ellipsis", no_wrap=rows is not None)
    shown = _shown(fleet.tasks, rows)
    for one in shown:
        style = _STYLES[one.state]
        table.add_row(
            Text(one.id.partition("/")[2]),
            Text(one.state.value, style=style),
            str(one.attempts or ""),
            brief(_took_s(one, now_wall)) if one.began_wall is not None else "",
            Text(one.reason or ("waits for its own tasks" if one.state is State.LENDING else "")),
        )
    left = len(fleet.tasks) - len(shown)
    more = [Text(f"and {left:,} more", style="dim")] if left else []
    return Group(Text(_title(fleet, now_wall)), table, *more)


def change(task: TaskView, now_wall: float) -> str:
    """`night/plan  done  after 12s`: one line for a log."""
    words = [task.id, task.state.value]
    if task.state in (State.DONE, State.FAILED) and task.began_wall is not None:
        words.append(f"after {brief(_took_s(task, now_wall))}")
    if task.attempts > 1:
        words.append(f"try {task.attempts}")
    return "  ".join(words) + (f": {task.reason}" if task.reason else "")


def summary(fleet: FleetView, now_wall: float) -> str:
    """`28 done, 1 failed, 1 skipped in 2m03s`."""
    return f"{counts(fleet)} in {brief((fleet.ended_wall or now_wall) - fleet.began_wall)}"


def counts(fleet: FleetView) -> str:
    """`28 done, 1 failed`; of states that any task is in."""
    number = Counter(one.state for one in fleet.tasks)
    return ", ".join(f"{number[state]:,} {state.value}" for state in _ENDS_FIRST if number[state]) or "no tasks"


_ENDS_FIRST = (State.DONE, State.FAILED, State.SKIPPED, State.CANCELLED, State.RUNNING, State.LENDING, State.WAITING)


def _title(fleet: FleetView, now_wall: float) -> str:
    return f"{fleet.id}: {summary(fleet, now_wall)}, at most {fleet.at_most} at once"


def _shown(tasks: Sequence[TaskView], rows: int | None) -> Sequence[TaskView]:
    if rows is None or len(tasks) <= rows:
        return tasks
    best = sorted(range(len(tasks)), key=lambda index: (_SHOWN_FIRST.index(tasks[index].state), index))[: max(1, rows)]
    return [tasks[index] for index in sorted(best)]


def _took_s(task: TaskView, now_wall: float) -> float:
    end = task.ended_wall if task.ended_wall is not None else now_wall
    return max(0.0, end - (task.began_wall or end))
