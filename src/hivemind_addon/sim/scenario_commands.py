"""`hivemind lab scenario`: simulated load, for users. Modules are loaded by the calls."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hivemind_addon.tools.commands.group import IndexedGroup

if TYPE_CHECKING:
    from hivemind_addon.sim.library import Case
    from hivemind_addon.sim.policy import Policy


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
    from hivemind_addon.sim.library import written  # noqa: PLC0415

    case, *others = cases_named([name])
    packaged = scenarios_folder() / f"{name}.yaml"
    path = packaged if packaged.is_file() else Path(name)
    if case.scenario.script:
        click.echo(f"# The calls stay in {name}: these are the providers before which they are made again.")
    elif path.is_file():
        click.echo(path.read_text(encoding="utf-8"), nl=False)
        return
    elif others:
        raise click.ClickException(f"{name} names {len(others) + 1} scenarios; name one, such as {others[0].name}")
    click.echo(written(case), nl=False)


@scenario.command()
@click.argument("name")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the run that misses something.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the YAML into this file.")
def minimise(name: str, seed: int, output: Path | None) -> None:
    """Make a scenario smaller while the scheduler still misses an expectation, and print the rest as YAML.

    Fewer agents, turns, limits and faults, step by step, as long as a run still misses the first expectation that
    the whole scenario misses. Takes seconds to minutes.

    \b
    Examples:
      hivemind lab scenario minimise random-17 --output my-case.yaml
      hivemind lab scenario run my-case.yaml
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    from hivemind_addon.sim.library import written  # noqa: PLC0415
    from hivemind_addon.sim.minimise import minimised  # noqa: PLC0415
    from hivemind_addon.sim.policy import Policy  # noqa: PLC0415
    from hivemind_addon.sim.trial import run_series, setups  # noqa: PLC0415

    for case in cases_named([name]):
        for series in run_series(list(setups(case)), [Policy.HIVEMIND], [seed]):
            if verdict := next((one for one in series.verdicts() if not one.is_met), None):
                smallest = minimised(series.setup, seed, verdict)
                assert smallest is not None
                write_or_print(written(smallest), output)
                return
    raise click.ClickException(f"the scheduler misses nothing on {name} with seed {seed}: there is nothing to minimise")


@scenario.command("run", short_help="Run scenarios against what they expect")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--seeds", type=click.IntRange(1, 1000), default=3, show_default=True, help="Runs of each.")
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the first run.")
@click.option("--policy", "policies", multiple=True, metavar="POLICY", help="Who decides; may be given again.")
@click.option(
    "--limits", type=click.Choice(["bucket", "window", "both"]), default="both", help="How the limits come back."
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON; progress goes to stderr.")
def run_scenarios(
    names: tuple[str, ...],
    *,
    seeds: int,
    first_seed: int,
    policies: tuple[str, ...],
    limits: str,
    as_json: bool,
) -> None:
    """Run scenarios (packaged by name, your own by path; without a name all) against their expectations.

    Virtual time: an hour takes a second, and the same command gives the same numbers. With several policies each has
    a line; docs/judge.md explains the columns. The exit status is 1 when an expectation is missed under the policy
    hivemind.

    \b
    Policies: direct, sdk-retry, aimd-pause, fifo, hivemind, hivemind-scheduler,
    baseline, agentrm-fifo, agentrm-mlfq; FILE.py:Class, a policy of your own
    (docs/judge.md); hivemind-without-X, only-X, where X is among meters,
    hidden-limits, breaker, retry, fair-order, cache-order, comeback,
    backfilling, watchdog, budgets, priority, or A+B.

    \b
    Examples:
      hivemind lab scenario run replay-11 stress
      hivemind lab scenario run incident --policy fifo --policy hivemind --seeds 9
      hivemind lab scenario run stress --policy mine.py:Mine --policy baseline
      hivemind lab scenario run night.trace.gz --policy fifo --policy hivemind
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    from rich.console import Console  # noqa: PLC0415

    from hivemind_addon.sim import report  # noqa: PLC0415
    from hivemind_addon.sim.limits import LimitKind  # noqa: PLC0415
    from hivemind_addon.sim.trial import run_series, setups, trials_of  # noqa: PLC0415

    kinds = [kind for kind in LimitKind if limits in (kind.value, "both")]
    wanted = [setup for case in cases_named(names) for setup in setups(case, kinds)]
    chosen = policies_named(policies or ["hivemind"])
    numbers = range(first_seed, first_seed + seeds)
    with progress(sum(len(trials_of(setup, chosen, numbers)) for setup in wanted)) as done:
        series = run_series(wanted, chosen, numbers, done=done)
    missed = report.missed(series)
    if as_json:
        click.echo(report.as_json(series))
    else:
        Console(highlight=False).print(report.table(series), soft_wrap=True)
        print_missed(missed, kept=report.kept(series))
    sys.exit(1 if missed else 0)


def print_missed(missed: Sequence[str], *, kept: str = "") -> None:
    """Print each missed expectation on standard error, or the sentence `kept`."""
    for line in missed:
        click.echo(f"missed: {line}", err=True)
    if kept and not missed:
        click.echo(kept, err=True)


def write_or_print(page: str, output: Path | None) -> None:
    """Write a page into a file, or print it."""
    if output is None:
        click.echo(page, nl=False)
    else:
        output.write_text(page, encoding="utf-8")


def cases_named(names: Sequence[str]) -> "list[Case]":
    """The scenarios of these names, all packaged ones without a name. ClickException: no such scenario, or a bad file.

    A name is a scenario's, a file's path, `zoo` for all variants of zoo.yaml, or `random:FROM:COUNT` for so many random
    loads.
    """
    from hivemind_addon.formats.base.typed import DocumentError  # noqa: PLC0415
    from hivemind_addon.sim.library import UnknownScenario, cases  # noqa: PLC0415

    try:
        found = [case for name in names or cases() for case in _named(name)]
    except (UnknownScenario, DocumentError) as error:
        raise click.ClickException(str(error)) from error
    return list({case.name: case for case in found}.values())


def _named(name: str) -> "list[Case]":
    from hivemind_addon.sim import library  # noqa: PLC0415
    from hivemind_addon.sim.held_out import is_held_out  # noqa: PLC0415

    if (numbers := _random_numbers(name)) is not None:
        if any(map(is_held_out, numbers[-1:])):
            click.echo(f"note: {name} is held out for reports: tune no scheduler on it", err=True)
        return [library.random_case(number) for number in numbers]
    return library.cases_named([name])


def _random_numbers(name: str) -> range | None:
    """The random loads that a name means; None: the name is of another kind."""
    from hivemind_addon.sim.random_loads import number_in  # noqa: PLC0415

    if (number := number_in(name)) is not None:
        return range(number, number + 1)
    kind, *numbers = name.split(":")
    if kind != "random":
        return None
    if len(numbers) != 2 or not all(map(str.isdecimal, numbers)) or not int(numbers[1]):
        raise click.ClickException(f"{name!r} names no random loads; write random:FROM:COUNT, such as random:0:20")
    first, count = map(int, numbers)
    return range(first, first + count)


def policies_named(names: Sequence[str]) -> "list[Policy]":
    """The policies of these names. BadParameter: no such policy."""
    from hivemind_addon.sim.policy import policy_named  # noqa: PLC0415
    from hivemind_addon.sim.policy_file import UnknownPolicy  # noqa: PLC0415

    try:
        return [policy_named(name) for name in dict.fromkeys(names)]
    except UnknownPolicy as error:
        raise click.BadParameter(str(error), param_hint="--policy") from error


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
