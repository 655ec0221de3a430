"""`python -m fleets`: fleets of real agents, directly and through the proxy; writes docs/fleets.md."""

import asyncio
import sys
from pathlib import Path

import click

from fleets.experiment import experiments
from fleets.fleet import FleetSettings, run_fleet
from fleets.page import page, summary
from fleets.programs import NotInstalled, install
from hivemind_addon.lab.sim.mitmdump import MitmdumpNotStarted

PAGE = Path(__file__).resolve().parents[1] / "docs" / "fleets.md"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--runs", type=click.IntRange(1, 20), default=3, show_default=True, help="Of the first two experiments.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the first run; later ones count on.")
@click.option("--only", multiple=True, type=click.Choice(sorted(experiments(FleetSettings(), 1))))
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, show_default=True)
def main(runs: int, seed: int, only: tuple[str, ...], output: Path) -> None:
    """Run fleets of Claude Code and Codex against simulated providers, and write down who finished.

    Installs the agents with npm at the first time. Takes about twenty minutes; nothing leaves this machine. The exit
    status is 1 when an agent was lost where none should be.
    """
    try:
        programs = install()
    except NotInstalled as error:
        raise click.ClickException(str(error)) from error
    done = []
    kept = True
    for name, experiment in experiments(FleetSettings(), runs).items():
        if only and name not in only:
            continue
        results = []
        for number in range(experiment.runs):
            try:
                result = asyncio.run(run_fleet(experiment.settings, experiment.route, programs, seed + number))
            except MitmdumpNotStarted as error:
                raise click.ClickException(str(error)) from error
            click.echo(f"{name}: {summary(result)}")
            kept = kept and (result.kept_its_promise or not experiment.demands)
            results.append(result)
        done.append((experiment, results))
    output.write_text(page(done), encoding="utf-8")
    click.echo(f"written: {output}")
    if not kept:
        sys.exit(1)


if __name__ == "__main__":
    main()
