"""Runs of scenarios as series, what is printed of them, and `hivemind lab scenario`."""

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from hivemind_addon.sim.expectation import Expectation, Verdict
from hivemind_addon.sim.figures import Mean
from hivemind_addon.sim.held_out import HELD_OUT_FROM, first_number, is_held_out
from hivemind_addon.sim.library import cases, random_case
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import COMPARED, Policy
from hivemind_addon.sim.report import LOST, TIME, as_json, kept, listing, missed, percent, table
from hivemind_addon.sim.trial import Series, Setup, run_series, run_trials, setups, trials_of
from hivemind_addon.tools.cli import main
from tests.cases import each

MICRO = cases()["micro-5"]
BOTH = (Policy.DIRECT, Policy.HIVEMIND)


def planned(case, policies, kinds=tuple(LimitKind)):
    return [trial.name for setup in setups(case, kinds) for trial in trials_of(setup, policies, [0])]


def test_a_case_is_run_on_its_kinds_and_without_headers_where_that_is_judged():
    assert planned(MICRO, BOTH) == [
        "micro-5, bucket, direct",
        "micro-5, bucket, hivemind",
        "micro-5, bucket, no headers, hivemind",
        "micro-5, window, direct",
        "micro-5, window, hivemind",
        "micro-5, window, no headers, hivemind",
    ]
    assert [setup.limits for setup in setups(cases()["changing-cap"])] == ["none"]
    assert [setup.limits for setup in setups(cases()["mixed-providers"])] == ["as stated"]


def test_the_policies_run_that_something_is_compared_with():
    to_none = replace(MICRO, expect=(Expectation(lost=0, to_no_proxy=1.05),))
    assert planned(to_none, [Policy.HIVEMIND], [LimitKind.BUCKET]) == [
        "micro-5, bucket, hivemind",
        "micro-5, bucket, direct",
        "micro-5, bucket, sdk-retry",
    ]
    blind = replace(MICRO, expect=(Expectation(lost=0), Expectation(headers=False, time_to_fifo=1.05)))
    assert planned(blind, [Policy.HIVEMIND], [LimitKind.BUCKET]) == [
        "micro-5, bucket, hivemind",
        "micro-5, bucket, no headers, hivemind",
        "micro-5, bucket, no headers, fifo",
    ]


def test_several_processes_give_the_same_in_the_same_order():
    trials = trials_of(Setup(MICRO, LimitKind.BUCKET), [Policy.HIVEMIND], range(10))
    done = []
    alone = run_trials(trials)
    assert run_trials(trials, workers=2, done=done.append) == alone
    assert done == [trial.name for trial in trials]
    assert len({figures.makespan_s for figures in alone}) == 10


@each("values", [[3.0] * 4, [1.0, 2.0, 6.0], [0.5, 8.0]])
def test_an_interval_holds_its_mean_and_lies_within_the_values(values):
    for mean in (Mean.of(values), Mean.of_ratios(values)):
        assert min(values) <= mean.low <= mean.mean <= mean.high <= max(values) + 1e-9
    assert Mean.of(values).mean == pytest.approx(sum(values) / len(values))
    assert Mean.of_ratios(values).mean == pytest.approx(math.prod(values) ** (1 / len(values)))
    assert Mean.of(values).is_apart_from(0)


# Held out -------------------------------------------------------------------------------------------------------------


def test_each_key_has_numbers_of_its_own_that_work_does_not_use():
    assert first_number(None) == 0
    firsts = [first_number(f"1.{minor}.0") for minor in range(30)]
    assert len(set(firsts)) > 25, "hardly any two of so few keys share a block of 999"
    assert all(is_held_out(first) and first % 1_000_000 == 0 for first in firsts)
    assert all(random_case(first + 999).name == f"random-{first + 999}" for first in firsts[:2])


def test_no_test_and_no_page_uses_numbers_that_are_held_out():
    """What was tuned on is not reported: only pages that `prove` writes name such numbers."""
    root = Path(__file__).parents[2]
    reports = {root / "docs" / name for name in ("proof.md", "proof.csv")}
    places = [
        *(root / "tests").rglob("*.py"),
        *(root / "lab").rglob("*.py"),
        *(root / "docs").rglob("*.md"),
        *(root / "scenarios").glob("*.yaml"),
        root / "Makefile",
    ]
    uses = re.compile(r"(?:random[-:]|random_(?:case|load)\(|seeds?[ =:]+|first-seed[ =])(\d[\d_,]*)")
    found = [
        f"{place.relative_to(root)}: {use[0]}"
        for place in places
        if place not in reports
        for use in uses.finditer(place.read_text(encoding="utf-8"))
        if is_held_out(int(use[1].replace("_", "").replace(",", "")))
    ]
    assert found == []


# What is printed ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def series():
    wanted = setups(cases()["replay-11"], [LimitKind.WINDOW])
    return run_series(list(wanted), COMPARED, range(2))


def printed(renderable, width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_the_table_fits_a_terminal_and_has_a_line_for_each_policy(series):
    text = printed(table(series), 80)
    assert max(map(len, text.splitlines())) <= 80
    _, _, direct, *_, ours, _, blind = text.splitlines()
    assert [line.split()[0] for line in text.splitlines()[2:7]] == [policy.name for policy in COMPARED]
    assert direct.split()[:3] == ["direct", "82", "%"]
    assert ours.rstrip().endswith("✓ 4")
    assert blind.split()[0] == "hivemind"


def test_long_names_stay_whole_and_means_are_over_worlds_that_all_policies_have(series):
    told, blind = series
    long = replace(Policy.FIFO, name="a-long-path/of-somebody/mine.py:Mine")
    ours = told.runs[Policy.HIVEMIND]
    lossy = tuple(replace(run, lost=run.agents) for run in ours)
    worlds = [
        Series(told.setup, told.seeds, {long: ours, Policy.DIRECT: ours}),
        Series(told.setup, told.seeds, {long: lossy, Policy.DIRECT: ours}),
        Series(blind.setup, blind.seeds, {}),
    ]
    lines = printed(table(worlds), 80).splitlines()
    assert [line for line in lines if "replay" in line] == ["replay-11, window"] * 2, (
        "a world without a run is left out"
    )
    assert lines.count(f"  {long.name}") == 3
    *_, title, _, means, direct = lines
    assert title == "mean of 2 worlds"
    assert means.split()[:2] == ["50", "%"]
    time = TIME.words(TIME.of(ours))
    assert time in means
    assert time in direct
    assert kept(worlds) == ""
    assert kept(series) == "all 7 expectations of hivemind are kept"


def test_where_agents_were_lost_no_time_is_shown(series):
    told, _ = series
    died, ours = (TIME.of(told.runs[policy]) for policy in BOTH)
    assert LOST.of(told.runs[Policy.DIRECT]) == pytest.approx(9 / 11)
    assert died is None
    assert 1 <= ours < 1.1


def test_json_has_every_run_and_every_bound(series):
    rows = json.loads(as_json(series))
    assert [row["policy"] for row in rows] == [*(policy.name for policy in COMPARED), "hivemind"]
    assert [run["seed"] for run in rows[4]["runs"]] == [0, 1]
    assert rows[4]["runs"][0]["statuses"]["200"] == 88
    assert rows[0]["expected"] == []
    assert all(expected["met"] for expected in rows[4]["expected"])
    assert missed(series) == []


def test_every_scenario_is_listed_with_its_story():
    text = printed(listing(list(cases().values())), 120)
    assert all(name in text for name in cases())


@each("share, words", [(0, "0 %"), (0.005, "0.5 %"), (1 / 3, "33 %"), (1, "100 %"), (0.0002, "0.02 %")])
def test_shares_are_short(share, words):
    assert percent(share) == words


# Commands -------------------------------------------------------------------------------------------------------------


def run_commands(*words):
    return CliRunner().invoke(main, ["lab", "scenario", *words])


def test_show_prints_a_file_that_runs_as_ones_own(tmp_path):
    shown = run_commands("show", "micro-5")
    assert shown.stdout.startswith("about: >-\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text(shown.stdout)
    assert run_commands("show", str(mine)).stdout == shown.stdout
    result = run_commands("run", str(mine), "--seeds", "1", "--limits", "bucket")
    assert result.exit_code == 0
    assert "mine, bucket" in result.stdout
    assert result.stderr == "all 7 expectations of hivemind are kept\n"


def test_show_prints_a_random_load_that_runs_as_ones_own(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(run_commands("show", "random-3").stdout)
    again = json.loads(run_commands("run", str(mine), "--seeds", "1", "--json").stdout)
    first = json.loads(run_commands("run", "random-3", "--seeds", "1", "--json").stdout)
    assert again == [row | {"scenario": "mine"} for row in first]


def test_several_loads_have_one_name_and_those_of_reports_a_note():
    rows = json.loads(run_commands("run", "random:4:2", "--seeds", "1", "--policy", "direct", "--json").stdout)
    assert [row["scenario"] for row in rows] == ["random-4", "random-5"]
    held_out = f"random-{HELD_OUT_FROM + 3}"
    result = run_commands("show", held_out)
    assert result.stderr == f"note: {held_out} is held out for reports: tune no scheduler on it\n"


def test_minimise_writes_a_smaller_case_that_still_fails(tmp_path):
    large, small = tmp_path / "large.yaml", tmp_path / "small.yaml"
    large.write_text(
        "about: an outage that outlasts every client\n"
        "crowds: [{name: agent, agents: 4, turns: 3, timeout_s: 20}]\n"
        "provider: {outages: [{from_s: 0, to_s: 90}], faults: {'502': 0.1}}\n"
        "expect: [{lost: 0}]\n"
    )
    assert run_commands("minimise", str(large), "--output", str(small)).exit_code == 0
    assert "agents: 1, turns: 1," in small.read_text()
    assert "502" not in small.read_text()
    assert run_commands("run", str(small), "--seeds", "1").exit_code == 1
    assert "nothing to minimise" in run_commands("minimise", "micro-5").stderr


def test_one_command_gives_one_output():
    words = ("run", "replay-11", "--seeds", "2", "--json", "--policy", "aimd-pause", "--policy", "hivemind")
    first = run_commands(*words)
    assert first.stdout == run_commands(*words).stdout
    assert {row["limits"] for row in json.loads(first.stdout)} == {"bucket", "window"}


def test_a_missed_expectation_is_named_and_is_the_exit_status(monkeypatch):
    monkeypatch.setattr(Expectation, "verdicts", lambda *_: iter([Verdict("agents lost", 0, 0.5)]))
    result = run_commands("run", "micro-5", "--seeds", "1", "--limits", "window")
    assert result.exit_code == 1
    assert "missed: micro-5, window: agents lost: 0.5, expected ≤ 0\n" in result.stderr
    assert "✗ 0/1" in result.stdout
    assert run_commands("run", "micro-10", "--seeds", "1", "--policy", "direct").exit_code == 0


@each(
    ("words", "text"),
    [
        (("run", "nonsense"), "no scenario 'nonsense'; there are micro-5"),
        (("run", "random:5"), "'random:5' names no random loads; write random:FROM:COUNT"),
        (("run", "micro-5", "--policy", "magic"), "no policy 'magic'; there are direct"),
        (("run", "gone.yaml"), "gone.yaml: cannot be read"),
        (("show", "nonsense"), "no scenario 'nonsense'"),
        (("show", "random:0:2"), "random:0:2 names 2 scenarios; name one, such as random-1"),
    ],
)
def test_a_mistake_gets_one_line_and_no_traceback(words, text):
    result = run_commands(*words)
    assert result.exit_code in (1, 2)
    assert text in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
