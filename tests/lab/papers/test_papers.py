"""The page beside the papers: its figures are those of the runs, and theirs are told beside them."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from hivemind_addon.sim.library import cases, random_case
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.result import CrowdResult
from hivemind_addon.sim.trial import Setup, Trial
from hivemind_addon.tools.cli import main
from lab.evaluate.campaign import Runs
from lab.markdown import markdown_filled
from lab.papers import plan, queues
from lab.papers.overhead import Overhead
from lab.papers.page import parts
from lab.papers.significance import SignTest

PAGE = Path(__file__).parents[3] / "docs" / "papers.md"
STRESS = cases()["stress"]
OVERHEAD = Overhead(added_ms=1.25, bare_added_ms=0.5, rounds=3, machine="A machine.")


def smaller(name, **changed):
    case = cases()[name]
    (crowd,) = case.scenario.crowds
    return replace(case, scenario=replace(case.scenario, crowds=(replace(crowd, **changed),)))


SMALL = plan.PapersPlan(
    hivemind=(cases()["micro-10"], cases()["replay-11"], STRESS),
    ablated=(cases()["replay-11"], cases()["budgets"]),
    cascade=cases()["agentrm-cascade"],
    fleet=smaller("fleet-at-two", agents=10, turns=2),
    incident=cases()["incident"],
    seeds=2,
    ablation_seeds=1,
    loads=(random_case(93), random_case(85)),
    load_seeds=1,
    dinners=2,
    compacts=False,
)


@pytest.fixture(scope="module")
def made():
    return plan.run_papers(SMALL, workers=1, overhead=OVERHEAD, done=lambda _: None)


def page(made):
    return markdown_filled(PAGE.read_text(), parts(made))


@pytest.fixture(scope="module")
def text(made):
    return page(made)


def row(text, title, begins):
    """The cells of the first row below a title that begins so; without a title of the whole page."""
    _, _, below = text.partition(f"# {title}\n")
    line = next(line for line in below.splitlines() if line.startswith(f"| {begins} |"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def with_run(made, policy, **changed):
    """The same experiments, and the first run of `stress` under a policy was another."""
    key = Setup(STRESS, LimitKind.BUCKET, headers=True, policy=policy).name
    first, *others = made.runs.by_setup[key]
    return replace(made, runs=Runs({**made.runs.by_setup, key: (replace(first, **changed), *others)}))


def test_agents_lost_are_those_of_the_runs(text):
    runs = [
        Trial(Setup(STRESS, kind, headers=True, policy=policy), seed).run()
        for policy in (Policy.DIRECT, Policy.HIVEMIND)
        for kind in STRESS.kinds
        for seed in range(2)
    ]
    direct, ours = (sum(run.lost for run in some) / sum(run.agents for run in some) for some in (runs[:4], runs[4:]))
    cells = row(text, "Agents lost", "`stress`")
    assert cells[:3] == ["`stress`", "20", "100 → 10 %"]
    assert cells[3].startswith(f"{100 * direct:.0f}")
    assert cells[4].startswith(f"{100 * ours:.1f}")
    assert cells[5] == "2 of 2, p = 0.5000"


def test_a_claim_that_a_run_breaks_is_said_to_be_missed(made, text):
    theirs, _, judged = row(text, "Beside the papers", "HiveMind: agents lost under contention")[1:]
    assert (theirs, judged) == ("0 to 18 %", "as good or better")
    worse = page(with_run(made, Policy.HIVEMIND, lost=0.5))
    told = row(worse, "Beside the papers", "HiveMind: agents lost under contention")
    assert told[1:] == ["0 to 18 %", "0 to 50 %", "**worse**"]


def test_waste_is_told_as_a_sum_as_a_share_and_for_a_turn_and_why_the_sum_is_hardly_less(made, text):
    direct, ours = (made.runs.of_all_kinds(STRESS, policy) for policy in (Policy.DIRECT, Policy.HIVEMIND))
    share = [
        100 * sum(run.wasted_tokens for run in some) / sum(run.billed_tokens for run in some) for some in (direct, ours)
    ]
    turn = [sum(run.wasted_tokens for run in some) / sum(run.turns_done for run in some) for some in (direct, ours)]
    cells = row(text, "Waste", "`stress`")
    assert cells[2] == f"{share[0]:.0f} % → {share[1]:.1f} %"
    assert cells[3] == f"{turn[0]:,.0f} → {turn[1]:,.0f}"
    assert "\n`stress` is below their range: " in text
    assert "\n`micro-10` is below their range" not in text
    assert row(text, "Waste", "`micro-10`")[1] == "100 % less"
    assert "% more" in row(page(with_run(made, Policy.HIVEMIND, wasted_tokens=10**6)), "Waste", "`stress`")[1]


def test_policies_whose_runs_are_the_same_are_named_together_with_the_reason(made, text):
    told = "The runs of `agentrm-fifo`, `round-robin`, `priority-queue` are the same: an agent asks for one turn"
    assert told in text.partition("### The cascade")[2].partition("###")[0]
    other = replace(made.runs.by_setup[key := _cascade_key(queues.ROUND_ROBIN)][0], zombies=1)
    runs = Runs({**made.runs.by_setup, key: (other, *made.runs.by_setup[key][1:])})
    assert told not in page(replace(made, runs=runs))


def _cascade_key(policy):
    (kind,) = SMALL.cascade.kinds
    return Setup(SMALL.cascade, kind, headers=True, policy=policy).name


def test_where_lane_time_goes_is_told_from_the_runs(made, text):
    runs = made.runs.of_all_kinds(SMALL.cascade, queues.MLFQ)
    in_vain = sum(run.attempts - run.turns_done for run in runs)
    assert f"attempts {in_vain / len(runs):.1f} come to nothing in its queue and hold a lane for 30.0 s each" in text


def test_the_worst_load_is_told_with_its_seed(made, text):
    assert "The scheduler loses nobody in any of them." in text
    (worst, *_) = [load for load in made.loads if load.policy == Policy.HIVEMIND and load.case.name == "random-85"]
    crowds = {"agent": CrowdResult(agents=26, lost=13, turns_done=0, waits_s=(), ended_s=())}
    lost = replace(worst, seed=7, figures=replace(worst.figures, crowds=crowds))
    told = page(replace(made, loads=[lost if load is worst else load for load in made.loads]))
    assert row(told, "What would prove it wrong", "hivemind")[2:] == ["1", "50 % (13 of 26)", "`random-85`, seed 7"]
    assert row(told, "Beside the papers", "HiveMind: worst new workload of thirty agents")[3] == "**worse**"


def test_a_primitive_that_keeps_agents_alive_is_missed_in_the_ablation(made, text):
    cells = row(text, "Each primitive taken away", "transparent retry")
    assert cells[1:3] == ["`retry`", "36 to 73 %"]
    assert cells[4].startswith("`replay-11`, ")
    assert float(cells[3].removesuffix(" %")) > 50


def test_without_budgets_who_has_one_spends_more_than_it(text):
    told = row(text, "Each primitive taken away", "token budgets")[4]
    assert told.startswith("`budgets`: agents lost +")
    assert "most spent ÷ budget +" in told


def test_the_cascade_stands_beside_its_first_come_first_served(made, text):
    runs = {
        policy: [Trial(Setup(SMALL.cascade, None, headers=True, policy=policy), seed).run() for seed in range(2)]
        for policy in (queues.AGENTRM_FIFO, queues.MLFQ, Policy.HIVEMIND)
    }
    p95 = {policy: sum(run.latency_s(0.95) for run in some) / 2 for policy, some in runs.items()}
    assert row(text, "The cascade", "`agentrm-fifo`")[2] == f"{p95[queues.AGENTRM_FIFO]:.0f} s"
    for policy in (queues.MLFQ, Policy.HIVEMIND):
        less = round(100 - 100 * p95[policy] / p95[queues.AGENTRM_FIFO])
        assert row(text, "The cascade", f"`{policy.name}`")[2] == f"{p95[policy]:.0f} s ({less} % less)"
    assert row(text, "Beside the papers", "AgentRM: P95 latency of its cascade")[2] == f"{less} % less"
    zombies = sum(run.zombies for run in runs[queues.AGENTRM_FIFO]) / 2
    assert row(text, "Beside the papers", "AgentRM: zombies")[1:] == [
        "29 → 0",
        f"{zombies:.0f} → 0",
        "as good or better",
    ]
    patient, quick = (row(text, "The cascade", f"`hivemind`{words}") for words in (", as packaged", ""))
    assert float(patient[2].split()[0]) > float(quick[2].split()[0])


def test_what_compaction_keeps_is_told_where_it_was_measured(made, text):
    assert "Not measured in this run" in parts(made)["contexts"]
    rows = [("facts kept", "100 %", "99 %"), ("the same with truncation", "65.1 %", "60 %")]
    told = page(replace(made, compaction=rows))
    assert row(told, "What compaction keeps", "the same with truncation")[1:] == ["65.1 %", "60 %"]
    assert row(told, "Beside the papers", "AgentRM: facts kept")[1:] == ["100 %", "99 %", "**worse**"]


def test_what_is_sent_is_counted_against_what_was_wanted(made, text):
    runs = [run for case in SMALL.compared for run in made.runs.of_all_kinds(case, Policy.SDK)]
    sent = sum(run.attempts for run in runs) / sum(run.wanted for run in runs)
    assert row(text, "Retries that add up", "`sdk-retry`")[1] == f"{sent:.2f}"
    assert sent > 1.2
    assert row(text, "Retries that add up", "`direct`")[1] == "1.00"


def test_an_incident_kills_who_is_alone_and_a_breaker_saves_attempts(text):
    where = "A provider's incident, with and without a shared breaker"
    alone, queued, ours = (
        row(text, where, f"`{name}`") for name in ("sdk-retry", "hivemind-without-breaker", "hivemind")
    )
    assert alone[1] != "0 %"
    assert (queued[1], ours[1]) == ("0 %", "0 %")
    assert int(ours[2]) < int(queued[2]) < int(alone[2])


def test_who_is_ahead_of_the_scheduler_is_named_unless_it_loses_more_agents(made):
    def told(**changed):
        case = SMALL.incident
        keys = [Setup(case, kind, headers=True, policy=queues.MLFQ).name for kind in case.kinds]
        others = {key: tuple(replace(run, **changed) for run in made.runs.by_setup[key]) for key in keys}
        text = page(replace(made, runs=Runs({**made.runs.by_setup, **others})))
        return [line for line in text.splitlines() if line.startswith("- An incident, the last ends: ")]

    assert "`mlfq` " in "".join(told(makespan_s=1.0, lost=0.0))
    assert "`mlfq` " not in "".join(told(makespan_s=1.0, lost=0.5))


def test_every_table_has_as_many_cells_in_each_row(text):
    for block in text.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) <= 1, block


# What a request costs


def test_what_was_timed_says_so_and_what_was_not_is_not_told(made, text):
    assert row(text, "Added to a request", "added to a request")[2] == "1.25 ms"
    assert "A machine." in text
    untimed = page(replace(made, overhead=None))
    assert "Not measured in this run" in untimed
    assert "(timed)" not in untimed


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "No such file"), (b"{}", "missing required field `added_ms`"), (b"1", "Expected")]
)
def test_a_file_without_such_figures_is_an_error_of_one_line(tmp_path, content, problem):
    file = tmp_path / "overhead.json"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(main, ["lab", "papers", "--quick", "--overhead", str(file)])
    assert result.exit_code == 1
    assert problem in result.stderr
    assert "--json FILE" in result.stderr
    assert len(result.stderr.splitlines()) == 1


# The command


def test_the_command_writes_the_same_page_again(tmp_path, monkeypatch):
    tiny = replace(
        SMALL,
        hivemind=(cases()["replay-11"],),
        ablated=(cases()["replay-11"],),
        fleet=smaller("fleet-at-two", agents=5, turns=1),
        incident=smaller("incident", agents=3, turns=1),
        loads=(),
        dinners=1,
    )
    monkeypatch.setattr(plan, "quick_plan", lambda seeds: replace(tiny, seeds=seeds))
    (tmp_path / "overhead.json").write_bytes(msgspec.json.encode(OVERHEAD))
    words = ["lab", "papers", "--quick", "--seeds", "1", "--overhead", str(tmp_path / "overhead.json")]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 0, told.output
    assert "\n1 seeds, 1 where a primitive is taken away; 0 random loads" in told.stdout
    copy = tmp_path / "papers.md"
    copy.write_text(PAGE.read_text())
    assert CliRunner().invoke(main, [*words, "--output", str(copy)]).stdout == ""
    cascade = copy.read_text().partition("<!-- cascade -->")[2].partition("<!-- end -->")[0]
    assert cascade.strip() in told.stdout


def test_plans_name_each_trial_once_and_loads_of_about_thirty_agents():
    full = plan.full_plan(20)
    assert (
        plan.size(full)
        == len({(trial.setup.name, trial.seed) for trial in full.trials()}) + len(full.load_trials()) + 2
    )
    assert {case.name for case in full.hivemind} == {case.name for case in cases().values() if case.paper}
    assert {case.agents for case in full.loads} <= set(plan.THIRTY)
    assert len(full.loads) > 30


# Chance


@pytest.mark.parametrize(
    ("first", "second", "counts", "p"),
    [
        ([1, 2, 3, 4, 5], [0, 0, 0, 0, 0], (5, 0, 0), 2 / 32),
        ([1] * 10, [0] * 9 + [2], (9, 1, 0), 22 / 1024),
        ([1, 1, 1], [1, 1, 0], (1, 0, 2), 1.0),
        ([1, 1], [1, 1], (0, 0, 2), 1.0),
    ],
)
def test_the_sign_test_is_exact(first, second, counts, p):
    test = SignTest.of(first, second)
    assert (test.better, test.worse, test.ties) == counts
    assert test.p == pytest.approx(p)
