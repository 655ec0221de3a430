import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hivemind_addon import __version__
from hivemind_addon.sim.expectation import Expectation, Verdict
from hivemind_addon.tools.cli import main
from lab import agreement


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def test_the_version_is_the_packages():
    assert run("--version").output == f"hivemind, version {__version__}\n"


def test_prove_prints_a_page_and_tells_what_was_missed(monkeypatch):
    monkeypatch.setattr(Expectation, "verdicts", lambda *_: iter([Verdict("agents lost", 0, 3)]))
    result = run("lab", "prove", "--seeds", "1", "--only", "micro-5")
    assert result.exit_code == 1
    assert result.stdout.startswith("# Proof\n")
    assert "`hivemind lab prove --seeds 1 --only micro-5`" in result.stdout
    assert "| micro-5 | bucket | agents lost | ≤ 0 | 3 | **missed** |" in result.stdout
    assert "missed: micro-5, bucket: agents lost: 3, expected ≤ 0\n" in result.stderr


def test_prove_writes_its_page_into_a_file_and_succeeds_when_nothing_was_missed(tmp_path):
    page = tmp_path / "proof.md"
    result = run("lab", "prove", "--seeds", "1", "--only", "micro-5", "--output", str(page))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "| micro-5 | bucket | hivemind | 0 of 5 | 40 |" in page.read_text()


def test_prove_knows_its_scenarios_and_their_variants():
    for name, there in (("nonsense", "there are micro-5, latency-spike"), ("zoo:window-61s", "there are window-")):
        result = run("lab", "prove", "--only", name)
        assert result.exit_code == 1
        assert there in result.stderr


def test_prove_runs_what_is_named():
    result = run("lab", "prove", "--seeds", "1", "--only", "zoo:random-502", "--only", "micro-5")
    rows = [line for line in result.stdout.splitlines() if "| hivemind | 0 of " in line]
    assert [row.split(" | ")[0] for row in rows[:3]] == ["| zoo:random-502", "| micro-5", "| micro-5"]


def test_prove_runs_so_many_random_loads():
    result = run("lab", "prove", "--only", "random:2")
    assert result.stdout.startswith("## Random loads\n")
    assert "| sdk-retry |" in result.stdout
    assert result.exit_code == ("missed: " in result.stderr)
    wrong = run("lab", "prove", "--only", "random:many")
    assert wrong.exit_code == 2
    assert "'many' is no number of loads; write random:300" in " ".join(wrong.stderr.split())


def test_prove_live_tells_where_socket_and_virtual_time_disagree(tmp_path, monkeypatch):
    class Apart:
        name = "stress, bucket, seed 0"

        def disagreements(self):
            return ["2 guard trips"]

    monkeypatch.setattr(agreement, "compare_all", lambda *_, **__: [Apart()])
    monkeypatch.setattr(agreement, "table", lambda _: "| a table |\n")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    page = tmp_path / "live.md"
    page.write_text("# Live\n\n<!-- measured -->\n\nold\n\n<!-- end -->\n")
    result = run("lab", "prove", "--live", "--only", "stress", "--output", str(page))
    assert (result.exit_code, result.stderr) == (1, "missed: stress, bucket, seed 0: 2 guard trips\n")
    told = "Beyond the margins:\n\n- stress, bucket, seed 0: 2 guard trips"
    assert page.read_text() == f"# Live\n\n<!-- measured -->\n\n| a table |\n\n{told}\n\n<!-- end -->\n"


def test_prove_live_knows_what_runs_live():
    result = run("lab", "prove", "--live", "--only", "micro-5")
    assert result.exit_code == 2
    assert "'micro-5' does not run live; replay-11, stress, fan-out do" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["exec", "--help"], ["lab", "scenario", "list"], ["config", "files"]]
)
def test_a_reader_that_has_seen_enough_is_no_failure(arguments, tmp_path):
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    reader, writer = os.pipe()
    os.close(reader)  # as `| head -0` does
    command = [sys.executable, "-P", "-m", "hivemind_addon", *arguments]
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, env=environment, check=False)
    assert (done.returncode, b"Traceback" in done.stderr, b"BrokenPipe" in done.stderr) == (0, False, False)
