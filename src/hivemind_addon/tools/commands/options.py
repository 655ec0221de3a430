"""Options and error messages that many commands share. Loads nothing of a proxy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.proxy.api.config_file import ConfigFile, read_config, run_setting
from hivemind_addon.tools.launch.port import DEFAULT_PORT, PORT_VARIABLE


@contextmanager
def in_one_line(*expected: type[Exception]) -> Iterator[None]:
    """Report these exceptions, whose text is a single line, and errors of files as a command's error."""
    try:
        yield
    except expected as error:
        raise click.ClickException(str(error)) from error
    except BrokenPipeError:
        raise  # whoever read us has seen enough: click ends without a word
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}{error.strerror or error}") from error


def config() -> tuple[ConfigFile, ...]:
    """The `hivemind.yaml` that count here. Raises ClickException."""
    with in_one_line(DocumentError):
        return read_config(os.environ, Path.cwd())


def configured_port() -> int:
    """The port from a file, or the default. Raises ClickException."""
    with in_one_line(DocumentError):
        return int(str(run_setting("port", {}, config()).value))


port_option = click.option(
    "-p",
    "--port",
    type=click.IntRange(1, 65535),
    default=configured_port,
    envvar=PORT_VARIABLE,
    help=f"The proxy's port; else that of `hivemind exec`, or of hivemind.yaml, or {DEFAULT_PORT}.",
)
any_port_option = click.option(
    "-p",
    "--port",
    type=click.IntRange(1, 65535),
    envvar=PORT_VARIABLE,
    help="Only the proxy on this port; inside of `hivemind exec` the one that it uses. Without it: each of yours.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print what the proxy said as one line of JSON.")
