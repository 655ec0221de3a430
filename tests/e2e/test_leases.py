"""Leases among real processes: philosophers, a crowd, and `hivemind lease run` with everything that can end it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.lease_actors import CROWD, KILLED_AT, MEALS, PHILOSOPHERS, PLACES, TTL_S, TURNS
from tests.e2e.proxy import PATIENCE_S

pytestmark = pytest.mark.slow

ACTORS = Path(__file__).parent / "lease_actors.py"


@pytest.fixture
def environment(tmp_path):
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def meals(tmp_path):
    """Run actors to their end; their exit statuses and meals (who, token, names, from, to)."""

    def run(kind):
        log = tmp_path / "log"
        done = subprocess.run(
            [sys.executable, ACTORS, tmp_path / "leases.db", log, kind],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
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


def test_dining_philosophers_finish_without_waiting_for_any_time_to_pass_though_one_is_killed_with_both_forks(meals):
    statuses, eaten = meals("philosophers")
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


def test_a_crowd_of_fifty_is_never_more_than_three_at_once_and_each_gets_its_turns(meals):
    statuses, eaten = meals("crowd")
    assert statuses == [0] * CROWD
    assert at_once(eaten, "phase") == PLACES
    assert sorted(who for who, *_ in eaten) == sorted(f"one-{number}" for number in range(CROWD) for _ in range(TURNS))


def test_the_examples_of_its_page_run(environment, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "leases.md").read_text()
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "hivemind"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hivemind_addon.tools.cli "$@"\n')
    command.chmod(0o755)
    environment |= {"PATH": f"{command.parent}:/usr/bin:/bin", "COLUMNS": "80"}
    script = "set -e\n" + "\n".join(block.partition("```")[0] for block in page.split("```sh\n")[1:])
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for said in ("with token 1\n", "http://127.0.0.1:7000", "(status 75)", "released deploy", "token 6\n"):
        assert said in done.stdout


def lease(environment, *arguments, **more):
    return subprocess.run(  # noqa: PLW1510 - what it says is looked at
        [sys.executable, "-m", "hivemind_addon.tools.cli", "lease", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        **more,
    )


def begin(environment, *arguments):
    """A command that has its lease, and says so."""
    started = subprocess.Popen(
        [sys.executable, "-m", "hivemind_addon.tools.cli", "lease", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout.readline() == "ready\n"
    return started


def held(environment):
    return {one["name"]: one["holders"] for one in json.loads(lease(environment, "list", "--json").stdout)}


def test_a_command_runs_with_its_token_its_own_status_and_signals_and_ends_its_lease(environment):
    script = "echo ready; trap 'kill $!; echo told; exit 5' TERM; read line; sleep 600 >/dev/null 2>&1 & echo $HIVEMIND_LEASE_TOKEN; wait"
    running = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "hivemind_addon.tools.cli",
            "lease",
            "run",
            "b",
            "a",
            "--ttl",
            "10m",
            "--",
            "sh",
            "-c",
            script,
        ],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout.readline() == "ready\n"
    now = held(environment)
    assert sorted(now) == ["a", "b"]
    assert now["a"][0]["holder"]["pid"] == running.pid
    refused = lease(environment, "acquire", "a", "c", "--no-wait")
    assert (refused.returncode, refused.stdout) == (75, "")
    assert refused.stderr == f"a: held by sh-{running.pid}\n"
    running.stdin.write("go\n")
    running.stdin.flush()
    assert running.stdout.readline() == f"{now['a'][0]['token']}\n"
    running.terminate()
    out, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, out, err) == (5, "told\n", "")
    assert held(environment) == {}


def test_a_lost_lease_is_told_to_the_command(environment):
    running = begin(environment, "run", "x", "--ttl", "6s", "--", "sh", "-c", "echo ready; exec sleep 600")
    assert lease(environment, "release", "x").returncode == 1
    assert lease(environment, "release", "x", "--force").stdout == "released x\n"
    _, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == -signal.SIGTERM
    assert "is over" in err
    assert "sh is asked to end" in err
    assert len(err.splitlines()) == 1


def test_a_killed_leader_is_followed_at_once_by_who_waits(environment, tmp_path):
    first = begin(environment, "lead", "plan", "--value", "one", "--", "sh", "-c", "echo ready; exec sleep 600")
    second = subprocess.Popen(
        [
            *(sys.executable, "-m", "hivemind_addon.tools.cli", "lease", "lead", "plan", "--value", "two"),
            *("--", "sh", "-c", "echo ready; exec sleep 600"),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "waiting: plan: held by" in second.stderr.readline()
    assert [one["value"] for one in held(environment)["plan"]] == ["one"]
    first.kill()
    first.wait()
    assert second.stdout.readline() == "ready\n"
    assert [one["value"] for one in held(environment)["plan"]] == ["two"]
    second.kill()
    second.communicate(timeout=PATIENCE_S)
    assert held(environment) == {}


def test_who_calls_holds_what_a_shell_for_one_command_acquires(environment, tmp_path):
    script = f"""
hivemind() {{ {sys.executable} -m hivemind_addon.tools.cli "$@"; }}
eval "$(hivemind lease acquire x y --export)" && echo $HIVEMIND_LEASE_TOKEN
eval "$(hivemind lease acquire y --no-wait --export 2>/dev/null)" && echo wrong
hivemind lease acquire z > /dev/null
"""
    done = subprocess.run(
        ["bash", "-c", script + "true"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"
    # `bash -c` was a shell for one command: its caller, this process, still holds them.
    assert held(environment)["z"][0]["holder"]["pid"] == os.getpid()
