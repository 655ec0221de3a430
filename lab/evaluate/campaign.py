"""What an evaluation runs, and what came of it: scenarios by policies by seeds, two questions.

comparison    every scenario under the five policies that people have               → who loses agents, and how many
singles       every scenario without each primitive in turn                         → what each one is worth, where
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hivemind_addon.sim.ablation import Primitive
from hivemind_addon.sim.library import Case, cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import COMPARED, Policy, without
from hivemind_addon.sim.trial import Setup, Trial, run_trials
from lab.evaluate.figures import Figures, digest

_ENOUGH_AGENTS = 400
_LEAST_RUNS = 5
"""Where primitives are taken away: runs that have so many agents together."""


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """What to run. Seeds are counted from 0."""

    cases: tuple[Case, ...]
    seeds: int
    """Of the comparison."""
    ablation_seeds: int
    """Of runs without primitives; see `seeds_without`."""
    ablated: tuple[Case, ...]
    """Of the cases, those that are run without each primitive."""

    def trials(self) -> list[Trial]:
        """Each once, in a fixed order."""
        return once_each(itertools.chain(self._comparison(), self._singles()))

    def seeds_without(self, case: Case) -> int:
        """Runs of a case without primitives: fewer where they have many agents."""
        return min(self.ablation_seeds, max(_LEAST_RUNS, math.ceil(_ENOUGH_AGENTS / case.agents)))

    def _comparison(self) -> Iterator[Trial]:
        for case in self.cases:
            for policy in COMPARED:
                yield from trials_of(case, policy, self.seeds)

    def _singles(self) -> Iterator[Trial]:
        for case in self.ablated:
            for policy in (Policy.HIVEMIND, *map(without, Primitive)):
                yield from trials_of(case, policy, self.seeds_without(case))


def trials_of(case: Case, policy: Policy, seeds: int) -> Iterator[Trial]:
    """A case under a policy, on every kind of limits that it is run on."""
    for kind in case.kinds:
        for seed in range(seeds):
            yield Trial(Setup(case, kind, headers=True, policy=policy), seed)


def once_each(trials: Iterable[Trial]) -> list[Trial]:
    """The same without repetitions, in their order."""
    return list({(trial.setup.name, trial.seed): trial for trial in trials}.values())


def full_plan(seeds: int) -> CampaignPlan:
    """Everything."""
    every = tuple(cases().values())
    return CampaignPlan(every, seeds, seeds, every)


def quick_plan(seeds: int) -> CampaignPlan:
    """A few small scenarios, to see that it works."""
    few = tuple(cases()[name] for name in ("micro-10", "replay-11", "incident"))
    return CampaignPlan(few, seeds, 1, few)


@dataclass(frozen=True, slots=True)
class Key:
    """Which runs."""

    scenario: str
    kind: LimitKind | None
    policy: str


@dataclass(frozen=True, slots=True)
class Runs:
    """The figures of runs, by what was run."""

    by_key: Mapping[Key, tuple[Figures, ...]]
    """In the order of their seeds."""

    def __len__(self) -> int:
        return sum(map(len, self.by_key.values()))

    def of(self, case: Case, kind: LimitKind | None, policy: Policy) -> tuple[Figures, ...]:
        """The runs of one setup; empty when it was not run."""
        return self.by_key.get(Key(case.name, kind, policy.name), ())

    def of_all_kinds(self, case: Case, policy: Policy) -> tuple[Figures, ...]:
        """Of every kind of limits, one after the other."""
        return tuple(figures for kind in case.kinds for figures in self.of(case, kind, policy))

    def paired(self, case: Case, kind: LimitKind | None, policy: Policy) -> list[tuple[Figures, Figures]]:
        """The scheduler's run and this policy's, of each seed that both have."""
        return list(zip(self.of(case, kind, Policy.HIVEMIND), self.of(case, kind, policy), strict=False))


@dataclass(frozen=True, slots=True)
class Campaign:
    """A plan and what came of it."""

    plan: CampaignPlan
    runs: Runs


def run_campaign(plan: CampaignPlan, *, workers: int, done: Callable[[str], None]) -> Campaign:
    """Run it all; the same figures with any number of workers."""
    return Campaign(plan, run_all(plan.trials(), workers=workers, done=done))


def run_all(trials: Sequence[Trial], *, workers: int, done: Callable[[str], None]) -> Runs:
    """Run each trial; the same figures with any number of workers."""
    figures = run_trials(trials, digest, workers=workers, done=lambda trial: done(trial.setup.name))
    runs: dict[Key, list[tuple[int, Figures]]] = {}
    for trial, made in zip(trials, figures, strict=True):
        setup = trial.setup
        runs.setdefault(Key(setup.case.name, setup.kind, setup.policy.name), []).append((trial.seed, made))
    return Runs({key: tuple(made for _, made in sorted(some, key=_seed)) for key, some in runs.items()})


def _seed(entry: tuple[int, Figures]) -> int:
    return entry[0]


def size(plan: CampaignPlan) -> int:
    """How many runs it takes."""
    return len(plan.trials())
