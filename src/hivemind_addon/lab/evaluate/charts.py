"""The charts of an evaluation, drawn by matplotlib: SVG for pages, PNG for whatever takes no SVG.

Colours are Okabe and Ito's, told apart by people who see few of them; every series has a marker of its own as well, so
that grey paper is enough. The same figures give the same bytes.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from hivemind_addon.lab.evaluate.campaign import Campaign
from hivemind_addon.lab.evaluate.figures import Figures, Spread, few_lost
from hivemind_addon.lab.evaluate.findings import harm
from hivemind_addon.lab.sim.ablation import Primitive
from hivemind_addon.lab.sim.library import Case
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.policy import COMPARED, Policy, without

_LOOKS: Mapping[str, tuple[str, str]] = {
    "direct": ("#999999", "x"),
    "sdk-retry": ("#E69F00", "v"),
    "aimd-pause": ("#CC79A7", "s"),
    "fifo": ("#56B4E9", "D"),
    "hivemind": ("#0072B2", "o"),
}
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "hivemind",
    "svg.fonttype": "none",
}
_ROW_IN = 0.26
"""Inches of a line of a chart."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture."""

    name: str
    title: str
    svg: str
    png: bytes


def charts(campaign: Campaign) -> list[Chart]:
    """All that the campaign's figures allow."""
    with mpl.rc_context(_STYLE):
        made = [
            _chart("lost", "Agents lost", _grid(campaign, _lost, "agents lost, % (mean over the seeds)", "{:.0f}")),
            _chart(
                "refused",
                "Attempts that the provider refused",
                _grid(campaign, _refused, "429, 503 and 529, % of attempts (mean over the seeds)", "{:.0f}"),
            ),
            _chart(
                "waste",
                "Tokens paid for in vain",
                _grid(campaign, _wasted, "tokens of lost agents and failed attempts, % of all billed", "{:.0f}"),
            ),
            _chart("stretch", "Time ÷ lower bound, where hardly an agent was lost", _stretch(campaign)),
            _chart("waits", "How long requests wait", _waits(campaign)),
        ]
        if campaign.plan.ablated:
            made.append(_chart("ablation", "What each primitive is worth, where", _ablation(campaign)))
    return made


def _chart(name: str, title: str, figure: Figure) -> Chart:
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", dpi=110, metadata={"Software": None})
    # From the first element on: what is before it has no place inside a page.
    text = svg.getvalue()
    return Chart(name, title, text[text.index("<svg") :], png.getvalue())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _lost(runs: Sequence[Figures]) -> float:
    return 100 * _mean([run.lost for run in runs])


def _refused(runs: Sequence[Figures]) -> float:
    return 100 * _mean([run.refused for run in runs])


def _wasted(runs: Sequence[Figures]) -> float:
    billed = sum(run.billed_tokens for run in runs)
    return 100 * sum(run.wasted_tokens for run in runs) / billed if billed else 0.0


def _on(campaign: Campaign, case: Case, kind: LimitKind, policy: Policy) -> tuple[Figures, ...]:
    """The runs on one kind of limits; of a case that has no kinds, all."""
    return campaign.runs.of(case, kind if kind in case.kinds else None, policy)


def _grid(campaign: Campaign, figure_of: Callable[[Sequence[Figures]], float], label: str, form: str) -> Figure:
    """Scenarios by policies, a number in each cell; one panel for each kind of limits."""
    cases = campaign.plan.cases
    figure = Figure(figsize=(8.2, 1.1 + _ROW_IN * len(cases)))
    panels = figure.subplots(1, len(LimitKind), sharey=True)
    image = None
    for axes, kind in zip(panels, LimitKind, strict=True):
        values = [[figure_of(_on(campaign, case, kind, policy)) for policy in COMPARED] for case in cases]
        image = _heat(axes, values, form, most=100)
        axes.set_title(f"limits: {kind.value}")
        axes.set_xticks(range(len(COMPARED)), [policy.name for policy in COMPARED], rotation=30, ha="right")
        axes.set_yticks(range(len(cases)), [case.name for case in cases])
    assert image is not None
    _key(figure, image, panels, label, shrink=0.8)
    return figure


def _cells(axes: Axes, values: Sequence[Sequence[float]], **colours: Any) -> QuadMesh:
    """A coloured cell for each value, the first row on top; drawn as shapes, so that an SVG stays one."""
    edges_x = [place - 0.5 for place in range(len(values[0]) + 1)]
    edges_y = [place - 0.5 for place in range(len(values) + 1)]
    mesh = axes.pcolormesh(edges_x, edges_y, values, edgecolors="white", linewidth=0.5, **colours)
    axes.set_ylim(edges_y[-1], edges_y[0])
    return mesh


def _key(figure: Figure, mesh: QuadMesh, panels: Sequence[Axes], label: str, *, shrink: float) -> None:
    """What the colours mean."""
    bar = figure.colorbar(mesh, ax=list(panels), label=label, shrink=shrink, pad=0.01)
    assert bar.solids is not None
    bar.solids.set_rasterized(False)


def _heat(axes: Axes, values: Sequence[Sequence[float]], form: str, *, most: float) -> QuadMesh:
    mesh = _cells(axes, values, cmap="Blues", vmin=0, vmax=most)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if not math.isnan(value):
                is_dark = value / most > 0.55
                axes.text(
                    x,
                    y,
                    form.format(value),
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if is_dark else "black",
                )
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return mesh


@dataclass(frozen=True, slots=True)
class _Bar:
    """A line from the least to the most, with a dot in it."""

    least: float
    middle: float
    most: float


def _bars(
    cases: Sequence[Case],
    policies: Sequence[Policy],
    bar_of: Callable[[Case, LimitKind, Policy], _Bar | None],
    *,
    apart: float,
    scale: Callable[[Axes], None],
    label: str,
) -> Figure:
    """Scenarios by policies, those of one scenario `apart` from each other; one panel for each kind of limits."""
    figure = Figure(figsize=(8.2, 1.2 + 0.42 * len(cases)))
    panels = figure.subplots(1, len(LimitKind), sharey=True, sharex=True)
    middle = (len(policies) - 1) / 2
    for axes, kind in zip(panels, LimitKind, strict=True):
        for offset, policy in enumerate(policies):
            colour, marker = _LOOKS[policy.name]
            name = policy.name
            for y, case in enumerate(cases):
                bar = bar_of(case, kind, policy)
                if bar is None:
                    continue
                place = y + apart * (offset - middle)
                axes.plot([bar.least, bar.most], [place, place], color=colour, lw=1.2)
                axes.plot(bar.middle, place, marker=marker, color=colour, ms=4.5, ls="", label=name)
                name = "_nolegend_"
        scale(axes)
        axes.set_title(f"limits: {kind.value}")
        axes.set_xlabel(label)
        axes.set_yticks(range(len(cases)), [case.name for case in cases])
        axes.grid(axis="y", lw=0.3)
    panels[0].invert_yaxis()
    _legend(figure, panels)
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


def _stretch(campaign: Campaign) -> Figure:
    """Median, least and most over the seeds, for each policy that lost hardly anybody."""

    def bar_of(case: Case, kind: LimitKind, policy: Policy) -> _Bar | None:
        runs = _on(campaign, case, kind, policy)
        known = [run.stretch for run in runs if run.stretch is not None]
        if not known or not few_lost(runs):
            return None
        spread = Spread.of(known)
        return _Bar(spread.least, spread.median, spread.most)

    def scale(axes: Axes) -> None:
        axes.axvline(1, color="black", lw=0.6)
        axes.set_xscale("log")
        axes.set_xticks([1, 1.2, 1.5, 2, 3, 5, 10])
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())

    cases = [case for case in campaign.plan.cases if math.isinf(case.scenario.duration_s)]
    label = "time ÷ bound (median, and least to most)"
    return _bars(cases, COMPARED, bar_of, apart=0.15, scale=scale, label=label)


def _waits(campaign: Campaign) -> Figure:
    """Median over the seeds of p50, p95 and p99, for each policy that has a queue and lost hardly anybody."""

    def bar_of(case: Case, kind: LimitKind, policy: Policy) -> _Bar | None:
        runs = _on(campaign, case, kind, policy)
        if not runs or not few_lost(runs):
            return None
        return _Bar(*(Spread.of([get(run) for run in runs]).median for get in (_p50, _p95, _p99)))

    def scale(axes: Axes) -> None:
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
        axes.set_xlim(left=0)

    scheduled = [policy for policy in COMPARED if policy.is_scheduled]
    label = "seconds in the queue: p95, and p50 to p99"
    return _bars(campaign.plan.cases, scheduled, bar_of, apart=0.2, scale=scale, label=label)


def _p50(run: Figures) -> float:
    return run.wait_p50_s


def _p95(run: Figures) -> float:
    return run.wait_p95_s


def _p99(run: Figures) -> float:
    return run.wait_p99_s


def _ablation(campaign: Campaign) -> Figure:
    """Scenarios by primitives: what gets worse most when it is taken away."""
    rows = [(case, kind) for case in campaign.plan.ablated for kind in case.kinds]
    found = [[harm(campaign.runs, case, kind, without(primitive)) for primitive in Primitive] for case, kind in rows]
    values = [[change.by.mean if change else 0.0 for change in row] for row in found]
    figure = Figure(figsize=(8.2, 1.4 + 0.24 * len(rows)))
    axes = figure.subplots()
    image = _cells(axes, values, cmap="PuOr_r", vmin=-60, vmax=60)
    for y, row in enumerate(found):
        for x, change in enumerate(row):
            if change is not None:
                points = change.by.mean
                colour = "white" if abs(points) > 42 else "black"
                axes.text(
                    x,
                    y,
                    f"{points:+.0f}{change.aspect.letter}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color=colour,
                )
    axes.set_xticks(range(len(Primitive)), [primitive.value for primitive in Primitive], rotation=30, ha="right")
    axes.set_yticks(
        range(len(rows)), [f"{case.name}, {kind.value}" if kind else case.name for case, kind in rows], fontsize=8
    )
    axes.tick_params(length=0)
    _key(figure, image, [axes], "points or % worse without it (below 0: better)", shrink=0.6)
    axes.set_xlabel(
        "L agents lost · R attempts refused · T time ÷ bound · D turns not done in the given time · C input cost\n"
        "W p95 wait of who waits least, of the whole time · empty: no change of 2 or more"
    )
    return figure
