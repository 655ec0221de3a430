"""What is tried with fleets: which fleet, which way, against which faults, how often."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from fleets.fleet import FleetSettings, Route
from hivemind_addon.lab.sim.demo import FAULTS

CUT_SHARE = 0.1


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
        return self.route in (Route.WHOLE, Route.AUTO) or (
            self.route is Route.HIVEMIND and "stream-close" not in self.settings.faults
        )


def experiments(settings: FleetSettings, runs: int) -> Mapping[str, Experiment]:
    """By the name that the command line gives them."""
    cuts = replace(settings, faults={**FAULTS, "stream-close": CUT_SHARE})
    killed = replace(settings, claudes=7, codexes=4, kill_after_s=40)
    share = f"{CUT_SHARE:.0%}"
    return MappingProxyType(
        {
            "direct": Experiment(
                "Direct", "No scheduler; the agents' own retries and time-outs.", Route.DIRECT, settings, runs
            ),
            "hivemind": Experiment(
                "Through the proxy",
                "`hivemind run`, and each agent by `hivemind exec --delivery stream`.",
                Route.HIVEMIND,
                settings,
                runs,
            ),
            "own-settings": Experiment(
                "Through the proxy, with the agents' own time-outs and retries",
                "`hivemind exec --no-patience`: nothing but the proxy's address and its certificate is set.",
                Route.HIVEMIND,
                replace(settings, patient=False),
            ),
            "cuts-direct": Experiment(
                "Cuts in the middle of answers, direct",
                f"The same faults, and {share} of the answers end after half of their content.",
                Route.DIRECT,
                cuts,
            ),
            "cuts-stream": Experiment(
                "The same cuts through the proxy, answers delivered as they come",
                "A cut reaches the agent, which has to send its request again by itself.",
                Route.HIVEMIND,
                cuts,
            ),
            "cuts-whole": Experiment(
                "The same cuts through the proxy, answers delivered whole",
                "`hivemind exec --delivery whole`: answers are kept back until they are complete.",
                Route.WHOLE,
                cuts,
            ),
            "cuts-auto": Experiment(
                "The same cuts through a bare `mitmdump -s hivemind_addon`",
                "Nothing but `HTTPS_PROXY` and its certificate is set: that they run headless is in the agents' own "
                "headers, so their answers are kept back until they are complete.",
                Route.AUTO,
                cuts,
            ),
            "killed": Experiment(
                "The proxy is killed once",
                f"`kill -9` of its process after {killed.kill_after_s:g} s; `hivemind run` starts it again.",
                Route.WHOLE,
                killed,
            ),
        }
    )
