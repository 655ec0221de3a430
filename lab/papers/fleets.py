"""The article on fleets beside ours: thirty agents at once, philosophers, an incident, retries that add up."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from hivemind_addon.sim.library import Case
from hivemind_addon.sim.policy import Policy
from lab.evaluate.figures import Figures
from lab.papers import paper_figures
from lab.papers.claims import Contest, PaperClaim, alike, percent, spread, table
from lab.papers.philosophers import AGENTS, ROUNDS
from lab.papers.plan import ALIKE, EVERYONE, INCIDENT_POLICIES, DinnerSeries, Experiments

_MOST = 0.5
_HEAD = """\
## The article on fleets

{source}. It measures nothing itself; its figures are other people's.

"""
_PHILOSOPHERS = """\
### Three agents, and each needs two things

Each of {agents} agents needs two things at once, and shares each with a neighbour: the dining philosophers. DPBench
({source}) has models play it. Of 20 runs with three GPT-5.2 that act at once {silent} % end in a deadlock without talk,
{talk} % with it; one did what it had said {kept} of the time.

Here the same rules, {runs} runs of {rounds} rounds for each way. **Modelled** are the agents: no model is asked. They
reach for one thing first and keep it until they have the other: by a coin (*coin*, the kindest case), or all for the
same side (*alike*, three copies of one model). Talk is modelled, too: where what they say would end in a deadlock,
they agree that one puts down what it has, and it keeps its word so often. **Not modelled** are the locks: they are the
store behind `hivemind lease`, in its own file, asked in virtual time.

A deadlock is counted as DPBench does, at the first time that each has one thing and waits for the next. Here the run
goes on: *stuck* are those that never get out of it. *Used* says how often somebody had both things, at most once a
round.

"""
_PHILOSOPHERS_AFTER = """
Advisory locks that are taken one after the other are worse than no word at all: who waits in line for a lock puts
nothing down, and takes no other. Where nobody renews them such a deadlock lasts until their time is over (`--ttl`, a
minute if nothing is said). One order for all cures it, where every agent knows the order and keeps to it; it is slower
than taking all at once, since agents hold one thing while they wait for another. All or none
(`hivemind lease acquire A B`) needs no agreement.
"""


_TWO = """\
### Thirty agents at 02:00

`scenarios/{name}.yaml`: {agents} agents of {turns} turns begin within {within:g} ms on one key. Means over {seeds}
seeds and both kinds of limits. The article says that most fail; it has no count.

"""
_AFTER_TWO = """
The scheduler serves whose context the provider still has in its cache before the others: half of the turns are sooner,
the input costs less, all are done sooner, and those at the end of the line wait longer.
"""
_INCIDENT = """\
### A provider's incident, with and without a shared breaker

`scenarios/{name}.yaml`: {agents} agents of {turns} turns; from {begins:g} s to {ends:g} s every call is answered
{status}. Each agent for itself re-sends twice; behind one queue all learn from one answer. *Refused*: attempts that
were sent in vain. Without its breaker the scheduler takes what is refused for a limit that nobody told, which parks
everybody as well; without both each call is tried again for itself.

"""
_RETRIES = """\
### Retries that add up

Three layers that try three times each send {layered} requests for one ({source}). Requests sent ÷ turns wanted, over
the {scenarios} scenarios above and all seeds. A turn counts once however often it is sent. Whoever dies early asks for
less, so requests sent ÷ turns answered stands beside it.

"""


def section(made: Experiments) -> str:
    """Everything on the article, as Markdown."""
    parts = [_at_two(made), _philosophers(made), _incident(made), _retries(made)]
    return _HEAD.format(source=paper_figures.FLEETS) + "\n".join(parts)


def _at_two(made: Experiments) -> str:
    case = made.plan.fleet
    (crowd,) = case.scenario.crowds
    head = _TWO.format(
        name=case.name,
        agents=case.agents,
        turns=crowd.turns,
        within=1000 * (crowd.starts_s[1] + crowd.think_s[1]),
        seeds=made.plan.seeds,
    )
    rows = []
    for policy in EVERYONE:
        runs = made.runs.of_all_kinds(case, policy)
        rows.append(
            [
                f"`{policy.name}`",
                f"{spread([100 * run.lost for run in runs])} %",
                f"{fmean(100 * run.refused for run in runs):.1f} %",
                f"{fmean(run.turns_done for run in runs):.0f}",
                f"{fmean(run.latency_p50_s for run in runs):.0f} and {fmean(run.latency_p95_s for run in runs):.0f} s",
                f"{fmean(run.makespan_s for run in runs):.0f} s",
                f"{fmean(run.cost for run in runs):.2f}",
            ]
        )
    titles = (
        "Policy",
        "Agents lost",
        "Attempts refused",
        "Turns answered",
        "P50 and P95 of a turn",
        "The last ends",
        "Input cost ÷ ideal",
    )
    same = alike({policy.name: made.runs.of_all_kinds(case, policy) for policy in EVERYONE})
    return head + table(titles, rows) + _AFTER_TWO + (f"\n{same}\n" if same else "")


def _incident(made: Experiments) -> str:
    case = made.plan.incident
    (crowd,), (outage,) = case.scenario.crowds, case.scenario.provider.outages
    head = _INCIDENT.format(
        name=case.name,
        agents=case.agents,
        turns=crowd.turns,
        begins=outage.from_s,
        ends=outage.to_s,
        status=outage.status,
    )
    rows = []
    for policy in INCIDENT_POLICIES:
        runs = made.runs.of_all_kinds(case, policy)
        rows.append(
            [
                f"`{policy.name}`",
                f"{spread([100 * run.lost for run in runs])} %",
                f"{fmean(run.refused * run.attempts for run in runs):.0f}",
                f"{_sent_by(runs, lambda run: run.wanted):.2f}",
                f"{fmean(run.turns_done for run in runs):.0f}",
                f"{fmean(run.makespan_s for run in runs):.0f} s",
            ]
        )
    titles = ("Policy", "Agents lost", "Refused", "Sent ÷ wanted", "Turns answered", "The last ends")
    return head + table(titles, rows)


def _retries(made: Experiments) -> str:
    rows = []
    for policy in EVERYONE:
        runs = [run for case in made.plan.compared for run in made.runs.of_all_kinds(case, policy)]
        worst = max(made.plan.compared, key=lambda case: _amplified(made, case, policy))
        rows.append(
            [
                f"`{policy.name}`",
                f"{_sent_by(runs, lambda run: run.wanted):.2f}",
                f"{_sent_by(runs, lambda run: run.turns_done):.2f}",
                f"{_amplified(made, worst, policy):.2f} (`{worst.name}`)",
            ]
        )
    head = _RETRIES.format(
        layered=paper_figures.LAYERED_ATTEMPTS, source=paper_figures.AMPLIFICATION, scenarios=len(made.plan.compared)
    )
    return head + table(("Policy", "Sent ÷ wanted", "Sent ÷ answered", "Worst scenario, sent ÷ wanted"), rows)


def _amplified(made: Experiments, case: Case, policy: Policy) -> float:
    return _sent_by(made.runs.of_all_kinds(case, policy), lambda run: run.wanted)


def _sent_by(runs: Sequence[Figures], what: Callable[[Figures], int]) -> float:
    """Requests sent ÷ something, over all of the runs together; infinite where there was nothing of it."""
    count = sum(map(what, runs))
    return sum(run.attempts for run in runs) / count if count else math.inf


def _philosophers(made: Experiments) -> str:
    head = _PHILOSOPHERS.format(
        agents=AGENTS,
        source=paper_figures.DPBENCH,
        silent=paper_figures.PHILOSOPHERS_DEADLOCKED[0],
        talk=paper_figures.PHILOSOPHERS_DEADLOCKED[1],
        kept=percent(paper_figures.WORDS_KEPT),
        runs=made.plan.dinners,
        rounds=ROUNDS,
    )
    names = {0.5: "coin", 1.0: "alike"}
    titles = ["How they agree"]
    for what in ("Deadlocked", "Stuck", "Used"):
        titles += [f"{what}, {names[alike]}" for alike in ALIKE]
    rows = []
    for way in dict.fromkeys(series.way for series in made.dinners):
        both = [series for series in made.dinners if series.way == way]
        rows.append(
            [
                way,
                *(percent(series.deadlocked) for series in both),
                *(percent(series.stuck) for series in both),
                *(f"{series.used:.0f}" for series in both),
            ]
        )
    return head + table(titles, rows) + _PHILOSOPHERS_AFTER


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
    """Theirs, and what came of them here."""
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
