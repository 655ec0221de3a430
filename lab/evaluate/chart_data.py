"""The numbers of a comparison's charts: few enough to be kept beside the charts, which can be drawn again from them."""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from hivemind_addon.sim.library import Case
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import Policy, without
from lab.evaluate.campaign import Campaign
from lab.evaluate.figures import Figures, Spread, few_lost
from lab.evaluate.findings import harm


class ScenarioGrid(Struct):
    """A number for each scenario and policy, by kind of limits."""

    scenarios: list[str]
    policies: list[str]
    panels: dict[str, list[list[float | None]]]
    """Kind of limits → for each scenario a number for each policy; None: there was no run."""


class Bars(Struct):
    """Least, median and most for each scenario and policy, by kind of limits."""

    scenarios: list[str]
    policies: list[str]
    panels: dict[str, list[list[tuple[float, float, float] | None]]]
    """As a grid's; None: there is nothing to show."""


class Changes(Struct):
    """The changes for the worse without a primitive: points, and the letter of the aspect."""

    rows: list[str]
    primitives: list[str]
    cells: list[list[tuple[float, str] | None]]
    """None: no change that is worth a word."""


class ChartData(Struct):
    """All charts of a comparison."""

    lost: ScenarioGrid
    """Percent of agents."""
    refused: ScenarioGrid
    """Percent of attempts."""
    stretch: Bars
    """Time ÷ lower bound."""
    ablation: Changes | None = None


def data_of(campaign: Campaign) -> ChartData:
    """All that the campaign's figures allow."""
    return ChartData(
        lost=_grid(campaign, _lost),
        refused=_grid(campaign, _refused),
        stretch=_stretch(campaign),
        ablation=_ablation(campaign) if campaign.plan.primitives else None,
    )


def _mean(values: Sequence[float]) -> float | None:
    return round(100 * sum(values) / len(values), 3) if values else None


def _lost(runs: Sequence[Figures]) -> float | None:
    return _mean([run.lost for run in runs])


def _refused(runs: Sequence[Figures]) -> float | None:
    return _mean([run.refused for run in runs])


def _on(campaign: Campaign, case: Case, kind: LimitKind, policy: Policy) -> Sequence[Figures]:
    """The runs on a kind of limits; of a case that has no kinds, all."""
    return campaign.runs.of(case, kind if kind in case.kinds else None, policy)


def _grid(campaign: Campaign, figure_of: Callable[[Sequence[Figures]], float | None]) -> ScenarioGrid:
    cases, policies = campaign.plan.cases, campaign.plan.policies
    return ScenarioGrid(
        scenarios=[case.name for case in cases],
        policies=[policy.name for policy in policies],
        panels={
            kind.value: [[figure_of(_on(campaign, case, kind, policy)) for policy in policies] for case in cases]
            for kind in LimitKind
        },
    )


def _stretch(campaign: Campaign) -> Bars:
    """Over the seeds, for each policy that lost hardly anybody; a scenario whose time is given has none."""

    def bar_of(case: Case, kind: LimitKind, policy: Policy) -> tuple[float, float, float] | None:
        runs = _on(campaign, case, kind, policy)
        known = [run.stretch for run in runs if run.stretch is not None]
        if not known or not few_lost(runs):
            return None
        spread = Spread.of(known)
        return round(spread.least, 3), round(spread.median, 3), round(spread.most, 3)

    cases = [case for case in campaign.plan.cases if math.isinf(case.scenario.duration_s)]
    policies = campaign.plan.policies
    return Bars(
        scenarios=[case.name for case in cases],
        policies=[policy.name for policy in policies],
        panels={
            kind.value: [[bar_of(case, kind, policy) for policy in policies] for case in cases] for kind in LimitKind
        },
    )


def _ablation(campaign: Campaign) -> Changes:
    """Scenarios by primitives: the largest change for the worse without each."""
    rows = [(case, kind) for case in campaign.plan.cases for kind in case.kinds]
    found = [
        [harm(campaign.runs, case, kind, without(primitive)) for primitive in campaign.plan.primitives]
        for case, kind in rows
    ]
    return Changes(
        rows=[f"{case.name}, {kind.value}" if kind else case.name for case, kind in rows],
        primitives=[primitive.value for primitive in campaign.plan.primitives],
        cells=[[(round(one.by.mean, 1), one.aspect.letter) if one else None for one in row] for row in found],
    )
