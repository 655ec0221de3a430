"""HiveMind's tables beside ours: agents lost, waste, the cost of a request, ablation, and the falsifier."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from hivemind_addon.sim.library import Case
from hivemind_addon.sim.policy import Policy, without
from lab.evaluate.campaign import Runs
from lab.evaluate.figures import Figures
from lab.evaluate.findings import LOST, AblationEffect, changes
from lab.markdown import markdown_table
from lab.papers import paper_figures
from lab.papers.claims import PaperClaim, change, percent, spread
from lab.papers.plan import LOAD_POLICIES, PRIMITIVES, Experiments, LoadRun
from lab.papers.significance import SignTest


def parts(made: Experiments) -> Mapping[str, str]:
    """The tables on HiveMind, as Markdown."""
    return {
        "lost": _lost(made),
        "waste": _waste(made),
        "overhead": _overhead(made),
        "ablation": _ablation(made),
        "falsifier": _falsifier(made),
    }


def by_seed(runs: Runs, case: Case, policy: Policy, value: Callable[[Figures], float]) -> list[float]:
    """Of each seed the mean over the kinds of limits: two kinds of the same seed are not two samples."""
    kinds = [runs.of(case, kind, policy) for kind in case.kinds]
    return [fmean(value(run) for run in of_seed) for of_seed in zip(*kinds, strict=True)]


def _is_contended(runs: Runs, case: Case) -> bool:
    """Whether agents are lost that go straight."""
    return any(run.lost for run in runs.of_all_kinds(case, Policy.DIRECT))


# Agents lost ---------------------------------------------------------------------------------------------------------


def _lost_percent(run: Figures) -> float:
    return 100 * run.lost


def _lost(made: Experiments) -> str:
    rows = []
    for case in made.plan.hivemind:
        direct = by_seed(made.runs, case, Policy.DIRECT, _lost_percent)
        ours = by_seed(made.runs, case, Policy.HIVEMIND, _lost_percent)
        told = paper_figures.LOST.get(case.name)
        rows.append(
            f"`{case.name}` | {case.agents} | {f'{told[0]} → {told[1]} %' if told else 'not told'} "
            f"| {spread(direct)} % | {spread(ours, '{:.1f}')} % | {SignTest.of(direct, ours)}"
        )
    titles = "Scenario | Agents | Theirs, without → with | Ours, direct | Ours, scheduled | Fewer"
    without_range, with_range = _over_all(made)
    return markdown_table(titles, rows) + (
        f"\nOver the contended ones they tell {paper_figures.LOST_WITHOUT} % lost without and "
        f"{paper_figures.LOST_WITH} % with "
        f"HiveMind. Here single runs have {without_range} % without and {with_range} % with the scheduler.\n"
    )


def _over_all(made: Experiments) -> tuple[paper_figures.Range, paper_figures.Range]:
    """Of single runs of the contended scenarios: agents lost direct and scheduled, least to most, in per cent."""
    contended = [case for case in made.plan.hivemind if _is_contended(made.runs, case)]
    ranges = []
    for policy in (Policy.DIRECT, Policy.HIVEMIND):
        lost = [round(100 * run.lost) for case in contended for run in made.runs.of_all_kinds(case, policy)]
        ranges.append(paper_figures.Range(min(lost), max(lost)))
    return ranges[0], ranges[1]


# Waste ---------------------------------------------------------------------------------------------------------------


def _waste(made: Experiments) -> str:
    rows, worse = [], []
    for case in made.plan.hivemind:
        if not _is_contended(made.runs, case):
            continue
        policies = (Policy.DIRECT, Policy.HIVEMIND)
        direct, ours = (made.runs.of_all_kinds(case, policy) for policy in policies)
        sums = [sum(run.wasted_tokens for run in runs) for runs in (direct, ours)]
        seeds = (by_seed(made.runs, case, policy, lambda run: run.wasted_tokens) for policy in policies)
        rows.append(
            f"`{case.name}` | {change(*sums)} | {percent(_share_in_vain(direct))} → {percent(_share_in_vain(ours))} "
            f"| {_for_a_turn(direct)} → {_for_a_turn(ours)} | {SignTest.of(*seeds)}"
        )
        if 100 * (1 - sums[1] / sums[0]) < paper_figures.LESS_WASTE.least:
            worse.append(_told_of_little(case, direct, ours))
    titles = "Scenario | Sum of tokens in vain | Of all tokens paid | For each answered turn | Smaller sum"
    return markdown_table(titles, rows) + "".join(worse)


def _told_of_little(case: Case, direct: Sequence[Figures], ours: Sequence[Figures]) -> str:
    """Where the sum is hardly less: why, in figures."""
    done = [fmean(run.turns_done for run in runs) for runs in (direct, ours)]
    wanted = sum(crowd.agents * (crowd.turns or 0) for crowd in case.scenario.crowds)
    wasted = [fmean(run.wasted_tokens for run in runs) for runs in (direct, ours)]
    return (
        f"\n`{case.name}` is below their range: {wasted[0]:,.0f} tokens in vain without, {wasted[1]:,.0f} with the "
        f"scheduler, {change(*wasted)}. Agents that go straight get {done[0]:.0f} of {wanted} turns answered before "
        f"they die, so they have little to waste; the scheduler pays for the attempts that break off on the way to "
        f"{done[1]:.0f} turns.\n"
    )


def _share_in_vain(runs: Sequence[Figures]) -> float:
    return sum(run.wasted_tokens for run in runs) / (sum(run.billed_tokens for run in runs) or 1)


def _for_a_turn(runs: Sequence[Figures]) -> str:
    done = sum(run.turns_done for run in runs)
    return f"{sum(run.wasted_tokens for run in runs) / done:,.0f}" if done else "no turn"


# What a request costs ------------------------------------------------------------------------------------------------


def _overhead(made: Experiments) -> str:
    told = made.overhead
    if told is None:
        return "Not measured in this run: `make papers` does.\n"
    rows = (
        f"added to a request | < {paper_figures.OVERHEAD_MS:g} ms, before Ollama | {told.added_ms:.2f} ms",
        f"by mitmdump alone, in the same rounds | no such layer | {told.bare_added_ms:.2f} ms",
    )
    return f"{markdown_table('| Theirs | Ours', rows)}\n{told.rounds} rounds. {told.machine}\n"


# Ablation ------------------------------------------------------------------------------------------------------------

_THEIRS_WITHOUT = {
    "transparent retry": f"{paper_figures.LOST_WITHOUT_RETRY} %",
    "rate-limit tracking": "never taken away",
}


def _ablation(made: Experiments) -> str:
    rows = []
    for name, primitives in PRIMITIVES.items():
        policy = without(*primitives)
        lost = [
            _lost_percent(run)
            for case in made.plan.hivemind
            if case in made.plan.ablated
            for run in made.runs.of_all_kinds(case, policy)
        ]
        ours = ", ".join(f"`{primitive.value}`" for primitive in primitives)
        claimed = _THEIRS_WITHOUT.get(name, "0 %")
        rows.append(f"{name} | {ours} | {claimed} | {fmean(lost):.1f} % | {_worst_harm(made, policy)}")
    return markdown_table("Primitive | Ours | Theirs, lost | Ours, lost | Worst without it", rows)


def _worst_harm(made: Experiments, policy: Policy) -> str:
    """The changes for the worse where they are largest, of all scenarios and kinds of limits; lost agents first."""
    found = [
        (worse, case, kind)
        for case in made.plan.ablated
        for kind in case.kinds
        if (worse := [one for one in changes(made.runs, case, kind, policy) if one.is_told and one.by.mean > 0])
    ]
    if not found:
        return "nothing noteworthy gets worse in these scenarios"
    worse, case, kind = max(found, key=lambda one: _suffering(one[0]))
    return f"`{case.name}`{f', {kind.value}' if kind else ''}: {', '.join(one.text for one in worse)}"


def _suffering(worse: Sequence[AblationEffect]) -> tuple[float, float]:
    lost = [one.by.mean for one in worse if one.aspect is LOST]
    return max(lost, default=0.0), max(one.by.mean for one in worse)


# What would falsify it -----------------------------------------------------------------------------------------------


def _falsifier(made: Experiments) -> str:
    if not made.loads:
        return "Not run.\n"
    rows = []
    for policy in LOAD_POLICIES:
        runs = [run for run in made.loads if run.policy == policy]
        worst = worst_load(runs)
        above = len({run.case.name for run in runs if run.lost > paper_figures.FALSIFIED_ABOVE})
        rows.append(
            f"{policy.name} | {fmean(100 * run.lost for run in runs):.2f} % | {above} "
            f"| {percent(worst.lost)} ({worst.figures.lost} of {worst.figures.agents}) "
            f"| {f'`{worst.case.name}`, seed {worst.seed}' if worst.lost else 'none'}"
        )
    worst = worst_load([run for run in made.loads if run.policy == Policy.HIVEMIND])
    after = f"\n`hivemind lab scenario show {worst.case.name}` prints it."
    if not worst.figures.lost:
        after = "\nThe scheduler loses nobody in any of them. Of 300 loads of all sizes: [proof.md](proof.md)."
    titles = f"Policy | Lost, mean | Loads above {percent(paper_figures.FALSIFIED_ABOVE)} | Worst | Which"
    return f"{markdown_table(titles, rows)}{after}\n"


def worst_load(runs: Sequence[LoadRun]) -> LoadRun:
    """The run that loses the largest share; the first of equal ones."""
    return max(runs, key=lambda run: run.lost)


# In short ------------------------------------------------------------------------------------------------------------


def claims(made: Experiments) -> list[PaperClaim]:
    """Their claims, and our results."""
    _, lost = _over_all(made)
    contended = [case for case in made.plan.hivemind if _is_contended(made.runs, case)]
    least, most = (pick(contended, key=lambda case: _saved(made.runs, case)) for pick in (min, max))
    told = [
        PaperClaim(
            "HiveMind: agents lost under contention",
            f"{paper_figures.LOST_WITH} %",
            f"{lost} %",
            is_kept=lost.most <= paper_figures.LOST_WITH.most,
        ),
        PaperClaim(
            "HiveMind: less waste, as a sum",
            f"{paper_figures.LESS_WASTE} %",
            f"{_told_saved(made.runs, least)} to {_told_saved(made.runs, most)}",
            is_kept=100 * _saved(made.runs, least) >= paper_figures.LESS_WASTE.least,
        ),
    ]
    if made.loads:
        worst = worst_load([run for run in made.loads if run.policy == Policy.HIVEMIND])
        told.append(
            PaperClaim(
                "HiveMind: worst new workload of thirty agents",
                f"at most {percent(paper_figures.FALSIFIED_ABOVE)} lost",
                percent(worst.lost),
                is_kept=worst.lost <= paper_figures.FALSIFIED_ABOVE,
            )
        )
    if made.overhead is not None:
        told.append(
            PaperClaim(
                "HiveMind: added to a request (timed)",
                f"< {paper_figures.OVERHEAD_MS:g} ms",
                f"{made.overhead.added_ms:.2f} ms",
                is_kept=made.overhead.added_ms < paper_figures.OVERHEAD_MS,
            )
        )
    return told


def _told_saved(runs: Runs, case: Case) -> str:
    return f"{change(1.0, 1 - _saved(runs, case))} (`{case.name}`)"


def _saved(runs: Runs, case: Case) -> float:
    direct, ours = (
        sum(run.wasted_tokens for run in runs.of_all_kinds(case, policy)) for policy in (Policy.DIRECT, Policy.HIVEMIND)
    )
    return 1 - ours / direct
