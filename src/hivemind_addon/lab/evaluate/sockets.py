"""Some scenarios on real sockets, side by side: straight, through a real mitmdump with the addon, through the peer."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hivemind_addon.lab.evaluate.figures import Figures, figures_of
from hivemind_addon.lab.evaluate.peer import NAME, through_peer
from hivemind_addon.lab.sim.library import cases
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.live import Staging, live, scaled, straight, through_proxy

_FACTORS: Mapping[str, float] = {"replay-11": 1, "stress": 2}
"""How many times as fast each runs. Backoffs and guards shrink in nobody's program, so the less the fairer."""
_SPARE_S = 30.0
_LONGEST = 3.0
"""Times the patience that a run's windows ask for; then it is cut."""


@dataclass(frozen=True, slots=True)
class SocketRun:
    """One run."""

    scenario: str
    kind: LimitKind
    way: str
    seed: int
    factor: float
    agents: int
    figures: Figures
    deaths: str
    """Why agents died, in words."""


async def _run(name: str, kind: LimitKind, way: str, staging: Staging, seed: int) -> SocketRun:
    case, factor = cases()[name], _FACTORS[name]
    scenario = scaled(case.at(kind), factor)
    (limit,) = scenario.provider.limits
    wanted = sum(crowd.agents * (crowd.turns or 1) for crowd in scenario.crowds)
    within_s = _LONGEST * limit.window_s * (wanted / limit.amount + 1) + _SPARE_S
    result = (await live(scenario, seed=seed, within_s=within_s, staging=staging)).result
    deaths = ", ".join(f"{why} ({count})" for why, count in sorted(result.deaths.items()))
    return SocketRun(name, kind, way, seed, factor, result.agents, figures_of(result), deaths)


def run_on_sockets(
    *, peer: bool, names: Sequence[str] = tuple(_FACTORS), done: Callable[[str], None]
) -> list[SocketRun]:
    """Each scenario on both kinds of limits by all ways, at the same time.

    Raises MitmdumpNotStarted, PeerUnavailable.
    """
    ways: dict[str, Staging] = {"direct": straight, "hivemind": through_proxy}
    if peer:
        ways[NAME] = through_peer
    runs: list[SocketRun] = []

    async def beside(name: str) -> list[SocketRun]:
        return await asyncio.gather(
            *(_run(name, kind, way, staging, 0) for kind in LimitKind for way, staging in ways.items())
        )

    for name in names:
        runs += asyncio.run(beside(name))
        done(f"{name}, on sockets")
    return runs


def socket_setups(names: Sequence[str] = tuple(_FACTORS)) -> int:
    """How many times `run_on_sockets` says that something is done."""
    return len(names)
