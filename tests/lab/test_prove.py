"""`hivemind lab prove`: its plan, its page, its files, and what it says of a scheduler that is bad."""

import csv
from dataclasses import replace

import pytest
import yaml
from click.testing import CliRunner

from hivemind_addon import __version__
from hivemind_addon.sim.ablation import Primitive
from hivemind_addon.sim.expectation import Expectation
from hivemind_addon.sim.held_out import HELD_OUT_FROM, first_number
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import COMPARED, Policy, without
from hivemind_addon.sim.trial import Series, Setup, run_series
from hivemind_addon.tools.cli import main
from lab import proof_page
from lab.prove import _COMPARED, FULL, Part, Proof, _plan

LOSSY = """\
about: an outage that outlasts every client
crowds: [{name: agent, agents: 4, turns: 3, timeout_s: 20}]
provider: {outages: [{from_s: 0, to_s: 90}]}
expect: [{lost: 0}]
"""


def prove(*words):
    return CliRunner().invoke(main, ["lab", "prove", *words])


# The plan -------------------------------------------------------------------------------------------------------------


def test_a_report_uses_the_numbers_of_its_version_and_work_the_small_ones():
    first = first_number(__version__)
    work, reported = (_plan((), (), None, key, quick=True) for key in (None, __version__))
    assert all(part.seeds[0] == 0 for part in work)
    assert all(part.seeds[0] == first >= HELD_OUT_FROM for part in reported)
    loads = [setup.case.name for setup in reported[-1].setups]
    assert loads == [f"random-{first + number}" for number in range(len(loads))]


def test_the_whole_plan_takes_each_primitive_away_from_every_scenario():
    parts = {part.name: part for part in _plan((), (), None, None, quick=False)}
    missing = {policy.name for policy in parts["without"].policies} - {"hivemind"}
    assert missing == {without(primitive).name for primitive in Primitive}
    assert {setup.case.name for setup in parts["without"].setups} == cases().keys()
    assert len(parts["random loads"].setups) == FULL.loads
    assert "without" not in {part.name for part in _plan((), [Policy.FIFO], None, None, quick=False)}


def test_a_policy_of_ones_own_runs_beside_the_scheduler_and_no_proxy():
    (part,) = _plan(("micro-5",), [Policy.FIFO], 4, None, quick=False)
    assert [policy.name for policy in part.policies] == ["direct", "sdk-retry", "fifo", "hivemind"]
    assert part.seeds == range(4)


# The page -------------------------------------------------------------------------------------------------------------


def page_of(proof: Proof, key=None):
    parts = [Part("worlds", [one.setup for one in proof.all], COMPARED, range(2))]
    return proof_page.page(proof, proof_page.Setting("hivemind lab prove", key, parts), ["minimised-x"])


def rows_under(text, title):
    """The cells of the first table below a title, by the first cell of the row."""
    lines = text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: dict(zip(table[0][1:], row[1:], strict=True)) for row in table[2:]}


@pytest.fixture(scope="module")
def base():
    (series,) = run_series([Setup(cases()["micro-5"], LimitKind.BUCKET)], [*COMPARED, without(Primitive.RETRY)], [0, 1])
    return series


def named(series: Series, name: str, **runs):
    """The same under another name, with changed figures of some policies."""
    case = series.setup.case
    case = replace(case, scenario=replace(case.scenario, name=name), expect=(Expectation(lost=0, to_no_proxy=1.05),))
    changed = {
        policy: tuple(replace(run, **runs.get(policy.name.replace("-", "_"), {})) for run in figures)
        for policy, figures in series.runs.items()
    }
    return replace(series, setup=replace(series.setup, case=case), runs=changed)


def test_the_ten_rows_are_the_means_over_worlds_of_each_policy(base):
    worlds = [
        named(base, "even"),
        named(base, "odd", hivemind={"lost": 2, "refused": 20}, fifo={"shared_stretch": 4.0, "idle_s": 21.0}),
    ]
    rows = rows_under(page_of(Proof({"worlds": worlds})), "Ten rows")
    assert len(rows) == 10
    assert rows["agents lost"]["hivemind"] == "20 % (0 % to 40 %); in 1 of 2 worlds"
    assert rows["attempts refused"]["hivemind"] == "25 % (0 % to 50 %)"
    assert rows["time ÷ bound"]["fifo"].startswith("2.0")
    assert rows["time ÷ hivemind's"]["fifo"].endswith("1 worlds"), "where hivemind lost agents nothing is compared"
    assert rows["worse than no proxy"]["hivemind"] == "1 of 2 worlds"
    assert rows["worse than no proxy"]["direct"] == ""
    assert rows["idle for nothing > 20 s"]["fifo"] == "1 of 2 worlds"


def test_a_policy_that_ran_in_some_worlds_only_has_no_column(base):
    some = named(base, "some")
    some = replace(some, runs={policy: runs for policy, runs in some.runs.items() if policy != Policy.FIFO})
    proof = Proof({"worlds": [named(base, "all"), some]})
    rows = rows_under(page_of(proof), "Ten rows")
    assert all({"direct", "sdk-retry", "aimd-pause", "hivemind"} <= cells.keys() for cells in rows.values())
    assert all("fifo" not in cells for cells in rows.values())
    assert "fifo" not in proof_page.worlds_table(proof)


def test_weaknesses_and_missed_expectations_are_named_with_their_worlds(base):
    worlds = [
        named(base, "kept"),
        named(base, "losing", hivemind={"lost": 1}),
        named(base, "slow", hivemind={"makespan_s": 1000.0}),
        named(base, "idle", hivemind={"idle_s": 60.0}),
        named(base, "refused", hivemind={"refused": 30}),
    ]
    text = page_of(Proof({"worlds": worlds}))
    lines = text.split("## Where the scheduler is weak\n\n")[1].split("\n\n")[0].splitlines()
    found = [line.split("`")[1] for line in lines]
    assert found == ["losing, bucket", "refused, bucket", "losing, bucket", "slow, bucket", "idle, bucket"]
    assert "direct: " in lines[3] or "sdk-retry: " in lines[3]
    missed = rows_under(text, "Expectations")
    assert missed["losing, bucket"]["Measured"] in ("0.2", "2")
    assert "[minimised-x.yaml](proof/minimised-x.yaml)" in text


def test_a_primitive_is_worth_what_gets_worse_without(base):
    missing = without(Primitive.RETRY)
    flat = {"lost": 0, "refused": 0}
    worlds = [
        named(base, f"w{number}", hivemind=flat, hivemind_without_retry=flat | {"lost": lost})
        for number, lost in enumerate((1, 2, 2))
    ]
    row = rows_under(page_of(Proof({"worlds": [named(base, "even")]}, worlds)), "Without each primitive")["retry"]
    assert missing.name == "hivemind-without-retry"
    assert row["agents lost, points"] == "+33.3 (+20.0 to +40.0)"
    assert row["attempts refused, points"] == ""
    assert row["Most"] == "agents lost +40 in w2, bucket"


def test_the_page_says_which_numbers_were_used(base):
    proof = Proof({"worlds": [named(base, "even")]})
    assert "**No report**" in page_of(proof)
    assert "those of the key `1.0`" in page_of(proof, "1.0")


# The command ----------------------------------------------------------------------------------------------------------


def test_it_writes_a_page_tables_and_smaller_cases_that_can_be_run_again(tmp_path):
    bad, output = tmp_path / "bad.yaml", tmp_path / "docs"
    bad.write_text(LOSSY)
    output.mkdir()
    (output / "judge.md").write_text("# Judge\n\n<!-- judged -->\n\nold\n\n<!-- end -->\n")
    words = ("--worlds", str(bad), "--worlds", "micro-5", "--worlds", "random:4:1", "--seeds", "2")
    result = prove(*words, "--report", "some key", "--output", str(output))
    assert result.exit_code == 1
    assert "missed: bad, none: agents lost: 1, expected ≤ 0\n" in result.stderr
    first = first_number("some key")
    page = (output / "proof.md").read_text()
    assert f"- worlds: 6 worlds, seeds {first} to {first + 1}" in page
    rows = list(csv.DictReader((output / "proof.csv").read_text().splitlines()))
    worlds = {(row["world"], row["limits"]) for row in rows}
    assert len(rows) == len(_COMPARED) * 4 + 2
    assert ("micro-5", "window, no headers") in worlds
    assert next(row for row in rows if row["missed"])["world"] == "bad"
    small = output / "proof" / "minimised-bad.yaml"
    (crowd,) = yaml.safe_load(small.read_text())["crowds"]
    assert (crowd["agents"], crowd["turns"]) == (1, 1)
    again = CliRunner().invoke(main, ["lab", "scenario", "run", str(small), "--first-seed", str(first), "--seeds", "1"])
    assert again.exit_code == 1
    judged = (output / "judge.md").read_text()
    assert "old" not in judged
    assert f"| World | {' | '.join(_COMPARED)} |" in judged
    assert "| micro-5, bucket | 0 %, 0 %, 1.0" in judged


def test_the_same_command_gives_the_same_page_with_any_number_of_workers():
    words = ("--worlds", "micro-5", "--worlds", "bursts", "--seeds", "1")
    alone, together = (prove(*words, "--workers", workers) for workers in ("1", "2"))
    assert alone.exit_code == together.exit_code == 0
    assert alone.stdout == together.stdout
    assert alone.stdout.startswith("# Proof\n")
    assert alone.stderr == "all 20 expectations of hivemind are kept\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--worlds", "nonsense"), "no scenario 'nonsense'; there are micro-5"),
        (("--worlds", "random:5:0"), "'random:5:0' names no random loads; write random:FROM:COUNT"),
        (("--worlds", "random:many"), "'random:many' names no random loads; write random:FROM:COUNT"),
        (("--policy", "magic"), "no policy 'magic'; there are direct"),
        (("--live", "--output", "/nowhere"), "live.md has no part <!-- measured --> to fill; name the folder docs"),
        (("--live", "--worlds", "micro-5"), "'micro-5' does not run live; replay-11, stress do"),
    ],
)
def test_a_mistake_gets_one_line(words, text):
    result = prove(*words)
    assert result.exit_code in (1, 2)
    assert text in " ".join(result.stderr.split())
