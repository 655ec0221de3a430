"""`hivemind context resume`: a kept conversation goes on in a new process, behind the proxy."""

import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from hivemind_addon.formats.wire.proxy_user import proxy_words
from hivemind_addon.plugins.contexts.commands.context_options import (
    ContextRef,
    asks,
    project_option,
    ref_argument,
    usual_folder,
    write_new,
)
from hivemind_addon.plugins.contexts.commands.context_view import pressures
from hivemind_addon.plugins.contexts.reading.export import (
    CannotExport,
    Export,
    ExportForm,
    export,
    form_of,
    resume_command,
)
from hivemind_addon.plugins.contexts.store import Context, ContextStore
from hivemind_addon.proxy.api.words import brief, printable
from hivemind_addon.tools.commands.options import in_one_line

_PLACE = "{}"
"""Of a plain program's command line: where the conversation is to stand; without it the program reads it."""
_LONGEST_ARGUMENT = 128 * 1024 - 1
"""Linux takes no longer one, bytes with the closing zero included."""
_STILL_THERE_S = 60.0
"""A session that was heard of so lately may have a program that lives."""


@click.command()
@ref_argument
@click.option(
    "--as",
    "form",
    type=click.Choice([form.value for form in ExportForm]),
    help="What goes on with it. claude-code, codex: these programs, with a new session; default: the one of the two "
    "that it comes from. text, api: PROGRAM, which reads the conversation as Markdown, or the request's JSON.",
)
@project_option
@click.option(
    "--say", metavar="TEXT", help="Say this to the agent, and let it work without a terminal till it is done."
)
@click.option("--agent", metavar="NAME", help="Its name in logs, budgets and tables; default: the name that it had.")
@click.option("--print", "only_print", is_flag=True, help="Prepare it, and print the command instead of running it.")
@click.argument("words", metavar="[-- PROGRAM|OPTIONS...]", nargs=-1, type=click.UNPROCESSED)
@asks
def resume(
    ref: ContextRef,
    form: str | None,
    project: Path,
    say: str | None,
    agent: str | None,
    words: tuple[str, ...],
    store: ContextStore,
    port: int,
    *,
    only_print: bool,
) -> None:
    """Go on with a conversation in a new process, behind the proxy: after a kill, a spent budget, on another machine.

    The program gets a new session; nothing of its own is overwritten. What stands behind `--` are its options, or with
    `--as text` and `--as api` the program itself: it reads the conversation from standard input, or has it in the
    place of `{}`. Tool calls whose results were not recorded may have run: the model is told to look.

    \b
    Examples:
      hivemind context resume 3f9c
      hivemind context resume 3f9c --cwd ~/project --say "Go on."
      hivemind context resume 3f9c@4 --print
      hivemind context resume 3f9c -- --dangerously-skip-permissions
      hivemind context resume 3f9c --as text -- ./agent.sh
      hivemind context resume 3f9c --as text -- gemini --prompt {}
    """
    from hivemind_addon.tools.commands.execute import WHY_NOT_BEHIND, behind_proxy  # noqa: PLC0415 - takes a while
    from hivemind_addon.tools.launch.process_replacement import become, insist  # noqa: PLC0415 - as above

    found = store.read(ref.id, ref.version)
    chosen = ExportForm(form) if form else form_of(found)
    project = project.resolve()
    exported = export(found, chosen, project=project, environment=os.environ)
    command = resume_command(exported, chosen, say=say, words=words)
    name = agent or found.head.agent
    task = found.head.task if proxy_words(f"task-{found.head.task}").task == found.head.task else ""
    if only_print:
        if exported.place is not None:
            write_new(exported.place, exported.content)
        where = [] if store.folder == usual_folder(port) else ["--folder", str(store.folder)]
        exporting = ["hivemind", "context", "export", str(ref), "-p", str(port), *where, "--as", chosen.value]
        behind = ["hivemind", "exec", "-p", str(port), "--agent", name, *(["--task", task] if task else []), "--"]
        line = shlex.join([*behind, *command]) if exported.place else _line(exporting, behind, command)
        click.echo(f"cd {shlex.quote(str(project))} && {line}")
        return
    stdin = None
    if exported.place is None:
        command, stdin = _given(command, exported)
    insist(command)
    with in_one_line(*WHY_NOT_BEHIND):
        its_command, environment = behind_proxy(command, port=port, agent=name, task=task)
    if exported.place is not None:
        write_new(exported.place, exported.content)
    if stdin is not None:
        os.dup2(stdin, sys.stdin.fileno() if sys.stdin else 0)
    _tell(found, exported, chosen, name, port)
    os.chdir(project)
    become(its_command, environment | {"PWD": str(project)})


def _line(exporting: Sequence[str], behind: Sequence[str], command: Sequence[str]) -> str:
    """A shell's, which gives a plain program the conversation as `_given` does."""
    if _PLACE not in command:
        return f"{shlex.join(exporting)} | {shlex.join([*behind, *command])}"
    return " ".join(
        f'"$({shlex.join(exporting)})"' if word == _PLACE else shlex.quote(word) for word in [*behind, *command]
    )


def _given(command: Sequence[str], exported: Export) -> tuple[list[str], int | None]:
    """A plain program's command line with the conversation in it, or what it reads. Raises CannotExport, OSError."""
    if _PLACE in command:
        if len(exported.content) > _LONGEST_ARGUMENT:
            raise CannotExport(
                f"the conversation has {len(exported.content):,} bytes, and a system takes no argument of more than "
                f"{_LONGEST_ARGUMENT:,}: leave out {_PLACE}, and the program reads it from standard input"
            )
        text = exported.content.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        return [text if word == _PLACE else word for word in command], None
    with tempfile.TemporaryFile() as file:  # nobody else's, and gone with the program
        file.write(exported.content)
        file.flush()
        file.seek(0)
        return list(command), os.dup(file.fileno())


def _tell(found: Context, exported: Export, form: ExportForm, agent: str, port: int) -> None:
    """On standard error, what happens."""
    session = f" as session {exported.session}" if exported.session else ""
    head = found.head
    click.echo(f"hivemind: {head.id}@{head.version} of {printable(agent)} goes on{session} ({form.value})", err=True)
    now = pressures(port).get((head.agent, head.session))
    if now is not None and now.seen_ago_s < _STILL_THERE_S:
        click.echo(
            f"hivemind: it was heard of {brief(now.seen_ago_s)} ago: if its program still runs, two do the same now",
            err=True,
        )
