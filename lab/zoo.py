"""The zoo: limiters of many kinds before the real scheduler, beside an oracle that may ask them, and the goals.

Nobody is lost; refusals, use of a cap, and the time stay near the oracle's. The entries are in
`zoo_entries.py`, the runs in `closed_loop.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import mean, median

from rich.table import Table
from rich.text import Text

from hivemind_addon.sim.trial import in_processes
from lab.closed_loop import Run, compare
from lab.markdown import markdown_table
from lab.zoo_entries import ZOO, ZooEntry

_REFUSED_SHARE = 0.03
_REFUSED_OVER_ORACLE = 0.01
_OVER_CAP_SHARE = 0.02
_CAP_USED = 0.9


@dataclass(frozen=True)
class Measure:
    """The runs of an entry, by seed: through the scheduler, and the oracle's."""

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
        """Time ÷ the oracle's, the mean of the runs: a run that stalls is not to be hidden by the others."""
        return mean(self.stretches)

    @property
    def over_cap(self) -> float:
        """Share of the attempts that a cap refused."""
        return sum(run.over_cap for run in self.mine) / sum(run.attempts for run in self.mine)

    @property
    def used(self) -> float | None:
        """Share of the cap that was used while there was enough to fill the cap, of the oracle's use."""
        pairs = zip(self.mine, self.oracle, strict=True)
        shares = [mine.used / oracle.used for mine, oracle in pairs if mine.used is not None and oracle.used]
        return mean(shares) if shares else None

    def misses(self) -> list[str]:
        """A line for each goal that is not reached."""
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
    """Run each entry with so many seeds; with several workers the entries have to be the zoo's own."""
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
    """A line for each goal that is not reached and could be."""
    return [line for one in measures if not one.entry.beyond for line in one.misses()]


_SECTION = """\
## The zoo

Limiters of many kinds (`lab/zoo_entries.py`), each before 20 agents of 20 turns where nothing else is said, through
the real scheduler, beside an oracle that may ask the limiter: it sends each request at the instant at which it passes,
in the best of three orders, and only chance refuses it. {seeds} seeds. *Refused* is the share of the attempts that were
not answered, for whatever reason, and the oracle's; *time* is divided by the oracle's, the mean and the worst of the
runs; *cap* is how much of a limit on attempts at once was used while there was enough to fill it, of what the oracle
used, and the share of the attempts that it refused. Agents that still run after 30 times the oracle's time, or after 20
attempts for each turn, count as lost.

The goals: nobody lost; refused ≤ 3 %, or 1 point over the oracle's; time ≤ 1.15 in the mean (≤ 1.10 with up to 6 % of
529 by chance); more than 90 % of a cap used at ≤ 2 % refused by it.

"""


def table(measures: Sequence[Measure]) -> Table:
    """Each entry in a line, with the columns that `section` explains. Fits 80 columns."""
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    made.add_column("entry", no_wrap=True)
    for name in ("lost", "refused", "oracle", "÷ oracle", "s", "cap", "over"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    for one in measures:
        is_met = not one.misses()
        made.add_row(
            one.entry.name,
            Text(f"{one.lost}", style="red" if one.lost else ""),
            f"{one.refused:.1%}",
            f"{one.oracle_refused:.1%}",
            f"{one.stretch:.2f}-{max(one.stretches):.2f}",
            f"{median(run.time_s for run in one.mine):.0f}",
            "" if one.used is None else f"{one.used:.0%}",
            "" if one.used is None else f"{one.over_cap:.1%}",
            Text("✓" if is_met else "beyond" if one.entry.beyond else "✗", style="green" if is_met else "red"),
        )
    return made


def section(measures: Sequence[Measure]) -> str:
    """The same as Markdown, with a description of each entry."""
    rows = []
    for one in measures:
        cap = "" if one.used is None else f"{one.used:.0%}, {one.over_cap:.1%}"
        word = "met" if not one.misses() else "beyond" if one.entry.beyond else "**missed**"
        rows.append(
            f"{one.entry.name} | {one.entry.about} | {one.lost} of {one.agents} "
            f"| {one.refused:.1%}, {one.oracle_refused:.1%} "
            f"| {one.stretch:.2f}, {max(one.stretches):.2f} | {cap} | {word}"
        )
    beyond = [f"- `{one.entry.name}` is beyond: {one.entry.beyond}" for one in measures if one.entry.beyond]
    titles = "Entry | What | Lost | Refused, oracle's | Time ÷ oracle's | Cap used, refused by it |"
    text = _SECTION.format(seeds=max((len(one.mine) for one in measures), default=0)) + markdown_table(titles, rows)
    return text + ("\n" + "\n".join(beyond) + "\n" if beyond else "")
