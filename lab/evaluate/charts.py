"""The charts of a comparison, drawn by matplotlib as SVG.

Colours are Okabe and Ito's, which people with colour blindness can distinguish; every series also has a marker of its
own, for grey paper. Each chart has a background, so that dark and light pages can show the chart. The same numbers
give the same bytes.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from lab.evaluate.chart_data import Bars, Changes, ChartData, ScenarioGrid

_LOOKS: Mapping[str, tuple[str, str]] = {
    "direct": ("#767676", "x"),
    "sdk-retry": ("#C77C00", "v"),
    "aimd-pause": ("#B85C92", "s"),
    "fifo": ("#2E92C9", "D"),
    "hivemind": ("#0B5D94", "o"),
}
_CARD = "#f4f5f7"
_INK = "#24292f"
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "figure.facecolor": _CARD,
    "axes.facecolor": _CARD,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "hivemind",
    "svg.fonttype": "none",
}
_ROW_IN = 0.26
"""Inches of a line of a chart."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture."""

    name: str
    title: str
    svg: str


def charts(data: ChartData) -> list[Chart]:
    """All of them."""
    with mpl.rc_context(_STYLE):
        made = [
            _chart("lost", "Agents lost", _grid(data.lost, "Agents lost, in % (mean over the seeds)")),
            _chart(
                "refused",
                "Attempts that the provider refused",
                _grid(data.refused, "Attempts refused with 429, 503 or 529, in % (mean over the seeds)"),
            ),
            _chart("stretch", "Time ÷ lower bound, where hardly an agent was lost", _stretch(data.stretch)),
        ]
        if data.ablation is not None:
            made.append(_chart("ablation", "What each primitive is worth, where", _ablation(data.ablation)))
    return made


def _chart(name: str, title: str, figure: Figure) -> Chart:
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    text = svg.getvalue()
    return Chart(name, title, text[text.index("<svg") :])


def _titled(figure: Figure, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left")


def _grid(grid: ScenarioGrid, title: str) -> Figure:
    """Scenarios by policies, a number in each cell; a panel for each kind of limits."""
    figure = Figure(figsize=(8.2, 1.3 + _ROW_IN * len(grid.scenarios)))
    panels = figure.subplots(1, len(grid.panels), sharey=True)
    for axes, (kind, values) in zip(panels, grid.panels.items(), strict=True):
        _cells(
            axes, [[0.0 if value is None else value for value in row] for row in values], cmap="Blues", most=(0, 100)
        )
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                if value is not None:
                    _write(axes, x, y, f"{value:.0f}", is_dark=value > 55)
        axes.set_title(f"limits: {kind}")
        axes.set_xticks(range(len(grid.policies)), grid.policies, rotation=30, ha="right")
        axes.set_yticks(range(len(grid.scenarios)), grid.scenarios)
        axes.set_xlabel("policy")
    panels[0].set_ylabel("scenario")
    _titled(figure, title)
    return figure


def _cells(axes: Axes, values: Sequence[Sequence[float]], *, cmap: str, most: tuple[float, float]) -> None:
    """A coloured cell for each value, the first row on top; drawn as shapes, so that an SVG holds no bitmap."""
    edges_x = [place - 0.5 for place in range(len(values[0]) + 1)]
    edges_y = [place - 0.5 for place in range(len(values) + 1)]
    axes.pcolormesh(edges_x, edges_y, values, edgecolors=_CARD, linewidth=0.5, cmap=cmap, vmin=most[0], vmax=most[1])
    axes.set_ylim(edges_y[-1], edges_y[0])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _write(axes: Axes, x: float, y: float, text: str, *, is_dark: bool) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if is_dark else "black")


def _stretch(bars: Bars) -> Figure:
    """Scenarios by policies, those of a scenario beneath each other; a panel for each kind of limits."""
    figure = Figure(figsize=(8.2, 1.4 + 0.42 * len(bars.scenarios)))
    panels = figure.subplots(1, len(bars.panels), sharey=True, sharex=True)
    middle = (len(bars.policies) - 1) / 2
    for axes, (kind, rows) in zip(panels, bars.panels.items(), strict=True):
        for number, policy in enumerate(bars.policies):
            colour, marker = _LOOKS[policy]
            name = policy
            for y, row in enumerate(rows):
                if (bar := row[number]) is None:
                    continue
                least, median, most = bar
                place = y + 0.15 * (number - middle)
                axes.plot([least, most], [place, place], color=colour, lw=1.2)
                axes.plot(median, place, marker=marker, color=colour, ms=4.5, ls="", label=name)
                name = "_nolegend_"
        axes.axvline(1, color=_INK, lw=0.6)
        axes.set_xscale("log")
        axes.set_xticks([1, 1.5, 2, 3, 5, 10])
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"limits: {kind}")
        axes.set_xlabel("time ÷ bound: median, and least to most")
        axes.set_yticks(range(len(bars.scenarios)), bars.scenarios)
        axes.set_ylim(len(bars.scenarios) - 0.4, -0.6)
        axes.grid(axis="y", lw=0.3)
    panels[0].set_ylabel("scenario")
    _legend(figure, panels)
    _titled(figure, "Time ÷ the bound that no schedule can beat, where hardly an agent was lost")
    return figure


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    entries: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    if entries:
        figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=len(entries), frameon=False
        )


def _ablation(changes: Changes) -> Figure:
    """Scenarios by primitives: the largest change for the worse without each."""
    figure = Figure(figsize=(8.2, 1.6 + 0.24 * len(changes.rows)))
    axes = figure.subplots()
    values = [[cell[0] if cell else 0.0 for cell in row] for row in changes.cells]
    _cells(axes, values, cmap="PuOr_r", most=(-60, 60))
    for y, row in enumerate(changes.cells):
        for x, cell in enumerate(row):
            if cell is not None:
                _write(axes, x, y, f"{cell[0]:+.0f}{cell[1]}", is_dark=abs(cell[0]) > 42)
    axes.set_xticks(range(len(changes.primitives)), changes.primitives, rotation=30, ha="right")
    axes.set_yticks(range(len(changes.rows)), changes.rows, fontsize=8)
    axes.set_ylabel("scenario, limits")
    axes.set_xlabel(
        "primitive that is taken away\n"
        "L agents lost · R attempts refused · T time ÷ bound · C input cost\n"
        "D turns not done in the given time · W p95 wait of who waits least, of the whole time\n"
        "empty: no change of 2 or more"
    )
    _titled(figure, "What gets worse without each primitive, in points or % (below 0: better)")
    return figure
