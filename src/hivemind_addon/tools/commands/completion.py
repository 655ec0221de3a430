"""`hivemind setup completion`: the shell completes commands, options, and the names that the running proxy knows."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.commands.proxy import one_line

_MARK = "# hivemind completion"
_PROGRAM, _VARIABLE = "hivemind", "_HIVEMIND_COMPLETE"


@dataclass(frozen=True, slots=True)
class Shell:
    """Where a shell looks, and what has to stand there."""

    file: Path
    lines: str
    is_whole: bool = False
    """The file is ours alone; else lines are appended to the user's own."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--install", is_flag=True, help="Make it permanent: say so in the shell's own file, once.")
@click.pass_context
@one_line
def completion(ctx: click.Context, shell: str, *, install: bool) -> None:
    """Print what makes your shell complete `hivemind`: commands, options; agents, pools and requests of the proxy.

    With --install two lines are added to ~/.bashrc or ~/.zshrc (a copy of it is kept beside it), or a file is put where
    fish looks; a second time nothing is done.

    \b
    Examples:
      eval "$(hivemind setup completion bash)"
      hivemind setup completion zsh --install
      hivemind setup completion fish --install
    """
    script = _script(shell, ctx.find_root().command)
    if not install:
        click.echo(script)
        return
    click.echo(_install(_shell(shell, script)))


def _script(shell: str, command: click.Command) -> str:
    found = get_completion_class(shell)
    assert found is not None
    return found(command, {}, _PROGRAM, _VARIABLE).source()


def _shell(name: str, script: str) -> Shell:
    home = Path.home()
    match name:
        case "bash":
            line = 'command -v hivemind >/dev/null && eval "$(hivemind setup completion bash)"'
            return Shell(home / ".bashrc", f"{_MARK}\n{line}\n")
        case "zsh":
            begun = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"
            line = f'(( $+commands[hivemind] )) && {{ {begun}; eval "$(hivemind setup completion zsh)" }}'
            return Shell(Path(os.environ.get("ZDOTDIR") or home) / ".zshrc", f"{_MARK}\n{line}\n")
        case _:
            folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions"
            return Shell(folder / f"{_PROGRAM}.fish", script, is_whole=True)


def _install(shell: Shell) -> str:
    """Do it; what was done. A link stays one: what it leads to is changed."""
    file = shell.file
    before = file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else None
    if before is not None and (before == shell.lines if shell.is_whole else _MARK in before.splitlines()):
        return f"{file} has it already"
    file.parent.mkdir(parents=True, exist_ok=True)
    kept = _keep_copy(file) if before else ""
    if shell.is_whole:
        file.write_text(shell.lines, encoding="utf-8")
        return f"wrote {file}{kept}; fish reads it by itself"
    gap = "" if not before or before.endswith("\n") else "\n"
    with file.open("a", encoding="utf-8") as end:
        end.write(gap + shell.lines)
    return f"appended to {file}{kept}:\n{shell.lines}open a new shell, or: source {file}"


def _keep_copy(file: Path) -> str:
    copy = file.with_name(f"{file.name}.hivemind-backup-{SystemClock().wall():.0f}")
    shutil.copy2(file, copy)
    return f" (as it was: {copy})"
