"""`hivemind lab prove`: parse, call, print. Modules are loaded by the calls."""

import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from hivemind_addon.proxy.system.stop_signals import end_with_us
from hivemind_addon.sim.scenario_commands import (
    cases_named,
    policies_named,
    print_missed,
    progress,
    run_with_progress,
    write_or_print,
)

if TYPE_CHECKING:
    from hivemind_addon.sim.limits import LimitKind
    from hivemind_addon.sim.policy import Policy
    from hivemind_addon.sim.workload import Scenario
    from lab.agreement import Comparison
    from lab.evaluate.campaign import Campaign
    from lab.evaluate.chart_data import ChartData
    from lab.evaluate.charts import Chart
    from lab.evaluate.sockets import SocketRun

_WORKERS = 2
_RANDOM = "random:"
"""Before the number of random loads, where scenarios are named."""
_RANDOM_LOADS = 300
_SEEDS = 20
_CHART_DATA = "charts.json"


@click.command()
@click.option("--seeds", type=click.IntRange(1, 1000), help="Runs of each scenario.  [default: 20; with --live 1]")
@click.option(
    "--only",
    multiple=True,
    metavar="SCENARIO",
    help="Only this one, with zoo all limiters of the zoo, or with random:COUNT the first so many random loads; may be "
    "given again.",
)
@click.option("--policy", "policies", multiple=True, metavar="POLICY", help="Beside the scheduler; may be given again.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the page into this file.")
@click.option(
    "--live",
    is_flag=True,
    help="Some scenarios on a real socket, through a real mitmdump: minutes. --output names docs/live.md.",
)
@click.option("--compare", is_flag=True, help="Policies beside each other, and the scheduler without each primitive.")
@click.option("--peer", is_flag=True, help="With --compare: also hivemind-scheduler from PyPI, on real sockets.")
@click.option(
    "--charts",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --compare: draw charts into this folder (needs matplotlib).",
)
@click.option(
    "--redraw", is_flag=True, help="Run nothing: draw the charts of --charts again from the charts.json beside them."
)
def prove(
    seeds: int | None,
    only: tuple[str, ...],
    policies: tuple[str, ...],
    output: Path | None,
    charts: Path | None,
    *,
    live: bool,
    compare: bool,
    peer: bool,
    redraw: bool,
) -> None:
    """Run every scenario in virtual time against its expectations, and print a page with the tables (Markdown).

    The real scheduler, a simulated provider, nothing else: an hour takes a second. After the scenarios the zoo
    (limiters of many kinds) and 300 random loads, beside simpler policies. The exit status is 1 when an expectation is
    missed.

    With --compare the page shows who loses agents under each policy, each policy's cost, and the worth of each
    primitive of the scheduler. Takes 40 minutes on two cores.

    \b
    Examples:
      hivemind lab prove --output docs/proof.md
      hivemind lab prove --seeds 3 --only stress --only incident
      hivemind lab prove --seeds 3 --only zoo:cap-16 --only zoo:bucket
      hivemind lab prove --only random:40
      hivemind lab prove --live --output docs/live.md
      hivemind lab prove --compare --seeds 2 --charts build/charts
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    if ((peer or charts) and not (compare or redraw)) or (redraw and not charts):
        raise click.UsageError("--peer and --charts go with --compare, and --redraw goes with --charts")
    if charts and redraw:
        _redraw(charts)
    elif compare:
        _compare(only, seeds, policies, output, charts, live=live, peer=peer)
    elif live:
        _prove_live(seeds or 1, only, output)
    else:
        _prove(seeds or _SEEDS, only, policies, output)


def _command(only: Sequence[str], *words: str) -> str:
    return " ".join(["hivemind lab prove", *words, *(f"--only {name}" for name in only)])


def _prove(count: int, only: tuple[str, ...], policies: tuple[str, ...], output: Path | None) -> None:
    from hivemind_addon.sim import random_proof, report  # noqa: PLC0415
    from hivemind_addon.sim.limits import LimitKind  # noqa: PLC0415
    from lab import proof_page, random_page  # noqa: PLC0415

    loads = _random_loads(only)
    named = [name for name in only if not name.startswith(_RANDOM)]
    workers = _WORKERS if count > 1 and not only else 1
    sections: list[str] = []
    missed: list[str] = []
    if named or not only:
        series = run_with_progress(cases_named(named), _beside(policies), tuple(LimitKind), count, workers)
        command = _command(only, f"--seeds {count}", *(f"--policy {name}" for name in policies))
        sections.append(proof_page.page(series, command))
        missed += report.missed(series) + report.in_lines(report.worse(series))
    if loads:
        with progress(loads * len(random_proof.POLICIES)) as done:
            proofs_of_loads = random_page.prove(range(loads), workers=workers, done=done)
        sections.append(random_page.section(proofs_of_loads))
        missed += random_page.missed(proofs_of_loads)
    if sections:
        write_or_print("\n".join(sections), output)
    print_missed(missed)
    sys.exit(1 if missed else 0)


def _random_loads(only: Sequence[str]) -> int:
    """How many of them are wanted."""
    if not only:
        return _RANDOM_LOADS
    counts = [name.removeprefix(_RANDOM) for name in only if name.startswith(_RANDOM)]
    if wrong := [count for count in counts if not count.isdecimal()]:
        raise click.BadParameter(
            f"{wrong[0]!r} is no number of loads; write random:{_RANDOM_LOADS}", param_hint="--only"
        )
    return max(map(int, counts), default=0)


def _compare(
    only: Sequence[str],
    seeds: int | None,
    policies: Sequence[str],
    output: Path | None,
    charts: Path | None,
    *,
    live: bool,
    peer: bool,
) -> None:
    from hivemind_addon.sim.ablation import Primitive  # noqa: PLC0415
    from lab.evaluate import report  # noqa: PLC0415
    from lab.evaluate.campaign import CampaignPlan, run_campaign  # noqa: PLC0415

    if charts:
        _draw_with_matplotlib()
    taken_away = () if policies else tuple(Primitive)
    plan = CampaignPlan(cases_named(only), seeds or _SEEDS, _beside(policies), taken_away)
    with progress(len(plan.trials())) as done:
        campaign = run_campaign(plan, workers=1 if only else os.cpu_count() or 1, done=done)
    sockets, problem = _by_all_ways(peer=peer) if live or peer else ([], "")
    given = {"--live": live, "--peer": peer, f"--seeds {seeds}": seeds is not None}
    words = [*(word for word, is_given in given.items() if is_given), *(f"--policy {name}" for name in policies)]
    setting = report.Setting(
        command=_command(only, "--compare", *words),
        versions=f"Python {platform.python_version()}, mitmproxy {version('mitmproxy')}",
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        sockets=sockets,
        peer_problem=problem,
    )
    pictures = _draw(campaign, charts, (output or Path()).parent) if charts else {}
    write_or_print(report.markdown(campaign, setting, pictures), output)


def _draw(campaign: "Campaign", folder: Path, page_folder: Path) -> dict[str, str]:
    """The Markdown of each chart, by name, for a page in `page_folder`; beside the charts are their numbers."""
    from lab.evaluate.chart_data import data_of  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CHART_DATA).write_bytes(msgspec.json.encode(data_of(campaign)))
    place = os.path.relpath(folder, page_folder)
    return {chart.name: f"![{chart.title}]({place}/{chart.name}.svg)" for chart in _redraw(folder)}


def _redraw(folder: Path) -> "Sequence[Chart]":
    from lab.evaluate.chart_data import ChartData  # noqa: PLC0415

    draw = _draw_with_matplotlib()
    try:
        drawn = draw(msgspec.json.decode((folder / _CHART_DATA).read_bytes(), type=ChartData))
    except (OSError, msgspec.DecodeError) as error:
        cure = "name a folder that `hivemind lab prove --compare --charts FOLDER` wrote"
        raise click.ClickException(f"{folder / _CHART_DATA}: {error}; {cure}") from error
    for chart in drawn:
        (folder / f"{chart.name}.svg").write_text(chart.svg, encoding="utf-8")
    return drawn


def _draw_with_matplotlib() -> "Callable[[ChartData], Sequence[Chart]]":
    try:
        from lab.evaluate.charts import charts  # noqa: PLC0415
    except ModuleNotFoundError as error:
        cure = f"{sys.executable} -m pip install 'hivemind-addon[evaluate]'"
        raise click.ClickException(f"the charts need {error.name}: {cure}") from error
    return charts


def _by_all_ways(*, peer: bool) -> "tuple[Sequence[SocketRun], str]":
    """Runs on real sockets, and why the peer was not run."""
    from lab.evaluate import sockets  # noqa: PLC0415

    through_peer, problem = None, ""
    with ExitStack() as stack:
        if peer:
            try:
                through_peer = stack.enter_context(sockets.installed_peer())
            except sockets.PeerUnavailable as error:
                problem = str(error)
                click.echo(f"{problem}; the rest goes on", err=True)
        with _real_processes(), progress(sockets.socket_setups()) as done:
            return sockets.run_on_sockets(peer=through_peer, done=done), problem


def _prove_live(seeds: int, only: tuple[str, ...], output: Path | None) -> None:
    from hivemind_addon.sim.limits import LimitKind  # noqa: PLC0415
    from lab import agreement  # noqa: PLC0415 - it takes a while to load
    from lab.markdown import markdown_filled  # noqa: PLC0415

    known = [one.name for one in agreement.LIVE]
    if unknown := sorted(set(only) - set(known)):
        raise click.BadParameter(f"{unknown[0]!r} does not run live; {', '.join(known)} do", param_hint="--only")
    chosen = [scenario for scenario in agreement.LIVE if not only or scenario.name in only]
    comparisons = _on_sockets(chosen, tuple(LimitKind), seeds)
    text = agreement.verdict(comparisons)
    if output is not None:
        text = markdown_filled(output.read_text(encoding="utf-8"), {"measured": text})
    write_or_print(text, output)
    told = agreement.disagreements(comparisons)
    print_missed(told)
    sys.exit(1 if told else 0)


def _on_sockets(scenarios: "Sequence[Scenario]", kinds: "Sequence[LimitKind]", seeds: int) -> "Sequence[Comparison]":
    """Run the scenarios on real sockets and in virtual time, with a progress bar."""
    from lab import agreement  # noqa: PLC0415

    with _real_processes(), progress(len(scenarios) * len(kinds) * seeds) as done:
        return agreement.compare_all(scenarios, kinds=kinds, seeds=seeds, tell=done)


@contextmanager
def _real_processes() -> Iterator[None]:
    """They end with this command, and a mitmdump that does not start ends the command with its reason."""
    from hivemind_addon.sim.mitmdump import MitmdumpNotStarted  # noqa: PLC0415

    end_with_us()
    try:
        yield
    except MitmdumpNotStarted as error:
        raise click.ClickException(str(error)) from error


def _beside(names: Sequence[str]) -> "Sequence[Policy]":
    """These policies and the scheduler; without a name all that are compared."""
    from hivemind_addon.sim.policy import COMPARED  # noqa: PLC0415

    return policies_named([*names, "hivemind"]) if names else COMPARED
