"""Single tasks on the command line; what really runs is in tests/e2e/test_tasks.py."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hivemind_addon.plugins.fleets.tasks import client
from hivemind_addon.plugins.fleets.tasks.model import NotTaken, State
from hivemind_addon.plugins.fleets.tasks.store import TaskLine
from hivemind_addon.tools.cli import main
from tests.plugins.fleets.tasks.plain import shell, short_folder
from tests.plugins.fleets.tasks.test_store import owned, view
from tests.tools.commands.slips import offenders


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    with short_folder() as folder:
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        for name in ("HIVEMIND_TASK", "HIVEMIND_RUNNER", "HIVEMIND_PORT"):
            monkeypatch.delenv(name, raising=False)
        yield folder


@pytest.fixture
def calls(monkeypatch):
    """What is submitted and waited for; tasks end as `calls.views` says."""

    class Calls(list):
        views = (view("a", State.DONE, exit_status=0, result="fine"),)

    seen = Calls()
    monkeypatch.setattr(
        client, "submit", lambda specs, **more: seen.append((list(specs), more)) or [one.id for one in seen.views]
    )
    monkeypatch.setattr(client, "wait", lambda ids, **more: seen.append((list(ids), more)) or list(seen.views))
    return seen


def run(*arguments, **more):
    return CliRunner().invoke(main, arguments, **more)


def test_everything_behind_the_options_is_the_command(calls):
    done = run(
        "task", "submit", "--name", "a", "--priority", "high", "--depends-on", "b", "claude", "-p", "hi", "--name", "x"
    )
    assert (done.exit_code, done.output) == (0, "night-1/a\n")
    ((spec,), more) = calls[0]
    assert spec.command == ("claude", "-p", "hi", "--name", "x")
    assert (spec.name, spec.priority, spec.depends_on) == ("a", "high", ("b",))
    assert more == {"parent": "", "runner": None, "port": 8080}


def test_inside_of_a_task_its_runner_is_asked_for_a_child(calls):
    inside = {"HIVEMIND_TASK": "night-1/p", "HIVEMIND_RUNNER": "/run/r.sock", "HIVEMIND_PORT": "9090"}
    done = run("task", "submit", "--wait", "--agent-kind", "codex", "--prompt", "fix", env=inside)
    assert (done.exit_code, done.output) == (0, "fine\n")
    assert calls[0][1] == {"parent": "night-1/p", "runner": Path("/run/r.sock"), "port": 9090}
    assert calls[1] == (
        ["night-1/a"],
        {"waiter": "night-1/p", "timeout_s": None, "runner": Path("/run/r.sock")},
    )


@pytest.mark.parametrize(
    ("views", "status", "says"),
    [
        ([view("a", State.FAILED, exit_status=7, reason="exit status 7")], 7, "night-1/a  failed"),
        ([view("a", State.FAILED, reason="/x: no such folder")], 1, "/x: no such folder"),
        ([view("a", State.SKIPPED, reason="b failed")], 1, "skipped: b failed"),
        ([view("a", State.RUNNING)], 124, "running"),
        ([view("a", State.DONE), view("b", State.FAILED, exit_status=7)], 1, "night-1/b  failed"),
        ([view("a", State.DONE), view("b", State.DONE)], 0, "night-1/a  done\nnight-1/b  done"),
    ],
)
def test_how_they_ended_is_the_exit_status(calls, views, status, says):
    calls.views = views
    done = run("task", "wait", "night-1/a", "--timeout", "5")
    assert (done.exit_code, says in done.output) == (status, True), done.output
    assert json.loads(run("task", "wait", "night-1/a", "--json").stdout)[0]["id"] == "night-1/a"


def test_a_batch_comes_from_a_file_or_from_stdin(calls, machine):
    (machine / "b.yaml").write_text("- {command: make, name: a}\n- {agent: codex, prompt: fix}")
    assert run("task", "batch", str(machine / "b.yaml")).output == "night-1/a\n"
    assert [one.name or one.agent for one in calls[0][0]] == ["a", "codex"]
    assert run("task", "batch", "-", "--json", input='{"command": "echo x"}').output == '[\n  "night-1/a"\n]\n'
    assert calls[1][0][0].command == ("echo", "x")


def test_what_cannot_be_is_one_line():
    slips = [
        (["task", "submit"], 2, "command: there is nothing to run; add command, or agent"),
        (["task", "submit", "--agent-kind", "codex"], 2, "prompt: it is empty; say what the agent is to do"),
        (["task", "submit", "--name", "../x", "true"], 2, "name: '../x' is no name"),
        (["task", "batch", "-"], 1, "-: there is no list of tasks"),
        (["task", "batch", "none.jsonl"], 2, "does not exist"),
        (["task", "wait"], 2, "Missing argument"),
        (["task", "show", "x/y"], 1, "there is no fleet 'x'"),
        (["task", "log", "x/y"], 1, "there is no fleet 'x'"),
        (["task", "cancel", "x/y"], 1, "there is no fleet 'x'"),
        (["task", "wait", "x/y"], 1, "there is no fleet 'x'"),
    ]
    assert offenders(run, slips) == []


def test_a_runner_that_refuses_is_one_line(monkeypatch):
    def refuse(*_, **__):
        raise NotTaken("deeper ones are refused")

    monkeypatch.setattr(client, "submit", refuse)
    done = run("task", "submit", "true")
    assert (done.exit_code, done.output) == (1, "Error: deeper ones are refused\n")


def test_a_task_is_shown_with_what_it_answered_and_said():
    one = owned()
    one.log("a").write_text("all it said\n")
    ended = view("a", State.DONE, exit_status=0, log=str(one.log("a")), result="the answer")
    one.write(TaskLine(ended, shell("a", "true")), TaskLine(view("b"), shell("b", "true")))
    one.close()
    shown = run("task", "show", "night-1/a").output
    assert "night-1/a  done" in shown
    assert "in the proxy  night-1.a" in shown
    assert shown.endswith("\nthe answer\n")
    assert json.loads(run("task", "show", "night-1/a", "--json").stdout)["result"] == "the answer"
    assert run("task", "log", "night-1/a").output == "all it said\n"
    assert "has said nothing" in run("task", "log", "night-1/b").output


def test_the_tasks_of_all_fleets_are_listed_the_newest_fleet_first():
    assert "no tasks yet; run one with `hivemind task submit" in run("task", "list").output
    for number, fleet in enumerate(("night-1", "night-2")):
        one = owned(fleet, began_wall=float(number))
        made = view("a", State.FAILED, id=f"{fleet}/a", reason="exit status 3", exit_status=3, attempts=2)
        one.write(TaskLine(made, shell("a", "true")))
        one.close()
    lines = run("task", "list").output.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["night-2/a", "night-1/a"]
    assert lines[2].split()[1:] == ["failed", "2", "3", "exit", "status", "3"]
    assert [one["id"] for one in json.loads(run("task", "list", "--json").stdout)] == ["night-2/a", "night-1/a"]
