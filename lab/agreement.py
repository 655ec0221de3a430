"""Whether a real proxy agrees with virtual time: scenarios on the socket and in virtual time, side by side."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hivemind_addon.sim.library import cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.live import live
from hivemind_addon.sim.result import Result
from hivemind_addon.sim.workload import Scenario
from lab.markdown import markdown_table
from lab.scaled import scaled, virtual

FACTOR = 5.0
"""Fast enough to wait for it, and slow enough that the scheduler's own times matter little."""
LIVE = tuple(cases()[name].scenario for name in ("replay-11", "stress", "fan-out"))
"""Scenarios that run on the socket: conversations, no neighbour, and a concurrency cap that stays."""

_SPARE_S = 30.0
"""A run takes at most this much longer than three times the virtual time."""
_MORE_LOST = 0.15
"""Of the agents: so many more may be lost on the socket where virtual time loses some, too."""
_MORE_REFUSED = 0.02
"""Of all attempts: so many more may be refused on the socket than in virtual time."""
_FEW_REFUSED = 6
"""So few more refusals are chance."""
_TIME_APART = 0.1
"""Share by which time ÷ bound may differ,"""
_WAY_S = 0.05
"""and besides for each turn of a conversation: the way through two processes on a busy machine;"""
_BACKOFF_S = 2.0
"""and where calls fail: the last agent's backoffs, which do not shrink. Who meets the last faults is chance."""
_COST_APART = 0.1
"""Share by which cost ÷ ideal may differ."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A scaled scenario, both ways."""

    scenario: str
    kind: LimitKind
    seed: int
    virtual: Result
    live: Result
    guard_trips: int
    """Exceptions of the addon's own."""

    @property
    def name(self) -> str:
        """Scenario, limits and seed."""
        return f"{self.scenario}, {self.kind.value}, seed {self.seed}"

    def disagreements(self, *, time_apart: float = _TIME_APART) -> Sequence[str]:
        """Where socket and virtual time differ by more than the margins, in words."""
        told = []
        live, virtual = self.live, self.virtual
        if self.guard_trips:
            told.append(f"{self.guard_trips} guard trips")
        if live.lost > virtual.lost + (_MORE_LOST * live.agents if virtual.lost else 0):
            told.append(f"{live.lost} agents lost, {virtual.lost} in virtual time: {dict(live.deaths)}")
        more = refused(live) - refused(virtual)
        if more > max(_FEW_REFUSED, _MORE_REFUSED * live.attempts):
            told.append(f"{more} more attempts refused than in virtual time, of {live.attempts}")
        spare_s = _WAY_S * max(crowd.turns_done / crowd.agents for crowd in virtual.crowds.values())
        if virtual.statuses[0] or virtual.statuses[502]:
            spare_s += _BACKOFF_S
        if abs(live.stretch / virtual.stretch - 1) > time_apart + spare_s / virtual.makespan_s:
            told.append(f"time ÷ bound {live.stretch:.3f}, {virtual.stretch:.3f} in virtual time")
        if abs(_cost(live) / _cost(virtual) - 1) > _COST_APART:
            told.append(f"input cost ÷ ideal {_cost(live):.3f}, {_cost(virtual):.3f} in virtual time")
        return told


def refused(result: Result) -> int:
    """Attempts that a limit or the concurrency cap refused."""
    return result.statuses[429] + result.statuses[529]


def _cost(result: Result) -> float:
    return result.cost / result.ideal_cost if result.ideal_cost else 1.0


async def compare(scenario: Scenario, kind: LimitKind, *, seed: int) -> Comparison:
    """A scaled scenario, both ways. Takes about as long as the scenario does. Raises MitmdumpNotStarted."""
    on = scenario.on(kind)
    expected = virtual(on, seed=seed)
    run = await live(on, seed=seed, within_s=3 * expected.makespan_s + _SPARE_S)
    return Comparison(scenario.name, kind, seed, expected, run.result, run.guard_trips)


def compare_all(
    scenarios: Sequence[Scenario], *, kinds: Sequence[LimitKind], seeds: int, tell: Callable[[str], None]
) -> Sequence[Comparison]:
    """Each of them on each kind of limits, in turn. Raises MitmdumpNotStarted."""
    comparisons = []
    for scenario in scenarios:
        for kind in kinds:
            for seed in range(seeds):
                tell(f"{scenario.name}, {kind.value}, seed {seed}, {FACTOR:g} times as fast")
                comparisons.append(asyncio.run(compare(scaled(scenario, FACTOR), kind, seed=seed)))
    return comparisons


def disagreements(comparisons: Sequence[Comparison]) -> list[str]:
    """A line for each."""
    return [f"{one.name}: {words}" for one in comparisons for words in one.disagreements()]


def table(comparisons: Sequence[Comparison]) -> str:
    """Both ways in turn, as Markdown."""
    rows = []
    for one in comparisons:
        for where, result in (("virtual", one.virtual), ("socket", one.live)):
            waits = "; ".join(f"{crowd.wait_s(0.5):.1f}, {crowd.wait_s(0.95):.1f}" for crowd in result.crowds.values())
            rows.append(
                f"{one.scenario} | {one.kind.value} | {one.seed} | {where} | {result.lost} of {result.agents} "
                f"| {result.attempts} | {result.statuses[429]} | {result.statuses[529]} | {result.makespan_s:.1f} "
                f"| {result.stretch:.3f} | {waits} | {_cost(result):.3f}"
            )
    titles = "Scenario | Limits | Seed | Run | Lost | Attempts | 429 | 529 | End s | ÷ bound | Wait s: p50, p95 | Cost"
    return markdown_table(titles, rows)


def verdict(comparisons: Sequence[Comparison]) -> str:
    """The table, and whether all agree."""
    apart = [f"- {line}\n" for line in disagreements(comparisons)]
    words = "".join(["Beyond the margins:\n\n", *apart]) if apart else "All agree.\n"
    return f"{table(comparisons)}\n{words}"
