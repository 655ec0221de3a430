"""The figures of a run, small enough to come from another process, and means of them with intervals. Pure."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Self

from hivemind_addon.sim.result import CrowdResult, Result

_RESAMPLES = 400
_TAIL = 0.025


@dataclass(frozen=True, slots=True)
class CrowdFigures:
    """Figures of a crowd. Waits are in the scheduler's queue; turns last from the first ask until the whole answer."""

    agents: int
    lost: int
    turns_done: int
    wait_p50_s: float
    wait_p95_s: float
    turn_mean_s: float
    turn_p95_s: float


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """Figures of a run; `Result` explains each."""

    agents: int
    lost: int
    deaths: Mapping[str, int]
    attempts: int
    statuses: Mapping[int, int]
    refused: int
    unforeseen: int
    turns_done: int
    turns_a_minute: float
    makespan_s: float
    bound_s: float
    bound_by: str
    stretch: float
    shared_stretch: float
    turn_p95_s: float
    idle_s: float
    fairness: float
    cost_ratio: float
    billed_tokens: int
    wasted_tokens: int
    wasted_lane_s: float
    paid_in_vain: int
    cap_used: float
    breaker_opened: int
    sheds: int
    zombies: int
    overspent: float
    crowds: Mapping[str, CrowdFigures]
    finished: Mapping[str, tuple[float, int]]
    """Agents that finished: the instant, and the attempts."""

    def status(self, *statuses: int) -> int:
        """Attempts that were answered with any of these."""
        return sum(self.statuses.get(status, 0) for status in statuses)


def figures_of(run: Result) -> TrialFigures:
    """The figures of a run."""
    alike = {one.name: getattr(run, one.name) for one in fields(TrialFigures) if hasattr(run, one.name)}
    others = {
        "deaths": dict(sorted(run.deaths.items())),
        "statuses": dict(sorted(run.statuses.items())),
        "bound_s": run.bound.bound_s,
        "bound_by": run.bound.why,
        "turn_p95_s": run.latency_s(0.95),
        "billed_tokens": run.billed.tokens,
        "wasted_tokens": run.wasted.tokens,
        "crowds": {name: _crowd(crowd) for name, crowd in run.crowds.items()},
    }
    return TrialFigures(**alike | others)


def _crowd(crowd: CrowdResult) -> CrowdFigures:
    return CrowdFigures(
        crowd.agents,
        crowd.lost,
        crowd.turns_done,
        wait_p50_s=crowd.wait_s(0.5),
        wait_p95_s=crowd.wait_s(0.95),
        turn_mean_s=fmean(crowd.latencies_s) if crowd.latencies_s else 0.0,
        turn_p95_s=crowd.latency_s(0.95),
    )


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with a 95 % bootstrap interval; of equal values the interval is the value itself."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """At least one value."""
        mean = fmean(values)
        if len(set(values)) == 1:
            return cls(mean, mean, mean)
        rng = random.Random(0)
        means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(_RESAMPLES))
        return cls(mean, means[int(_TAIL * _RESAMPLES)], means[int((1 - _TAIL) * _RESAMPLES) - 1])

    @classmethod
    def of_ratios(cls, values: Sequence[float]) -> Self:
        """The geometric mean of at least one value above zero."""
        logs = Mean.of([math.log(value) for value in values])
        return cls(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high))

    def is_apart_from(self, value: float) -> bool:
        """Whether the interval leaves the value out."""
        return not self.low <= value <= self.high
