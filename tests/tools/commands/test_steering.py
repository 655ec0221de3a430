"""What each command sends, and what is printed of the answer; the real socket is in tests/e2e/test_steer.py."""

import json
import shlex

import pytest
from click.testing import CliRunner

from hivemind_addon.kernel.values.command import (
    AddBudget,
    Cancel,
    MoveToFront,
    Pause,
    ResetBudget,
    Resume,
    SetBudget,
    SetLimit,
    SetPriority,
)
from hivemind_addon.kernel.values.spend import Period, Scope
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.api.command import CommandReply, Record, SetConfig
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import proxy


@pytest.fixture
def sent(monkeypatch, tmp_path):
    """Sockets and commands; each is done."""
    seen = []

    def send(path, command):
        seen.append((path.name, command))
        return CommandReply(done="never" not in str(command), text="what was done")

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("hivemind_addon.proxy.system.folders.LONGEST_SOCKET_PATH", 1000)
    monkeypatch.setattr(proxy, "send_command", send)
    return seen


def run(*arguments):
    return CliRunner().invoke(main, arguments)


SENDS = {
    "pause": Pause(),
    "pause api.test": Pause("api.test"),
    "resume": Resume(),
    "cap 4": SetLimit(4),
    "cap 0": SetLimit(0),
    "cap auto api.test": SetLimit(None, "api.test"),
    "priority night-* LOW": SetPriority("night-*", Priority.LOW),
    "priority night-* auto": SetPriority("night-*", None),
    "priority a low --for 90": SetPriority("a", Priority.LOW, for_s=90.0),
    "priority a low --for 1h30m": SetPriority("a", Priority.LOW, for_s=5400.0),
    "cancel t1": Cancel("t1"),
    "front t1": MoveToFront("t1"),
    "capture start /n/night.flow": Record("/n/night.flow"),
    "capture start /n/night.flow --no-content": Record("/n/night.flow", content=False),
    "capture stop": Record(None),
    "config set keep 9": SetConfig("keep", "9"),
    "budget add a --tokens 500k": AddBudget(Scope.AGENT, "a", tokens=500_000),
    "budget add a --tokens 1_000 --usd $2.50": AddBudget(Scope.AGENT, "a", None, 1000, 2_500_000),
    "budget add --everyone --usd 5 --per day": AddBudget(Scope.EVERYONE, "", Period.DAY, 0, 5_000_000),
    "budget add --group g --tokens 2M": AddBudget(Scope.GROUP, "g", tokens=2_000_000),
    "budget set rev-* --tokens 1.5m": SetBudget(Scope.AGENT, "rev-*", tokens=1_500_000),
    "budget set a --usd 0": SetBudget(Scope.AGENT, "a", micro_usd=0),
    "budget set --everyone --per month --usd 0.000001": SetBudget(Scope.EVERYONE, "", Period.MONTH, None, 1),
    "budget set a --per hour --auto": SetBudget(Scope.AGENT, "a", Period.HOUR),
    "budget reset a": ResetBudget(Scope.AGENT, "a"),
    "budget reset --group g --per day": ResetBudget(Scope.GROUP, "g", Period.DAY),
}
SLIPS = (
    *(("cap four", "'four'"), ("cap 4.5", "'4.5'"), ("cap ²", "'²'")),
    *(("priority a low --for 0", "try 90s, 5m or 1.5h"), ("priority a low --for soon", "try 90s, 5m or 1.5h")),
    ("budget add --tokens 5", "say whose"),
    ("budget add a --everyone --tokens 5", "say whose"),
    ("budget add a", "say how much"),
    ("budget add a --tokens 0", "say how much"),
    ("budget add a --tokens many", "'many' is no amount"),
    ("budget add a --tokens 1.5", "finer than what is counted"),
    ("budget add a --tokens -5", "no amount that a budget can have"),
    ("budget add a --tokens nan", "no amount that a budget can have"),
    ("budget add a --usd 1e99", "no amount that a budget can have"),
    ("budget add a --usd 0.0000001", "finer than what is counted"),
    ("budget add a --tokens ''", "is no amount"),
    ("budget set a", "say how much"),
    ("budget set a --auto --tokens 5", "say how much"),
    ("budget reset", "say whose"),
    ("budget add a --tokens 5 --per year", "'year' is not one of"),
)


def test_each_sends_what_it_says_to_the_proxy_of_its_port(sent):
    for words, command in SENDS.items():
        result = run(*words.split(), "-p", "9090")
        assert (result.exit_code, result.stdout, sent.pop()) == (0, "what was done\n", ("9090.sock", command)), words


def test_a_slip_is_one_line_and_nothing_is_sent(sent):
    for words, says in SLIPS:
        result = run(*shlex.split(words))
        assert (result.exit_code, says in result.stderr) == (2, True), (words, result.output)
        assert "Traceback" not in result.output
    assert sent == []


def test_as_json(sent):
    assert json.loads(run("pause", "--json").stdout) == {"done": True, "text": "what was done"}


def test_what_was_not_done_is_an_error(sent):
    result = run("cancel", "never")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "what was done\n")
    assert run("cancel", "never", "--json").exit_code == 1


def test_where_no_proxy_runs_it_says_so_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("hivemind_addon.proxy.system.folders.LONGEST_SOCKET_PATH", 100)
    result = run("pause", "-p", "1")
    assert result.exit_code == 1
    assert "no proxy" in result.stderr
    assert "Traceback" not in result.output
