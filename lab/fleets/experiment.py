"""The fleets that are run, each in another way. docs/fleets.md explains each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lab.fleets.fleet import FleetSettings, Route

KILLED_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Experiment:
    """A fleet, run a few times."""

    route: Route
    settings: FleetSettings
    runs: int = 1

    @property
    def demands(self) -> bool:
        """Whether every agent has to finish; else the experiment only shows how many do."""
        return self.route in (Route.WHOLE, Route.AUTO)


def experiments(settings: FleetSettings, runs: int) -> Mapping[str, Experiment]:
    """By the name that the command line and the marks of the page give them."""
    return {
        "direct": Experiment(Route.DIRECT, settings, runs),
        "hivemind": Experiment(Route.WHOLE, replace(settings, kill_after_s=KILLED_AFTER_S), runs),
        "stream": Experiment(Route.HIVEMIND, settings),
        "own-settings": Experiment(Route.WHOLE, replace(settings, patient=False)),
        "auto": Experiment(Route.AUTO, settings),
    }
