"""What is tried with fleets: which fleet, which way, against which faults, how often."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from lab.fleets.fleet import FleetSettings, Route

KILLED_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Experiment:
    """One fleet, run a few times."""

    title: str
    explanation: str
    route: Route
    settings: FleetSettings
    runs: int = 1

    @property
    def demands(self) -> bool:
        """Whether every agent has to finish; else it shows what happens otherwise."""
        return self.route in (Route.WHOLE, Route.AUTO)


def experiments(settings: FleetSettings, runs: int) -> Mapping[str, Experiment]:
    """By the name that the command line gives them."""
    return MappingProxyType(
        {
            "direct": Experiment(
                "Direct", "No scheduler; the agents' own retries and time-outs.", Route.DIRECT, settings, runs
            ),
            "hivemind": Experiment(
                "Through the proxy, which is killed once",
                "`hivemind run`, and each agent by `hivemind exec --delivery whole`: answers are kept back until they "
                f"are complete. After {KILLED_AFTER_S} s comes a `kill -9` of the proxy's process; `hivemind run` "
                "starts it again.",
                Route.WHOLE,
                replace(settings, kill_after_s=KILLED_AFTER_S),
                runs,
            ),
            "stream": Experiment(
                "Through the proxy, answers delivered as they come",
                "`hivemind exec --delivery stream`: a cut reaches the agent, which has to send its request again by "
                "itself.",
                Route.HIVEMIND,
                settings,
            ),
            "own-settings": Experiment(
                "Through the proxy, with the agents' own time-outs and retries",
                "`hivemind exec --no-patience`: nothing but the proxy's address and its certificate is set.",
                Route.WHOLE,
                replace(settings, patient=False),
            ),
            "auto": Experiment(
                "Through a bare `mitmdump -s hivemind_addon`",
                "Nothing but `HTTPS_PROXY` and its certificate is set: that they run headless is in the headers of "
                "some agents, and the answers of these are kept back until they are complete.",
                Route.AUTO,
                settings,
            ),
        }
    )
