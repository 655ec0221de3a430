"""A small demo through the real mitmdump, as `make demo` runs it."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.proxy import PATIENCE_S

HIVEMIND = Path(sys.executable).parent / "hivemind"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("demo")]


def processes_of(parent):
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_all_agents_survive_through_the_proxy():
    done = subprocess.run(
        [HIVEMIND, "demo", "--agents", "6", "--turns", "1", "--seed", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 3,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    direct, hivemind = result["direct"], result["hivemind"]
    assert (hivemind["alive"], hivemind["deaths"], hivemind["guard_trips"]) == (6, {}, 0)
    assert (hivemind["turns_done"], hivemind["failed"], hivemind["requests"]) == (6, 0, 6)
    assert hivemind["faults"], "the provider was not faulty"
    assert hivemind["attempts"] == 6 + hivemind["refused"] + sum(hivemind["faults"].values())
    assert direct["failed"] > 0
    assert "agents: " in done.stderr


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are looked up in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_whoever_stops_it_stops_its_mitmdump_too(how):
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    # As a script has it in the background: with SIGINT ignored.
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", HIVEMIND, "demo", "--agents", "1", "--turns", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as run:
        assert run.stdout is not None
        assert any(line.startswith("hivemind:") for line in run.stdout)
        (mitmdump,) = processes_of(run.pid)
        gone = os.pidfd_open(mitmdump)
        run.send_signal(how)
        assert run.wait(PATIENCE_S) != 0
        assert select.select([gone], [], [], PATIENCE_S)[0], "its mitmdump runs on"
        os.close(gone)
