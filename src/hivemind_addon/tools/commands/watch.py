"""`hivemind status | top`: one picture of a running proxy, once or as it changes."""

from pathlib import Path

import click
import msgspec
from rich.console import Console

from hivemind_addon.api.control import control_socket, decode_report
from hivemind_addon.system.clock import SystemClock
from hivemind_addon.tools.commands.proxy import any_port_option, one_line, port_option, report_of, reports_of
from hivemind_addon.tools.dash.paper import is_screen, print_picture, svg_of


@click.command()
@any_port_option
@click.option("--json", "as_json", is_flag=True, help="Print the report of each proxy as one line of JSON.")
@one_line
def status(port: int | None, *, as_json: bool) -> None:
    """Show what each proxy does now: limits, what waits and why, budgets, orders that stand.

    \b
    Examples:
      hivemind status
      hivemind status --json | jq .snapshot.counters
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    for number, report in enumerate(reports_of(port)):
        if as_json:
            click.echo(msgspec.json.encode(report).decode())
            continue
        if number:
            click.echo()
        print_picture(report, requests=True)


@click.command()
@port_option
@click.option("--once", is_flag=True, help="Print one picture. So it is where there is no terminal to draw on.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one line of JSON.")
@click.option(
    "--snapshot",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show a report that was kept with --json, instead of a running proxy.",
)
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write one picture into this file.")
@one_line
def top(port: int, file: Path | None, svg: Path | None, *, once: bool, as_json: bool) -> None:
    """Watch a running proxy: limits and queues, every agent and what it waits for, what happened; and steer it.

    Press ? for the keys. It attaches to the proxy and leaves it alone when it ends.

    \b
    Examples:
      hivemind top
      hivemind top --json > report.json      keep what is now, for a bug report
      hivemind top --snapshot report.json    look at it
      COLUMNS=200 hivemind top --once | less
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    report = decode_report(file.read_bytes(), str(file)) if file else report_of(port)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    elif svg is not None:
        svg.write_text(svg_of(report, width=Console().width), encoding="utf-8")
    elif once or file or not is_screen():
        print_picture(report)
    else:
        from hivemind_addon.tools.dash.feed import Feed  # noqa: PLC0415 - what follows takes half a second to load
        from hivemind_addon.tools.dash.live import Top  # noqa: PLC0415 - as above

        Top(Feed(control_socket(port)), clock=SystemClock()).run(
            mouse=False
        )  # the terminal's own selection goes on working
