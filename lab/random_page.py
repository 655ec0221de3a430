"""The scheduler under many random loads, as a section of the proof."""

from collections.abc import Callable, Sequence

from hivemind_addon.sim.expectation import MANY_LOST
from hivemind_addon.sim.library import random_case
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.random_proof import (
    ALONE,
    BEHIND,
    LEAD,
    LEARNING,
    PAIRED,
    POLICIES,
    LoadProof,
    Shortfall,
    judged,
    setup_of,
    shortfalls,
)
from hivemind_addon.sim.trial import Trial, run_trials, whole
from lab.markdown import markdown_table

_HEAD = """\
## Random loads

{count} workloads that nobody chose (`sim/random_loads.py`): every one is feasible, its clients' patience is 1.5
to 4 times what a fair order needs at worst. `hivemind lab scenario show random-17` prints one, and
`hivemind lab scenario minimise random-17` makes it smaller while it still falls short. *Refused* counts what a limit
or the cap refuses, not what chance does, and not the first {learning} of a run; where a neighbour's call has
taken a slot that own calls left, it may refuse one attempt, for nothing tells of it. *Idle* is the longest
time that nothing is sent though the provider would serve all who wait; *paid twice*: the provider completed more
answers than were delivered or left by their clients; some have odd ends. *Worse than no proxy*: beside `direct` or
`sdk-retry` more agents are lost, or the agents that finish under both take more than {lead:.0%} more time or attempts,
all over {paired} seeds. A run that loses more than {many:.0%} of the agents more is not compared: the limits that
they leave to the others make it fast. *Faster* is who is done earlier than the scheduler by more than {lead:.0%} and
loses no more.

"""


def prove(numbers: Sequence[int], *, workers: int = 1, done: Callable[[str], None] = lambda _: None) -> list[LoadProof]:
    """Run the loads of these numbers under all policies."""
    cases = [random_case(number) for number in numbers]
    trials = [Trial(setup_of(case, policy), 0) for case in cases for policy in POLICIES]
    results = iter(run_trials(trials, whole, workers=workers, done=lambda trial: done(trial.setup.name)))
    return [judged(case, {policy: next(results) for policy in POLICIES}) for case in cases]


def section(proofs: Sequence[LoadProof]) -> str:
    """The proof as Markdown."""
    rows = []
    for policy in POLICIES:
        runs = [one.runs[policy] for one in proofs]
        short = [shortfall for run in runs for shortfall in shortfalls(run)]
        counts = " | ".join(str(short.count(one)) for one in ALONE)
        faster = BEHIND.get(policy)
        ahead = "" if faster is None else sum(faster in one.shortfalls for one in proofs)
        rows.append(
            f"{policy.name} | {sum(run.lost for run in runs)} of {sum(run.agents for run in runs)} | {counts} | {ahead}"
        )
    titles = f"Policy | Agents lost | {' | '.join(one.value for one in ALONE)} | faster"
    head = _HEAD.format(count=len(proofs), learning=LEARNING, lead=LEAD - 1, paired=PAIRED, many=MANY_LOST)
    return f"{head}{markdown_table(titles, rows)}\n{_offenders(proofs)}"


def _offenders(proofs: Sequence[LoadProof]) -> str:
    short = [one for one in proofs if one.shortfalls]
    if not short:
        return "The scheduler falls short in none of them.\n"
    rows = []
    for one in short:
        mine = one.runs[Policy.HIVEMIND]
        times = ", ".join(f"{one.runs[rival].makespan_s:.0f}" for rival in BEHIND)
        rows.append(
            f"{one.case.name} | {_in_words(one)} "
            f"| {mine.lost} of {mine.agents} | {mine.refused} of {mine.attempts} | {mine.idle_s:.0f} "
            f"| {mine.makespan_s:.0f} ({times}) | {mine.shared_stretch:.2f} | {one.case.about.removeprefix('Random: ')}"
        )
    titles = "Load | Falls short | Lost | Refused | Idle s | Time s (fifo, aimd-pause) | Time ÷ bound | What"
    return f"The scheduler falls short in {len(short)} of them:\n\n{markdown_table(titles, rows)}"


def missed(proofs: Sequence[LoadProof]) -> list[str]:
    """A line for each load on which the scheduler falls short."""
    return [f"{one.case.name}: {_in_words(one)}" for one in proofs if one.shortfalls]


def _in_words(proof: LoadProof) -> str:
    texts = [shortfall.value for shortfall in proof.shortfalls if shortfall is not Shortfall.WORSE]
    return ", ".join(texts + [verdict.text for verdict in proof.worse])
