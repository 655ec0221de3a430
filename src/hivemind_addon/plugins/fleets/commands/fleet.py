"""`hivemind fleet run | list | status | log | cancel | serve`: many tasks with dependencies, at most N at a time."""

import asyncio
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.live import Live

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.plugins.fleets.tasks import client, dispatch, picture
from hivemind_addon.plugins.fleets.tasks.fleet_file import FleetFile, load_fleet
from hivemind_addon.plugins.fleets.tasks.model import USUAL_AT_MOST, FleetView, NotTaken, State, TaskView
from hivemind_addon.plugins.fleets.tasks.session import FleetOutcome, FleetPlan, new_plan, resumed_plan, run_plan
from hivemind_addon.plugins.fleets.tasks.task_table import FleetRules
from hivemind_addon.proxy.api.words import several
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.tools.commands.group import IndexedGroup
from hivemind_addon.tools.commands.options import in_one_line, port_option
from hivemind_addon.tools.commands.printing import Format, Row, format_option, print_json, print_rows
from hivemind_addon.tools.commands.times import SPAN
from hivemind_addon.tools.launch import claim, detached
from hivemind_addon.tools.launch.programs import load_programs

one_line = in_one_line(NotTaken, DocumentError, FolderNotPrivate)
"""Around a command: what goes wrong with tasks is one line."""
_SCREEN_MARGIN = 6
_REFRESH_PER_S = 4


@click.group(cls=IndexedGroup)
def fleet() -> None:
    """Run many tasks with dependencies through the proxy, at most N at a time.

    \b
    Examples:
      hivemind fleet run night.yaml
      hivemind fleet status
    """


@fleet.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--at-most", type=click.IntRange(1, 1000), help="Tasks at once, whatever the file says.")
@click.option("--resume", "fleet_id", metavar="ID", help="Go on with what is not done of an earlier run.")
@click.option("--dry-run", is_flag=True, help="Check the file and show the order; nothing is started.")
@click.option("--json", "as_json", is_flag=True, help="Print how it ended as JSON; progress goes to stderr.")
@port_option
@one_line
def run(
    file: Path | None, at_most: int | None, fleet_id: str | None, port: int, *, dry_run: bool, as_json: bool
) -> None:
    """Run the tasks of a file (docs/fleet-files.md); the exit status is 1 when one of them is not done.

    Each task goes through the proxy under its own name. Ctrl-C ends all tasks; --resume goes on later.

    \b
    Examples:
      hivemind fleet run night.yaml
      hivemind fleet run night.yaml --at-most 8
      hivemind fleet run night.yaml --dry-run
      hivemind fleet run --resume night-3f9c
    """
    if file is None and fleet_id is None:
        raise click.UsageError("say what to run: FILE, or --resume ID")
    clock = SystemClock()
    read = load_fleet(file, load_programs()) if file else None
    if dry_run and read is not None:
        _print_order(_with_at_most(read.rules, at_most, file), read)
        return
    plan = _plan(read, file, fleet_id, at_most, port, clock)
    outcome = _run(plan, clock, as_json=as_json)
    if as_json:
        print_json(outcome.fleet)
    if outcome.signal is not None:
        sys.exit(128 + outcome.signal)
    if any(task.state is not State.DONE for task in outcome.fleet.tasks if not task.parent):
        sys.exit(1)


@fleet.command()
@click.argument("fleet_id", metavar="[ID]", required=False)
@format_option
@one_line
def status(fleet_id: str | None, form: Format) -> None:
    """Show the fleets that were run, or the tasks of one.

    \b
    Examples:
      hivemind fleet status
      hivemind fleet status night-3f9c
      hivemind fleet status night-3f9c --json
    """
    if fleet_id is None:
        _print_fleets(form)
        return
    now_wall = SystemClock().wall()
    views = client.status(fleet=fleet_id)
    if form is Format.JSON:
        print_json(views[0])
    elif form is Format.CSV:
        print_rows([msgspec.to_builtins(one) for one in views[0].tasks], {}, form)
    else:
        Console(highlight=False).print(picture.table_of(views[0], now_wall))


@fleet.command(name="list")
@format_option
def list_(form: Format) -> None:
    """List the fleets that were run, the newest first.

    \b
    Examples:
      hivemind fleet list
      hivemind fleet list --json | jq -r '.[].id'
    """
    _print_fleets(form)


@fleet.command()
@click.argument("fleet_id", metavar="ID")
@one_line
def cancel(fleet_id: str) -> None:
    """End a fleet that runs: its tasks are asked to end, and killed five seconds later.

    \b
    Examples:
      hivemind fleet cancel night-3f9c
    """
    click.echo(client.cancel(fleet_id))


@fleet.command()
@click.argument("fleet_id", metavar="ID")
@one_line
def log(fleet_id: str) -> None:
    """Print what all tasks of a fleet said, each line under its task's name.

    \b
    Examples:
      hivemind fleet log night-3f9c
      hivemind fleet log night-3f9c | grep ^build
    """
    (view,) = client.status(fleet=fleet_id)
    for task in view.tasks:
        name = task.id.partition("/")[2]
        if task.log and Path(task.log).is_file():
            with Path(task.log).open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    click.echo(f"{name}  {line.rstrip()}")


@fleet.command(name="serve")
@click.option(
    "--at-most", type=click.IntRange(1, 1000), default=USUAL_AT_MOST, show_default=True, help="Tasks at once."
)
@click.option("--idle", "idle_s", type=SPAN, help="End when nothing was to do for so long.")
@port_option
@one_line
def serve_tasks(at_most: int, idle_s: float | None, port: int) -> None:
    """Run what `hivemind task submit` and `hivemind task batch` send, until it is stopped.

    They start one in the background when there is none; start your own to choose how many tasks run at once.

    \b
    Examples:
      hivemind fleet serve --at-most 8
    """
    clock = SystemClock()
    lock = claim.run_tasks(port)
    if lock is None:
        if idle_s is not None:
            sys.exit(detached.ALREADY_THERE)
        raise click.ClickException(f"somebody runs the tasks of port {port} already; see `hivemind fleet status`")
    plan = new_plan(FleetRules(at_most=at_most), (), source="", port=port, clock=clock)
    outcome = asyncio.run(
        run_plan(
            plan,
            clock=clock,
            tell=lambda task: click.echo(picture.change(task, clock.wall())),
            warn=lambda line: click.echo(f"hivemind: {line}", err=True),
            socket=client.socket_of(port),
            idle_s=float("inf") if idle_s is None else idle_s,
        )
    )
    os.close(lock)
    if outcome.signal is not None:
        sys.exit(128 + outcome.signal)


class _Screen:
    """Progress: a table that is drawn anew where a terminal is, a line for each change where not."""

    def __init__(self, plan: FleetPlan, clock: SystemClock, *, as_json: bool) -> None:
        self._plan = plan
        self._clock = clock
        self._console = Console(stderr=as_json, highlight=False)
        self._tasks: dict[str, TaskView] = {one.view.id: one.view for one in plan.done}
        self._live = Live(
            get_renderable=lambda: picture.table_of(
                self.view(), clock.wall(), rows=max(4, self._console.height - _SCREEN_MARGIN)
            ),
            console=self._console,
            refresh_per_second=_REFRESH_PER_S,
            transient=True,
        )

    def shown(self) -> AbstractContextManager[object]:
        return self._live if self._console.is_terminal else nullcontext()

    def tell(self, task: TaskView) -> None:
        before = self._tasks.get(task.id)
        self._tasks[task.id] = task
        if not self._console.is_terminal and (
            before is None or (before.state, before.reason) != (task.state, task.reason)
        ):
            self._say(picture.change(task, self._clock.wall()))

    def warn(self, line: str) -> None:
        self._say(f"hivemind: {line}")

    def end(self, fleet: FleetView) -> None:
        now_wall = self._clock.wall()
        if self._console.is_terminal:
            self._console.print(picture.table_of(fleet, now_wall))
        self._say(f"{fleet.id}: {picture.summary(fleet, now_wall)}")
        if any(task.state is not State.DONE for task in fleet.tasks):
            self._say(f"go on with what is not done: hivemind fleet run --resume {fleet.id}")

    def view(self) -> FleetView:
        fleet = self._plan.fleet
        return FleetView(
            fleet.id,
            fleet.source,
            fleet.rules.at_most,
            fleet.began_wall,
            None,
            os.getpid(),
            tuple(self._tasks.values()),
        )

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _run(plan: FleetPlan, clock: SystemClock, *, as_json: bool) -> FleetOutcome:
    screen = _Screen(plan, clock, as_json=as_json)
    with screen.shown():
        outcome = asyncio.run(run_plan(plan, clock=clock, tell=screen.tell, warn=screen.warn))
    screen.end(outcome.fleet)
    return outcome


def _plan(
    read: FleetFile | None, file: Path | None, fleet_id: str | None, at_most: int | None, port: int, clock: SystemClock
) -> FleetPlan:
    rules = _with_at_most(read.rules, at_most, file) if read else None
    if fleet_id is not None:
        plan = resumed_plan(fleet_id, port=port, changed=(rules, read.specs) if read and rules else None)
        if at_most is None or rules is not None:
            return plan
        fleet = msgspec.structs.replace(plan.fleet, rules=_with_at_most(plan.fleet.rules, at_most, None))
        return FleetPlan(fleet, plan.tasks, plan.done)
    assert read is not None
    assert rules is not None
    return new_plan(rules, read.specs, source=str(file and file.absolute()), port=port, clock=clock)


def _with_at_most(rules: FleetRules, at_most: int | None, file: Path | None) -> FleetRules:
    if at_most is None:
        return rules
    taken = sum(rules.groups.values())
    if at_most < taken:
        raise NotTaken(
            f"--at-most {at_most} is less than the {taken} workers of its groups{f' in {file}' if file else ''}"
        )
    return FleetRules(at_most, rules.groups, rules.steal_above, rules.start_every_s)


def _print_order(rules: FleetRules, read: FleetFile) -> None:
    """In waves: what could run at the same time if there were places enough."""
    done: set[str] = set()
    left = {one.name: one for one in read.specs}
    rows: list[Row] = []
    wave = 0
    while left:
        wave += 1
        ready = [one for one in left.values() if set(one.depends_on) <= done]
        rows += [
            {
                "wave": wave,
                "task": one.name,
                "group": one.group,
                "priority": one.priority,
                "tokens": one.estimated_tokens,
                "after": ", ".join(one.depends_on),
                "runs": one.agent or " ".join(one.command)[:60],
            }
            for one in ready
        ]
        done |= {one.name for one in ready}
        left = {name: one for name, one in left.items() if name not in done}
    print_rows(rows, {name: name for name in rows[0]}, Format.TABLE)
    places = ", ".join(f"{count} for {name}" for name, count in rules.groups.items())
    common = dispatch.places(rules.at_most, rules.groups)[dispatch.COMMON]
    spread = f" ({places}, {common} for the others)" if places else ""
    click.echo(f"{several(len(read.tasks), 'task')}, at most {rules.at_most} at once{spread}; nothing was started")


@one_line
def _print_fleets(form: Format) -> None:
    views = client.status()
    rows = [_fleet_row(one) if form is Format.TABLE else msgspec.to_builtins(one) for one in views]
    columns = {"id": "fleet", "runner_pid": "runner", "tasks": "tasks", "source": "file"}
    print_rows(rows, columns, form, none="no fleets yet; run one with `hivemind fleet run FILE`")


def _fleet_row(view: FleetView) -> Row:
    return {
        "id": view.id,
        "tasks": picture.counts(view),
        "source": view.source or "(submitted one by one)",
        "runner_pid": str(view.runner_pid or ""),
    }
