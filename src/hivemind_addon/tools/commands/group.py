"""A group of commands that are loaded when they are asked for, listed by what people want."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, override

import click
from click.shell_completion import CompletionItem

_OTHERS = "More"


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command, not loaded yet."""

    name: str
    place: str
    """`module:attribute`, below this package."""
    about: str
    """What it does, in the list of commands: as short as a line of a terminal."""
    also: tuple[str, ...] = ()
    """Other names of it, which are found and not listed."""

    def load(self) -> click.Command:
        """The command itself."""
        module, _, attribute = self.place.partition(":")
        command = getattr(import_module(f"hivemind_addon.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command


class IndexedGroup(click.Group):
    """Its commands stand in an index; what is registered beside it is listed at the end."""

    def __init__(self, *args: Any, index: Mapping[str, Sequence[CommandEntry]], **kwargs: Any) -> None:
        """`index`: heading → the commands below it."""
        super().__init__(*args, **kwargs)
        self._index = index
        self._entries = {entry.name: entry for entries in index.values() for entry in entries}
        self._names = {name: entry.name for entry in self._entries.values() for name in entry.also}
        """What each of the other names stands for."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._entries, *(name for name in super().list_commands(ctx) if name not in self._entries)]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = self._names.get(cmd_name, cmd_name)
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
        names = [one for one in self._entries.values() if one.name.startswith(incomplete)]
        options = super().shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        return [*(CompletionItem(one.name, help=one.about) for one in names), *options]

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = {heading: [(one.name, one.about) for one in entries] for heading, entries in self._index.items()}
        others = [command for name, command in self.commands.items() if name not in self._entries]
        sections[_OTHERS] = [(one.name or "", one.get_short_help_str(60)) for one in others if not one.hidden]
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl([(name.ljust(width), about) for name, about in rows])


class ListGroup(click.Group):
    """Without a subcommand it does what `list` does; options may stand before a subcommand as well as behind it."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = [one for command in self.commands.values() for one in command.params if isinstance(one, click.Option)]
        with_value = {name for one in own if not one.is_flag for name in one.opts}
        places = [at for at, word in enumerate(args) if word in self.commands]
        if at := next((at for at in places if not at or args[at - 1] not in with_value), 0):
            args = [args[at], *args[:at], *args[at + 1 :]]
        is_bare = not args or args[0].startswith("-")
        if is_bare and not ctx.resilient_parsing and set(args).isdisjoint(ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    @override
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        listing = self.commands["list"].shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        return list({item.value: item for item in (*listing, *found)}.values())


class CalmGroup(IndexedGroup):
    """The outermost one: a reader that has seen enough (`… | head`) is no failure."""

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


def every_command(group: click.Group, path: str = "hivemind") -> Iterator[tuple[str, click.Command]]:
    """All commands below a group with what people type for each, in the order of its help; hidden ones, too."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path} {name}")


def help_of(path: str, command: click.Command, *, width: int = 100) -> str:
    """What `--help` prints for a command, in so many columns."""
    ctx = click.Context(command, info_name=path, terminal_width=width, max_content_width=width)
    ctx.help_option_names = ["-h", "--help"]
    return command.get_help(ctx)
