"""The runs of `hivemind lab papers`, and their results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hivemind_addon.sim.ablation import Primitive
from hivemind_addon.sim.library import Case, cases, random_case
from hivemind_addon.sim.policy import COMPARED, Policy, without
from hivemind_addon.sim.result import Result
from hivemind_addon.sim.trial import Setup, Trial, once_each, run_trials, whole
from lab import compaction
from lab.evaluate.campaign import Runs, run_all, trials_of
from lab.papers import paper_figures, queues
from lab.papers.claims import percent
from lab.papers.overhead import Overhead
from lab.papers.philosophers import Dinner, LockWay, locks, talks

THIRTY = range(25, 36)
"""Sizes of random loads that count as thirty agents."""
EVERYONE = (*COMPARED, *queues.AGENTRM)
"""Every policy but the scheduler without something."""
CASCADE_POLICIES = (*queues.AGENTRM, Policy.SDK, Policy.HIVEMIND)
INCIDENT_POLICIES = (
    Policy.SDK,
    Policy.AIMD_PAUSE,
    queues.MLFQ,
    without(Primitive.HIDDEN_LIMITS, Primitive.BREAKER),
    without(Primitive.BREAKER),
    Policy.HIVEMIND,
)
"""Each for itself; in a queue without a shared breaker, and with such a breaker."""
LOAD_POLICIES = (Policy.HIVEMIND, Policy.AIMD_PAUSE, Policy.SDK)
TALKED_KEPT = (0.0, paper_figures.WORDS_KEPT, paper_figures.WORDS_KEPT_AT_BEST, 1.0)
"""How often an agent keeps an agreement."""
ALIKE = (0.5, 1.0)
"""How alike the agents are: a coin, and three copies."""
_ABLATION_SEEDS = 10
_RANDOM_LOADS = 600
"""Of which those of about thirty agents are run."""
_CASCADE, _FLEET, _INCIDENT = "agentrm-cascade", "fleet-at-two", "incident"
PRIMITIVES: Mapping[str, Sequence[Primitive]] = {
    "admission control": (Primitive.HIDDEN_LIMITS,),
    "rate-limit tracking": (Primitive.METERS,),
    "backpressure with a breaker": (Primitive.BREAKER,),
    "token budgets": (Primitive.BUDGETS,),
    "priority queue": (Primitive.PRIORITY,),
    "transparent retry": (Primitive.RETRY,),
}
"""HiveMind's name → ours that do the same."""


@dataclass(frozen=True, slots=True)
class PapersPlan:
    """The runs. Seeds are counted from 0."""

    hivemind: tuple[Case, ...]
    """The scenarios of the HiveMind paper."""
    ablated: tuple[Case, ...]
    """Where primitives are taken away."""
    cascade: Case
    """AgentRM's."""
    fleet: Case
    """The article's thirty agents."""
    incident: Case
    """A provider that is down for a while."""
    seeds: int
    ablation_seeds: int
    """Where primitives are taken away; no more than `seeds`."""
    loads: tuple[Case, ...]
    """Random ones, of thirty agents or so."""
    load_seeds: int
    dinners: int
    """Runs of the philosophers, of each way."""
    compacts: bool
    """Whether compaction is measured."""

    @property
    def packaged(self) -> Case:
        """AgentRM's cascade, with the watchdog as the profiles have it."""
        scenario = replace(self.cascade.scenario, name=f"{self.cascade.name}, as packaged", silent_s=None)
        return replace(self.cascade, scenario=scenario)

    @property
    def compared(self) -> tuple[Case, ...]:
        """The cases of every policy."""
        return (*self.hivemind, self.fleet, self.incident, self.cascade)

    def trials(self) -> list[Trial]:
        """All but the random loads, each once."""
        compared = (trial for case in self.compared for policy in EVERYONE for trial in self._runs(case, policy))
        incident = (trial for policy in INCIDENT_POLICIES for trial in self._runs(self.incident, policy))
        ablated = (
            trial
            for case in self.ablated
            for policy in (Policy.HIVEMIND, *(without(*some) for some in PRIMITIVES.values()))
            for trial in trials_of(case, policy, min(self.seeds, self.ablation_seeds))
        )
        return once_each((*compared, *self._runs(self.packaged, Policy.HIVEMIND), *incident, *ablated))

    def load_trials(self) -> list[Trial]:
        """Of the random loads."""
        return [
            Trial(Setup(case, None, headers=True, policy=policy), seed)
            for case in self.loads
            for policy in LOAD_POLICIES
            for seed in range(self.load_seeds)
        ]

    def _runs(self, case: Case, policy: Policy) -> Sequence[Trial]:
        return list(trials_of(case, policy, self.seeds))


def full_plan(seeds: int) -> PapersPlan:
    """Everything: some minutes."""
    papers = tuple(case for case in cases().values() if case.paper)
    return PapersPlan(
        hivemind=papers,
        ablated=(*papers, *(cases()[name] for name in ("incident", "changing-cap", "budgets", "priorities"))),
        cascade=cases()[_CASCADE],
        fleet=cases()[_FLEET],
        incident=cases()[_INCIDENT],
        seeds=seeds,
        ablation_seeds=_ABLATION_SEEDS,
        loads=loads_of_thirty(_RANDOM_LOADS),
        load_seeds=3,
        dinners=200,
        compacts=True,
    )


def quick_plan(seeds: int) -> PapersPlan:
    """A few small scenarios, as a test of the command."""
    papers = tuple(cases()[name] for name in ("micro-10", "replay-11", "stress"))
    return PapersPlan(
        hivemind=papers,
        ablated=papers[1:2],
        cascade=cases()[_CASCADE],
        fleet=cases()[_FLEET],
        incident=cases()[_INCIDENT],
        seeds=seeds,
        ablation_seeds=1,
        loads=loads_of_thirty(30),
        load_seeds=1,
        dinners=5,
        compacts=False,
    )


def loads_of_thirty(count: int) -> tuple[Case, ...]:
    """Of the first so many random loads, those of thirty agents or so."""
    return tuple(case for case in map(random_case, range(count)) if case.agents in THIRTY)


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A run of a random load."""

    case: Case
    policy: Policy
    seed: int
    figures: Result

    @property
    def lost(self) -> float:
        """Agents, of all; between 0 and 1."""
        return self.figures.lost / self.figures.agents


@dataclass(frozen=True, slots=True)
class DinnerSeries:
    """Runs of three agents in the same way."""

    way: str
    alike: float
    runs: Sequence[Dinner]

    @property
    def deadlocked(self) -> float:
        """Share of the runs in which each held a single thing at some time."""
        return sum(run.deadlocked for run in self.runs) / len(self.runs)

    @property
    def stuck(self) -> float:
        """Share of the runs in which that was so at the end."""
        return sum(run.is_stuck for run in self.runs) / len(self.runs)

    @property
    def used(self) -> float:
        """Mean of how often somebody had both things."""
        return sum(run.used for run in self.runs) / len(self.runs)


@dataclass(frozen=True, slots=True)
class Experiments:
    """All that the page is made of."""

    plan: PapersPlan
    runs: Runs
    loads: Sequence[LoadRun]
    dinners: Sequence[DinnerSeries]
    compaction: Sequence[tuple[str, str, str]]
    """Name, theirs, ours; empty: not measured."""
    overhead: Overhead | None
    """None: nobody measured it."""


def run_papers(
    plan: PapersPlan, *, workers: int, overhead: Overhead | None, done: Callable[[str], None]
) -> Experiments:
    """Run all; the same figures with any number of workers."""
    runs = run_all(plan.trials(), workers=workers, done=done)
    trials = plan.load_trials()
    figures = run_trials(trials, whole, workers=workers, done=lambda trial: done(trial.setup.name))
    loads = [
        LoadRun(trial.setup.case, trial.setup.policy, trial.seed, made)
        for trial, made in zip(trials, figures, strict=True)
    ]
    dinners = []
    for alike in ALIKE:
        dinners += [_talk(plan.dinners, alike, kept) for kept in TALKED_KEPT]
        dinners += [DinnerSeries(asking.value, alike, locks(plan.dinners, asking, alike=alike)) for asking in LockWay]
    done("philosophers")
    compacted = compaction.rows() if plan.compacts else ()
    done("compaction")
    return Experiments(plan, runs, loads, dinners, compacted, overhead)


def _talk(runs: int, alike: float, kept: float) -> DinnerSeries:
    way = f"talk, {percent(kept)} of the words kept" if kept else "no word"
    return DinnerSeries(way, alike, talks(runs, alike=alike, kept=kept))


def size(plan: PapersPlan) -> int:
    """How many times `run_papers` says that something is done."""
    return len(plan.trials()) + len(plan.load_trials()) + 2
