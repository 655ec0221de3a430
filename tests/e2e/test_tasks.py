"""Processes that work together: fleets of tasks through a real proxy, agents that submit them by MCP, leases."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import pytest
import yaml
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.e2e.lease_actors import CROWD, KILLED_AT, MEALS, PHILOSOPHERS, PLACES, TTL_S, TURNS
from tests.e2e.proxy import PATIENCE_S, ROOT
from tests.engine_server import EngineServer
from tests.processes import is_alive
from tests.tools.mcp.stage import given

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tasks")]
SECONDS = 2 * PATIENCE_S
"""Of a whole fleet."""

# Fleets of tasks ---------------------------------------------------------------------------------------------------------


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


def pid_in(mine, name):
    """The process id that a task has written, once it has."""
    path = mine.home / name
    text = mine.wait_for(lambda: path.is_file() and path.read_text().strip(), f"the beginning of {name}")
    return int(text)


WORKERS = 14


def test_a_graph_of_tasks_finishes_though_two_of_them_are_killed_on_the_way(mine, anthropic):
    before = attempts(anthropic)
    call = shlex.join(mine.model_call("--fail", "-o", "/dev/null", "-w", "%{http_code}"))
    doomed = (
        'name=${HIVEMIND_TASK#*/}; if [ ! -e "tried-$name" ]; then : > "tried-$name"; echo $$ > "pid-$name.new"; '
        'mv "pid-$name.new" "pid-$name"; exec sleep 600; fi; '
    )
    tasks = {"plan": {"command": ["sh", "-c", call], "priority": "high", "budget_tokens": 12_345}}
    for n in range(WORKERS):
        script = (doomed if n in (3, 9) else "") + call
        before_it = ["plan"] if n < 5 else [f"work-{n - 5}", f"work-{n - 4}"]
        tasks[f"work-{n}"] = {"command": ["sh", "-c", script], "depends_on": before_it, "estimated_tokens": 100 + n}
    budgets = f"{shlex.join(words('budget', 'list', '--json'))} > budgets.json && "
    tasks["report"] = {
        "command": ["sh", "-c", 'test "$(cat "$HIVEMIND_RESULT_WORK_13")" = 200 && ' + budgets + call],
        "depends_on": [f"work-{n}" for n in range(WORKERS)],
    }
    file = fleet_file(mine, tasks, at_most=4, start_every_s=0.02)
    with started(mine, "fleet", "run", file, "--json") as fleet:
        for name in ("work-3", "work-9"):
            os.kill(pid_in(mine, f"pid-{name}"), signal.SIGKILL)
        out, err = fleet.communicate(timeout=SECONDS)
        assert fleet.returncode == 0, (out, err)
    ended = {task["id"].partition("/")[2]: task for task in json.loads(out)["tasks"]}
    assert {task["state"] for task in ended.values()} == {"done"}
    assert len(ended) == len(tasks)
    assert {name for name, task in ended.items() if task["attempts"] == 2} == {"work-3", "work-9"}
    assert ended["report"]["result"] == "200"
    assert attempts(anthropic) - before == len(tasks)
    assert f"{len(tasks)} done in" in err
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
        out, err = fleet.communicate(timeout=SECONDS)
    assert fleet.returncode == 130, (out, err)
    assert not is_alive(pid)
    assert "2 cancelled in" in out
    assert "the fleet was ended by SIGINT" in out


PARENT = """
import asyncio, os, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main():
    words = ["-P", "-m", "hivemind_addon", "mcp", "--allow", "submit", "--allow-commands"]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams) as client:
        await client.initialize()
        for tool, arguments in (
            ("submit", {"command": ["sh", "-c", "echo child of $HIVEMIND_TASK"]}),
            ("task_wait", {"seconds": 600}),
        ):
            told = await client.call_tool(tool, arguments)
            assert not told.isError, told
    (task,) = told.structuredContent["tasks"]
    print(sys.argv[1], task["state"], task["result"])

asyncio.run(main())
"""


def test_parents_that_wait_for_their_children_finish_with_one_place(served):
    """One waits by the command line, one by MCP."""
    mine = served
    (mine.home / "parent.py").write_text(PARENT)
    child = shlex.join(words("task", "submit", "--wait", "--", "sh", "-c", "echo child of $HIVEMIND_TASK"))
    parents = {"typist": {"command": ["sh", "-c", child]}, "agent": {"command": [sys.executable, "parent.py", "one"]}}
    done = hivemind(mine, "fleet", "run", fleet_file(mine, parents, at_most=1), "--json")
    assert done.returncode == 0, done
    tasks = {task["id"].partition("/")[2]: task for task in json.loads(done.stdout)["tasks"]}
    fleet = json.loads(done.stdout)["id"]
    assert len(tasks) == 4
    assert tasks["typist-1"]["parent"] == f"{fleet}/typist"
    assert tasks["typist"]["result"] == f"child of {fleet}/typist-1"
    assert tasks["agent"]["result"].startswith(f"one done child of {fleet}/"), tasks


def test_what_is_submitted_outside_of_a_fleet_runs_in_the_background(served):
    mine = served
    done = hivemind(mine, "task", "submit", "--wait", "--name", "hello", "--", "sh", "-c", "pwd; exit 7")
    assert (done.returncode, done.stdout) == (7, ""), done
    assert "failed" in done.stderr
    batch = mine.home / "batch.jsonl"
    batch.write_text('{"name": "a", "command": "echo one"}\n{"name": "b", "command": "pwd", "depends_on": ["a"]}\n')
    both = hivemind(mine, "task", "batch", batch, "--wait", "--json")
    views = json.loads(both.stdout)
    assert [view["result"] for view in views] == ["one", str(mine.home)]
    fleet = json.loads(hivemind(mine, "fleet", "status", "--json").stdout)[0]
    assert views[0]["id"] == f"{fleet['id']}/a"
    os.kill(fleet["runner_pid"], signal.SIGTERM)
    mine.wait_for(lambda: not is_alive(fleet["runner_pid"]), "the end of the runner")


@contextmanager
def runners_ended(mine):
    """The one in the background would wait for a minute for more tasks."""
    try:
        yield
    finally:
        for file in mine.state.glob("fleets/*/runner.json"):
            pid = json.loads(file.read_text())["pid"]
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            mine.wait_for(lambda pid=pid: not is_alive(pid), "the end of the runner")


async def test_an_agent_that_is_trusted_has_tasks_run_and_steers(mine):
    with mine.started("run"), runners_ended(mine):
        mine.wait_for(mine.report, "the start")
        command = mine.hivemind("mcp", "--agent", "lead", "--allow", "all", "--allow-commands")
        server = StdioServerParameters(command=command[0], args=command[1:], env=mine.environment, cwd=mine.home)
        async with stdio_client(server) as streams, ClientSession(*streams) as client:
            await client.initialize()
            call = [{"command": mine.model_call(), "name": "call"}]
            after = [{"command": ["sh", "-c", "echo I am $HIVEMIND_AGENT"], "name": "after", "depends_on": ["call"]}]
            ids = (await given(client, "batch", tasks=call + after))["ids"]
            told = await given(client, "task_wait", seconds=PATIENCE_S)
            assert [one["id"] for one in told["tasks"]] == sorted(ids)
            assert told["over"], told
            results = {one["id"].partition("/")[2]: one["result"] for one in told["tasks"]}
            assert '"stop_reason":"end_turn"' in results["call"], told
            name = results["after"].removeprefix("I am ").strip()
            assert name
            assert name != "lead", "it has a name of its own"
            await given(client, "budget_set", holder="everyone", per="day", usd=100)
            assert [one["holder"] for one in (await given(client, "budget_list"))["budgets"]] == ["everyone"]
            await given(client, "set_priority", agent="night-*", priority="high")
            options = {one["name"]: one for one in (await given(client, "config_list"))["options"]}
            assert options["hivemind_control"]["default"] == ""
            done = await asyncio.to_thread(mine.run, "exec", "--agent", "lead", "--", *mine.model_call())
            assert done.returncode == 0, done
            async with asyncio.timeout(PATIENCE_S):  # its row is written a moment later
                while (await given(client, "history"))["text"] != "It ran once.":
                    pass
            metrics = await given(client, "metrics")
            assert metrics["since"].startswith("midnight")
            assert (metrics["requests"], metrics["delivered"]) == (1, 1)
            status = await given(client, "status")
            assert status["pools"][0]["pool"].startswith("api.anthropic.com/")
        report = mine.report()
        assert [one["agent"] for one in report["snapshot"]["priorities"]] == ["night-*"]


# Leases ------------------------------------------------------------------------------------------------------------------

ACTORS = ROOT / "tests" / "e2e" / "lease_actors.py"


@pytest.fixture
def variables(tmp_path):
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def meals(tmp_path):
    """Run actors to their end; their exit statuses and meals (who, token, names, from, to)."""

    def run(kind, place=tmp_path / "leases.db"):
        log = tmp_path / "log"
        done = subprocess.run(
            [sys.executable, ACTORS, place, log, kind],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        lines = [line.split() for line in log.read_text().splitlines()]
        eaten = [
            (who, int(token), names.split(","), float(begun), float(ended)) for who, token, names, begun, ended in lines
        ]
        return [int(status) for status in done.stdout.split()], eaten

    return run


def at_once(meals, name):
    """The most meals with a name at one instant."""
    ends = [
        (when, change)
        for *_, names, begun, ended in meals
        if name in names
        for when, change in ((begun, 1), (ended, -1))
    ]
    now = most = 0
    for _, change in sorted(ends):
        now += change
        most = max(most, now)
    return most


@pytest.mark.parametrize("where", ["file", "engine"])
def test_dining_philosophers_finish_without_waiting_for_any_time_to_pass_though_one_is_killed_with_both_forks(
    meals, where, request
):
    statuses, eaten = meals(
        "philosophers", *([request.getfixturevalue("engine").unix_url] if where == "engine" else [])
    )
    assert statuses == [-9, 0, 0]
    assert [sum(who == f"philosopher-{seat}" for who, *_ in eaten) for seat in range(PHILOSOPHERS)] == [
        KILLED_AT,
        MEALS,
        MEALS,
    ]
    assert max(ended for *_, ended in eaten) - min(begun for *_, begun, _ in eaten) < TTL_S / 10
    for seat in range(PHILOSOPHERS):
        fork = f"fork-{seat}"
        assert at_once(eaten, fork) == 1
        tokens = [token for _, token, names, begun, _ in sorted(eaten, key=lambda one: one[3]) if fork in names]
        assert tokens == sorted(set(tokens))


def test_a_crowd_is_never_more_than_three_at_once_and_each_gets_its_turns(meals):
    statuses, eaten = meals("crowd")
    assert statuses == [0] * CROWD
    assert at_once(eaten, "phase") == PLACES
    assert sorted(who for who, *_ in eaten) == sorted(f"one-{number}" for number in range(CROWD) for _ in range(TURNS))


def test_the_examples_of_its_page_run(variables, tmp_path):
    page = (ROOT / "docs" / "leases.md").read_text()
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "hivemind"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hivemind_addon.tools.cli "$@"\n')
    command.chmod(0o755)
    variables |= {"PATH": f"{command.parent}:/usr/bin:/bin", "COLUMNS": "80"}
    script = "set -e\n" + "\n".join(block.partition("```")[0] for block in page.split("```sh\n")[1:])
    done = subprocess.run(
        ["bash", "-c", script], env=variables, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for said in ("with token 1\n", "http://127.0.0.1:7000", "(status 75)", "released deploy", "token 6\n"):
        assert said in done.stdout


def lease(variables, *arguments):
    return subprocess.run(
        words("lease", *arguments), env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def begin(variables, *arguments):
    """A command of leases that goes on."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(words("lease", *arguments), env=variables, text=True, **pipes)


def begin_holding(variables, *arguments):
    """One that has its lease, and whose own command says so."""
    started = begin(variables, *arguments)
    assert started.stdout.readline() == "ready\n"
    return started


def held(variables):
    return {one["name"]: one["holders"] for one in json.loads(lease(variables, "list", "--json").stdout)}


def test_a_command_runs_with_its_token_its_own_status_and_signals_and_ends_its_lease(variables):
    script = "echo ready; trap 'kill $!; echo told; exit 5' TERM; read line; sleep 600 >/dev/null 2>&1 & echo $HIVEMIND_LEASE_TOKEN; wait"
    running = begin_holding(variables, "run", "b", "a", "--ttl", "10m", "--", "sh", "-c", script)
    now = held(variables)
    assert sorted(now) == ["a", "b"]
    assert now["a"][0]["holder"]["pid"] == running.pid
    refused = lease(variables, "acquire", "a", "c", "--no-wait")
    assert (refused.returncode, refused.stdout) == (75, "")
    assert refused.stderr == f"a: held by sh-{running.pid}\n"
    running.stdin.write("go\n")
    running.stdin.flush()
    assert running.stdout.readline() == f"{now['a'][0]['token']}\n"
    running.terminate()
    out, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, out, err) == (5, "told\n", "")
    assert held(variables) == {}


def test_a_lost_lease_is_told_to_the_command(variables):
    running = begin_holding(variables, "run", "x", "--ttl", "6s", "--", "sh", "-c", "echo ready; exec sleep 600")
    assert lease(variables, "release", "x").returncode == 1
    assert lease(variables, "release", "x", "--force").stdout == "released x\n"
    _, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == -signal.SIGTERM
    assert "is over" in err
    assert "sh is asked to end" in err
    assert len(err.splitlines()) == 1


# What is said once: as the connection ends, or as a new one is refused, whichever is seen first.
ENGINE_GONE = re.compile(r"is not there \(connection refused\)|has closed the connection")


def test_a_holder_survives_a_restart_of_the_engine_and_is_told_at_its_end_where_that_does_not_come_back(variables):
    server = EngineServer(persists=True).start()
    variables |= {"HIVEMIND_CLUSTER": server.url}
    try:
        running = begin_holding(variables, "run", "x", "--ttl", "5s", "--", "sh", "-c", "echo ready; exec sleep 600")
        waiting = begin(variables, "run", "x", "--ttl", "3s", "--", "echo", "mine")
        assert "waiting: x: held by" in waiting.stderr.readline()
        (before,) = held(variables)["x"]
        server.restart(empty=False)
        while (now := held(variables)["x"])[0]["left_s"] <= before["left_s"]:  # until it was renewed
            before = now[0]
        assert now[0]["token"] == before["token"]
        server.kill()
        _, err = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == -signal.SIGTERM
        assert err.endswith("sh is asked to end\n")
        assert ENGINE_GONE.search(err)
        assert held_line(lease(variables, "list")) == (1, 1)
        server.restart(empty=False)
        out, err = waiting.communicate(timeout=PATIENCE_S)
        assert (waiting.returncode, out) == (0, "mine\n")
        assert ENGINE_GONE.search(err)
    finally:
        server.stop()


def held_line(done):
    """Exit status, and how many lines it says of it."""
    return done.returncode, len(done.stderr.splitlines())


def test_a_killed_leader_is_followed_at_once_by_who_waits(variables, tmp_path):
    script = (
        "--",
        "sh",
        "-c",
        "echo ready; read line",
    )  # until its input ends, that of one whose leader was killed, too
    first = begin_holding(variables, "lead", "plan", "--value", "one", *script)
    second = begin(variables, "lead", "plan", "--value", "two", *script)
    assert "waiting: plan: held by" in second.stderr.readline()
    assert [one["value"] for one in held(variables)["plan"]] == ["one"]
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    assert second.stdout.readline() == "ready\n"
    assert [one["value"] for one in held(variables)["plan"]] == ["two"]
    second.kill()
    second.communicate(timeout=PATIENCE_S)
    assert held(variables) == {}
