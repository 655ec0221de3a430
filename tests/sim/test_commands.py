"""`hivemind scenario`, as people type it."""

import json

from click.testing import CliRunner

from hivemind_addon.lab.sim import agreement
from hivemind_addon.lab.sim.expectation import Expectation, Verdict
from hivemind_addon.tools.cli import main
from tests.cases import over


def run(*words):
    return CliRunner().invoke(main, ["scenario", *words])


def test_list_names_them_all():
    result = run("list")
    assert result.exit_code == 0
    assert "replay-11" in result.stdout
    assert "HiveMind paper" in result.stdout


def test_show_prints_a_file_that_runs_as_ones_own(tmp_path):
    shown = run("show", "micro-5")
    assert shown.stdout.startswith("about: >-\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text(shown.stdout)
    assert run("show", str(mine)).stdout == shown.stdout
    result = run("run", str(mine), "--seeds", "1", "--limits", "bucket")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[:4] == ["mine", "bucket", "yes", "0/5"]
    assert result.stderr == "every expectation is kept\n"


def test_show_prints_a_random_load_that_runs_as_ones_own(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(run("show", "random-3").stdout)
    (again,) = json.loads(run("run", str(mine), "--seeds", "1", "--json").stdout)
    (first,) = json.loads(run("run", "random-3", "--seeds", "1", "--json").stdout)
    assert again == first | {"scenario": "mine"}


def test_minimise_writes_a_smaller_case_that_still_fails(tmp_path):
    large, small = tmp_path / "large.yaml", tmp_path / "small.yaml"
    large.write_text(
        "about: an outage that outlasts every client\n"
        "crowds: [{name: agent, agents: 4, turns: 3, timeout_s: 20}]\n"
        "provider: {walls: [{from_s: 0, to_s: 90}], faults: {'502': 0.1}}\n"
    )
    assert run("minimise", str(large), "--output", str(small)).exit_code == 0
    assert "agents: 1\n" in small.read_text()
    assert "502" not in small.read_text()
    assert run("run", str(small), "--seeds", "1").exit_code == 1
    assert "nothing to minimise" in run("minimise", "micro-5").stderr


def test_one_command_gives_one_output():
    words = ("run", "replay-11", "--seeds", "2", "--json", "--policy", "aimd-pause", "--policy", "hivemind")
    first = run(*words)
    assert first.stdout == run(*words).stdout
    rows = json.loads(first.stdout)
    assert {row["policy"] for row in rows} == {"aimd-pause", "hivemind"}
    assert {row["limits"] for row in rows} == {"bucket", "window"}


def test_a_missed_expectation_is_told_and_is_the_exit_status(monkeypatch):
    monkeypatch.setattr(Expectation, "verdicts", lambda *_: iter([Verdict("agents lost", 0, 0.5)]))
    result = run("run", "micro-5", "--seeds", "1", "--limits", "window")
    assert result.exit_code == 1
    assert "missed: micro-5, window: agents lost: 0.5, expected ≤ 0\n" in result.stderr
    assert "✗ 0/1" in result.stdout


def test_another_policy_is_not_judged():
    result = run("run", "micro-10", "--seeds", "1", "--policy", "direct")
    assert result.exit_code == 0
    assert "10/10" in result.stdout


@over(
    ("words", "told"),
    [
        (("run", "nonsense"), "no scenario 'nonsense'; there are micro-5"),
        (("run", "micro-5", "--policy", "magic"), "no policy 'magic'; there are direct"),
        (("run", "gone.yaml"), "gone.yaml: cannot be read"),
        (("run", "changing-cap", "--real"), "changing-cap does not run on the socket: neighbours, moving caps"),
        (("run", "incident", "--real"), "incident does not run on the socket: its provider's walls and storms"),
        (("run", "stress", "--real", "--policy", "direct"), "only hivemind runs on the socket"),
        (("show", "nonsense"), "no scenario 'nonsense'"),
    ],
)
def test_a_mistake_gets_one_line_and_no_traceback(words, told):
    result = run(*words)
    assert result.exit_code in (1, 2)
    assert told in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_real_runs_tell_where_socket_and_virtual_time_disagree(monkeypatch):
    class Apart:
        name = "stress, bucket, seed 0"

        def disagreements(self):
            return ["2 guard trips"]

    def compared(scenarios, *, kinds, seeds, tell):
        assert ([scenario.name for scenario in scenarios], len(kinds), seeds) == (["stress"], 1, 1)
        tell("stress")
        return [Apart()]

    monkeypatch.setattr(agreement, "compare_all", compared)
    monkeypatch.setattr(agreement, "table", lambda _: "a table\n")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    result = run("run", "stress", "--real", "--limits", "bucket")
    assert (result.exit_code, result.stdout) == (1, "a table\n")
    assert result.stderr == "missed: stress, bucket, seed 0: 2 guard trips\n"
