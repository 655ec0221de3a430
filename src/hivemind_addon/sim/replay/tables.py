"""What `hivemind replay` shows people: pure, from a replay to tables."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hivemind_addon.proxy.api.words import amount, brief, printable, several, short
from hivemind_addon.sim.replay.whatif import Night, PolicyNights, WhatIf

_GAPS = 2, 1
"""Blanks between columns: as many as fit."""


def what_if_view(replay: WhatIf, title: str, width: int) -> RenderableType:
    """The answer in a sentence, the limits, a table with a column for each policy, and what to know about it."""
    times = f", {replay.copies} times" if replay.copies > 1 else ""
    head = f"{title}: {several(replay.recorded.agents, 'agent')}{times}, {several(replay.turns, 'turn')}"
    parts: list[RenderableType] = [Text(printable(head), style="bold")]
    parts += [_paragraph(f"{one.pool}: {', '.join(one.limits) or 'no limit'}") for one in replay.pools]
    parts += ["", *(_paragraph(line) for line in _answers(replay)), ""]
    recorded = PolicyNights("recorded", (replay.recorded,))
    columns = [recorded, *replay.policies]
    parts += [part for table in _tables(columns, width) for part in (table, "")]
    parts += [_paragraph(f"note: {line}", style="yellow") for line in replay.notes]
    return Group(*parts)


def _answers(replay: WhatIf) -> Iterator[str]:
    """Would it have finished, and how fast."""
    for nights in replay.policies:
        runs = nights.runs
        lost = max(run.lost for run in runs)
        agents = runs[0].agents
        if lost:
            yield f"{nights.policy}: {lost} of {several(agents, 'agent')} would have been lost{_deaths(runs)}."
            continue
        whole = "the agent" if agents == 1 else f"all {agents} agents"
        makespan_s = median(run.makespan_s for run in runs)
        slowest = max(runs, key=lambda run: run.bound_s)
        yield (
            f"{nights.policy}: {whole} would have finished, in {brief(makespan_s)}; "
            f"nothing beats {brief(slowest.bound_s)} ({slowest.bound_why})."
        )


def _deaths(runs: Sequence[Night]) -> str:
    """The usual causes, the most frequent first."""
    deaths: Counter[str] = Counter()
    for run in runs:
        deaths.update(run.deaths or {})
    causes = [cause for cause, _ in deaths.most_common() if cause != "never asked"][:2]
    return f" ({', '.join(causes)})" if causes else ""


def _tables(columns: Sequence[PolicyNights], width: int) -> Iterator[Table]:
    """One table, or as many as the width demands."""
    cells = [[cell(nights.runs) for _, cell in _ROWS] for nights in columns]
    widths = [max(len(nights.policy), *map(len, column)) for nights, column in zip(columns, cells, strict=True)]
    labels = max(len(label) for label, _ in _ROWS)
    gap = next((gap for gap in _GAPS if labels + sum(widths) + gap * len(widths) <= width), _GAPS[0])
    first = 0
    while first < len(columns):
        last, taken = first + 1, labels + gap + widths[first]
        while last < len(columns) and taken + gap + widths[last] <= width:
            taken += gap + widths[last]
            last += 1
        yield _table(columns[first:last], cells[first:last], gap)
        first = last


def _table(columns: Sequence[PolicyNights], cells: Sequence[Sequence[str]], gap: int) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, gap - 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    for nights in columns:
        style = "bold" if nights.policy == "hivemind" else "dim" if nights.policy == "recorded" else ""
        table.add_column(nights.policy, justify="right", style=style, no_wrap=True)
    for (label, _), *row in zip(_ROWS, *cells, strict=True):
        table.add_row(label, *row)
    return table


def _spread(of: Callable[[Night], float], show: Callable[[float], str]) -> Callable[[Sequence[Night]], str]:
    """The median over the seeds."""
    return lambda runs: show(median(map(of, runs)))


def _finished(runs: Sequence[Night]) -> str:
    """Of the worst seed."""
    worst = max(runs, key=lambda run: run.lost)
    return f"{worst.agents - worst.lost}/{worst.agents}"


def _turns(runs: Sequence[Night]) -> str:
    worst = min(runs, key=lambda run: run.turns_done)
    return f"{worst.turns_done}/{worst.turns}"


def _time(runs: Sequence[Night]) -> str:
    return brief(median(run.makespan_s for run in runs)) if _is_done(runs) else "not done"


def _stretch(runs: Sequence[Night]) -> str:
    """Only where the work was done: the dead are fast."""
    if not _is_done(runs) or not all(run.bound_s for run in runs):
        return "-"
    return f"{median(run.makespan_s / run.bound_s for run in runs):.2f}"


def _is_done(runs: Sequence[Night]) -> bool:
    return not any(run.lost for run in runs)


def _money(micro_usd: float) -> str:
    return amount("micro_usd", math.ceil(micro_usd)) if micro_usd else "-"


def _number(value: float) -> str:
    return f"{value:,.0f}"


_ROWS: tuple[tuple[str, Callable[[Sequence[Night]], str]], ...] = (
    ("finished", _finished),
    ("turns done", _turns),
    ("time", _time),
    ("time ÷ bound", _stretch),
    ("attempts", _spread(lambda run: run.attempts, _number)),
    ("refused", _spread(lambda run: run.refusals, _number)),
    ("overloaded", _spread(lambda run: run.overloads, _number)),
    ("other failures", _spread(lambda run: run.failures, _number)),
    ("delay p50", _spread(lambda run: run.delays.p50_s, brief)),
    ("delay p95", _spread(lambda run: run.delays.p95_s, brief)),
    ("delay p99", _spread(lambda run: run.delays.p99_s, brief)),
    ("tokens", _spread(lambda run: run.spent.tokens, short)),
    ("in vain", _spread(lambda run: run.wasted.tokens, short)),
    ("cost", _spread(lambda run: run.spent.micro_usd, _money)),
)


def _paragraph(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)
