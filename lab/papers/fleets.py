"""The article on fleets beside ours: thirty agents at once, philosophers, an incident, retries that add up."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from hivemind_addon.sim.library import Case
from hivemind_addon.sim.policy import Policy
from lab.evaluate.figures import Figures
from lab.markdown import markdown_table
from lab.papers import paper_figures
from lab.papers.claims import Contest, PaperClaim, alike, percent, spread
from lab.papers.plan import ALIKE, EVERYONE, INCIDENT_POLICIES, DinnerSeries, Experiments

_MOST = 0.5


def parts(made: Experiments) -> Mapping[str, str]:
    """The tables on the article, as Markdown."""
    return {
        "at two": _at_two(made),
        "philosophers": _philosophers(made),
        "incident": _incident(made),
        "retries": _retries(made),
    }


def _at_two(made: Experiments) -> str:
    every = {policy.name: made.runs.of_all_kinds(made.plan.fleet, policy) for policy in EVERYONE}
    rows = (
        f"`{name}` | {spread([100 * run.lost for run in runs])} % | {fmean(100 * run.refused for run in runs):.1f} % "
        f"| {fmean(run.turns_done for run in runs):.0f} "
        f"| {fmean(run.latency_p50_s for run in runs):.0f} and {fmean(run.latency_p95_s for run in runs):.0f} s "
        f"| {fmean(run.makespan_s for run in runs):.0f} s | {fmean(run.cost for run in runs):.2f}"
        for name, runs in every.items()
    )
    titles = "Policy | Agents lost | Attempts refused | Turns answered | P50 and P95 of a turn | The last ends"
    return f"{markdown_table(f'{titles} | Input cost ÷ ideal', rows)}\n{alike(every)}\n"


def _incident(made: Experiments) -> str:
    rows = (
        f"`{policy.name}` | {spread([100 * run.lost for run in runs])} % "
        f"| {fmean(run.refused * run.attempts for run in runs):.0f} | {_sent_by(runs, lambda run: run.wanted):.2f} "
        f"| {fmean(run.turns_done for run in runs):.0f} | {fmean(run.makespan_s for run in runs):.0f} s"
        for policy in INCIDENT_POLICIES
        if (runs := made.runs.of_all_kinds(made.plan.incident, policy))
    )
    return markdown_table("Policy | Agents lost | Refused | Sent ÷ wanted | Turns answered | The last ends", rows)


def _retries(made: Experiments) -> str:
    rows = []
    for policy in EVERYONE:
        runs = [run for case in made.plan.compared for run in made.runs.of_all_kinds(case, policy)]
        worst = max(made.plan.compared, key=lambda case: _amplified(made, case, policy))
        rows.append(
            f"`{policy.name}` | {_sent_by(runs, lambda run: run.wanted):.2f} "
            f"| {_sent_by(runs, lambda run: run.turns_done):.2f} "
            f"| {_amplified(made, worst, policy):.2f} (`{worst.name}`)"
        )
    return markdown_table("Policy | Sent ÷ wanted | Sent ÷ answered | Worst scenario, sent ÷ wanted", rows)


def _amplified(made: Experiments, case: Case, policy: Policy) -> float:
    return _sent_by(made.runs.of_all_kinds(case, policy), lambda run: run.wanted)


def _sent_by(runs: Sequence[Figures], what: Callable[[Figures], int]) -> float:
    """Requests sent ÷ something, over all of the runs together; infinite where there was nothing of it."""
    count = sum(map(what, runs))
    return sum(run.attempts for run in runs) / count if count else math.inf


def _philosophers(made: Experiments) -> str:
    names = {0.5: "coin", 1.0: "alike"}
    titles = [f"{what}, {names[alike]}" for what in ("Deadlocked", "Stuck", "Used") for alike in ALIKE]
    rows = []
    for way in dict.fromkeys(series.way for series in made.dinners):
        both = [series for series in made.dinners if series.way == way]
        shares = [percent(series.deadlocked) for series in both] + [percent(series.stuck) for series in both]
        rows.append(" | ".join([way, *shares, *(f"{series.used:.0f}" for series in both)]))
    return markdown_table(" | ".join(["How they agree", *titles]), rows)


def contests(made: Experiments) -> list[Contest]:
    """The scheduler beside every policy, on the article's scenarios."""
    two, down = (
        {policy.name: made.runs.of_all_kinds(case, policy) for policy in policies}
        for case, policies in ((made.plan.fleet, EVERYONE), (made.plan.incident, (*EVERYONE, *INCIDENT_POLICIES)))
    )
    return [
        Contest("Thirty agents at 02:00", "P95 of a turn", two, lambda run: run.latency_p95_s, "{:.0f} s"),
        Contest("Thirty agents at 02:00", "attempts refused", two, lambda run: 100 * run.refused, "{:.1f} %"),
        Contest("Thirty agents at 02:00", "the last ends", two, lambda run: run.makespan_s, "{:.0f} s"),
        Contest("An incident", "attempts refused", down, lambda run: run.refused * run.attempts, "{:.0f}"),
        Contest("An incident", "the last ends", down, lambda run: run.makespan_s, "{:.0f} s"),
    ]


def claims(made: Experiments) -> list[PaperClaim]:
    """Their claims, and our results."""
    leases: list[DinnerSeries] = [series for series in made.dinners if series.way.startswith("leases")]
    worst = max(series.deadlocked for series in leases)
    silent, talk = paper_figures.PHILOSOPHERS_DEADLOCKED
    ours = [run for case in made.plan.compared for run in made.runs.of_all_kinds(case, Policy.HIVEMIND)]
    direct, fleet = (
        fmean(run.lost for run in made.runs.of_all_kinds(made.plan.fleet, policy))
        for policy in (Policy.DIRECT, Policy.HIVEMIND)
    )
    sent = _sent_by(ours, lambda run: run.wanted)
    return [
        PaperClaim(
            "Article: thirty agents at 02:00, lost",
            "most",
            f"{percent(direct)} → {percent(fleet)}",
            is_kept=fleet < _MOST,
        ),
        PaperClaim(
            "Article: requests sent for one that is wanted",
            f"{paper_figures.LAYERED_ATTEMPTS} in three layers",
            f"{sent:.2f}",
            is_kept=sent < paper_figures.LAYERED_ATTEMPTS,
        ),
        PaperClaim(
            "DPBench: three agents that deadlock over two things each",
            f"{silent} % silent, {talk} % talking",
            f"{percent(worst)} with all-or-none leases, of modelled agents",
            is_kept=None,
        ),
    ]
