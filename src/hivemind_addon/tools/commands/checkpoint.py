"""`hivemind checkpoint …`: conversations that a spent budget has stopped, and how they go on."""

import os
import shlex
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from hivemind_addon.api.command import names_agent
from hivemind_addon.api.words import short
from hivemind_addon.proxy.checkpoint.store import FOLDER_NAME, CheckpointStore, UnknownCheckpoint
from hivemind_addon.system.folders import FolderNotPrivate
from hivemind_addon.tools.checkpoints import show as view
from hivemind_addon.tools.checkpoints.export import CannotExport, Export, ExportForm, export
from hivemind_addon.tools.commands.options import in_one_line, port_option
from hivemind_addon.tools.commands.printing import Format, format_option, print_rows
from hivemind_addon.tools.history.reader import journal_of

_folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where checkpoints are; default: beside your proxy's journal.",
)


def _asks(command: Callable[..., None]) -> Callable[..., None]:
    """Give it the checkpoints that are meant; what cannot be is one line."""

    @_folder_option
    @port_option
    @wraps(command)
    def called(*, folder: Path | None, port: int, **values: Any) -> None:
        with in_one_line(CannotExport, FolderNotPrivate, UnknownCheckpoint):
            if folder is not None and not folder.is_dir():
                raise click.ClickException(f"{folder} is no folder; without --folder it is {_usual_folder(port)}")
            command(store=CheckpointStore(folder or _usual_folder(port)), **values)

    return called


_id = click.argument("checkpoint_id", metavar="ID")
_COLUMNS = {
    "id": "ID",
    "kept": "kept",
    "agent": "agent",
    "model": "model",
    "messages": "messages",
    "size": "bytes",
}
_WITH_TASKS = {"task": "task"}
_SPARE = ("task", "messages", "model")


@click.group()
def checkpoint() -> None:
    """Look at conversations that a spent budget has stopped, and go on with them.

    \b
    Examples:
      hivemind checkpoint list               what was kept
      hivemind checkpoint show 3f9c          read it
      hivemind checkpoint export 3f9c --as claude-code --write
    """


@checkpoint.command(name="list")
@click.option("--agent", metavar="GLOB", default="*", help="Only those of these agents.")
@_asks
@format_option
def list_(agent: str, store: CheckpointStore, form: Format) -> None:
    """List the conversations that were kept, the newest first.

    \b
    Examples:
      hivemind checkpoint list
      hivemind checkpoint list --agent 'reviewer-*'
      hivemind checkpoint list --json | jq -r '.[].id'
    """
    heads = [head for head in store.heads() if names_agent(agent, head.agent)]
    rows = [msgspec.structs.asdict(head) for head in heads]
    columns = _COLUMNS | _WITH_TASKS if any(head.task for head in heads) else _COLUMNS
    if form is Format.TABLE:
        for row, head in zip(rows, heads, strict=True):
            row |= {"kept": view.local(head.kept_wall), "size": short(head.body_bytes)}
    whose = "" if agent == "*" else f" of {agent}"
    none = f"no checkpoints{whose} in {store.folder}: no budget has stopped anybody"
    print_rows(rows, columns, form, none=none, spare=[key for key in _SPARE if key in columns])


@checkpoint.command()
@_id
@click.option("--full", is_flag=True, help="Show everything, also what the model was instructed.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON: head, headers, the request's body.")
@_asks
def show(checkpoint_id: str, store: CheckpointStore, *, full: bool, as_json: bool) -> None:
    """Read a conversation: who said what, which tools were called. ID may be its beginning.

    \b
    Examples:
      hivemind checkpoint show 3f9c01ab2e
      hivemind checkpoint show 3f9c --full | less -R
      hivemind checkpoint show 3f9c --json | jq .body.messages[-1]
    """
    found = store.read(checkpoint_id)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)))
        return
    for line in view.lines(found, full=full):
        click.secho(line, bold=True) if line.startswith(view.RULE) else click.echo(line)


@checkpoint.command(name="export")
@_id
@click.option(
    "--as",
    "form",
    type=click.Choice([form.value for form in ExportForm]),
    required=True,
    help="claude-code, codex: a session that it resumes. api: the request's JSON. text: Markdown for any agent.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this new file.")
@click.option("--write", is_flag=True, help="Write it to where its agent looks for sessions. Overwrites nothing.")
@click.option(
    "--cwd",
    "project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The project's folder, in which the agent is to go on; default: this one.",
)
@click.option("--json", "as_json", is_flag=True, help="Tell what was written, and how to go on, as JSON.")
@_asks
def export_(
    checkpoint_id: str,
    form: str,
    output: Path | None,
    project: Path,
    store: CheckpointStore,
    *,
    write: bool,
    as_json: bool,
) -> None:
    """Give a conversation back in a form that can be continued; on standard output without -o and --write.

    \b
    Examples:
      hivemind checkpoint export 3f9c --as claude-code --write --cwd ~/project
      hivemind checkpoint export 3f9c --as codex --write
      hivemind checkpoint export 3f9c --as api -o body.json
      hivemind checkpoint export 3f9c --as text | claude -p
    """
    if write and output:
        raise click.UsageError("--write and -o name two places; choose one of them")
    found = store.read(checkpoint_id)
    exported = export(found, ExportForm(form), project=project.resolve(), environment=os.environ)
    if write:
        if exported.place is None:
            raise click.UsageError(f"--write is for claude-code and codex; name a file for {form} with -o FILE")
        output = exported.place
    if output is None:
        if as_json:
            raise click.UsageError("--json tells of a file: name one with -o, or say --write")
        _print(exported)
        return
    _write(output, exported.content)
    command = exported.command.replace("@FILE", shlex.quote(f"@{output}"))
    if as_json:
        click.echo(msgspec.json.encode({"file": str(output), "session": exported.session, "command": command}))
        return
    click.echo(f"written: {output}")
    if command:
        moved = exported.place not in (None, output)
        where = f", once it is {exported.place}" if moved else ""
        click.echo(f"go on with{where}: {command}")


def _usual_folder(port: int) -> Path:
    return journal_of(port).parent / FOLDER_NAME


def _print(exported: Export) -> None:
    """To standard output; what to do with it, to the terminal beside it."""
    click.echo(exported.content, nl=not exported.content.endswith(b"\n"))
    if exported.place is not None:
        click.echo(f"--write puts it to where it is resumed from, {exported.place}", err=True)
    elif exported.command and not sys.stdout.isatty():
        click.echo(f"send it with: {exported.command.replace('@FILE', '@-')}", err=True)


def _write(file: Path, content: bytes) -> None:
    """A new file, for its owner alone."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    except FileExistsError as error:
        raise click.ClickException(f"{file} is there already; name a new file") from error
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
    except OSError as error:
        file.unlink(missing_ok=True)  # half a session would be resumed as a whole one
        raise click.ClickException(f"{file}: {error.strerror}") from error
