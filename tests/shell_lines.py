"""What a line of a shell calls, for tests of what pages and help texts tell people to type. No shell runs."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePath

import click

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_REMARK = re.compile(r"\s{2,}(?=\w)")
_REDIRECTIONS = {">", ">>", "<", "2>"}
_SEPARATORS = {"|", "||", "&&", ";", "&", "(", ")"}
_WRAPPERS = {"eval", "time", "nohup", "exec", "source"}


def calls(line: str) -> Iterator[list[str]]:
    """Each command of a line with its arguments, also those in `$( )`. Raises ValueError: quotes stay open.

    What stands two spaces or more behind a command is a remark.
    """
    line = _REMARK.split(line.strip())[0]
    for inside in _SUBSTITUTION.findall(line):
        yield from calls(inside)
    words: list[str] = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    tokens = iter(lexer)
    for token in tokens:
        if token in _REDIRECTIONS:
            next(tokens, None)
        elif token in _SEPARATORS:
            yield from _call(words)
            words = []
        else:
            words.append(token)
    yield from _call(words)


def _call(words: list[str]) -> Iterator[list[str]]:
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in _WRAPPERS or words[0] == "$"):
        words = words[1:]
    if words:
        yield [PurePath(words[0]).name, *words[1:]]


def accept(command: click.Command, arguments: list[str], name: str = "hivemind", parent=None) -> click.Command:
    """The command that would run; its own options and arguments are taken, and nothing runs. Raises UsageError.

    What the environment gives (inside of `hivemind exec`, behind an `eval`) may be left out.
    """
    try:
        ctx = command.make_context(name, list(arguments), parent=parent)
    except click.MissingParameter as error:
        if error.param is None or not error.param.envvar:
            raise
        return command
    if isinstance(command, click.Group):
        rest = [*ctx._protected_args, *ctx.args]
        if rest:
            name, inner, rest = command.resolve_command(ctx, rest)
            return accept(inner, rest, name, ctx)
        assert command.invoke_without_command, f"{ctx.command_path}: say which command"
    return command


def blocks(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of a Markdown page's code blocks, fenced and indented, with their numbers; `\\` joins two."""
    fence = ""
    kept = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        mark = re.match(r"\s*(```+)(\w*)", line)
        if mark:
            fence = "" if fence else mark[2] or "text"
            continue
        if fence in ("", "text", "sh", "bash", "console", "shell") and (fence or line.startswith("    ")):
            kept += line.strip()
            if kept.endswith("\\"):
                kept = kept[:-1]
                continue
            yield number, kept
            kept = ""
