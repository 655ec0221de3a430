"""The command line of fleets; what really runs is in tests/e2e/test_tasks.py."""

import json

import pytest
import yaml
from click.testing import CliRunner

from hivemind_addon.plugins.fleets.commands import fleet as commands
from hivemind_addon.plugins.fleets.tasks.model import State
from hivemind_addon.plugins.fleets.tasks.session import FleetOutcome
from hivemind_addon.plugins.fleets.tasks.store import Fleet, FleetStore, RunnerOwner, TaskLine, fleets_folder
from hivemind_addon.tools.cli import main
from tests.plugins.fleets.tasks.plain import shell, short_folder
from tests.plugins.fleets.tasks.test_store import owned, view
from tests.tools.commands.slips import offenders


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    with short_folder() as folder:
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        monkeypatch.chdir(folder)
        yield folder


@pytest.fixture
def file(machine):
    path = machine / "night.yaml"
    tasks = {
        "plan": {"command": "make plan", "priority": "high"},
        "build": {"command": "make", "depends_on": ["plan"], "estimated_tokens": 5000},
        "review": {"agent": "claude-code", "prompt": "look", "depends_on": ["build"], "group": "reviewers"},
    }
    path.write_text(yaml.safe_dump({"groups": {"reviewers": {"workers": 2}}, "tasks": tasks}, sort_keys=False))
    return str(path)


@pytest.fixture
def plans(monkeypatch):
    """What would be run; each task of it ends as `plans.state` says."""

    class Plans(list):
        state = State.DONE
        signal = None

    seen = Plans()

    async def run_plan(plan, *, tell, **_):
        seen.append(plan)
        store = FleetStore(fleets_folder() / plan.fleet.id)
        tasks = tuple(view(one.name, seen.state, id=f"{plan.fleet.id}/{one.name}") for one in plan.tasks)
        for task in tasks:
            tell(task)
        store.own(RunnerOwner(1, "x"))
        store.write_fleet(plan.fleet)
        store.close()
        return FleetOutcome(commands.msgspec.structs.replace(store.view(), tasks=tasks), seen.signal)

    monkeypatch.setattr(commands, "run_plan", run_plan)
    return seen


def run(*arguments):
    return CliRunner().invoke(main, ["fleet", *arguments])


def test_a_file_is_run_and_told_in_lines(plans, file):
    done = run("run", file, "--at-most", "7", "-p", "9090")
    assert done.exit_code == 0, done.output
    (plan,) = plans
    assert (plan.fleet.port, plan.fleet.rules.at_most, plan.fleet.source) == (9090, 7, file)
    assert [one.name for one in plan.tasks] == ["plan", "build", "review"]
    assert f"{plan.fleet.id}/build  done" in done.output
    assert f"{plan.fleet.id}: 3 done in" in done.output
    assert "--resume" not in done.output


@pytest.mark.parametrize(("state", "status"), [(State.FAILED, 1), (State.SKIPPED, 1), (State.CANCELLED, 1)])
def test_a_task_that_is_not_done_is_an_exit_status(plans, file, state, status):
    plans.state = state
    done = run("run", file)
    assert done.exit_code == status
    assert f"hivemind fleet run --resume {plans[0].fleet.id}" in done.output


def test_a_signal_is_an_exit_status_as_shells_have_it(plans, file):
    plans.state, plans.signal = State.CANCELLED, 15
    assert run("run", file).exit_code == 143


def test_json_is_all_of_standard_output(plans, file):
    done = run("run", file, "--json")
    assert [task["state"] for task in json.loads(done.stdout)["tasks"]] == ["done"] * 3
    assert "3 done in" in done.stderr


def test_an_earlier_one_goes_on_with_other_places(plans):
    one = owned()
    one.write(TaskLine(view("a", State.DONE), shell("a", "true")))
    one.write(TaskLine(view("b", State.FAILED), shell("b", "true", ["a"])))
    one.close()
    done = run("run", "--resume", "night-1", "--at-most", "9")
    assert done.exit_code == 0, done.output
    (plan,) = plans
    assert ([one.name for one in plan.tasks], plan.fleet.rules.at_most) == (["b"], 9)


def test_a_dry_run_shows_the_order_and_starts_nothing(plans, file):
    shown = run("run", file, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert plans == []
    assert "3 tasks, at most 4 at once (2 for reviewers, 2 for the others); nothing was started" in shown.output
    lines = [line for line in shown.output.splitlines() if " make" in line or "claude-code" in line]
    assert [next(name for name in ("review", "build", "plan") if f" {name} " in line) for line in lines] == [
        "plan",
        "build",
        "review",
    ]


def test_what_cannot_be_is_one_line(file, machine):
    (machine / "bad.yaml").write_text("tasks: {a: {comand: x}}")
    slips = [
        (["run"], 2, "say what to run: FILE, or --resume ID"),
        (["run", "none.yaml"], 2, "does not exist"),
        (["run", "bad.yaml"], 1, "bad.yaml: tasks.a.comand: unknown key; did you mean command?"),
        (["run", "night.yaml", "--at-most", "1"], 1, "--at-most 1 is less than the 2 workers of its groups"),
        (["run", "--resume", "x"], 1, "there is no fleet 'x'; the newest are: none yet"),
        (["status", "x"], 1, "there is no fleet 'x'"),
        (["cancel", "x"], 1, "there is no fleet 'x'"),
        (["log", "x"], 1, "there is no fleet 'x'"),
    ]
    assert offenders(run, slips) == []


def test_fleets_and_their_tasks_are_listed():
    assert "no fleets yet" in run("status").output
    one = owned()
    one.write(TaskLine(view("a", State.DONE, exit_status=0), shell("a", "true")))
    one.log("a").write_text("said\nmore\n")
    one.write(TaskLine(view("b", State.FAILED, log=str(one.log("a")), reason="exit status 3"), shell("b", "true")))
    one.close()
    assert "1 done, 1 failed" in run("status").output
    assert run("list").output == run("status").output
    assert json.loads(run("status", "--json").stdout)[0]["tasks"][1]["state"] == "failed"
    assert "exit status 3" in run("status", "night-1").output
    assert json.loads(run("status", "night-1", "--json").stdout)["id"] == "night-1"
    assert run("status", "night-1", "--csv").output.splitlines()[1].startswith("night-1/a,done,")
    assert run("log", "night-1").output == "b  said\nb  more\n"
    assert "nothing runs night-1" in run("cancel", "night-1").output


def test_two_that_serve_one_port_are_one_too_many():
    lock = commands.claim.run_tasks(8080)
    try:
        assert run("serve", "--idle", "1").exit_code == commands.detached.ALREADY_THERE
        assert "somebody runs the tasks of port 8080 already" in run("serve").output
    finally:
        commands.os.close(lock)


def test_what_is_served_is_a_fleet_of_its_own(plans):
    assert run("serve", "--at-most", "3", "-p", "9090").exit_code == 0
    (plan,) = plans
    assert isinstance(plan.fleet, Fleet)
    assert (plan.fleet.source, plan.fleet.rules.at_most, plan.tasks) == ("", 3, ())
