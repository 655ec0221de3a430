"""Fleets of tasks: real processes, a real proxy, a simulated provider."""

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import yaml

from tests.e2e.proxy import PATIENCE_S
from tests.processes import is_alive

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tasks")]
SECONDS = 2 * PATIENCE_S
"""Of a whole fleet."""


def words(*arguments):
    return [sys.executable, "-P", "-m", "hivemind_addon", *map(str, arguments)]


def environment(mine):
    return mine.environment | {"HIVEMIND_PORT": str(mine.port), "COLUMNS": "100"}


def hivemind(mine, *arguments):
    return subprocess.run(
        words(*arguments),
        capture_output=True,
        text=True,
        cwd=mine.home,
        env=environment(mine),
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
        check=False,
    )


@contextmanager
def started(mine, *arguments):
    with subprocess.Popen(
        words(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=mine.home,
        env=environment(mine),
        stdin=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def fleet_file(mine, tasks, **settings):
    path = mine.home / "night.yaml"
    path.write_text(yaml.safe_dump(settings | {"tasks": tasks}))
    return path


def attempts(provider):
    return sum(agent.attempts for agent in provider.truth().agents.values())


def said(process):
    out, err = process.communicate(timeout=SECONDS)
    return out, err


def pid_in(mine, name):
    """The process id that a task has written, once it has."""
    path = mine.home / name
    text = mine.wait_for(lambda: path.is_file() and path.read_text().strip(), f"the beginning of {name}")
    return int(text)


def test_thirty_tasks_finish_though_two_are_killed_on_the_way(mine, anthropic):
    before = attempts(anthropic)
    call = shlex.join(mine.model_call("--fail", "-o", "/dev/null", "-w", "%{http_code}"))
    doomed = (
        'name=${HIVEMIND_TASK#*/}; if [ ! -e "tried-$name" ]; then : > "tried-$name"; echo $$ > "pid-$name.new"; '
        'mv "pid-$name.new" "pid-$name"; exec sleep 600; fi; '
    )
    tasks = {"plan": {"command": ["sh", "-c", call], "priority": "high", "budget_tokens": 12_345}}
    for n in range(28):
        script = (doomed if n in (3, 11) else "") + call
        before_it = ["plan"] if n < 9 else [f"work-{n - 9}", f"work-{n - 8}"]
        tasks[f"work-{n}"] = {"command": ["sh", "-c", script], "depends_on": before_it, "estimated_tokens": 100 + n}
    budgets = f"{shlex.join(words('budget', 'list', '--json'))} > budgets.json && "
    tasks["report"] = {
        "command": ["sh", "-c", 'test "$(cat "$HIVEMIND_RESULT_WORK_27")" = 200 && ' + budgets + call],
        "depends_on": [f"work-{n}" for n in range(28)],
    }
    assert len(tasks) == 30
    file = fleet_file(mine, tasks, at_most=8, start_every_s=0.02)
    with started(mine, "fleet", "run", file, "--json") as fleet:
        for name in ("work-3", "work-11"):
            os.kill(pid_in(mine, f"pid-{name}"), signal.SIGKILL)
        out, err = said(fleet)
        assert fleet.returncode == 0, (out, err)
    ended = {task["id"].partition("/")[2]: task for task in json.loads(out)["tasks"]}
    assert {task["state"] for task in ended.values()} == {"done"}
    assert len(ended) == 30
    assert {name for name, task in ended.items() if task["attempts"] == 2} == {"work-3", "work-11"}
    assert ended["report"]["result"] == "200"
    assert attempts(anthropic) - before == 30
    assert "30 done in" in err
    fleet_id = json.loads(out)["id"]
    (account,) = json.loads((mine.home / "budgets.json").read_text())
    assert (account["name"], account["limit_tokens"]) == (f"{fleet_id}.plan", 12_345)
    assert account["spent_tokens"] > 0


def test_a_killed_runner_leaves_no_process_and_another_goes_on_with_what_is_not_done(served):
    mine = served
    orphan = "setsid sh -c 'echo $$ > orphan; exec sleep 600'"
    script = f"if [ -e task ]; then exit 0; fi; echo $$ > task; {orphan} & sleep 600"
    tasks = {"first": {"command": "sh -c 'echo once >> first'"}}
    tasks["second"] = {"command": ["sh", "-c", script], "depends_on": ["first"]}
    file = fleet_file(mine, tasks)
    with started(mine, "fleet", "run", file) as fleet:
        pids = [pid_in(mine, "task"), pid_in(mine, "orphan")]
        fleet.kill()
        fleet.wait(PATIENCE_S)
        mine.wait_for(lambda: not any(map(is_alive, pids)), "the end of what the tasks had started")
    view = json.loads(hivemind(mine, "fleet", "status", "--json").stdout)[0]
    assert view["runner_pid"] is None
    shown = hivemind(mine, "fleet", "status", view["id"])
    assert "--resume" in shown.stdout, shown
    again = hivemind(mine, "fleet", "run", "--resume", view["id"])
    assert again.returncode == 0, again
    assert (mine.home / "first").read_text() == "once\n"
    assert f"all of {view['id']} is done" in hivemind(mine, "fleet", "run", "--resume", view["id"]).stderr


def test_ctrl_c_ends_all_and_says_what_was_done(served):
    mine = served
    file = fleet_file(
        mine, {"a": {"command": "sh -c 'echo $$ > a; sleep 600'"}, "b": {"command": "true", "depends_on": ["a"]}}
    )
    with started(mine, "fleet", "run", file) as fleet:
        pid = pid_in(mine, "a")
        fleet.send_signal(signal.SIGINT)
        out, err = said(fleet)
    assert fleet.returncode == 130, (out, err)
    assert not is_alive(pid)
    assert "2 cancelled in" in out
    assert "the fleet was ended by SIGINT" in out


def test_parents_that_wait_for_their_children_finish_with_one_place(served):
    mine = served
    child = shlex.join(words("submit", "--wait", "--", "sh", "-c", "echo child of $HIVEMIND_TASK"))
    file = fleet_file(mine, {f"parent-{n}": {"command": ["sh", "-c", child]} for n in range(2)}, at_most=1)
    done = hivemind(mine, "fleet", "run", file, "--json")
    assert done.returncode == 0, done
    tasks = {task["id"].partition("/")[2]: task for task in json.loads(done.stdout)["tasks"]}
    fleet = json.loads(done.stdout)["id"]
    assert tasks["parent-1-1"]["parent"] == f"{fleet}/parent-1"
    assert tasks["parent-1"]["result"] == f"child of {fleet}/parent-1-1"


def test_what_is_submitted_outside_of_a_fleet_runs_in_the_background(served):
    mine = served
    done = hivemind(mine, "submit", "--wait", "--name", "hello", "--", "sh", "-c", "pwd; exit 7")
    assert (done.returncode, done.stdout) == (7, ""), done
    assert "failed" in done.stderr
    batch = mine.home / "batch.jsonl"
    batch.write_text('{"name": "a", "command": "echo one"}\n{"name": "b", "command": "pwd", "depends_on": ["a"]}\n')
    both = hivemind(mine, "batch", batch, "--wait", "--json")
    views = json.loads(both.stdout)
    assert [view["result"] for view in views] == ["one", str(mine.home)]
    fleet = json.loads(hivemind(mine, "fleet", "status", "--json").stdout)[0]
    assert views[0]["id"] == f"{fleet['id']}/a"
    os.kill(fleet["runner_pid"], signal.SIGTERM)
    mine.wait_for(lambda: not is_alive(fleet["runner_pid"]), "the end of the runner")
