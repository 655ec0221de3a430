"""A campaign: scenarios by policies by seeds, for two questions.

comparison    every scenario under the policies that people have    → who loses agents, and how many
singles       every scenario without each primitive in turn         → where each primitive is worth something
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hivemind_addon.sim.ablation import Primitive
from hivemind_addon.sim.library import Case
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import COMPARED, Policy, without
from hivemind_addon.sim.trial import Setup, Trial, once_each, run_trials
from lab.evaluate.figures import Figures, digest

_ENOUGH_AGENTS = 400
_LEAST_RUNS = 5
"""Where primitives are taken away: runs that have so many agents together."""


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """A selection of runs. Seeds are counted from 0."""

    cases: Sequence[Case]
    seeds: int
    """Of the comparison."""
    policies: Sequence[Policy] = COMPARED
    primitives: Sequence[Primitive] = tuple(Primitive)
    """Each of these is taken away from every case."""

    def trials(self) -> list[Trial]:
        """Each once, in a fixed order."""
        return once_each((*self._comparison(), *self._singles()))

    def seeds_without(self, case: Case) -> int:
        """Runs of a case without primitives: fewer where they have many agents."""
        return min(self.seeds, max(_LEAST_RUNS, math.ceil(_ENOUGH_AGENTS / case.agents)))

    def _comparison(self) -> Iterator[Trial]:
        for case in self.cases:
            for policy in self.policies:
                yield from trials_of(case, policy, self.seeds)

    def _singles(self) -> Iterator[Trial]:
        for case in self.cases if self.primitives else ():
            for policy in (Policy.HIVEMIND, *map(without, self.primitives)):
                yield from trials_of(case, policy, self.seeds_without(case))


def trials_of(case: Case, policy: Policy, seeds: int) -> Iterator[Trial]:
    """A case under a policy, on every kind of limits that the case has."""
    for kind in case.kinds:
        for seed in range(seeds):
            yield Trial(Setup(case, kind, headers=True, policy=policy), seed)


@dataclass(frozen=True, slots=True)
class Runs:
    """The figures of runs."""

    by_setup: Mapping[str, Sequence[Figures]]
    """By the setup's name, in the order of the seeds."""

    def __len__(self) -> int:
        return sum(map(len, self.by_setup.values()))

    def of(self, case: Case, kind: LimitKind | None, policy: Policy) -> Sequence[Figures]:
        """The runs of a setup; empty when there were none."""
        return self.by_setup.get(Setup(case, kind, headers=True, policy=policy).name, ())

    def of_all_kinds(self, case: Case, policy: Policy) -> Sequence[Figures]:
        """The runs on every kind of limits, in turn."""
        return [figures for kind in case.kinds for figures in self.of(case, kind, policy)]

    def paired(self, case: Case, kind: LimitKind | None, policy: Policy) -> list[tuple[Figures, Figures]]:
        """The scheduler's run and this policy's, of each seed that both have."""
        return list(zip(self.of(case, kind, Policy.HIVEMIND), self.of(case, kind, policy), strict=False))


@dataclass(frozen=True, slots=True)
class Campaign:
    """A plan and the runs of that plan."""

    plan: CampaignPlan
    runs: Runs


def run_campaign(plan: CampaignPlan, *, workers: int, done: Callable[[str], None]) -> Campaign:
    """Run all of a plan; the same figures with any number of workers."""
    return Campaign(plan, run_all(plan.trials(), workers=workers, done=done))


def run_all(trials: Sequence[Trial], *, workers: int, done: Callable[[str], None]) -> Runs:
    """Run each trial; the same figures with any number of workers."""
    figures = run_trials(trials, digest, workers=workers, done=lambda trial: done(trial.setup.name))
    runs: dict[str, list[Figures]] = {}
    for trial, made in zip(trials, figures, strict=True):
        runs.setdefault(trial.setup.name, []).append(made)
    return Runs(runs)
