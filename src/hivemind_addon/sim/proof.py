"""What the scheduler is worth, in virtual time: every scenario, many seeds, and the goals that it has to reach."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.workload import (
    BIG_CONTEXTS,
    BURSTS,
    CAPS,
    FAN_OUT,
    HANGS,
    INCIDENT,
    LIGHT_AND_HEAVY,
    NEIGHBOUR,
    PAPER,
    POISON,
    SCENARIOS,
    Scenario,
)
from hivemind_addon.sim.world import Policy, Result, run

SEEDS = 20

_ORDER_MATTERS = (LIGHT_AND_HEAVY, BIG_CONTEXTS)
"""Compared with first come, first served."""


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of one scenario on one kind of limits under one policy, one for each seed."""

    scenario: str
    kind: LimitKind | None
    """None: it has no limits."""
    policy: Policy
    headers: bool
    """Whether the provider told its limits."""
    runs: tuple[Result, ...]
    """In the order of their seeds, from 0."""

    @property
    def lost(self) -> int:
        """Agents, of all runs."""
        return sum(run.lost for run in self.runs)

    @property
    def agents(self) -> int:
        """Of all runs."""
        return sum(run.agents for run in self.runs)

    @property
    def attempts(self) -> int:
        """Of all runs."""
        return sum(run.attempts for run in self.runs)

    def status(self, status: int) -> int:
        """Attempts that got it."""
        return sum(run.statuses[status] for run in self.runs)

    def median_of(self, value: Callable[[Result], float]) -> float:
        """Over the runs."""
        return median(map(value, self.runs))

    def worst_of(self, value: Callable[[Result], float]) -> float:
        """The largest of the runs."""
        return max(map(value, self.runs))


@dataclass(frozen=True, slots=True)
class Goal:
    """A number to reach, and what was measured."""

    what: str
    limit: float
    value: float
    at_least: bool = False
    """The value must not be below the limit; else not above it."""
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the value is on the right side."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.what}: {self.measured}, goal {self.wanted}"

    @property
    def wanted(self) -> str:
        """The limit, with its sign and unit."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}{self.unit}"

    @property
    def measured(self) -> str:
        """The value, with its unit."""
        return f"{_number(self.value)}{self.unit}"


@dataclass(frozen=True, slots=True)
class Proof:
    """All series of one call."""

    seeds: int
    series: tuple[Series, ...]

    def of(
        self,
        *scenarios: Scenario,
        policy: Policy = Policy.HIVEMIND,
        headers: bool = True,
        kind: LimitKind | None = None,
    ) -> tuple[Series, ...]:
        """Series of these scenarios; `kind` None: of every kind."""
        names = {scenario.name for scenario in scenarios}
        return tuple(
            one
            for one in self.series
            if one.scenario in names
            and one.policy is policy
            and one.headers == headers
            and (kind is None or one.kind is kind)
        )

    def goals(self) -> Iterator[Goal]:
        """What has to be reached; only goals whose scenarios were run."""
        yield Goal("agents lost, all scenarios", 0, sum(one.lost for one in self.of(*SCENARIOS)))
        for kind in LimitKind:
            if paper := self.of(*PAPER, kind=kind):
                stretches = [run.stretch for one in paper for run in one.runs]
                yield Goal(f"time ÷ bound, the seven, {kind.value}, median", 1.05, median(stretches))
                yield Goal(f"time ÷ bound, the seven, {kind.value}, worst", 1.10, max(stretches))
        for scenario in (INCIDENT, BURSTS, POISON):
            if series := self.of(scenario):
                yield Goal(f"time ÷ bound, {scenario.name}, worst", 1.1, worst_stretch(series))
        if series := self.of(NEIGHBOUR):
            worst = max(one.worst_of(_shared_stretch) for one in series)
            yield Goal("time ÷ bound, neighbour, what it took counted, worst", 1.2, worst)
        if paper := self.of(*PAPER):
            yield Goal("429s of attempts, the seven", 0.5, 100 * share_of_429(paper), unit=" %")
        if blind := self.of(*PAPER, headers=False):
            yield Goal("429s of attempts, the seven, no headers", 10, 100 * share_of_429(blind), unit=" %")
            yield Goal("agents lost, the seven, no headers", 0, sum(one.lost for one in blind))
        if caps := self.of(CAPS):
            least = min(run.cap_used for one in caps for run in one.runs)
            yield Goal("in flight ÷ cap, changing cap, least", 85, 100 * least, at_least=True, unit=" %")
            refused = sum(one.status(529) for one in caps) / sum(one.attempts for one in caps)
            yield Goal("529s of attempts, changing cap", 3, 100 * refused, unit=" %")
        if fan_out := self.of(FAN_OUT):
            yield Goal("input cost ÷ ideal, fan-out, worst", 1.02, max(one.worst_of(cost) for one in fan_out))
        bucket = LimitKind.BUCKET
        mixed = self.of(LIGHT_AND_HEAVY, kind=bucket)
        fifo = self.of(LIGHT_AND_HEAVY, kind=bucket, policy=Policy.FIFO)
        if mixed and fifo:
            ratios = [
                100 * light_p95_s(ours) / light_p95_s(theirs)
                for ours, theirs in zip(mixed[0].runs, fifo[0].runs, strict=True)
            ]
            yield Goal("light agents' p95 wait ÷ FIFO's, bucket, worst", 5, max(ratios), unit=" %")
        if poison := self.of(POISON):
            opened = sum(run.breaker_opened for one in poison for run in one.runs)
            yield Goal("breaker opened by one poisoned agent", 0, opened)


def cost(run: Result) -> float:
    """Input cost ÷ ideal."""
    return run.cost / run.ideal_cost if run.ideal_cost else 0.0


def light_p95_s(run: Result) -> float:
    """The wait that 95 % of the light agents' turns did not exceed."""
    return run.crowds["light"].wait_s(0.95)


def worst_stretch(series: Iterable[Series]) -> float:
    """Of all runs of some series."""
    return max(one.worst_of(lambda run: run.stretch) for one in series)


def share_of_429(series: Sequence[Series]) -> float:
    """429s ÷ attempts, pooled."""
    attempts = sum(one.attempts for one in series)
    return sum(one.status(429) for one in series) / attempts if attempts else 0.0


def prove(
    *, seeds: int = SEEDS, only: Sequence[str] = (), policies: bool = True, tell: Callable[[str], None] = lambda _: None
) -> Proof:
    """Run every scenario (or `only` the named ones). `policies`: also the agents on their own, for comparison."""
    series: list[Series] = []

    def measure(scenario: Scenario, policy: Policy = Policy.HIVEMIND) -> None:
        kinds: Sequence[LimitKind | None] = tuple(LimitKind) if scenario.provider.limits else (None,)
        for kind in kinds:
            tell(f"{scenario.name}, {kind.value if kind else 'no limit'}, {policy.value}")
            on = scenario.on(kind) if kind else scenario
            runs = tuple(run(on, seed=seed, policy=policy) for seed in range(seeds))
            series.append(Series(scenario.name, kind, policy, scenario.provider.rate_limit_headers, runs))

    for scenario in SCENARIOS:
        if only and scenario.name not in only:
            continue
        measure(scenario)
        if scenario in PAPER:
            measure(scenario.without_headers())
        if scenario in _ORDER_MATTERS:
            measure(scenario, Policy.FIFO)
        if policies:
            measure(scenario, Policy.DIRECT)
            measure(scenario, Policy.SDK)
    return Proof(seeds, tuple(series))


_HEAD = """\
# Proof

<!-- Generated by `{command}`. -->

The real scheduler before a simulated provider in virtual time (`sim/world.py`), {seeds} seeds of every scenario
(`sim/workload.py`), each with limits that are token buckets and with fixed windows. The same command gives the same
numbers. *Time ÷ bound* compares the end of the last agent with a lower bound that no schedule can beat
(`sim/bound.py`): the longest conversation, what the limits let through, all service over the slots there are. What
failed attempts took (faults are the provider's, and drawn by the seed) counts as spent.
"""

_NOTES = f"""\
*Wait* is a request's time in the queue, all its waits together; *cost* is what its input costs ÷ what it would with a
prompt cache that forgets nothing.

- The first seven: agents die of their first error and wait two minutes for an answer.
- `{NEIGHBOUR.name}`: somebody else spends up to half of the limit. The plain bound knows nothing of it; *counted*
  takes what the other one got for spent.
- `{INCIDENT.name}`: 529 for five minutes. `{BURSTS.name}`: one call a second is let through, and no header tells.
- `{CAPS.name}`: no rate limit, and a concurrency cap of 8, from 120 s on 3, from 300 s on 20.
- `{FAN_OUT.name}`: 24 sub-agents with the same instructions. `{BIG_CONTEXTS.name}`: 60 agents with 60,000 to 100,000
  tokens each; the bound does not know that who is let in late still has a conversation to hold.
- `{LIGHT_AND_HEAVY.name}`: 20 agents with small requests beside three with eight conversations each of 80,000 tokens
  a request. On fixed windows the small ones wait for the reset when the window is spent, whatever the order.
- `{HANGS.name}`: a tenth of the calls never answers, and is closed after two minutes.
- `{POISON.name}`: nine healthy agents and one whose every call is a 500.
"""


def page(proof: Proof, command: str) -> str:
    """The proof as Markdown."""
    parts = [_HEAD.format(command=command, seeds=proof.seeds), "## Goals\n", _goals(proof), "## Scenarios\n", _NOTES]
    parts.append(_scenarios([one for one in proof.series if one.policy is Policy.HIVEMIND]))
    if fifo := [one for one in proof.series if one.policy is Policy.FIFO]:
        parts += [
            "## First come, first served\n",
            "The same scheduler without an order of its own.\n",
            _scenarios(fifo),
        ]
    if alone := [one for one in proof.series if not one.policy.is_scheduled]:
        parts += ["## Without a scheduler\n", _alone(alone)]
    return "\n".join(parts)


def _goals(proof: Proof) -> str:
    rows = ["| What | Goal | Measured | |", "| --- | --- | --- | --- |"]
    for goal in proof.goals():
        met = "met" if goal.is_met else "**missed**"
        rows.append(f"| {goal.what} | {goal.wanted} | {goal.measured} | {met} |")
    return "\n".join(rows) + "\n"


def _scenarios(series: Sequence[Series]) -> str:
    rows = [
        "| Scenario | Limits | Lost | Attempts | 429 | 529 | Time ÷ bound: median, worst | Wait s: p50, p95 | Cost |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in series:
        is_endless = one.scenario in (CAPS.name, LIGHT_AND_HEAVY.name)
        stretch = f"{one.median_of(_stretch):.3f}, {one.worst_of(_stretch):.3f}"
        if one.scenario == NEIGHBOUR.name:
            stretch += f" (counted: {one.median_of(_shared_stretch):.3f}, {one.worst_of(_shared_stretch):.3f})"
        crowds = one.runs[0].crowds
        waits = "; ".join(
            (f"{name} " if len(crowds) > 1 else "")
            + ", ".join(
                f"{one.median_of(lambda run, name=name, share=share: run.crowds[name].wait_s(share)):.1f}"  # type: ignore[misc]
                for share in (0.5, 0.95)
            )
            for name in crowds
        )
        rows.append(
            f"| {one.scenario} | {_limits(one)} | {one.lost} of {one.agents} "
            f"| {one.attempts} | {one.status(429)} | {one.status(529)} | {'' if is_endless else stretch} | {waits} "
            f"| {one.median_of(cost):.3f} |"
        )
    return "\n".join(rows) + "\n"


def _alone(series: Sequence[Series]) -> str:
    rows = [
        "| Scenario | Limits | Policy | Lost | Attempts | 429 | 529 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| {one.scenario} | {_limits(one)} | {one.policy.value} | {one.lost} of {one.agents} | {one.attempts} "
        f"| {one.status(429)} | {one.status(529)} |"
        for one in series
    ]
    return "\n".join(rows) + "\n"


def _limits(series: Series) -> str:
    return f"{series.kind.value if series.kind else 'none'}{'' if series.headers else ', no headers'}"


def _stretch(run: Result) -> float:
    return run.stretch


def _shared_stretch(run: Result) -> float:
    return run.shared_stretch


def _number(value: float) -> str:
    return f"{value:.0f}" if math.isclose(value, round(value)) else f"{value:.3f}"
