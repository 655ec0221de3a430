"""Series of runs for people and programs: the measures of a run, a table for a terminal, and JSON."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, geometric_mean

import msgspec
from rich.table import Table
from rich.text import Text

from hivemind_addon.sim.figures import TrialFigures
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
    value: Callable[[TrialFigures], float | None]
    """Of a run; None: the figure says nothing there."""
    words: Callable[[float], str]
    about: str
    is_ratio: bool = False
    """Means of it are geometric."""

    def of(self, runs: Sequence[TrialFigures]) -> float | None:
        """The mean over runs of a world; None where no run has the figure."""
        values = [value for run in runs if (value := self.value(run)) is not None]
        if not values:
            return None
        return geometric_mean(values) if self.is_ratio else fmean(values)


def _if_kept(value: Callable[[TrialFigures], float]) -> Callable[[TrialFigures], float | None]:
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


_TITLE = "world, policy"
_WIDE = 20
"""A longer name of a policy has a line of its own."""


def table(series: Sequence[Series]) -> Text:
    """For each world a line for each policy, and at the end the means over all worlds. Fits 80 columns."""
    blocks = [(one.setup.name, [_row(policy, one) for policy in one.runs]) for one in series if one.runs]
    told = [one for one in series if one.setup.headers and one.runs]
    if len(told) > 1:
        blocks.append((f"mean of {len(told)} worlds", _means(told)))
    rows = [row for _, some in blocks for row in some]
    titles = [measure.short for measure in MEASURES]
    widths = [max(map(len, column)) for column in zip(titles, *(cells for _, cells, _ in rows), strict=True)]
    wide = max(len(_TITLE), *(len(name) for name, *_ in rows if len(name) <= _WIDE), 0)

    def line(name: str, cells: Sequence[str], end: Text) -> Text:
        padded = [f" {cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
        first = Text(padded[0], style="" if cells[0] in ("0 %", titles[0]) else "red")
        start = name.ljust(wide) if len(name) <= wide else f"{name}\n{' ' * wide}"
        return Text.assemble(start, first, *padded[1:], " " if end else "", end)

    lines = [line(_TITLE, titles, Text("expect"))]
    for world, some in blocks:
        lines += [Text(world, style="bold"), *(line(*row) for row in some)]
    return Text("\n").join(lines)


type _Row = tuple[str, list[str], Text]


def _row(policy: Policy, one: Series) -> _Row:
    cells = [_cell(measure, measure.of(one.runs[policy])) for measure in MEASURES]
    return f"  {policy.name}", cells, _kept(one, policy)


def _means(series: Sequence[Series]) -> list[_Row]:
    """Of the policies that ran in every world; of each figure over the worlds in which all these policies have it."""
    policies = [policy for policy in series[0].runs if all(policy in one.runs for one in series)]
    rows: list[_Row] = [(f"  {policy.name}", [], Text()) for policy in policies]
    for measure in MEASURES:
        found = [[measure.of(one.runs[policy]) for policy in policies] for one in series]
        whole = [[value for value in values if value is not None] for values in found if None not in values]
        for number, (_, cells, _) in enumerate(rows):
            column = [values[number] for values in whole]
            mean = (geometric_mean if measure.is_ratio else fmean)(column) if column else None
            cells.append(_cell(measure, mean))
    return rows


def _cell(measure: Measure, value: float | None) -> str:
    return "" if value is None else measure.words(value)


def _kept(series: Series, policy: Policy) -> Text:
    if policy != Policy.HIVEMIND:
        return Text("worse" if series.worse(policy) else "", style="red")
    judged = series.verdicts()
    met = sum(verdict.is_met for verdict in judged)
    if met == len(judged):
        return Text(f"✓ {met}" if judged else "", style="green")
    return Text(f"✗ {met}/{len(judged)}", style="red")


def kept(series: Sequence[Series]) -> str:
    """A sentence where expectations were judged."""
    count = sum(len(one.verdicts()) for one in series)
    return f"all {count} expectations of hivemind are kept" if count else ""


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


def _as_row(run: TrialFigures) -> dict[str, object]:
    return {name: value for name, value in asdict(run).items() if name != "finished"}
