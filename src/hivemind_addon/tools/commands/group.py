"""A group of commands, listed by purpose; each is loaded when a user calls for it."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, override

import click
from click.shell_completion import CompletionItem

_END = re.compile(r"[;:.](?:\s|$)")


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command, not loaded yet."""

    name: str
    place: str
    """`module:attribute`, below this package."""
    about: str
    """The effect, in the list of commands: as short as a line of a terminal."""

    def load(self) -> click.Command:
        """The command itself."""
        module, _, attribute = self.place.partition(":")
        command = getattr(import_module(f"hivemind_addon.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command


_NOTHING: Mapping[str, Sequence[CommandEntry]] = MappingProxyType({})


class IndexedGroup(click.Group):
    """A group whose commands stand in an index; other registered commands are listed at the end."""

    others = "Commands"
    """The heading of commands that are not in the index."""

    def __init__(self, *args: Any, index: Mapping[str, Sequence[CommandEntry]] = _NOTHING, **kwargs: Any) -> None:
        """`index`: heading → the commands below it."""
        super().__init__(*args, **kwargs)
        self._index = index
        self._entries = {entry.name: entry for entries in index.values() for entry in entries}

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._entries, *(name for name in super().list_commands(ctx) if name not in self._entries)]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and (entry := self._entries.get(cmd_name)):
            self.add_command(entry.load(), cmd_name)
        return super().get_command(ctx, cmd_name)

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # As click 8.4 has it, which looks among those that are loaded.
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            import difflib  # noqa: PLC0415 - for who mistypes

            close = difflib.get_close_matches(name, self.list_commands(ctx), n=2)
            meant = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            ctx.fail(f"No such command {name!r}.{meant}")
        return super().resolve_command(ctx, args)

    @override
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # Click would load every command for its first line.
        names = {one.name: one.about for one in self._entries.values()}
        others = [one for name, one in sorted(self.commands.items()) if name not in names and not one.hidden]
        names |= {one.name or "": _brief(one) for one in others}
        options = super().shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        fitting = [CompletionItem(name, help=about) for name, about in names.items() if name.startswith(incomplete)]
        return [*fitting, *options]

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = {heading: [(one.name, one.about) for one in entries] for heading, entries in self._index.items()}
        others = [one for name, one in sorted(self.commands.items()) if name not in self._entries]
        own = [(one.name or "", _brief(one)) for one in others if not one.hidden]
        sections[self.others] = [*sections.get(self.others, []), *own]
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl([(name.ljust(width), about) for name, about in rows])


class ListGroup(IndexedGroup):
    """Without a subcommand the usual subcommand runs; options may stand before or behind a subcommand."""

    def __init__(self, *args: Any, usual: str = "list", takes_words: bool = False, **kwargs: Any) -> None:
        """`usual`: the subcommand that may be left out; `takes_words`: before arguments, too.

        That subcommand, and each with options that may stand before the subcommand, is registered, not in the index.
        """
        super().__init__(*args, **kwargs)
        self._usual = usual
        self._takes_words = takes_words

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and self._takes_words:
            args = ["--help"]
        own = [one for command in self.commands.values() for one in command.params if isinstance(one, click.Option)]
        with_value = {name for one in own if not one.is_flag for name in one.opts}
        names = set(self.list_commands(ctx))
        places = [at for at, word in enumerate(args) if word in names]
        if at := next((at for at in places if not at or args[at - 1] not in with_value), 0):
            args = [args[at], *args[:at], *args[at + 1 :]]
        is_bare = not args or args[0].startswith("-")
        is_help = bool(ctx.resilient_parsing) or not set(args).isdisjoint(ctx.help_option_names)
        if not is_help if is_bare else self._takes_words and args[0] not in names:
            args = [self._usual, *args]
        return super().parse_args(ctx, args)

    @override
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        usual = self.commands[self._usual]
        listing = usual.shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        if self._takes_words and not listing:
            listing = [item for one in usual.params[:1] for item in one.shell_complete(ctx, incomplete)]
        return list({item.value: item for item in (*listing, *found)}.values())


class CalmGroup(IndexedGroup):
    """The outermost group: a reader that has seen enough (`… | head`) is no failure."""

    others = "More"

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["addon"]:  # short, for lines that start mitmproxy
            args = ["setup", *args]
        return super().parse_args(ctx, args)

    @override
    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _read_or_not():  # it prints help
            return super().make_context(*args, **kwargs)

    @override
    def invoke(self, ctx: click.Context) -> Any:
        with _read_or_not():
            return super().invoke(ctx)


@contextmanager
def _read_or_not() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, SystemExit) as end:
        if not isinstance(end, BrokenPipeError) and not isinstance(end.__context__, BrokenPipeError):  # rich's way
            raise
        # What is left in the buffer goes nowhere, else the interpreter complains about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from None


def _brief(command: click.Command) -> str:
    """The first sentence of the help, for a line of a list."""
    if command.short_help:
        return command.short_help
    said = " ".join((command.help or "").partition("\n\n")[0].split())
    return _END.split(said, maxsplit=1)[0]
