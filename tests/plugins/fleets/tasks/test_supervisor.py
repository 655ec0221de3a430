"""The supervisor as it is used: a process of its own, at the end of a pipe."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hivemind_addon.plugins.fleets.tasks import supervisor
from tests.cases import each
from tests.processes import is_alive

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are found on Linux only")


def kept(*command, **more):
    return subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, "-1", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        **more,
    )


def gone(pids):
    deadline = time.monotonic() + 120  # noqa: TID251 - other processes have the real clock
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"{pids} live on"  # noqa: TID251
        time.sleep(0.01)  # noqa: TID251


@each(
    ("command", "status"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 42"), 42),
        (("sh", "-c", "kill -SEGV $$"), 128 + signal.SIGSEGV),
        (("nonesuch",), supervisor.NOT_FOUND),
        (("/etc/hosts",), supervisor.NOT_EXECUTABLE),
    ],
)
def test_its_exit_status_is_the_tasks(command, status):
    with kept(*command) as process:
        assert process.wait(120) == status
        assert (command[0] in process.stderr.read()) == (status in (126, 127))


def test_the_task_reads_nothing_and_has_its_signals_back():
    script = "import signal, sys; print(repr(sys.stdin.read()), signal.getsignal(signal.SIGTERM).name)"
    with kept(sys.executable, "-c", script) as process:
        assert process.wait(120) == 0
        assert process.stdout.read() == "'' SIG_DFL\n"


def test_the_end_of_the_pipe_ends_the_task_and_all_that_it_started():
    script = "sleep 600 & echo $!; setsid sleep 600 & echo $!; (setsid sleep 600 & echo $!) ; echo $$; sleep 600"
    with kept("sh", "-c", script) as process:
        pids = [int(process.stdout.readline()) for _ in range(4)]
        process.stdin.close()
        assert process.wait(120) == 128 + signal.SIGTERM
        gone(pids)


def test_what_a_finished_task_left_behind_is_ended():
    with kept("sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!; sleep 600 & echo $!; exit 3") as process:
        pids = [int(process.stdout.readline()) for _ in range(2)]
        assert process.wait(120) == 3
        gone(pids)


@pytest.fixture
def impatient(monkeypatch, tmp_path):
    """A supervisor that waits less long for a task to end by itself."""
    copy = tmp_path / "supervisor.py"
    copy.write_text(Path(supervisor.__file__).read_text().replace("GRACE_S = 5.0", "GRACE_S = 0.3"))
    monkeypatch.setattr(supervisor, "__file__", str(copy))


def test_one_that_does_not_listen_is_killed(impatient):
    with kept("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 600; done") as process:
        process.stdout.readline()
        process.stdin.close()
        assert process.wait(120) == 128 + signal.SIGKILL


def test_one_that_does_not_listen_is_killed_though_orphans_end_all_the_time(impatient):
    script = "trap '' TERM; echo ready; while :; do (sleep 0.01 & exit); done"
    with kept("sh", "-c", script) as process:
        process.stdout.readline()
        process.stdin.close()
        assert process.wait(120) == 128 + signal.SIGKILL


def test_a_killed_supervisor_takes_the_task_with_it():
    with kept("sh", "-c", "echo $$; exec sleep 600") as process:
        pid = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait(120)
        gone([pid])
