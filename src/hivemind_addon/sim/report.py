"""Series of runs for people and programs: the measures of a run, a table for a terminal, and JSON."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, geometric_mean

import msgspec
from rich.table import Table
from rich.text import Text

from hivemind_addon.sim.expectation import NO_PROXY
from hivemind_addon.sim.figures import Figures
from hivemind_addon.sim.library import Case
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.trial import Series

FEW_LOST = 0.01
"""With more agents lost than this share, the time that a run took says nothing: who dies early is done early."""


def percent(share: float) -> str:
    """A share, as short as possible."""
    if share and share < 0.000_95:
        return f"{100 * share:.2g} %"
    return f"{100 * share:.0f} %" if share >= 0.0995 or not share else f"{100 * share:.1f} %"


def ratio(value: float) -> str:
    """With two decimals, or short where the value is large."""
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure by which policies are compared."""

    name: str
    short: str
    value: Callable[[Figures], float | None]
    """Of a run; None: the figure says nothing there."""
    words: Callable[[float], str]
    about: str
    is_ratio: bool = False
    """Means of it are geometric."""

    def of(self, runs: Sequence[Figures]) -> float | None:
        """The mean over runs of a world; None where no run has the figure."""
        values = [value for run in runs if (value := self.value(run)) is not None]
        if not values:
            return None
        return geometric_mean(values) if self.is_ratio else fmean(values)


def _if_kept(value: Callable[[Figures], float]) -> Callable[[Figures], float | None]:
    """Only of a run that keeps its agents, and above zero."""
    return lambda run: value(run) if run.lost <= FEW_LOST * run.agents and value(run) > 0 else None


LOST = Measure(
    "agents lost", "lost", lambda run: run.lost / run.agents, percent, "agents whose call failed for good, of all"
)
REFUSED = Measure(
    "attempts refused",
    "refused",
    lambda run: run.refused / run.attempts if run.attempts else 0.0,
    percent,
    "attempts that a limit or the concurrency cap refused, of all; errors by chance and outages do not count",
)
TIME = Measure(
    "time ÷ bound",
    "÷ bound",
    _if_kept(lambda run: run.shared_stretch if math.isfinite(run.shared_stretch) else 0.0),
    ratio,
    "the end of the last agent ÷ a lower bound that no schedule can beat (`sim/bound.py`); what a neighbour took, and "
    "what failed attempts took, counts as spent",
    is_ratio=True,
)
TURN = Measure(
    "p95 of a turn, s",
    "p95 s",
    _if_kept(lambda run: run.turn_p95_s),
    lambda value: f"{value:.1f}",
    "what 95 % of the answered turns take at most, from the first ask to the whole answer",
    is_ratio=True,
)
WASTED = Measure(
    "tokens wasted",
    "wasted",
    lambda run: run.wasted_tokens / run.billed_tokens if run.billed_tokens else 0.0,
    percent,
    "tokens that are paid for attempts without an answer and for agents that were lost, of all tokens paid",
)
COST = Measure(
    "input cost ÷ ideal",
    "cost",
    lambda run: run.cost_ratio,
    ratio,
    "what the input costs ÷ what it costs with a prompt cache that forgets nothing",
)
FAIRNESS = Measure(
    "fairness",
    "fair",
    lambda run: run.fairness or None,
    ratio,
    "Jain's index of the turns that the agents of a crowd have had when half of the time is over, in the crowd that is "
    "worst off: 1 is equal",
)
IDLE = Measure(
    "idle for nothing, s",
    "idle s",
    lambda run: run.idle_s,
    lambda value: f"{value:.0f}",
    "the longest time that nothing is sent though the provider would serve all who wait",
)
MEASURES = (LOST, REFUSED, TIME, TURN, WASTED, COST, FAIRNESS, IDLE)
"""The columns of every table."""


def listing(cases: Sequence[Case]) -> Table:
    """A line for each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for case in cases:
        table.add_row(case.name, case.about)
    return table


def table(series: Sequence[Series]) -> Table:
    """A line for each world, below it a line for each policy. Fits 80 columns."""
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    made.add_column("world, policy", overflow="fold")
    for measure in MEASURES:
        made.add_column(measure.short, justify="right", no_wrap=True)
    made.add_column("expect", no_wrap=True)
    for one in series:
        made.add_row(Text(one.setup.name, style="bold"))
        for policy, runs in one.runs.items():
            cells: list[Text | str] = [Text(f"  {policy.name}")]
            for measure in MEASURES:
                value = measure.of(runs)
                words = "" if value is None else measure.words(value)
                cells.append(Text(words, style="red" if measure is LOST and value else ""))
            made.add_row(*cells, _kept(one, policy))
    return made


def _kept(series: Series, policy: Policy) -> Text:
    if policy != Policy.HIVEMIND:
        worse = "worse than none" if series.worse(policy) and policy not in NO_PROXY else ""
        return Text(worse, style="red")
    judged = series.verdicts()
    met = sum(verdict.is_met for verdict in judged)
    if met == len(judged):
        return Text(f"✓ {met}" if judged else "nothing", style="green" if judged else "")
    return Text(f"✗ {met}/{len(judged)}", style="red")


def missed(series: Sequence[Series]) -> list[str]:
    """A line for each expectation that the scheduler misses."""
    return [f"{one.setup.name}: {verdict.text}" for one in series for verdict in one.verdicts() if not verdict.is_met]


def as_json(series: Sequence[Series]) -> str:
    """All runs, indented; the same runs give the same text."""
    rows = [
        {
            "scenario": one.setup.case.name,
            "limits": one.setup.kind.value if one.setup.kind else None,
            "headers": one.setup.headers,
            "policy": policy.name,
            "runs": [{"seed": seed, **_as_row(run)} for seed, run in zip(one.seeds, runs, strict=True)],
            "expected": [
                asdict(verdict) | {"met": verdict.is_met}
                for verdict in (one.verdicts() if policy == Policy.HIVEMIND else ())
            ],
        }
        for one in series
        for policy, runs in one.runs.items()
    ]
    return msgspec.json.format(msgspec.json.encode(rows)).decode()


def _as_row(run: Figures) -> dict[str, object]:
    return {name: value for name, value in asdict(run).items() if name != "finished"}
