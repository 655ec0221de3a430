"""What each command sends, and what is printed of the answer; the real socket is in tests/e2e/test_steer.py."""

import json

import pytest
from click.testing import CliRunner

from hivemind_addon.api.command import Cancel, MoveToFront, Pause, Resume, Said, SetLimit, SetPriority
from hivemind_addon.api.ticket import Priority
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import proxy


@pytest.fixture
def sent(monkeypatch, tmp_path):
    """Sockets and commands; each is done."""
    seen = []

    def send(path, command):
        seen.append((path.name, command))
        return Said(done="never" not in str(command), text="what was done")

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("hivemind_addon.system.folders.LONGEST_SOCKET_PATH", 1000)
    monkeypatch.setattr(proxy, "send_command", send)
    return seen


def run(*arguments):
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("command", ["pause", "resume", "limit", "priority", "cancel", "front"])
def test_each_command_has_examples(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Examples:\n" in result.output


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["pause"], Pause()),
        (["pause", "api.test"], Pause("api.test")),
        (["resume"], Resume()),
        (["limit", "4"], SetLimit(4)),
        (["limit", "0"], SetLimit(0)),
        (["limit", "auto", "api.test"], SetLimit(None, "api.test")),
        (["priority", "night-*", "LOW"], SetPriority("night-*", Priority.LOW)),
        (["priority", "night-*", "auto"], SetPriority("night-*", None)),
        (["priority", "a", "low", "--for", "90"], SetPriority("a", Priority.LOW, for_s=90.0)),
        (["priority", "a", "low", "--for", "1h30m"], SetPriority("a", Priority.LOW, for_s=5400.0)),
        (["cancel", "t1"], Cancel("t1")),
        (["front", "t1"], MoveToFront("t1")),
    ],
)
def test_each_sends_what_it_says_to_the_proxy_of_its_port(sent, arguments, command):
    result = run(*arguments, "-p", "9090")
    assert (result.exit_code, result.stdout) == (0, "what was done\n")
    assert sent == [("9090.sock", command)]


def test_as_json(sent):
    assert json.loads(run("pause", "--json").stdout) == {"done": True, "text": "what was done"}


def test_what_was_not_done_is_an_error(sent):
    result = run("cancel", "never")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "what was done\n")
    assert run("cancel", "never", "--json").exit_code == 1


@pytest.mark.parametrize("limit", ["four", "4.5", "²"])
def test_a_limit_that_is_no_number_is_named(sent, limit):
    result = run("limit", limit)
    assert result.exit_code == 2
    assert limit in result.stderr
    assert sent == []


@pytest.mark.parametrize("span", ["0", "soon"])
def test_an_order_for_no_time_is_not_sent(sent, span):
    result = run("priority", "a", "low", "--for", span)
    assert result.exit_code == 2
    assert span in result.stderr
    assert "try 90s, 5m or 1.5h" in result.stderr
    assert sent == []


def test_where_no_proxy_runs_it_says_so_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("hivemind_addon.system.folders.LONGEST_SOCKET_PATH", 100)
    result = run("pause", "-p", "1")
    assert result.exit_code == 1
    assert "no proxy" in result.stderr
    assert "Traceback" not in result.output
