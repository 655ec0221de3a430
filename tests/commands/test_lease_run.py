"""What stops a command from being started; real commands under a lease are in tests/e2e/test_leases.py."""

import os

import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main


@pytest.fixture(autouse=True)
def _state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("HIVEMIND_AGENT", raising=False)


def run(*arguments):
    return CliRunner().invoke(main, ["lease", *arguments])


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["run", "a"], 2, "say what to run: NAME -- COMMAND"),
        (["run", "a", "--"], 2, "say what to run"),
        (["run", "--", "true"], 2, "NAME"),
        (["run", "a", "--", "no-such-command"], 127, "no-such-command"),
        (["lead", "a", "b", "--", "true"], 2, "b"),
        (["lead", "a"], 2, "say what to run"),
    ],
)
def test_what_is_wrong_is_one_line_and_no_traceback(arguments, status, says):
    result = run(*arguments)
    assert result.exit_code == status
    assert says in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["run", "lead"])
def test_a_busy_name_does_not_start_a_command(command):
    assert run("acquire", "a", "--pid", str(os.getpid())).exit_code == 0
    result = run(command, "a", "--no-wait", "--", "true")
    assert (result.exit_code, result.stdout) == (75, "")
    assert "held by" in result.stderr


def test_how_it_is_called_says_where_the_command_goes():
    assert "[OPTIONS] NAME... -- COMMAND..." in run("run", "--help").output
