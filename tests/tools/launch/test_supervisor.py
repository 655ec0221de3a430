"""Real processes, as small as they can be: a shell that writes what it did and ends as it is told."""

import asyncio
import os
import signal
import sys

import pytest

from hivemind_addon.proxy.system.stop_signals import START_REFUSED
from hivemind_addon.tools.launch.proxy_command import ProxyCommand
from hivemind_addon.tools.launch.supervisor import MAX_FAILED_STARTS, SETTLED_S, Supervisor


class Lives:
    """A clock on which each life of a process takes as long as the test says."""

    def __init__(self, *seconds):
        self._seconds = list(seconds)
        self._now = 0.0
        self._asked = 0

    def awake(self):
        self._asked += 1
        if self._asked % 2 == 0:  # asked at the beginning and at the end of each life
            self._now += self._seconds.pop(0) if self._seconds else 0.0
        return self._now

    def wall(self):
        return self._now


@pytest.fixture
def supervise(tmp_path, monkeypatch):
    """Run a supervisor over a shell script; gives its exit status, what it told, and how often it started."""
    monkeypatch.setattr("hivemind_addon.tools.launch.supervisor._FIRST_PAUSE_S", 0.001)

    async def run(script, *lives, when_started=None):
        count = tmp_path / "count"
        first = ("sh", "-c", f'echo started >> "{count}"\n{script}', "first")
        again = ("sh", "-c", f'echo again >> "{count}"\n{script}', "again")
        told = []
        supervisor = Supervisor(
            ProxyCommand(port=8080, first=first, again=again),
            environment={**os.environ, "COUNT": str(count)},
            clock=Lives(*lives),
            tell=told.append,
        )
        running = asyncio.create_task(supervisor.run())
        async with asyncio.timeout(120):
            if when_started:
                while not (count.exists() and "started" in count.read_text()):
                    await asyncio.sleep(0.01)
                await when_started(supervisor, count)
            status = await running
        return status, told, count.read_text().split() if count.exists() else []

    return run


async def test_one_that_takes_long_to_refuse_is_not_started_again_either(supervise):
    status, told, starts = await supervise(f"exit {START_REFUSED}", SETTLED_S * 3)
    assert (status, told, starts) == (1, [], ["started"])


async def test_one_that_refuses_to_start_is_not_started_again(supervise):
    assert await supervise("exit 3") == (3, [], ["started"])


async def test_one_that_ends_by_itself_is_done(supervise):
    assert await supervise("exit 0", 100) == (0, [], ["started"])


async def test_a_dead_one_is_back_and_one_that_fails_ever_after_is_given_up(supervise):
    status, told, starts = await supervise("exit 7", SETTLED_S)
    assert status == 7
    assert starts == ["started"] + ["again"] * (MAX_FAILED_STARTS + 1)
    assert told == [
        "hivemind: the proxy ended (exit status 7); starting it again on port 8080"
        for _ in range(MAX_FAILED_STARTS + 1)
    ]


async def test_lives_that_last_are_not_counted(supervise):
    lives = [SETTLED_S] * 20
    _, told, _ = await supervise("exit 1", *lives)
    assert len(told) == 20 + MAX_FAILED_STARTS


async def test_a_killed_one_is_back_at_once_however_young_it_was(supervise):
    async def kill(supervisor, count):
        os.kill(supervisor._process.pid, signal.SIGKILL)
        async with asyncio.timeout(120):
            while "again" not in count.read_text():
                await asyncio.sleep(0.01)
        supervisor.stop()

    status, told, starts = await supervise("exec sleep 600", when_started=kill)
    assert (status, starts) == (0, ["started", "again"])
    assert told == ["hivemind: the proxy ended (SIGKILL); starting it again on port 8080"]


async def test_one_that_crashes_at_every_start_is_given_up(supervise):
    status, _, starts = await supervise("kill -SEGV $$")
    assert status == 128 + signal.SIGSEGV
    assert len(starts) == MAX_FAILED_STARTS + 1


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_our_signals_end_the_child_and_nothing_stays(supervise, name):
    pids = []

    async def stop(supervisor, _count):
        pids.append(supervisor._process.pid)
        os.kill(os.getpid(), name)

    status, told, starts = await supervise("exec sleep 600", when_started=stop)
    assert (status, told, starts) == (0, [], ["started"])
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


async def test_a_second_signal_reaches_a_child_that_takes_its_time(supervise):
    slow = f"exec {sys.executable} -c '{SLOW}'"

    async def stop_twice(supervisor, count):
        async with asyncio.timeout(120):
            while "ready" not in count.read_text():
                await asyncio.sleep(0.01)
            supervisor.stop()
            while "first" not in count.read_text():
                await asyncio.sleep(0.01)
            supervisor.stop()

    status, _, words = await supervise(slow, when_started=stop_twice)
    assert (status, words) == (9, ["started", "ready", "first"])


async def test_a_terminal_that_is_closed_is_one_word_however_many_signals_it_sends(supervise):
    slow = f"exec {sys.executable} -c '{SLOW}'"
    stopped = []

    async def hang_up_twice(supervisor, count):
        stop = supervisor.stop
        supervisor.stop = lambda: stopped.append(stop())
        async with asyncio.timeout(120):
            while "ready" not in count.read_text():
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGHUP)
            while "first" not in count.read_text():
                await asyncio.sleep(0.01)
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGUSR1)
        await heard.wait()  # what came before it has been heard, too
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
        assert len(stopped) == 1
        stop()

    status, _, words = await supervise(slow, when_started=hang_up_twice)
    assert (status, words) == (9, ["started", "ready", "first"])


SLOW = """
import os, signal
def say(word):
    with open(os.environ["COUNT"], "a") as file:
        file.write(word + chr(10))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
say("ready")
signal.sigwait([signal.SIGTERM])
say("first")
signal.sigwait([signal.SIGTERM])
os._exit(9)
"""


async def test_when_we_are_cancelled_the_child_ends_too(tmp_path):
    supervisor = Supervisor(
        ProxyCommand(port=1, first=("sleep", "600"), again=("false",)),
        environment=os.environ,
        clock=Lives(),
        tell=print,
    )
    running = asyncio.create_task(supervisor.run())
    async with asyncio.timeout(120):
        while supervisor._process is None:
            await asyncio.sleep(0.01)
        assert str(supervisor._process.pid) in repr(supervisor)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert supervisor._process.returncode == -signal.SIGKILL
