"""Series of runs for people and programs: a table for a terminal, and JSON."""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from rich.table import Table
from rich.text import Text

from hivemind_addon.sim.expectation import NO_PROXY, Verdict, beside_no_proxy
from hivemind_addon.sim.library import Case
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.result import Result
from hivemind_addon.sim.trial import Series

_LOST = 0.01
"""With more agents lost than this share, the time that a run took says nothing."""


def listing(cases: Sequence[Case]) -> Table:
    """A line for each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for case in cases:
        table.add_row(case.name, case.about)
    return table


def table(series: Sequence[Series]) -> Table:
    """Every series in a line; the scheduler's line has the verdict. Fits 80 columns."""
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
    """A share, as short as possible."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 9.95 or not share else f"{share:.1f} %"


def _stretch(one: Series) -> str:
    """Median and worst; a neighbour's use counts as spent. Empty where the scenario's time is given."""
    if math.isfinite(one.setup.case.scenario.duration_s):
        return ""
    return f"{one.median_of(lambda run: run.shared_stretch):.2f}-{one.worst_of(lambda run: run.shared_stretch):.2f}"


def _kept(one: Series, series: Sequence[Series]) -> Text:
    if one.setup.policy != Policy.HIVEMIND:
        return Text()
    judged = list(one.verdicts(series))
    if not judged:
        return Text("nothing")
    met = sum(verdict.is_met for verdict in judged)
    kept = f"✓ {met}" if met == len(judged) else f"✗ {met}/{len(judged)}"
    return Text(kept, style="green" if met == len(judged) else "red")


def verdicts(series: Sequence[Series]) -> Iterator[tuple[Series, Verdict]]:
    """The expectations of the scheduler, with the measured values."""
    for one in series:
        if one.setup.policy == Policy.HIVEMIND:
            for verdict in one.verdicts(series):
                yield one, verdict


def worse(series: Sequence[Series]) -> Iterator[tuple[Series, Verdict]]:
    """In what the scheduler is worse than no proxy, where that is among the series."""
    for one in series:
        others = one.beside(series) if one.setup.policy == Policy.HIVEMIND else {}
        for policy in NO_PROXY:
            for verdict in beside_no_proxy(one.runs, others[policy], policy) if policy in others else ():
                if not verdict.is_met:
                    yield one, verdict


def missed(series: Sequence[Series]) -> list[str]:
    """A line for each expectation that the scheduler misses."""
    return in_lines(pair for pair in verdicts(series) if not pair[1].is_met)


def in_lines(found: Iterable[tuple[Series, Verdict]]) -> list[str]:
    """One for each verdict."""
    return [f"{one.setup.case.name}, {one.setup.limits}: {verdict.text}" for one, verdict in found]


def as_json(series: Sequence[Series]) -> str:
    """All series, indented; the same runs give the same text."""
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
    """A run's numbers."""
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
        "wasted_share": run.wasted_share,
        "wasted_per_turn": run.wasted_per_turn,
        "wanted": run.wanted,
        "amplification": run.amplification,
        "turns_a_minute": run.turns_a_minute,
        "latency_s": {f"p{round(100 * share)}": run.latency_s(share) for share in (0.5, 0.95, 0.99)},
        "wasted_lane_s": run.wasted_lane_s,
        "zombies": run.zombies,
        "stopped": run.stopped,
        "overspent": run.overspent,
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
