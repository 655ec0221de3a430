"""`hivemind capture trace` and `hivemind lab trace`: recorded refusals, to share and to explain. Loaded by calls."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hivemind_addon.tools.commands.group import IndexedGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from hivemind_addon.sim.trace_fit import FittedLimit, TraceFit


@click.group(cls=IndexedGroup)
def trace() -> None:
    """Traces of a limiter: which limits explain the refusals.

    \b
    Examples:
      hivemind capture trace night.flow --output night.trace.gz
      hivemind lab trace fit night.trace.gz
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines


@trace.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def fit(file: Path, *, as_json: bool) -> None:
    """Name the limits that explain the refusals of a trace or a capture, with the evidence for each.

    Buckets, windows of all kinds, growth, calls and tokens in flight, for a key, a model or an agent, each with the
    amount that fits best. Few limits are preferred to many; what no limit explains is chance. Limits that headers
    state are taken as stated, and checked.

    \b
    Examples:
      hivemind lab trace fit night.trace.gz
      hivemind lab trace fit night.flow --json | jq '.[].limits'
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    from rich.console import Console  # noqa: PLC0415 - loaded when it is needed, as below

    from hivemind_addon.plugins.captures.model import NotACapture  # noqa: PLC0415
    from hivemind_addon.sim.replay.reconstruct import fitted_to  # noqa: PLC0415
    from hivemind_addon.sim.trace import read_recorded  # noqa: PLC0415
    from hivemind_addon.tools.commands.options import in_one_line  # noqa: PLC0415
    from hivemind_addon.tools.commands.printing import print_json  # noqa: PLC0415

    with in_one_line(NotACapture):
        capture = read_recorded(file)
    with Console(stderr=True).status("fitting limits"):
        found = fitted_to(capture)
    if as_json:
        print_json([{"key": one.key, "host": one.host, **_plain(one)} for one in found])
        return
    console = Console(highlight=False, width=max(100, Console().width))
    attempts = sum(len(call.attempts) for call in capture.calls)
    if not found:
        console.print(f"{attempts} attempts, and no limit refused any: there is nothing to explain")
    for one in found:
        console.print(*_view(one), sep="\n")


@click.command("trace")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a new file; packed if its name ends in .gz. Default: print.",
)
def write(file: Path, output: Path | None) -> None:
    """Write what a limiter did, as numbers to share: times, sizes, stated limits and refusals; no names, no words.

    FILE is a capture, or another file that `hivemind capture show` reads. docs/traces.md explains every key.

    \b
    Examples:
      hivemind capture trace night.flow | head
      hivemind capture trace night.flow --output night.trace.gz
      hivemind lab trace fit night.trace.gz
      hivemind lab scenario run night.trace.gz    the same night, simulated
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    from hivemind_addon.plugins.captures.model import NotACapture  # noqa: PLC0415 - loaded when it is needed, as below
    from hivemind_addon.sim.trace import read_recorded, trace_of, write_trace  # noqa: PLC0415
    from hivemind_addon.tools.commands.options import in_one_line  # noqa: PLC0415

    with in_one_line(NotACapture):
        captured = read_recorded(file)
        if output is None:
            click.echo(trace_of(captured), nl=False)
            return
        try:
            size = write_trace(captured, output)
        except FileExistsError as error:
            raise click.ClickException(f"{output} is there already; name a new file") from error
    attempts = sum(len(call.attempts) for call in captured.calls)
    per = f", {size / attempts:.0f} bytes each" if attempts else ""
    click.echo(f"{output}: {attempts} attempts of {len(captured.calls)} calls{per}")


def _plain(one: "TraceFit") -> dict[str, object]:
    return {
        "refused_as": one.kind.value,
        "attempts": one.attempts,
        "refusals": one.refusals,
        "known": one.is_known,
        "limits": [
            {"limit": _words(row), "low": row.low, "high": row.high, "stated": row.rule.is_stated}
            | {"explains": row.explains, "contradicts": row.contradicts}
            for row in one.limits
        ],
        "chance": len(one.chance),
    }


def _view(one: "TraceFit") -> "Iterator[RenderableType]":
    from rich.table import Table  # noqa: PLC0415

    from hivemind_addon.sim.trace_fit import LEAST_REFUSALS  # noqa: PLC0415

    yield f"[bold]{one.host}, {one.key}[/]: {one.refusals} of {one.attempts} attempts were {one.kind.value}"
    if not one.is_known:
        yield f"  not enough refusals: {LEAST_REFUSALS} at least are needed to tell limits apart"
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("  limit", "amount within", "explains", "contradicts"):
        table.add_column(name, justify="left" if name == "  limit" else "right")
    for row in one.limits:
        within = "stated" if row.rule.is_stated else _range(row)
        table.add_row(f"  {_words(row)}", within, f"{row.explains} of {one.refusals}", str(row.contradicts))
    admitted = one.attempts - one.refusals
    table.add_row("  chance", f"{len(one.chance) / max(1, len(one.chance) + admitted):.1%}", str(len(one.chance)), "-")
    yield table


def _range(row: "FittedLimit") -> str:
    return f"{row.low:,.0f}" if row.low == row.high else f"{row.low:,.0f} to {row.high:,.0f}"


def _words(row: "FittedLimit") -> str:
    from hivemind_addon.sim.limits import ModelScope  # noqa: PLC0415
    from hivemind_addon.sim.replay.limits import in_words  # noqa: PLC0415

    limit = row.rule.limit
    if not row.rule.at_once:
        return in_words(limit)
    what = "calls" if limit.dimension.value == "requests" else "tokens"
    linger = f", each {limit.window_s:g} s longer" if limit.window_s else ""
    each = f", for each {limit.scope.value}" if limit.scope is not ModelScope.KEY else ""
    return f"{limit.amount:,} {what} at once{linger}{each}"
