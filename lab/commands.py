"""`hivemind lab scenario | prove`: parse, call, print. Modules are loaded by the calls."""

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
from hivemind_addon.tools.commands.group import IndexedGroup

if TYPE_CHECKING:
    from hivemind_addon.sim.library import Case
    from hivemind_addon.sim.limits import LimitKind
    from hivemind_addon.sim.policy import Policy
    from hivemind_addon.sim.trial import Series
    from hivemind_addon.sim.workload import Scenario
    from lab.agreement import Comparison
    from lab.evaluate.campaign import Campaign
    from lab.evaluate.chart_data import ChartData
    from lab.evaluate.charts import Chart
    from lab.evaluate.sockets import SocketRun
    from lab.zoo import Measure

_WORKERS = 2
_ZOO = "zoo:"
"""Before a part of the names of the zoo's entries, where scenarios are named."""
_RANDOM = "random:"
"""Before the number of random loads, where scenarios are named."""
_RANDOM_LOADS = 300
_SEEDS = 20
_CHART_DATA = "charts.json"


@click.group(cls=IndexedGroup)
def scenario() -> None:
    """Simulated load before a simulated provider: list, read and run scenarios.

    \b
    Examples:
      hivemind lab scenario list
      hivemind lab scenario run stress incident
      hivemind lab scenario run my-night.yaml --policy direct --policy hivemind
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines


@scenario.command("list")
def list_scenarios() -> None:
    """Names of the packaged scenarios, with a sentence on each.

    \b
    Examples:
      hivemind lab scenario list
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    from rich.console import Console  # noqa: PLC0415 - loaded when it is needed, as below

    from hivemind_addon.sim.library import cases  # noqa: PLC0415
    from hivemind_addon.sim.report import listing  # noqa: PLC0415

    Console(highlight=False).print(listing(list(cases().values())))


@scenario.command()
@click.argument("name")
def show(name: str) -> None:
    """Print a scenario's YAML, for reading or as the start of your own.

    \b
    Examples:
      hivemind lab scenario show stress > my-night.yaml
      hivemind lab scenario show random-17
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    from hivemind_addon.formats.base.resources import scenarios_folder  # noqa: PLC0415
    from hivemind_addon.sim.library import cases, written  # noqa: PLC0415

    (case,) = _cases([name])
    path = scenarios_folder() / f"{name}.yaml" if name in cases() else Path(name)
    click.echo(path.read_text(encoding="utf-8") if path.is_file() else written(case), nl=False)


@scenario.command()
@click.argument("name")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the YAML into this file.")
def minimise(name: str, output: Path | None) -> None:
    """Make a scenario smaller while the scheduler still falls short on it, and print the rest as YAML.

    Fewer agents, turns, limits and faults, step by step, as long as a run still loses agents, is refused too
    often, sleeps for nothing, or is behind a simpler policy. Takes seconds to minutes.

    \b
    Examples:
      hivemind lab scenario minimise random-17 --output my-case.yaml
      hivemind lab scenario run my-case.yaml
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    from hivemind_addon.sim.library import written  # noqa: PLC0415
    from lab.random_proof import minimised  # noqa: PLC0415

    (case,) = _cases([name])
    smallest = minimised(case)
    if smallest is None:
        raise click.ClickException(f"the scheduler falls short in nothing on {name}: there is nothing to minimise")
    _write(written(smallest), output)


@scenario.command("run", short_help="Run scenarios against what they expect")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--real", is_flag=True, help="On real sockets through a real mitmdump, five times as fast: minutes.")
@click.option("--seeds", type=click.IntRange(1, 1000), help="Runs of each.  [default: 3; with --real 1]")
@click.option("--policy", "policies", multiple=True, metavar="POLICY", help="Who decides; may be given again.")
@click.option(
    "--limits", type=click.Choice(["bucket", "window", "both"]), default="both", help="How the limits come back."
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON; progress goes to stderr.")
def run_scenarios(
    names: tuple[str, ...],
    *,
    real: bool,
    seeds: int | None,
    policies: tuple[str, ...],
    limits: str,
    as_json: bool,
) -> None:
    """Run scenarios (packaged by name, your own by path; without a name all) against their expectations.

    Virtual time: an hour takes a second, and the same command gives the same numbers. The exit status is 1 when an
    expectation is missed under the policy hivemind; with --real when socket and virtual time disagree.

    \b
    Policies: direct, sdk-retry, aimd-pause, fifo, hivemind, hivemind-without-X,
    only-X; X is among meters, hidden-limits, breaker, retry, fair-order,
    cache-order, comeback, last-chance, watchdog, budgets, priority, or A+B.
    AgentRM's: agentrm-fifo, round-robin, priority-queue, mlfq.

    \b
    Examples:
      hivemind lab scenario run replay-11 stress
      hivemind lab scenario run incident --policy fifo --policy hivemind --seeds 9
      hivemind lab scenario run stress --real
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    from hivemind_addon.sim.limits import LimitKind  # noqa: PLC0415

    chosen = _cases(names)
    kinds = [kind for kind in LimitKind if limits in (kind.value, "both")]
    if real:
        if policies and set(policies) != {"hivemind"}:
            raise click.BadParameter("only hivemind runs on the socket", param_hint="--policy")
        _run_real(chosen, kinds, seeds or 1, as_json=as_json)
        return
    _run_virtual(chosen, kinds, _policies(policies), seeds or 3, as_json=as_json)


def _run_virtual(
    chosen: "Sequence[Case]", kinds: "Sequence[LimitKind]", policies: "Sequence[Policy]", seeds: int, *, as_json: bool
) -> None:
    from rich.console import Console  # noqa: PLC0415

    from hivemind_addon.sim import report  # noqa: PLC0415

    series = _series(chosen, policies, kinds, seeds)
    missed = report.missed(series)
    if as_json:
        click.echo(report.as_json(series))
    else:
        Console(highlight=False).print(report.table(series))
        _tell(missed, kept="every expectation is kept")
    sys.exit(1 if missed else 0)


def _series(
    chosen: "Sequence[Case]",
    policies: "Sequence[Policy]",
    kinds: "Sequence[LimitKind]",
    seeds: int,
    workers: int = 1,
) -> "Sequence[Series]":
    from hivemind_addon.sim.trial import run_series, setups  # noqa: PLC0415

    wanted = [setup for case in chosen for setup in setups(case, policies, kinds)]
    with progress(len(wanted) * seeds) as done:
        return run_series(wanted, seeds=seeds, workers=workers, done=lambda trial: done(trial.setup.name))


def _tell(missed: Sequence[str], *, kept: str = "") -> None:
    for line in missed:
        click.echo(f"missed: {line}", err=True)
    if kept and not missed:
        click.echo(kept, err=True)


def _run_real(chosen: "Sequence[Case]", kinds: "Sequence[LimitKind]", seeds: int, *, as_json: bool) -> None:
    from lab import agreement  # noqa: PLC0415 - it takes a while to load

    for case in chosen:
        if why := agreement.why_not(case):
            raise click.ClickException(f"{case.name} does not run on the socket: {why}")
    comparisons = _on_socket([case.scenario for case in chosen], kinds, seeds)
    click.echo(agreement.as_json(comparisons) if as_json else agreement.table(comparisons), nl=as_json)
    told = agreement.disagreements(comparisons)
    _tell(told, kept="socket and virtual time agree")
    sys.exit(1 if told else 0)


def _on_socket(scenarios: "Sequence[Scenario]", kinds: "Sequence[LimitKind]", seeds: int) -> "Sequence[Comparison]":
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


@click.command()
@click.option("--seeds", type=click.IntRange(1, 1000), help="Runs of each scenario.  [default: 20; with --live 1]")
@click.option(
    "--only",
    multiple=True,
    metavar="SCENARIO",
    help="Only this one, of the zoo those with zoo:PART in their names, or with random:COUNT the first so many random "
    "loads; may be given again.",
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
    (limiters of many kinds, beside an oracle that may ask them) and 300 random loads, beside simpler policies. The
    exit status is 1 when an expectation is missed.

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
    from rich.console import Console  # noqa: PLC0415

    from hivemind_addon.sim import report  # noqa: PLC0415
    from hivemind_addon.sim.limits import LimitKind  # noqa: PLC0415
    from lab import random_proof, zoo  # noqa: PLC0415

    parts = [name.removeprefix(_ZOO) for name in only if name.startswith(_ZOO)]
    loads = _random_loads(only)
    named = [name for name in only if not name.startswith((_ZOO, _RANDOM))]
    workers = _WORKERS if count > 1 and not only else 1
    sections: list[str] = []
    missed: list[str] = []
    if named or not only:
        series = _series(_packaged(named), _beside(policies), tuple(LimitKind), count, workers)
        command = _command(only, f"--seeds {count}", *(f"--policy {name}" for name in policies))
        sections.append(report.page(series, command))
        missed += report.missed(series)
    if parts or not only:
        measures = _zoo(parts, count, workers)
        if sections or loads or output:
            sections.append(zoo.section(measures))
        else:
            Console(highlight=False).print(zoo.table(measures))
        missed += zoo.missed(measures)
    if loads:
        with progress(loads * len(random_proof.POLICIES)) as done:
            proofs_of_loads = random_proof.prove(range(loads), workers=workers, done=done)
        sections.append(random_proof.section(proofs_of_loads))
        missed += random_proof.missed(proofs_of_loads)
    if sections:
        _write("\n".join(sections), output)
    _tell(missed)
    sys.exit(1 if missed else 0)


def _zoo(parts: Sequence[str], seeds: int, workers: int = 1) -> "list[Measure]":
    """The measures of the zoo, or of the entries with any of these parts in their names."""
    from lab import zoo  # noqa: PLC0415
    from lab.zoo_entries import ZOO, entries  # noqa: PLC0415

    if unknown := [part for part in parts if not entries([part])]:
        names = ", ".join(entry.name for entry in ZOO)
        raise click.BadParameter(f"nothing in the zoo is called {unknown[0]!r}; there are {names}", param_hint="--only")
    wanted = entries(parts)
    with progress(len(wanted)) as done:
        return zoo.measure(wanted, seeds=seeds, workers=workers, done=done)


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
    plan = CampaignPlan(_cases(only), seeds or _SEEDS, _beside(policies), taken_away)
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
    _write(report.markdown(campaign, setting, pictures), output)


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
    from hivemind_addon.sim.report import markdown_filled  # noqa: PLC0415
    from lab import agreement  # noqa: PLC0415 - it takes a while to load

    known = [one.name for one in agreement.LIVE]
    if unknown := sorted(set(only) - set(known)):
        raise click.BadParameter(f"{unknown[0]!r} does not run live; {', '.join(known)} do", param_hint="--only")
    chosen = [scenario for scenario in agreement.LIVE if not only or scenario.name in only]
    comparisons = _on_socket(chosen, tuple(LimitKind), seeds)
    text = agreement.verdict(comparisons)
    if output is not None:
        text = markdown_filled(output.read_text(encoding="utf-8"), {"measured": text})
    _write(text, output)
    told = agreement.disagreements(comparisons)
    _tell(told)
    sys.exit(1 if told else 0)


def _write(page: str, output: Path | None) -> None:
    if output is None:
        click.echo(page, nl=False)
    else:
        output.write_text(page, encoding="utf-8")


def _cases(names: Sequence[str]) -> "list[Case]":
    from hivemind_addon.formats.base.typed import DocumentError  # noqa: PLC0415
    from hivemind_addon.sim.library import UnknownScenario, case_named, cases  # noqa: PLC0415

    try:
        return [case_named(name) for name in dict.fromkeys(names or cases())]
    except (UnknownScenario, DocumentError) as error:
        raise click.ClickException(str(error)) from error


def _policies(names: Sequence[str]) -> "list[Policy]":
    from hivemind_addon.sim.policy import UnknownPolicy, policy_named  # noqa: PLC0415

    try:
        return [policy_named(name) for name in dict.fromkeys(names or ["hivemind"])]
    except UnknownPolicy as error:
        raise click.BadParameter(str(error), param_hint="--policy") from error


def _packaged(names: Sequence[str]) -> "list[Case]":
    from hivemind_addon.sim.library import cases  # noqa: PLC0415

    if unknown := sorted(set(names) - set(cases())):
        raise click.BadParameter(f"no scenario {unknown[0]!r}; there are {', '.join(cases())}", param_hint="--only")
    return [case for case in cases().values() if not names or case.name in names]


def _beside(names: Sequence[str]) -> "Sequence[Policy]":
    """These policies and the scheduler; without a name all that are compared."""
    from hivemind_addon.sim.policy import COMPARED  # noqa: PLC0415

    return _policies([*names, "hivemind"]) if names else COMPARED


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr where that is a terminal: call the result with the name of each step that is done."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    console = Console(stderr=True)
    bar = Progress(
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


COMMANDS = (scenario, prove)
