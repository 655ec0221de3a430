"""What is kept of one run (its numbers, small enough to come from another process), and a number over the seeds."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median

from hivemind_addon.sim.result import Result
from hivemind_addon.sim.trial import Trial

_REFUSALS = (429, 503, 529)
_FEW_LOST = 0.01
_RESAMPLES = 400
_TAIL = 0.025


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. Shares are between 0 and 1."""

    lost: float
    """Agents, of all."""
    attempts: int
    throttled: float
    """Attempts that were answered 429."""
    refused: float
    """Attempts that were answered 429, 503 or 529."""
    makespan_s: float
    stretch: float | None
    """Makespan ÷ lower bound, what a neighbour took counted; None where agents were lost (who dies early is done
    early), and where the time was given.
    """
    is_timed: bool
    """The time was given; then `turns_done` tells how much was got through."""
    turns_done: int
    wait_mean_s: float
    wait_p50_s: float
    wait_p95_s: float
    """Of all requests; of the crowd that waits most where there are several, as the next one."""
    wait_p99_s: float
    least_wait_p95_s: float
    """Of the crowd that waits least."""
    fairness: float
    cost: float
    """Input cost ÷ ideal."""
    billed_tokens: int
    wasted_tokens: int
    """Of attempts without an answer, and all of agents that were lost."""
    wasted_usd: float
    cap_used: float
    wanted: int
    """Turns that agents asked for, each once however often it was sent."""
    latency_p50_s: float
    latency_p95_s: float
    """Of answered turns, from the first ask to the whole answer; of all crowds together, as the one before."""
    turns_a_minute: float
    """Answered."""
    wasted_lane_s: float
    """Seconds that attempts were in flight for nothing."""
    zombies: int
    """Attempts that were in flight for many times what a turn takes."""
    overspent: float
    """The largest of what an agent spent ÷ its budget; 0: nobody has one."""


def figures_of(result: Result, *, is_timed: bool = False) -> Figures:
    """The numbers of one run."""
    waits = sorted(chain.from_iterable(crowd.waits_s for crowd in result.crowds.values()))
    p95s = [crowd.wait_s(0.95) for crowd in result.crowds.values()]
    attempts = result.attempts or 1
    return Figures(
        lost=result.lost / result.agents,
        attempts=result.attempts,
        throttled=result.statuses[429] / attempts,
        refused=sum(result.statuses[status] for status in _REFUSALS) / attempts,
        makespan_s=result.makespan_s,
        stretch=None if result.lost or is_timed else result.shared_stretch,
        is_timed=is_timed,
        turns_done=result.turns_done,
        wait_mean_s=sum(waits) / len(waits) if waits else 0.0,
        wait_p50_s=max(crowd.wait_s(0.5) for crowd in result.crowds.values()),
        wait_p95_s=max(p95s),
        wait_p99_s=max(crowd.wait_s(0.99) for crowd in result.crowds.values()),
        least_wait_p95_s=min(p95s),
        fairness=result.fairness,
        cost=result.cost_ratio,
        billed_tokens=result.billed.tokens,
        wasted_tokens=result.wasted.tokens,
        wasted_usd=result.wasted.micro_usd / 1_000_000,
        cap_used=result.cap_used,
        wanted=result.wanted,
        latency_p50_s=result.latency_s(0.5),
        latency_p95_s=result.latency_s(0.95),
        turns_a_minute=result.turns_a_minute,
        wasted_lane_s=result.wasted_lane_s,
        zombies=result.zombies,
        overspent=result.overspent,
    )


def digest(trial: Trial, result: Result) -> Figures:
    """For `run_trials`."""
    return figures_of(result, is_timed=math.isfinite(trial.setup.case.scenario.duration_s))


def few_lost(runs: Sequence[Figures]) -> bool:
    """Whether hardly an agent was lost, so that times tell something: who dies early is done early."""
    return fmean(run.lost for run in runs) <= _FEW_LOST


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over the seeds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """At least one value."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """At least one value; of a single one, or of equal ones, the interval is the value itself."""
        mean = fmean(values)
        if len(set(values)) == 1:
            return cls(mean, mean, mean)
        rng = random.Random(0)
        means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(_RESAMPLES))
        return cls(mean, means[int(_TAIL * _RESAMPLES)], means[int((1 - _TAIL) * _RESAMPLES) - 1])

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0
