"""`hivemind scenario` and `hivemind prove`: parse, call, print. What they need is loaded when they are called."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from hivemind_addon.runtime.stop_signals import end_with_us

if TYPE_CHECKING:
    from hivemind_addon.sim.library import Case
    from hivemind_addon.sim.limits import LimitKind
    from hivemind_addon.sim.policy import Policy

_WORKERS = 2


@click.group()
def scenario() -> None:
    """Simulated load before a simulated provider: list it, read it, run it.

    \b
    Examples:
      hivemind scenario list
      hivemind scenario run stress incident
      hivemind scenario run my-night.yaml --policy direct --policy hivemind
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines


@scenario.command("list")
def list_scenarios() -> None:
    """Names of the packaged scenarios, and what they are about.

    \b
    Examples:
      hivemind scenario list
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    from rich.console import Console  # noqa: PLC0415 - loaded when it is needed, as below

    from hivemind_addon.sim.library import cases  # noqa: PLC0415
    from hivemind_addon.sim.scenario_view import listing  # noqa: PLC0415

    Console(highlight=False).print(listing(list(cases().values())))


@scenario.command()
@click.argument("name")
def show(name: str) -> None:
    """Print a scenario's YAML: to read it, or to begin one of your own.

    \b
    Examples:
      hivemind scenario show stress > my-night.yaml
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    from hivemind_addon.resources import scenarios_folder  # noqa: PLC0415

    (case,) = _cases([name])
    path = scenarios_folder() / f"{case.name}.yaml"
    click.echo((path if path.is_file() and name == case.name else Path(name)).read_text(encoding="utf-8"), nl=False)


@scenario.command("run")
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
    """Run scenarios (packaged ones by name, your own by path; without a name all) against what they expect.

    Virtual time: an hour takes a second, and the same command gives the same numbers. The exit status is 1 when an
    expectation is missed under the policy hivemind; with --real when socket and virtual time disagree.

    \b
    Policies: direct, sdk-retry, aimd-pause, fifo, hivemind, hivemind-without-X, only-X; X is one of meters, brake,
    concurrency, breaker, retry, fair-order, cache-order, comeback, last-chance, watchdog, or A+B.

    \b
    Examples:
      hivemind scenario run replay-11 stress
      hivemind scenario run incident --policy hivemind --policy hivemind-without-breaker --seeds 20
      hivemind scenario run stress --real
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

    from hivemind_addon.sim import scenario_view as view  # noqa: PLC0415
    from hivemind_addon.sim.trial import run_series, setups  # noqa: PLC0415

    wanted = [setup for case in chosen for setup in setups(case, policies, kinds)]
    with progress(len(wanted) * seeds) as done:
        series = run_series(wanted, seeds=seeds, done=lambda trial: done(trial.setup.name))
    missed = view.missed(series)
    if as_json:
        click.echo(view.as_json(series))
    else:
        Console(highlight=False).print(view.table(series))
        _tell(missed, kept="every expectation is kept")
    sys.exit(1 if missed else 0)


def _tell(missed: Sequence[str], *, kept: str) -> None:
    for line in missed:
        click.echo(f"missed: {line}", err=True)
    if not missed:
        click.echo(kept, err=True)


def _run_real(chosen: "Sequence[Case]", kinds: "Sequence[LimitKind]", seeds: int, *, as_json: bool) -> None:
    agreement = _agreement()
    from hivemind_addon.sim.mitmdump import NotStarted  # noqa: PLC0415

    for case in chosen:
        if why := agreement.why_not(case):
            raise click.ClickException(f"{case.name} does not run on the socket: {why}")
    end_with_us()
    total = sum(len(kinds) for _ in chosen) * seeds
    try:
        with progress(total) as done:
            comparisons = agreement.compare_all([case.scenario for case in chosen], kinds=kinds, seeds=seeds, tell=done)
    except NotStarted as error:
        raise click.ClickException(str(error)) from error
    told = [f"{one.name}: {word}" for one in comparisons for word in one.disagreements()]
    click.echo(agreement.as_json(comparisons) if as_json else agreement.table(comparisons), nl=as_json)
    _tell(told, kept="socket and virtual time agree")
    sys.exit(1 if told else 0)


@click.command()
@click.option("--seeds", type=click.IntRange(1, 1000), help="Runs of each scenario.")
@click.option("--only", multiple=True, metavar="SCENARIO", help="Only this one; may be given again.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the page into this file.")
@click.option("--live", is_flag=True, help="Some scenarios on a real socket, through a real mitmdump: minutes.")
def prove(seeds: int | None, only: tuple[str, ...], output: Path | None, *, live: bool) -> None:
    """Run every scenario in virtual time against what it expects, and print a page with the tables (Markdown).

    The real scheduler, a simulated provider, nothing else: an hour takes a second. The exit status is 1 when an
    expectation is missed.

    \b
    Examples:
      hivemind prove --output docs/proof.md
      hivemind prove --seeds 3 --only stress --only incident
      hivemind prove --live --only replay-11
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    if live:
        _prove_live(seeds or 1, only, output)
        return
    from hivemind_addon.sim import proof as proofs  # noqa: PLC0415
    from hivemind_addon.sim.library import cases  # noqa: PLC0415

    if unknown := sorted(set(only) - set(cases())):
        raise click.BadParameter(f"no scenario {unknown[0]!r}; there are {', '.join(cases())}", param_hint="--only")
    count = seeds or proofs.SEEDS
    workers = _WORKERS if count > 1 and not only else 1
    proof = proofs.prove(seeds=count, only=only, workers=workers, tell=lambda line: click.echo(line, err=True))
    command = " ".join(["hivemind prove", f"--seeds {count}", *(f"--only {name}" for name in only)])
    _write(proofs.page(proof, command), output)
    missed = proof.missed()
    for line in missed:
        click.echo(f"missed: {line}", err=True)
    if missed:
        sys.exit(1)


def _prove_live(seeds: int, only: tuple[str, ...], output: Path | None) -> None:
    agreement = _agreement()
    from hivemind_addon.sim.mitmdump import NotStarted  # noqa: PLC0415

    known = [one.name for one in agreement.LIVE]
    if unknown := sorted(set(only) - set(known)):
        raise click.BadParameter(f"{unknown[0]!r} does not run live; {', '.join(known)} do", param_hint="--only")
    end_with_us()
    try:
        comparisons = agreement.prove(seeds=seeds, only=only, tell=lambda line: click.echo(line, err=True))
    except NotStarted as error:
        raise click.ClickException(str(error)) from error
    command = " ".join(["hivemind prove --live", f"--seeds {seeds}", *(f"--only {name}" for name in only)])
    _write(agreement.page(comparisons, command), output)
    told = [f"{one.name}: {word}" for one in comparisons for word in one.disagreements()]
    for line in told:
        click.echo(line, err=True)
    if told:
        sys.exit(1)


def _write(page: str, output: Path | None) -> None:
    if output is None:
        click.echo(page, nl=False)
    else:
        output.write_text(page, encoding="utf-8")


def _agreement() -> ModuleType:
    try:
        from hivemind_addon.sim import agreement  # noqa: PLC0415 - its dependency is optional
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the live run needs {error.name}: {sys.executable} -m pip install 'hivemind-addon[sim]'"
        ) from error
    return agreement


def _cases(names: Sequence[str]) -> "list[Case]":
    from hivemind_addon.profile.typed import ProfileError  # noqa: PLC0415
    from hivemind_addon.sim.library import UnknownScenario, case_named, cases  # noqa: PLC0415

    try:
        return [case_named(name) for name in dict.fromkeys(names or cases())]
    except (UnknownScenario, ProfileError) as error:
        raise click.ClickException(str(error)) from error


def _policies(names: Sequence[str]) -> "list[Policy]":
    from hivemind_addon.sim.policy import UnknownPolicy, policy_named  # noqa: PLC0415

    try:
        return [policy_named(name) for name in dict.fromkeys(names or ["hivemind"])]
    except UnknownPolicy as error:
        raise click.BadParameter(str(error), param_hint="--policy") from error


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr where that is a terminal: call what you get with the name of each that is done."""
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
