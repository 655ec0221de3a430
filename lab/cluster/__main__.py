"""`python -m lab.cluster [--seeds N] [--from SEED] [--only TEXT] [--trace]`: simulate clusters.

Each scenario is run with each seed; a run that breaks a promise is printed, with the last events of it.
Exit status 1: a promise was broken.
"""

import argparse
import sys
import traceback
from collections import Counter
from dataclasses import dataclass

import click

from lab.cluster.process import Violation
from lab.cluster.scenarios import SCENARIOS
from lab.cluster.world import ClusterWorld, FailureScenario


@dataclass(frozen=True, slots=True)
class SimRun:
    """A run that is over."""

    seed: int
    world: ClusterWorld
    broken: str
    """The broken promise; empty: all held."""

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.world.scenario.name}: {self.broken or 'all promises held'}"

    def trace(self, most: int = 0) -> str:
        """The events, a line each; the last `most`, or with 0 all."""
        return "\n".join(" ".join(map(str, line)) for line in self.world.lines[-most:])


def simulate(seed: int, scenario: FailureScenario) -> SimRun:
    """Run a scenario with a seed."""
    world = ClusterWorld(seed, scenario)
    try:
        world.run()
    except Violation as violation:
        return SimRun(seed, world, str(violation))
    except Exception as error:  # noqa: BLE001 - a node may raise nothing
        return SimRun(seed, world, f"{error!r}\n{traceback.format_exc(limit=-6)}")
    return SimRun(seed, world, "")


def main() -> int:
    """Simulate, print; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="runs of each scenario")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="scenarios whose name has this in it")
    parser.add_argument("--trace", action="store_true", help="print all that happened in each run")
    parser.add_argument("--lines", type=int, default=60, help="of the first broken run")
    options = parser.parse_args()
    broken = 0
    for scenario in SCENARIOS:
        if options.only not in scenario.name:
            continue
        sums: Counter[str] = Counter()
        for seed in range(options.first, options.first + options.seeds):
            run = simulate(seed, scenario)
            most = max(sums["over the limit"], run.world.figures["over the limit"])
            sums += run.world.figures
            sums["over the limit"] = most
            if run.broken:
                click.echo(f"{run}\n{run.trace(0 if options.trace else options.lines)}")
                broken += 1
            elif options.trace:
                click.echo(run.trace())
        words = ", ".join(f"{sums[name]} {name}" for name in ("tickets", "delivered", "attempts", "429s", "alone"))
        over = sums["over the limit"]
        click.echo(f"{scenario.name}: {options.seeds} runs, {words}, at most {over} over the limit")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
