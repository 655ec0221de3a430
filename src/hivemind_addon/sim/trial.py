"""Runs in virtual time, in turn or on several cores: cases, kinds of limits, policies and seeds.

setups(case) ──► run_series(setups, policies, seeds) ──► Series: figures by policy and seed ──► verdicts
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from hivemind_addon.sim.expectation import NO_PROXY, Verdict, beside_no_proxy
from hivemind_addon.sim.figures import TrialFigures, figures_of
from hivemind_addon.sim.library import Case
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.policy_file import PolicyFault
from hivemind_addon.sim.result import Result
from hivemind_addon.sim.world import run

_CHUNK = 8
"""Trials that a process is given at once."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A case on a kind of limits: a world, to be run under policies."""

    case: Case
    kind: LimitKind | None = None
    """None: as the case says."""
    headers: bool = True

    @property
    def limits(self) -> str:
        """In words."""
        words = self.kind.value if self.kind else "as stated" if self.case.scenario.provider.limits else "none"
        return words if self.headers else f"{words}, no headers"

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.case.name}, {self.limits}"

    def policies(self, policies: Sequence[Policy]) -> tuple[Policy, ...]:
        """The policies to be run: without headers the scheduler alone; and those that expectations compare with."""
        wanted = [policy for policy in policies if self.headers or policy == Policy.HIVEMIND]
        if Policy.HIVEMIND in wanted:
            covering = (one for one in self.case.expect if one.covers(self.kind, headers=self.headers))
            wanted += (need for one in covering for need in one.needs)
        return tuple(dict.fromkeys(wanted))


@dataclass(frozen=True, slots=True)
class Trial:
    """A run to be done."""

    setup: Setup
    policy: Policy
    seed: int

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.setup.name}, {self.policy.name}"

    def run(self) -> Result:
        """Do the run."""
        setup = self.setup
        try:
            return run(setup.case.at(setup.kind, headers=setup.headers), seed=self.seed, policy=self.policy)
        except PolicyFault as fault:
            raise PolicyFault(f"{fault.message}\n  in {setup.case.name}, {setup.limits}, seed {self.seed}") from None


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of a setup under some policies, each with the same seeds."""

    setup: Setup
    seeds: Sequence[int]
    runs: Mapping[Policy, tuple[TrialFigures, ...]]

    def verdicts(self) -> list[Verdict]:
        """The bounds of the case and the measured values; empty where the scheduler did not run."""
        if (mine := self.runs.get(Policy.HIVEMIND)) is None:
            return []
        setup = self.setup
        covering = (one for one in setup.case.expect if one.covers(setup.kind, headers=setup.headers))
        return [verdict for one in covering for verdict in one.verdicts(mine, self.runs)]

    def worse(self, policy: Policy = Policy.HIVEMIND) -> list[Verdict]:
        """The verdicts by which a policy is worse than no proxy, where both ran; none for no proxy itself."""
        others = [other for other in NO_PROXY if other in self.runs and policy not in NO_PROXY]
        runs = self.runs.get(policy, ())
        judged = (verdict for other in others for verdict in beside_no_proxy(runs, self.runs[other], other))
        return [verdict for verdict in judged if runs and not verdict.is_met]


def setups(case: Case, kinds: Sequence[LimitKind] = tuple(LimitKind)) -> Iterator[Setup]:
    """All setups of a case: the kinds of limits (those of `kinds`), each also without headers where the case expects
    something of that.
    """
    for kind in case.kinds:
        if kind is None or kind in kinds:
            for headers in case.has_headers_and_not:
                yield Setup(case, kind, headers=headers)


def trials_of(setup: Setup, policies: Sequence[Policy], seeds: Sequence[int]) -> list[Trial]:
    """The runs of a series."""
    return [Trial(setup, policy, seed) for policy in setup.policies(policies) for seed in seeds]


def run_series(
    wanted: Sequence[Setup],
    policies: Sequence[Policy],
    seeds: Sequence[int],
    *,
    workers: int = 1,
    done: Callable[[str], None] = lambda _: None,
) -> list[Series]:
    """The runs of each setup. `done` is called with the name of each run."""
    trials = [trials_of(setup, policies, seeds) for setup in wanted]
    figures = iter(run_trials([one for some in trials for one in some], workers=workers, done=done))
    return [
        Series(
            setup,
            tuple(seeds),
            {policy: tuple(next(figures) for _ in seeds) for policy in setup.policies(policies)},
        )
        for setup in wanted
    ]


def run_trials(
    trials: Sequence[Trial], *, workers: int = 1, done: Callable[[str], None] = lambda _: None
) -> list[TrialFigures]:
    """The figures of each run, in the trials' order; the same with any number of workers."""
    found = []
    with in_processes(min(workers, len(trials))) as each:
        for trial, figures in zip(trials, each(_figures, trials), strict=True):
            found.append(figures)
            done(trial.name)
    return found


def _figures(trial: Trial) -> TrialFigures:
    # The usual thresholds cost a large world a quarter of its time (3.12, 2026-11): most of its objects stay.
    gc.set_threshold(100_000, 50, 100)
    return figures_of(trial.run())


class in_processes:  # noqa: N801 - used as a function
    """A `map` that works in so many processes, or in this process. Arguments and results have to be picklable."""

    def __init__(self, count: int) -> None:
        # Spawned, not forked: whoever calls may have threads.
        self._pool = ProcessPoolExecutor(count, mp_context=get_context("spawn")) if count > 1 else None

    def __enter__[A, T](self) -> Callable[[Callable[[A], T], Sequence[A]], Iterable[T]]:
        return map if self._pool is None else partial(self._pool.map, chunksize=_CHUNK)

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
