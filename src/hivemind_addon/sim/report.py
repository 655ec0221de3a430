"""Series of runs for people and programs: a table for a terminal, JSON, and the page of the proof."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from rich.table import Table
from rich.text import Text

from hivemind_addon.sim.expectation import Verdict
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


def missed(series: Sequence[Series]) -> list[str]:
    """A line for each expectation that the scheduler misses."""
    return [
        f"{one.setup.case.name}, {one.setup.limits}: {verdict.text}"
        for one, verdict in verdicts(series)
        if not verdict.is_met
    ]


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


_HEAD = """\
# Proof

<!-- Generated by `{command}`. -->

The real scheduler before a simulated provider in virtual time (`sim/world.py`), {seeds} seeds of every scenario
(`scenarios/*.yaml`), each with limits that are token buckets and with fixed windows. The same command gives the same
numbers. *Time ÷ bound* compares the end of the last agent with a lower bound that no schedule can beat
(`sim/bound.py`): the longest conversation, what the limits let through, all service over the slots there are. What
failed attempts took (faults are the provider's, and drawn by the seed) counts as spent.

What each primitive contributes, and how others compare, is in [evaluation.md](evaluation.md).

## Expectations

What each scenario's `expect:` says, over all its seeds.
"""

_SCENARIOS = """\
## Scenarios

*Time ÷ bound* is the median and the worst of the runs; *wait* is a request's time in the queue, all its waits together,
which half and which 95 % of them did not exceed; *cost* is what the input costs ÷ what it would with a
prompt cache that forgets nothing. Where a scenario's time is given, nothing is compared with a bound.
"""

_OTHERS = """\
## Other policies

{policies}

Time ÷ bound means nothing where agents were lost: who dies early is done early.
"""


def page(series: Sequence[Series], command: str) -> str:
    """The proof as Markdown."""
    mine = [one for one in series if one.setup.policy == Policy.HIVEMIND]
    others = [one for one in series if one.setup.policy != Policy.HIVEMIND]
    abouts = {one.setup.case.name: one.setup.case.about for one in series}
    policies = {one.setup.policy.name: one.setup.policy.about for one in others}
    parts = [
        _HEAD.format(command=command, seeds=len(series[0].runs)),
        _verdicts(series),
        _SCENARIOS,
        markdown_list(abouts),
        series_table(mine),
    ]
    if others:
        parts += [_OTHERS.format(policies=markdown_list(policies).rstrip()), series_table(others)]
    return "\n".join(parts)


def markdown_list(items: Mapping[str, str]) -> str:
    """An item of each name and text."""
    return "".join(f"- `{name}`: {text}\n" for name, text in items.items())


def markdown_table(titles: str, rows: Iterable[str]) -> str:
    """Titles and rows are cells with `|` between them."""
    lines = [titles, " | ".join(["---"] * (titles.count("|") + 1)), *rows]
    return "".join(f"| {line} |\n" for line in lines)


def markdown_filled(page: str, parts: Mapping[str, str]) -> str:
    """The page with new text for each part, which stands between `<!-- NAME -->` and `<!-- end -->`."""
    for name, text in parts.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"the page has no part {name!r}"
        page = f"{before}{begin}\n{text.strip()}\n\n{end}{after}"
    return page


def _verdicts(series: Sequence[Series]) -> str:
    rows = [
        f"{one.setup.case.name} | {one.setup.limits} | {verdict.what} | {verdict.wanted} | {number(verdict.value)} "
        f"| {'met' if verdict.is_met else '**missed**'}"
        for one, verdict in verdicts(series)
    ]
    return markdown_table("Scenario | Limits | What | Expected | Measured |", rows)


def series_table(series: Sequence[Series]) -> str:
    """Every series in a line, as Markdown."""
    rows = [
        f"{one.setup.case.name} | {one.setup.limits} | {one.setup.policy.name} | {one.lost} of {one.agents} "
        f"| {one.attempts} | {one.status(429)} | {one.status(529, 503)} | {stretch(one)} | {waits(one)} "
        f"| {one.median_of(lambda run: run.cost_ratio):.3f}"
        for one in series
    ]
    titles = "Scenario | Limits | Policy | Lost | Attempts | 429 | 529, 503 | Time ÷ bound | Wait s | Cost"
    return markdown_table(titles, rows)


def stretch(series: Series) -> str:
    """Time ÷ bound of the runs, in words; empty where there is nothing to compare."""
    scenario = series.setup.case.scenario
    if math.isfinite(scenario.duration_s):
        return ""
    text = f"{series.median_of(lambda run: run.stretch):.3f}, {series.worst_of(lambda run: run.stretch):.3f}"
    if scenario.neighbour is not None:
        shared = [series.median_of(lambda run: run.shared_stretch), series.worst_of(lambda run: run.shared_stretch)]
        text += f" (neighbour counted: {shared[0]:.3f}, {shared[1]:.3f})"
    return text


def waits(series: Series) -> str:
    """Median over the runs of the waits that half and 95 % of the requests did not exceed, by crowd."""
    crowds = series.runs[0].crowds
    return "; ".join(
        (f"{name} " if len(crowds) > 1 else "")
        + ", ".join(
            f"{series.median_of(lambda run, name=name, share=share: run.crowds[name].wait_s(share)):.1f}"  # type: ignore[misc]
            for share in (0.5, 0.95)
        )
        for name in crowds
    )


def number(value: float) -> str:
    """Whole, or with three decimals."""
    return f"{value:.0f}" if math.isclose(value, round(value)) else f"{value:.3f}"
