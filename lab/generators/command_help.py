"""Every command with the help that it prints."""

from collections.abc import Iterator

import click


def every_command(group: click.Group, path: str = "hivemind") -> Iterator[tuple[str, click.Command]]:
    """All commands below a group with the words to type, in the order of the help; also hidden commands."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path} {name}")


def help_of(path: str, command: click.Command, *, width: int = 100) -> str:
    """The output of `--help` for a command, in so many columns."""
    ctx = click.Context(command, info_name=path, terminal_width=width, max_content_width=width)
    ctx.help_option_names = ["-h", "--help"]
    return command.get_help(ctx)
