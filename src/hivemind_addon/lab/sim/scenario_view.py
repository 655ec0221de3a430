"""Scenarios and their runs for people and programs: tables for a terminal, and JSON. Pure."""

import math
from collections.abc import Sequence

import msgspec
from rich.table import Table
from rich.text import Text

from hivemind_addon.lab.sim.library import Case
from hivemind_addon.lab.sim.policy import Policy
from hivemind_addon.lab.sim.result import Result
from hivemind_addon.lab.sim.trial import Series

_LOST = 0.01
"""With more agents lost than this share, the time that a run took says nothing."""


def listing(cases: Sequence[Case]) -> Table:
    """One line for each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for case in cases:
        table.add_row(case.name, case.about)
    return table


def table(series: Sequence[Series]) -> Table:
    """Every series in a line; the scheduler's says whether it keeps what is expected. Fits 80 columns."""
    has_policies = len({one.setup.policy for one in series}) > 1
    made = Table(
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption="429, 529: of all attempts · ÷ bound: end ÷ lower bound, median-worst · wait: p95 of a request, s",
        caption_justify="left",
    )
    made.add_column("scenario", no_wrap=True)
    made.add_column("limits", no_wrap=True)
    made.add_column("told", no_wrap=True)
    if has_policies:
        made.add_column("policy")
    for name in ("lost", "429", "529", "÷ bound", "wait", "cost"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("expect", no_wrap=True)
    for one in series:
        setup = one.setup
        cells: list[Text | str] = [
            setup.case.name,
            setup.kind.value if setup.kind else "-",
            "yes" if setup.headers else "no",
            Text(f"{one.lost}/{one.agents}", style="red" if one.lost else ""),
            percent(one.status(429), one.attempts),
            percent(one.status(529, 503), one.attempts),
            # Who dies early is done early.
            "" if one.lost > _LOST * one.agents else _stretch(one),
            f"{one.median_of(lambda run: max(crowd.wait_s(0.95) for crowd in run.crowds.values())):.1f}",
            f"{one.median_of(lambda run: run.cost_ratio):.2f}",
            _kept(one, series),
        ]
        if has_policies:
            cells.insert(3, setup.policy.name)
        made.add_row(*cells)
    return made


def percent(part: float, whole: float) -> str:
    """A share, as short as it may be."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 9.95 or not share else f"{share:.1f} %"


def _stretch(one: Series) -> str:
    """Median and worst; what a neighbour took counts as spent. Empty where the scenario's time is given."""
    if math.isfinite(one.setup.case.scenario.duration_s):
        return ""
    return f"{one.median_of(lambda run: run.shared_stretch):.2f}-{one.worst_of(lambda run: run.shared_stretch):.2f}"


def _kept(one: Series, series: Sequence[Series]) -> Text:
    if one.setup.policy != Policy.HIVEMIND:
        return Text()
    verdicts = list(one.verdicts(series))
    if not verdicts:
        return Text("nothing")
    met = sum(verdict.is_met for verdict in verdicts)
    kept = f"✓ {met}" if met == len(verdicts) else f"✗ {met}/{len(verdicts)}"
    return Text(kept, style="green" if met == len(verdicts) else "red")


def missed(series: Sequence[Series]) -> list[str]:
    """One line for each expectation that the scheduler does not keep."""
    return [
        f"{one.setup.case.name}, {one.setup.limits}: {verdict.text}"
        for one in series
        if one.setup.policy == Policy.HIVEMIND
        for verdict in one.verdicts(series)
        if not verdict.is_met
    ]


def as_json(series: Sequence[Series]) -> str:
    """All of it, indented; the same runs give the same text."""
    rows = [
        {
            "scenario": one.setup.case.name,
            "limits": one.setup.kind.value if one.setup.kind else None,
            "headers": one.setup.headers,
            "policy": one.setup.policy.name,
            "runs": [{"seed": seed, **figures(run)} for seed, run in enumerate(one.runs)],
            "expected": [
                {
                    "what": verdict.what,
                    "bound": verdict.bound,
                    "at_least": verdict.at_least,
                    "value": verdict.value,
                    "met": verdict.is_met,
                }
                for verdict in (one.verdicts(series) if one.setup.policy == Policy.HIVEMIND else ())
            ],
        }
        for one in series
    ]
    return msgspec.json.format(msgspec.json.encode(rows)).decode()


def figures(run: Result) -> dict[str, object]:
    """One run's numbers."""
    return {
        "agents": run.agents,
        "lost": run.lost,
        "deaths": dict(sorted(run.deaths.items())),
        "attempts": run.attempts,
        "statuses": {str(status): run.statuses[status] for status in sorted(run.statuses)},
        "makespan_s": run.makespan_s,
        "bound_s": run.bound.bound_s,
        "bound_by": run.bound.why,
        "shared_bound_s": run.shared_bound_s,
        "cost_ratio": run.cost_ratio,
        "cap_used": run.cap_used,
        "breaker_opened": run.breaker_opened,
        "sheds": run.sheds,
        "refused": run.refused,
        "idle_s": run.idle_s,
        "fairness": run.fairness,
        "billed_tokens": run.billed.tokens,
        "billed_micro_usd": run.billed.micro_usd,
        "wasted_tokens": run.wasted.tokens,
        "wasted_micro_usd": run.wasted.micro_usd,
        "crowds": {
            name: {
                "agents": crowd.agents,
                "lost": crowd.lost,
                "turns_done": crowd.turns_done,
                "wait_s": {f"p{round(100 * share)}": crowd.wait_s(share) for share in (0.5, 0.95, 0.99)},
            }
            for name, crowd in run.crowds.items()
        },
    }
