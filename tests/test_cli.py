import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from hivemind_addon import __version__, docs, resources
from hivemind_addon.cli import main
from hivemind_addon.sim import agreement, demo
from hivemind_addon.sim.demo import DemoResult, PhaseName
from hivemind_addon.sim.expectation import Expectation, Verdict
from hivemind_addon.sim.mitmdump import NotStarted
from tests.sim.test_demo_view import phase


def run(*arguments):
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def pretended(monkeypatch):
    """A demo that takes no time; the settings that it was asked for."""
    asked = []

    def pretend(**hivemind):
        async def run_demo(settings, _screen):
            asked.append(settings)
            return DemoResult(settings, phase(PhaseName.DIRECT, alive=4), phase(PhaseName.HIVEMIND, **hivemind))

        monkeypatch.setattr(demo, "run_demo", run_demo)
        monkeypatch.setattr("hivemind_addon.cli.signal.signal", lambda *_: None)
        return asked

    return pretend


def test_the_version_is_the_packages():
    assert run("--version").output == f"hivemind, version {__version__}\n"


@pytest.mark.parametrize("command", [[], ["demo"], ["addon"]])
def test_help_has_examples(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Examples:\n" in result.output


def test_every_command_and_option_has_a_help_text():
    for command in main.commands.values():
        assert command.help
        assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_addon_prints_the_script_that_mitmproxy_loads():
    assert run("addon").output == f"{resources.script_path()}\n"


def test_demo_prints_its_table_and_succeeds_when_nobody_was_lost(pretended):
    asked = pretended()
    result = run("demo", "--agents", "3", "--turns", "2", "--seed", "5", "--provider", "window")
    assert result.exit_code == 0
    assert "one fleet, two ways" in result.output
    assert any("`make run`" in line and line.endswith(" claude") for line in result.output.splitlines())
    assert asked == [demo.demo_settings(agents=3, turns=2, seed=5, kind=demo.LimitKind.WINDOW)]


@pytest.mark.parametrize("broken", [{"alive": 10}, {"guard_trips": 1}])
def test_demo_fails_when_the_scheduler_broke_its_promise(pretended, broken):
    pretended(**broken)
    assert run("demo").exit_code == 1


def test_demo_prints_nothing_but_json_where_that_is_asked_for(pretended):
    pretended()
    result = json.loads(run("demo", "--json").stdout)
    assert (result["direct"]["alive"], result["hivemind"]["alive"]) == (4, 11)
    assert result["hivemind"]["bound"] == {"bound_s": 30.0, "why": "8 slots"}


def test_a_mitmdump_that_does_not_start_is_one_line(monkeypatch):
    async def run_demo(_settings, _screen):
        raise NotStarted("mitmdump does not listen")

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setattr("hivemind_addon.cli.signal.signal", lambda *_: None)
    result = run("demo")
    assert (result.exit_code, result.stderr) == (1, "Error: mitmdump does not listen\n")


def test_without_httpx_the_demo_names_the_cure():
    """In a process of its own: what is imported cannot be taken back here."""
    script = "import sys; sys.modules['httpx'] = None; from hivemind_addon.cli import main; main(['demo'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"Error: the demo needs httpx: {sys.executable} -m pip install 'hivemind-addon[sim]'\n"


def test_docs_check_names_stale_pages(monkeypatch):
    assert run("docs", "--check").exit_code == 0
    monkeypatch.setattr(docs, "check", lambda: ["docs/options.md"])
    result = run("docs", "--check")
    assert (result.exit_code, result.stderr) == (1, "Error: stale, run `make docs`: docs/options.md\n")


def test_docs_writes_and_names_what_was_stale(monkeypatch, tmp_path):
    monkeypatch.setattr(docs, "write", lambda: [tmp_path / "options.md"])
    assert run("docs").output == f"{tmp_path / 'options.md'}\n"


def test_docs_works_in_a_checkout_only(monkeypatch):
    monkeypatch.setattr(docs, "in_checkout", lambda: False)
    result = run("docs")
    assert (result.exit_code, result.stderr) == (1, "Error: this is an installed package: only a checkout has docs/\n")


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
