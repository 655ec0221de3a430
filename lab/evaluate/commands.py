"""`hivemind lab evaluate`: parse, call, write. What it needs is loaded when it is called."""

import os
import platform
import sys
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from hivemind_addon.proxy.system.stop_signals import end_with_us
from lab.commands import progress

if TYPE_CHECKING:
    from lab.evaluate.sockets import SocketRun

_SEEDS = 20
_QUICK_SEEDS = 2

_PICTURES = "evaluation"
_DATA = "charts.json"


@click.command()
@click.option("--quick", is_flag=True, help="Three small scenarios and two seeds: seconds.")
@click.option("--real", is_flag=True, help="Also on real sockets, through a real mitmdump: minutes.")
@click.option("--peer", is_flag=True, help="Also through hivemind-scheduler from PyPI, on real sockets.")
@click.option(
    "--redraw",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run nothing: draw the charts anew, from the charts.json that lies beside them.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), help=f"Of each run.  [default: {_SEEDS}; with --quick 2]")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("evaluation"),
    show_default=True,
    help="Folder for the report.",
)
def evaluate(*, quick: bool, real: bool, peer: bool, redraw: Path | None, seeds: int | None, out: Path) -> None:
    """Scenarios by policies by seeds: who loses agents, what it costs, what each primitive of the scheduler is worth.

    Writes report.md, report.html (one file, nothing to fetch), results.json and the charts as SVG and PNG. Virtual
    time unless --real or --peer; the same command gives the same numbers. Everything takes
    40 minutes on two cores.

    \b
    Examples:
      hivemind lab evaluate --quick
      hivemind lab evaluate --peer --out docs/evaluation-run
      hivemind lab evaluate --redraw docs/evaluation/charts.json
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra

        from lab.evaluate import campaign as campaigns  # noqa: PLC0415 - loaded when it is needed, as below
        from lab.evaluate import chart_data, report  # noqa: PLC0415
        from lab.evaluate import charts as drawing  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the evaluation needs {error.name}: {sys.executable} -m pip install 'hivemind-addon[evaluate]'"
        ) from error
    if redraw is not None:
        _redraw(redraw)
        return
    plan = campaigns.quick_plan(seeds or _QUICK_SEEDS) if quick else campaigns.full_plan(seeds or _SEEDS)
    workers = 1 if quick else os.cpu_count() or 1
    with progress(campaigns.size(plan)) as done:
        campaign = campaigns.run_campaign(plan, workers=workers, done=done)
    sockets, problem = _on_sockets(peer=peer) if real or peer else ([], "")
    setting = report.Setting(
        command=_command(quick=quick, real=real, peer=peer, seeds=seeds),
        versions=f"Python {platform.python_version()}, mitmproxy {version('mitmproxy')}, matplotlib {mpl.__version__}",
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        sockets=sockets,
        peer_problem=problem,
    )
    data = chart_data.data_of(campaign)
    pictures = drawing.charts(data)
    folder = out / _PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _DATA).write_bytes(msgspec.json.encode(data))
    for chart in pictures:
        (folder / f"{chart.name}.svg").write_text(chart.svg, encoding="utf-8")
        (folder / f"{chart.name}.png").write_bytes(chart.png)
    (out / "report.md").write_text(report.markdown(campaign, pictures, setting, folder=_PICTURES), encoding="utf-8")
    (out / "report.html").write_text(report.page(campaign, pictures, setting), encoding="utf-8")
    (out / "results.json").write_bytes(report.results(campaign, setting))
    for name in ("report.md", "report.html", "results.json", _PICTURES):
        click.echo(out / name)


def _redraw(file: Path) -> None:
    from lab.evaluate import charts as drawing  # noqa: PLC0415
    from lab.evaluate.chart_data import ChartData  # noqa: PLC0415

    try:
        data = msgspec.json.decode(file.read_bytes(), type=ChartData)
    except msgspec.DecodeError as error:
        raise click.ClickException(f"{file}: {error}; name a charts.json that `hivemind lab evaluate` wrote") from error
    for chart in drawing.charts(data):
        path = file.with_name(f"{chart.name}.svg")
        path.write_text(chart.svg, encoding="utf-8")
        click.echo(path)


def _on_sockets(*, peer: bool) -> "tuple[list[SocketRun], str]":
    from hivemind_addon.sim.mitmdump import MitmdumpNotStarted  # noqa: PLC0415
    from lab.evaluate import sockets  # noqa: PLC0415

    end_with_us()
    through_peer, problem = None, ""
    with ExitStack() as stack:
        if peer:
            try:
                through_peer = stack.enter_context(sockets.installed_peer())
            except sockets.PeerUnavailable as error:
                problem = str(error)
                click.echo(f"{problem}; the rest goes on", err=True)
        try:
            with progress(sockets.socket_setups()) as done:
                return sockets.run_on_sockets(peer=through_peer, done=done), problem
        except MitmdumpNotStarted as error:
            raise click.ClickException(str(error)) from error


def _command(*, quick: bool, real: bool, peer: bool, seeds: int | None) -> str:
    words = ["hivemind lab evaluate"]
    words += [f"--{name}" for name, given in (("quick", quick), ("real", real), ("peer", peer)) if given]
    words += [f"--seeds {seeds}"] if seeds else []
    return " ".join(words)


COMMANDS = (evaluate,)
