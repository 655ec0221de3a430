"""`python -m lab.fleets`: fleets of real agents, directly and through the proxy; writes docs/fleets.md."""

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from hivemind_addon.sim.mitmdump import MitmdumpNotStarted
from lab.fleets.fleet import FleetResult, FleetSettings, experiments, run_fleet
from lab.fleets.kinds import Program
from lab.fleets.page import parts, summary
from lab.fleets.programs import NotInstalled, install
from lab.markdown import markdown_filled

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fleets.md"


def _read_counts(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Mapping[Program, int] | None:
    del ctx, param
    by_word = {program.value.word: program for program in Program}
    counts = {}
    for value in values:
        word, _, number = value.partition("=")
        if word not in by_word or not number.isdecimal():
            raise click.BadParameter(f"{value!r} is not KIND=N with one of {', '.join(by_word)}")
        counts[by_word[word]] = int(number)
    return counts or None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--runs", type=click.IntRange(1, 20), default=3, show_default=True, help="Of the first two experiments.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the first run; later ones count on.")
@click.option("--only", multiple=True, type=click.Choice(sorted(experiments(FleetSettings(), 1))))
@click.option(
    "--agents",
    "counts",
    metavar="KIND=N",
    multiple=True,
    callback=_read_counts,
    help=f"Another fleet; may be given again. Kinds: {', '.join(one.value.word for one in Program)}.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Leave each run's homes, logs and journal in a folder of this one.",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help=f"[default: {PAGE.name}]")
def main(
    runs: int,
    seed: int,
    only: tuple[str, ...],
    counts: Mapping[Program, int] | None,
    keep: Path | None,
    output: Path | None,
) -> None:
    """Run fleets of real agents against simulated providers, and write down who finished.

    Installs the agents with npm and pip at the first time. Takes about an hour; nothing leaves this machine. With
    `--only` the page keeps its other sections; a fleet of `--agents` is written down nowhere unless `--output` says
    where. The exit status is 1 when an agent was lost where none should be.
    """
    settings = FleetSettings() if counts is None else FleetSettings(agents=counts)
    try:
        programs = install(program.value.package for program in settings.agents)
    except NotInstalled as error:
        raise click.ClickException(str(error)) from error
    done: dict[str, list[FleetResult]] = {}
    kept = True
    for name, experiment in experiments(settings, runs).items():
        if only and name not in only:
            continue
        results = []
        with tempfile.TemporaryDirectory(prefix="hivemind-fleet-", ignore_cleanup_errors=True) as shared:
            journal = Path(keep or shared) / f"{name}.db" if experiment.is_continued else None
            for number in range(experiment.runs):
                folder = keep and keep / f"{name}-{seed + number}"
                if folder:
                    folder.mkdir(parents=True)
                try:
                    run = run_fleet(experiment.settings, experiment.route, programs, seed + number, folder, journal)
                    result = asyncio.run(run)
                except MitmdumpNotStarted as error:
                    raise click.ClickException(str(error)) from error
                click.echo(f"{name}: {summary(result)}")
                kept = kept and (result.kept_its_promise or not experiment.demands)
                results.append(result)
        done[name] = results
    file = output or (PAGE if counts is None else None)
    if file is not None:
        before = (file if file.is_file() else PAGE).read_text(encoding="utf-8")
        file.write_text(markdown_filled(before, parts(done)), encoding="utf-8")
        click.echo(f"written: {file}")
    if not kept:
        sys.exit(1)


if __name__ == "__main__":
    main()
