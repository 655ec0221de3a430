"""Runs of scenarios in virtual time, in turn or on several cores, and series of them to judge."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from statistics import median

from hivemind_addon.sim.expectation import Verdict
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
    """A case on a kind of limits, under a policy."""

    case: Case
    kind: LimitKind | None
    """None: as the case says."""
    headers: bool
    policy: Policy

    @property
    def limits(self) -> str:
        """In words."""
        words = self.kind.value if self.kind else "as stated" if self.case.scenario.provider.limits else "none"
        return words if self.headers else f"{words}, no headers"

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.case.name}, {self.limits}, {self.policy.name}"


@dataclass(frozen=True, slots=True)
class Trial:
    """A run to be done."""

    setup: Setup
    seed: int

    def run(self) -> Result:
        """Do the run."""
        setup = self.setup
        try:
            return run(setup.case.at(setup.kind, headers=setup.headers), seed=self.seed, policy=setup.policy)
        except PolicyFault as fault:
            raise PolicyFault(f"{fault.message}\n  in {setup.case.name}, {setup.limits}, seed {self.seed}") from None


def once_each(trials: Iterable[Trial]) -> list[Trial]:
    """The same trials without repetitions, in their order."""
    return list({(trial.setup.name, trial.seed): trial for trial in trials}.values())


def run_trials[T](
    trials: Sequence[Trial],
    digest: Callable[[Trial, Result], T],
    *,
    workers: int = 1,
    done: Callable[[Trial], None] = lambda _: None,
) -> list[T]:
    """The result of `digest` for each run, in the trials' order; the same with any number of workers.

    With more than one, `digest` has to be a module's function with picklable results.
    """
    digests = []
    with in_processes(min(workers, len(trials))) as each:
        for trial, made in zip(trials, each(partial(_run, digest), trials), strict=True):
            digests.append(made)
            done(trial)
    return digests


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


def _run[T](digest: Callable[[Trial, Result], T], trial: Trial) -> T:
    return digest(trial, trial.run())


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of a setup, for each seed from 0."""

    setup: Setup
    runs: tuple[Result, ...]

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

    def status(self, *statuses: int) -> int:
        """Attempts with any of these."""
        return sum(run.statuses[status] for run in self.runs for status in statuses)

    def median_of(self, value: Callable[[Result], float]) -> float:
        """Over the runs."""
        return median(map(value, self.runs))

    def worst_of(self, value: Callable[[Result], float]) -> float:
        """The largest of the runs."""
        return max(map(value, self.runs))

    def beside(self, others: Sequence["Series"]) -> Mapping[Policy, Sequence[Result]]:
        """The runs of the same under each policy."""
        same = (one for one in others if replace(one.setup, policy=self.setup.policy) == self.setup)
        return {one.setup.policy: one.runs for one in same}

    def verdicts(self, others: Sequence["Series"]) -> Iterator[Verdict]:
        """The verdicts of the case on these runs; `others` may hold the same under the policies to compare with."""
        setup, beside = self.setup, self.beside(others)
        for expectation in setup.case.expect:
            if expectation.covers(setup.kind, headers=setup.headers):
                yield from expectation.verdicts(self.runs, beside)


def setups(case: Case, policies: Sequence[Policy], kinds: Sequence[LimitKind] = tuple(LimitKind)) -> Iterator[Setup]:
    """All setups of a case: the kinds of limits (those of `kinds`), and for the scheduler also without headers
    where a case expects something of that; and the policies that a case compares with.
    """
    for kind in case.kinds:
        if kind is not None and kind not in kinds:
            continue
        for headers in (True, False):
            wanted = [*policies] if headers else []
            if Policy.HIVEMIND in policies and not headers and False in case.has_headers_and_not:
                wanted.append(Policy.HIVEMIND)
            if Policy.HIVEMIND in wanted:
                wanted += (need for one in case.expect if one.covers(kind, headers=headers) for need in one.needs)
            for policy in dict.fromkeys(wanted):
                yield Setup(case, kind, headers=headers, policy=policy)


def run_series(
    wanted: Sequence[Setup], *, seeds: int, workers: int = 1, done: Callable[[Trial], None] = lambda _: None
) -> list[Series]:
    """The runs of each setup."""
    trials = [Trial(setup, seed) for setup in wanted for seed in range(seeds)]
    results = run_trials(trials, whole, workers=workers, done=done)
    return [Series(setup, tuple(results[index * seeds : (index + 1) * seeds])) for index, setup in enumerate(wanted)]


def whole(_: Trial, result: Result) -> Result:
    """The result itself, as what `run_trials` keeps of a run."""
    return result
