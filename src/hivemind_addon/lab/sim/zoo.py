"""The zoo: limiters of many kinds before the real scheduler, beside an oracle that may ask them, and the goals.

Nobody is lost; what is refused, how far a cap is used, and the time stay near the oracle's. The entries are in
`zoo_entries.py`, the runs in `closed_loop.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import mean

from hivemind_addon.lab.sim.closed_loop import Run, compare
from hivemind_addon.lab.sim.trial import in_processes
from hivemind_addon.lab.sim.zoo_entries import ZOO, ZooEntry

_REFUSED_SHARE = 0.03
_REFUSED_OVER_ORACLE = 0.01
_OVER_CAP_SHARE = 0.02
_CAP_USED = 0.9


@dataclass(frozen=True)
class Measure:
    """The runs of one entry, by seed: through the scheduler, and the oracle's."""

    entry: ZooEntry
    mine: tuple[Run, ...]
    oracle: tuple[Run, ...]

    @property
    def lost(self) -> int:
        """Agents, of all runs."""
        return sum(run.lost for run in self.mine)

    @property
    def agents(self) -> int:
        """Of all runs."""
        return sum(run.agents for run in self.mine)

    @property
    def refused(self) -> float:
        """Share of the attempts that were not answered, for whatever reason."""
        return _failed_share(self.mine)

    @property
    def oracle_refused(self) -> float:
        """The oracle's share: chance alone."""
        return _failed_share(self.oracle)

    @cached_property
    def stretches(self) -> list[float]:
        """Time ÷ the oracle's, of each run."""
        return [mine.time_s / oracle.time_s for mine, oracle in zip(self.mine, self.oracle, strict=True)]

    @property
    def stretch(self) -> float:
        """Time ÷ the oracle's, the mean of the runs: one that stalls is not to be hidden by the others."""
        return mean(self.stretches)

    @property
    def over_cap(self) -> float:
        """Share of the attempts that a cap refused."""
        return sum(run.over_cap for run in self.mine) / sum(run.attempts for run in self.mine)

    @property
    def used(self) -> float | None:
        """Share of the cap that was used while there was enough to fill it, of what the oracle used."""
        pairs = zip(self.mine, self.oracle, strict=True)
        shares = [mine.used / oracle.used for mine, oracle in pairs if mine.used is not None and oracle.used]
        return mean(shares) if shares else None

    def misses(self) -> list[str]:
        """One line for each goal that is not reached."""
        return [f"{self.entry.name}: {what}" for what in self._misses()]

    def _misses(self) -> Iterator[str]:
        if self.lost:
            yield f"{self.lost} of {self.agents} agents lost"
        most = max(_REFUSED_SHARE, self.oracle_refused + _REFUSED_OVER_ORACLE)
        if self.refused > most:
            yield f"{self.refused:.1%} refused, at most {most:.1%}"
        if self.stretch > self.entry.time_goal:
            yield f"time ÷ oracle's {self.stretch:.2f}, at most {self.entry.time_goal:.2f}"
        if self.over_cap > _OVER_CAP_SHARE:
            yield f"{self.over_cap:.1%} over the cap, at most {_OVER_CAP_SHARE:.0%}"
        if self.used is not None and self.used <= _CAP_USED:
            yield f"{self.used:.0%} of the cap used, more than {_CAP_USED:.0%} wanted"


def _failed_share(runs: Sequence[Run]) -> float:
    return sum(run.refused + run.struck for run in runs) / sum(run.attempts for run in runs)


def measure(
    wanted: Sequence[ZooEntry], *, seeds: int, workers: int = 1, done: Callable[[str], None] = lambda _: None
) -> list[Measure]:
    """Run each entry with so many seeds; with more than one worker the entries have to be the zoo's own."""
    if workers == 1:
        runs_of = (_runs(entry, seeds) for entry in wanted)
        return [_measured(entry, runs, done) for entry, runs in zip(wanted, runs_of, strict=True)]
    names = [entry.name for entry in wanted]
    with in_processes(workers) as each:
        every = zip(wanted, each(partial(_runs_of_name, seeds), names), strict=True)
        return [_measured(entry, runs, done) for entry, runs in every]


def _measured(entry: ZooEntry, runs: Sequence[tuple[Run, Run]], done: Callable[[str], None]) -> Measure:
    done(f"zoo:{entry.name}")
    return Measure(entry, tuple(mine for mine, _ in runs), tuple(oracle for _, oracle in runs))


def _runs_of_name(seeds: int, name: str) -> list[tuple[Run, Run]]:
    """Entries are made of functions, which cannot be sent to another process."""
    (entry,) = (one for one in ZOO if one.name == name)
    return _runs(entry, seeds)


def _runs(entry: ZooEntry, seeds: int) -> list[tuple[Run, Run]]:
    return [compare(entry.gateway, entry.crowd, seed=seed) for seed in range(seeds)]


def missed(measures: Iterable[Measure]) -> list[str]:
    """One line for each goal that is not reached and could be."""
    return [line for one in measures if not one.entry.beyond for line in one.misses()]
