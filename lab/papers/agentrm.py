"""AgentRM's tables beside ours: the paper's cascade under the paper's policies and under the scheduler."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from hivemind_addon.formats.profile.model import Watchdog
from hivemind_addon.sim.policy import Policy
from lab.evaluate.figures import Figures
from lab.markdown import markdown_table
from lab.papers import paper_figures, queues
from lab.papers.claims import Contest, PaperClaim, alike, change, spread
from lab.papers.plan import CASCADE_POLICIES, Experiments
from lab.papers.significance import SignTest


def parts(made: Experiments) -> Mapping[str, str]:
    """The tables on AgentRM, as Markdown."""
    rows = map(" | ".join, made.compaction)
    kept = (
        markdown_table("| Theirs | Ours", rows) if made.compaction else "Not measured in this run: `make papers` does."
    )
    return {"cascade": _cascade(made), "contexts": kept}


def _p95(run: Figures) -> float:
    return run.latency_p95_s


def _wasted(run: Figures) -> float:
    return run.wasted_lane_s


def _done(run: Figures) -> float:
    return run.turns_a_minute


def _cascade(made: Experiments) -> str:
    base = _runs(made, queues.AGENTRM_FIFO)
    claimed = (
        f"{paper_figures.P95_LESS} % less | {paper_figures.LANE_WASTE_LESS} % less "
        f"| {paper_figures.THROUGHPUT_MORE} % more"
    )
    rows = [f"*theirs, its queue* |  | {claimed} | {paper_figures.ZOMBIES[0]} → {paper_figures.ZOMBIES[1]}"]
    ways = {f"`{policy.name}`": _runs(made, policy) for policy in CASCADE_POLICIES}
    ways[f"`{Policy.HIVEMIND.name}`, as packaged"] = made.runs.of_all_kinds(made.plan.packaged, Policy.HIVEMIND)
    rows += [
        f"{way} | {spread([100 * run.lost for run in runs])} % | {_beside(base, runs, _p95, '{:.0f} s')} "
        f"| {_beside(base, runs, _wasted, '{:,.0f} s')} | {_beside(base, runs, _done, '{:.1f}')} "
        f"| {spread([run.zombies for run in runs])}"
        for way, runs in ways.items()
    ]
    titles = "Policy | Agents lost | P95 | Lanes wasted | Turns a minute | Zombies"
    words = (alike({policy.name: _runs(made, policy) for policy in CASCADE_POLICIES}), _chance(made), _reaped(made))
    return markdown_table(titles, rows) + "".join(f"\n{one}\n" for one in words if one)


def _runs(made: Experiments, policy: Policy) -> Sequence[Figures]:
    return made.runs.of_all_kinds(made.plan.cascade, policy)


def _beside(base: Sequence[Figures], runs: Sequence[Figures], value: Callable[[Figures], float], form: str) -> str:
    """The mean, and the difference to the base's, where the runs are others."""
    means = [fmean(map(value, some)) for some in (base, runs)]
    told = form.format(means[1])
    return told if runs == base else f"{told} ({change(*means)})"


def _chance(made: Experiments) -> str:
    """Whether the scheduler is ahead of AgentRM's queue by chance."""
    mlfq, ours = _runs(made, queues.MLFQ), _runs(made, Policy.HIVEMIND)
    tests = [
        f"{name} on {SignTest.of([sign * value(run) for run in mlfq], [sign * value(run) for run in ours])}"
        for name, value, sign in (
            ("a smaller P95", _p95, 1),
            ("fewer lane seconds wasted", _wasted, 1),
            ("more turns a minute", _done, -1),
        )
    ]
    return f"The scheduler beside its queue (`{queues.MLFQ.name}`), seed by seed: {'; '.join(tests)} (exact sign test)."


def _reaped(made: Experiments) -> str:
    """Why lane time is wasted: which attempts are ended, and after how long."""
    hung, each_s = [], []
    for policy in (queues.MLFQ, Policy.HIVEMIND):
        runs = _runs(made, policy)
        in_vain = sum(run.attempts - run.turns_done for run in runs)
        hung.append(in_vain / len(runs))
        each_s.append(sum(map(_wasted, runs)) / max(1, in_vain))
    return (
        f"Of a run's attempts {hung[0]:.1f} come to nothing in its queue and hold a lane for {each_s[0]:.1f} s each; "
        f"with the scheduler {hung[1]:.1f}, for {each_s[1]:.1f} s: its watchdog also waits {Watchdog().factor:g} times "
        "what 99 of 100 first bytes take, so as to end no call that only thinks."
    )


def contests(made: Experiments) -> list[Contest]:
    """The scheduler beside AgentRM's policies."""
    runs = {policy.name: _runs(made, policy) for policy in CASCADE_POLICIES}
    where = "AgentRM's cascade"
    return [
        Contest(where, "P95 of a turn", runs, _p95, "{:.0f} s"),
        Contest(where, "lane seconds wasted", runs, _wasted, "{:,.0f}"),
        Contest(where, "turns a minute", runs, _done, "{:.1f}", more_is_better=True),
    ]


# In short ------------------------------------------------------------------------------------------------------------


def claims(made: Experiments) -> list[PaperClaim]:
    """Their claims, and our results: the scheduler beside FIFO."""
    base, ours = _runs(made, queues.AGENTRM_FIFO), _runs(made, Policy.HIVEMIND)

    def told(what: str, value: Callable[[Figures], float], claimed: int, word: str, direction: int) -> PaperClaim:
        one, other = (fmean(map(value, runs)) for runs in (base, ours))
        by = direction * (100 * other / one - 100) if one else 0.0
        return PaperClaim(f"AgentRM: {what}", f"{claimed} % {word}", change(one, other), is_kept=round(by) >= claimed)

    zombies = [fmean(run.zombies for run in runs) for runs in (base, ours)]
    return [
        told("P95 latency of its cascade", _p95, paper_figures.P95_LESS, "less", -1),
        told("wasted lane time", _wasted, paper_figures.LANE_WASTE_LESS, "less", -1),
        told("throughput", _done, paper_figures.THROUGHPUT_MORE, "more", 1),
        PaperClaim(
            "AgentRM: zombies",
            f"{paper_figures.ZOMBIES[0]} → {paper_figures.ZOMBIES[1]}",
            f"{zombies[0]:.0f} → {zombies[1]:.0f}",
            is_kept=zombies[1] <= paper_figures.ZOMBIES[1],
        ),
        *(
            PaperClaim(f"AgentRM: {what}", claimed, kept, is_kept=kept == claimed)
            for what, claimed, kept in made.compaction[:1]
        ),
    ]
