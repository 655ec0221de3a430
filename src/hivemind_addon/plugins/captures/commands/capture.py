"""`hivemind capture …`: look at what was recorded."""

from pathlib import Path

import click
from rich.console import Console

from hivemind_addon.plugins.captures.model import NotACapture, encode
from hivemind_addon.plugins.captures.show import show as view
from hivemind_addon.proxy.api.command import Record
from hivemind_addon.tools.commands.group import CommandEntry, IndexedGroup
from hivemind_addon.tools.commands.options import in_one_line, json_option, port_option
from hivemind_addon.tools.commands.proxy import tell

_FILE = click.Path(dir_okay=False, path_type=Path)


_TRACE = CommandEntry("trace", "sim.trace_commands:write", "Write what a limiter did, as numbers to share")


@click.group(cls=IndexedGroup, index={"Commands": [_TRACE]})
def capture() -> None:
    """Look at recorded sessions, or take the words out of them.

    \b
    Examples:
      hivemind run --capture night.flow      record while agents work
      hivemind capture start night.flow      the same, of a proxy that runs
      hivemind capture show night.flow       see what happened
      hivemind capture strip night.flow for-a-bug-report.flow
      hivemind capture trace night.flow --output night.trace.gz
    """


@capture.command()
@click.argument("file", type=_FILE)
@click.option("--no-content", is_flag=True, help="Record no words: only sizes, times and structure.")
@port_option
@json_option
def start(file: Path, port: int, *, no_content: bool, as_json: bool) -> None:
    """Let a running proxy record every call into FILE, as it ends. A file that is there is continued.

    \b
    Examples:
      hivemind capture start night.flow
      hivemind capture start bug.flow --no-content -p 9090
    """
    tell(Record(file=str(file.absolute()), content=not no_content), port, as_json=as_json)


@capture.command()
@port_option
@json_option
def stop(port: int, *, as_json: bool) -> None:
    """Let a running proxy record no more.

    \b
    Examples:
      hivemind capture stop
    """
    tell(Record(file=None), port, as_json=as_json)


@capture.command()
@click.argument("file", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--width", type=click.IntRange(60, 1000), help="Columns; default: the terminal's.")
def show(file: Path, *, as_json: bool, width: int | None) -> None:
    """Show a capture as a timeline: who waited, ran, failed and was tried again, when.

    Reads captures, flow files of any mitmproxy (`mitmdump -w`), and HAR.

    \b
    Examples:
      hivemind capture show night.flow
      hivemind capture show night.flow --width 200 | less -R
      hivemind capture show night.flow --json | jq '.calls[].waited_s'
    """
    from hivemind_addon.plugins.captures.file import read_capture  # noqa: PLC0415 - it loads mitmproxy, which takes a second

    with in_one_line(NotACapture):
        captured = read_capture(file)
    if as_json:
        click.echo(encode(captured))
        return
    console = Console(width=width, highlight=False)
    console.print(view(captured, name=file.name, width=console.width))


@capture.command()
@click.argument("file", type=_FILE)
@click.argument("output", type=_FILE)
def strip(file: Path, output: Path) -> None:
    """Copy a capture without its words: sizes, times and structure stay, credentials go.

    \b
    Examples:
      hivemind capture strip night.flow for-a-bug-report.flow
    """
    from hivemind_addon.plugins.captures.file import strip_capture  # noqa: PLC0415 - it loads mitmproxy

    with in_one_line(NotACapture):
        try:
            copied = strip_capture(file, output)
        except FileExistsError as error:
            raise click.ClickException(f"{output} is there already; name a new file") from error
    click.echo(f"{output}: {copied} flows, without their words")
