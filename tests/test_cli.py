from click.testing import CliRunner

from hivemind_addon import __version__
from hivemind_addon.cli import main
from hivemind_addon.sim import agreement
from hivemind_addon.sim.expectation import Expectation, Verdict


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def test_the_version_is_the_packages():
    assert run("--version").output == f"hivemind, version {__version__}\n"


def test_prove_prints_a_page_and_tells_what_was_missed(monkeypatch):
    monkeypatch.setattr(Expectation, "verdicts", lambda *_: iter([Verdict("agents lost", 0, 3)]))
    result = run("prove", "--seeds", "1", "--only", "micro-5")
    assert result.exit_code == 1
    assert result.stdout.startswith("# Proof\n")
    assert "`hivemind prove --seeds 1 --only micro-5`" in result.stdout
    assert "| micro-5 | bucket | agents lost | ≤ 0 | 3 | **missed** |" in result.stdout
    assert "missed: micro-5, bucket: agents lost: 3, expected ≤ 0\n" in result.stderr


def test_prove_writes_its_page_into_a_file_and_succeeds_when_nothing_was_missed(tmp_path):
    page = tmp_path / "proof.md"
    result = run("prove", "--seeds", "1", "--only", "micro-5", "--output", str(page))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "| micro-5 | bucket | hivemind | 0 of 5 | 40 |" in page.read_text()


def test_prove_knows_its_scenarios():
    result = run("prove", "--only", "nonsense")
    assert result.exit_code == 2
    assert "there are micro-5, latency-spike" in result.stderr


def test_prove_live_tells_where_socket_and_virtual_time_disagree(tmp_path, monkeypatch):
    class Apart:
        name = "stress, bucket, seed 0"

        def disagreements(self):
            return ["2 guard trips"]

    monkeypatch.setattr(agreement, "prove", lambda **_: [Apart()])
    monkeypatch.setattr(agreement, "page", lambda _, command: f"made by {command}\n")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    page = tmp_path / "live.md"
    result = run("prove", "--live", "--only", "stress", "--output", str(page))
    assert (result.exit_code, result.stderr) == (1, "stress, bucket, seed 0: 2 guard trips\n")
    assert page.read_text() == "made by hivemind prove --live --seeds 1 --only stress\n"


def test_prove_live_knows_what_runs_live():
    result = run("prove", "--live", "--only", "micro-5")
    assert result.exit_code == 2
    assert "'micro-5' does not run live; replay-11, stress, fan-out do" in result.stderr
