"""The fleets that are run, each in another way. docs/fleets.md explains each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hivemind_addon.sim.limits import ModelScope
from lab.fleets.fleet import MIXED, SIXTEEN, FleetSettings, Route

KILLED_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Experiment:
    """A fleet, run a few times."""

    route: Route
    settings: FleetSettings
    runs: int = 1
    is_continued: bool = False
    """Whether each run continues the journal of the run before: only the first has to learn the limits."""

    @property
    def demands(self) -> bool:
        """Whether every agent has to finish; else the experiment only shows how many do."""
        return self.route in (Route.WHOLE, Route.AUTO)


def experiments(settings: FleetSettings, runs: int) -> Mapping[str, Experiment]:
    """By the name that the command line and the marks of the page give them."""
    agents = SIXTEEN if settings.agents is MIXED else settings.agents
    key = replace(settings, agents=agents, scope=ModelScope.KEY, requests=5, window_s=20, concurrency=2)
    counted = replace(key, requests=4, window_s=15, counts_refused=True)
    return {
        "direct": Experiment(Route.DIRECT, settings, runs),
        "hivemind": Experiment(Route.WHOLE, replace(settings, kill_after_s=KILLED_AFTER_S), runs),
        "stream": Experiment(Route.HIVEMIND, settings),
        "own-settings": Experiment(Route.WHOLE, replace(settings, patient=False)),
        "auto": Experiment(Route.AUTO, settings),
        "key": Experiment(Route.AUTO, key, runs),
        "key-warm": Experiment(Route.AUTO, key, 2, is_continued=True),
        "key-direct": Experiment(Route.DIRECT, key),
        "counted": Experiment(Route.AUTO, counted, runs),
        "counted-warm": Experiment(Route.AUTO, counted, 2, is_continued=True),
        "counted-direct": Experiment(Route.DIRECT, counted),
    }
