"""`hivemind task submit | batch | list | wait | show | log | cancel`: tasks one by one, for people and programs."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console

from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.plugins.fleets.commands.fleet import one_line
from hivemind_addon.plugins.fleets.tasks import client, picture
from hivemind_addon.plugins.fleets.tasks import spec as specs
from hivemind_addon.plugins.fleets.tasks.fleet_file import load_batch
from hivemind_addon.plugins.fleets.tasks.model import RUNNER_VARIABLE, TASK_VARIABLE, State, TaskSpec, TaskView
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.commands.group import IndexedGroup
from hivemind_addon.tools.commands.options import port_option
from hivemind_addon.tools.commands.printing import Format, format_option, json_flag, print_json, print_rows
from hivemind_addon.tools.commands.times import SOME_TIME
from hivemind_addon.tools.launch.programs import load_programs

_NOT_DONE = 1
_COLUMNS = {"id": "task", "state": "state", "attempts": "tries", "exit_status": "exit", "reason": "why"}
_wait = click.option("--wait", "waits", is_flag=True, help="Wait until it is over; inside of a task its place is lent.")


@click.group(cls=IndexedGroup)
def task() -> None:
    """Submit single tasks, wait for them, look at them and end them.

    \b
    Examples:
      hivemind task submit --timeout 30m -- make test
      hivemind task show night-3f9c/build
    """


@task.command(context_settings={"allow_interspersed_args": False})
@_wait
@click.option("--name", default="", help="Of the task; one is made otherwise.")
@click.option(
    "--priority",
    type=click.Choice([one.name.lower() for one in Priority]),
    default="normal",
    show_default=True,
    help="Of the task among others, and of its requests in the proxy.",
)
@click.option("--depends-on", multiple=True, metavar="TASK", help="Start when this is done; several times for more.")
@click.option("--agent-kind", "agent", default="", metavar="KIND", help="Instead of a command: claude-code, codex, …")
@click.option("--prompt", default="", help="What that agent is to do.")
@click.option("--estimated-tokens", type=click.IntRange(1), help="Shorter ones go first.")
@click.option("--budget-tokens", type=click.IntRange(1), help="What its requests may use in all.")
@click.option("--budget-usd", type=click.FloatRange(min=0, min_open=True), help="The same in money.")
@click.option("--group", default="", help="The worker group whose queue it joins.")
@click.option("--timeout", "timeout_s", type=SOME_TIME, help="End it after so long: 90s, 30m, 2h.")
@click.option(
    "--retries",
    type=click.IntRange(0, specs.MAX_RETRIES),
    default=2,
    show_default=True,
    help="Of what looks transient.",
)
@json_flag
@port_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def submit(port: int, command: tuple[str, ...], *, waits: bool, as_json: bool, **said: object) -> None:
    """Have a task run through the proxy; prints its id, or with --wait its result, and ends with its exit status.

    Inside of a task it goes to that task's runner as its child, else to one in the background.

    \b
    Examples:
      hivemind task submit --timeout 30m -- make test
      hivemind task submit --wait --priority high -- claude -p "review this"
      hivemind task submit --agent-kind codex --prompt "fix the flaky test"
    """
    spec = msgspec.convert({**said, "command": command}, TaskSpec)
    if problem := specs.problem(spec, load_programs()):
        raise click.UsageError(f"{problem.key}: {problem.text}; {problem.cure}")
    _submit([spec], port, waits=waits, as_json=as_json)


@task.command()
@_wait
@json_flag
@port_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@one_line
def batch(file: Path, port: int, *, waits: bool, as_json: bool) -> None:
    """Submit many tasks: one a line as JSON, or a YAML list; `-` reads them from stdin. Prints their ids.

    The keys are those of a fleet file's tasks, and `name`.

    \b
    Examples:
      hivemind task batch tasks.jsonl --wait
      echo '{"command": "make test"}' | hivemind task batch -
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file}: it is no text in UTF-8") from error
    tasks = load_batch(text, file, load_programs())
    _submit(tasks, port, waits=waits, as_json=as_json)


@task.command()
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
@click.option("--timeout", "timeout_s", type=SOME_TIME, help="Give up after so long: 90s, 30m, 2h.")
@json_flag
@port_option
def wait(ids: tuple[str, ...], timeout_s: float | None, port: int, *, as_json: bool) -> None:
    """Wait until tasks are over; the exit status is 1 when one of them is not done, 124 when time is up.

    \b
    Examples:
      hivemind task wait night-3f9c/build night-3f9c/test
      hivemind task wait tasks-77aa/make-1 --timeout 10m
    """
    del port  # taken as everywhere; an id says which fleet it is of, and a fleet where its runner is
    _wait_for(ids, timeout_s=timeout_s, as_json=as_json)


@task.command(name="list")
@format_option
@one_line
def list_(form: Format) -> None:
    """List the tasks of all fleets, the newest fleet first.

    \b
    Examples:
      hivemind task list
      hivemind task list --json | jq -r '.[] | select(.state == "failed") | .id'
    """
    views = [one for view in client.status() for one in view.tasks]
    rows = [msgspec.to_builtins(one) for one in views]
    print_rows(rows, _COLUMNS, form, none="no tasks yet; run one with `hivemind task submit -- COMMAND`")


@task.command()
@click.argument("task_id", metavar="ID")
@json_flag
def show(task_id: str, *, as_json: bool) -> None:
    """Show one task: where it is and why, and what it answered.

    \b
    Examples:
      hivemind task show night-3f9c/build
      hivemind task show night-3f9c/build --json
    """
    view = _view(task_id)
    if as_json:
        print_json(view)
        return
    console = Console(highlight=False)
    console.print(picture.change(view, SystemClock().wall()), markup=False, soft_wrap=True)
    for name, value in (
        ("priority", view.priority),
        ("in the proxy", view.agent_name),
        ("depends on", ", ".join(view.depends_on)),
        ("submitted by", view.parent),
        ("exit status", "" if view.exit_status is None else str(view.exit_status)),
        ("log", view.log),
    ):
        if value:
            console.print(f"  {name:<13} {value}", markup=False, soft_wrap=True)
    if view.result:
        console.print(f"\n{view.result}", markup=False, soft_wrap=True)


@task.command()
@click.argument("task_id", metavar="ID")
def log(task_id: str) -> None:
    """Print all that a task has said.

    \b
    Examples:
      hivemind task log night-3f9c/build
    """
    view = _view(task_id)
    if not view.log or not Path(view.log).is_file():
        raise click.ClickException(f"{task_id} has said nothing: it was not started")
    with Path(view.log).open("rb") as file:
        while chunk := file.read(1024 * 1024):
            click.echo(chunk, nl=False)


@task.command()
@click.argument("task_id", metavar="ID")
@one_line
def cancel(task_id: str) -> None:
    """End a task, and what it submitted; what depends on it is skipped.

    \b
    Examples:
      hivemind task cancel night-3f9c/build
    """
    click.echo(client.cancel(task_id))


@one_line
def _submit(tasks: Sequence[TaskSpec], port: int, *, waits: bool, as_json: bool) -> None:
    ids = client.submit(tasks, parent=os.environ.get(TASK_VARIABLE, ""), runner=_runner(), port=port)
    if waits:
        _wait_for(ids, timeout_s=None, as_json=as_json)
    elif as_json:
        print_json(ids)
    else:
        click.echo("\n".join(ids))


@one_line
def _wait_for(ids: Sequence[str], *, timeout_s: float | None, as_json: bool) -> None:
    waiter = os.environ.get(TASK_VARIABLE, "")
    views = client.wait(ids, waiter=waiter, timeout_s=timeout_s, runner=_runner())
    if as_json:
        print_json(views)
    elif len(views) == 1 and views[0].state is State.DONE:
        click.echo(views[0].result)
    else:
        for one in views:
            click.echo(picture.change(one, SystemClock().wall()), err=one.state is not State.DONE)
    _exit_as(views)


def _exit_as(views: Sequence[TaskView]) -> None:
    if any(not one.state.is_over for one in views):
        sys.exit(124)  # as `timeout` has it
    if len(views) == 1 and views[0].exit_status:
        sys.exit(views[0].exit_status)
    if any(one.state is not State.DONE for one in views):
        sys.exit(_NOT_DONE)


def _runner() -> Path | None:
    place = os.environ.get(RUNNER_VARIABLE)
    return Path(place) if place else None


@one_line
def _view(task_id: str) -> TaskView:
    return client.task(task_id)
