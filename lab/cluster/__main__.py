"""`python -m lab.cluster [--seeds N] [--from SEED] [--only TEXT] [--trace]`: simulate clusters.

Each scenario is run with each seed; a run that breaks a promise is printed, with the end of what happened in it.
Exit status 1: one did.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass

from lab.cluster.process import Violation
from lab.cluster.scenarios import SCENARIOS
from lab.cluster.world import ClusterWorld, FailureScenario, RunFigures

_LINES = 60


@dataclass(frozen=True, slots=True)
class SimRun:
    """One run that is over."""

    seed: int
    scenario: FailureScenario
    figures: RunFigures
    lines: tuple[tuple[object, ...], ...]
    broken: str
    """What promise, and how; empty: all held."""

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.scenario.name}: {self.broken or 'all promises held'}"

    def trace(self, most: int | None = None) -> str:
        """What happened, a line each; the last ones."""
        lines = self.lines if most is None else self.lines[-most:]
        return "\n".join(" ".join(map(str, line)) for line in lines)


def simulate(seed: int, scenario: FailureScenario) -> SimRun:
    """One run."""
    world = None
    try:
        world = ClusterWorld(seed, scenario)
        world.run()
        broken = ""
    except Violation as violation:
        broken = str(violation)
    except Exception as error:  # noqa: BLE001 - a node may raise nothing
        broken = f"{error!r}\n{traceback.format_exc(limit=-6)}"
    if world is None:
        return SimRun(seed, scenario, RunFigures(), (), broken)
    return SimRun(seed, scenario, world.figures, tuple(world.lines), broken)


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main() -> int:
    """Simulate, print; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="runs of each scenario")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="scenarios whose name has this in it")
    parser.add_argument("--trace", action="store_true", help="print all that happened in each run")
    parser.add_argument("--lines", type=int, default=_LINES, help="of a broken run")
    options = parser.parse_args()
    broken = 0
    for scenario in SCENARIOS:
        if options.only not in scenario.name:
            continue
        started = time.perf_counter()
        sums: Counter[str] = Counter()
        most_over, shown = 0, False
        for seed in range(options.first, options.first + options.seeds):
            run = simulate(seed, scenario)
            figures = run.figures
            sums.update(
                tickets=figures.tickets,
                delivered=figures.delivered,
                attempts=figures.attempts,
                refused=figures.refused,
                alone=figures.went_alone,
                broken=bool(run.broken),
            )
            most_over = max(most_over, figures.most_over_limit)
            if options.trace:
                _say(run.trace())
            if run.broken:
                _say(run)
                if not shown and not options.trace and options.lines:
                    _say(run.trace(options.lines))
                    shown = True
        broken += sums["broken"]
        took_s = time.perf_counter() - started
        _say(
            f"{scenario.name}: {options.seeds} runs in {took_s:.1f} s, "
            + ", ".join(f"{count} {what}" for what, count in sums.items())
            + f", at most {most_over} over the limit"
        )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
