import asyncio
import json
import os
import sys

import pytest

from hivemind_addon.kernel.values.events import AccountBlocked, BreakerChanged, GuardTripped
from hivemind_addon.kernel.values.ticket import PoolKey
from hivemind_addon.proxy.run import notifier
from hivemind_addon.proxy.run.notifier import Command, Notifier
from tests.processes import is_alive

POOL = PoolKey("host.test", "key-1", "model")


class Program:
    """A command that writes what it read to a file, and then does what it is told."""

    def __init__(self, folder, then=""):
        self.calls_folder = folder / "calls"
        self.calls_folder.mkdir()
        self.file = folder / "call.py"
        self.file.write_text(
            "import os, pathlib, signal, sys\n"
            f"place = pathlib.Path({str(self.calls_folder)!r})\n"
            "said = sys.stdin.read()\n"
            "(place / f'.{os.getpid()}').write_text(said)\n"
            "(place / f'.{os.getpid()}').rename(place / str(os.getpid()))\n"
            f"{then}\n"
        )

    @property
    def command(self):
        return [sys.executable, "-I", "-S", str(self.file)]

    @property
    def calls(self):
        return [json.loads(file.read_text()) for file in self.calls_folder.glob("[0-9]*")]

    @property
    def pids(self):
        return [int(file.name) for file in self.calls_folder.glob("[0-9]*")]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(notifier, "TIMEOUT_S", 120.0)


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)


async def finish(made):
    """Wait until every call has ended."""
    async with asyncio.timeout(120):
        while made._calls:
            await asyncio.wait(made._calls)


async def until(condition):
    """Another process has done something. There is no clock to advance."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.to_thread(os.sched_yield)


def wall(clock, pool=POOL):
    return AccountBlocked(
        at=clock.monotonic(), pool=pool, until=clock.monotonic() + 3600, reason="429 rate_limit_error"
    )


async def test_the_command_reads_the_notice_as_json(program, clock):
    made = Notifier(Command(program.command), clock=clock)
    made(wall(clock))
    await finish(made)
    (call,) = program.calls
    assert call == {
        "cause": "account block",
        "state": "began",
        "text": "host.test/key-1/model: the account is refused for 1 h 0 min (429 rate_limit_error); who waits longer "
        "is held, the others are told; one looks every 5 min, `hivemind resume` ends it",
        "pool": "host.test/key-1/model",
        "wall": clock.wall(),
        "ends_at": clock.wall() + 3600,
    }
    await made.close()


async def test_a_trouble_that_lasts_is_called_for_by_the_timer(program, clock):
    made = Notifier(Command(program.command), clock=clock)
    made(BreakerChanged(at=clock.monotonic(), pool=POOL, state="open", reason="529 overloaded_error"))
    assert made._timer is not None
    clock.advance(299)
    made.tick()
    assert not made._calls
    clock.advance(1)
    made._on_timer()
    await finish(made)
    assert [call["cause"] for call in program.calls] == ["breaker"]
    assert made._timer is None
    await made.close()


async def test_a_handful_runs_at_once_and_the_others_wait_or_are_only_logged(tmp_path, clock, caplog):
    program = Program(tmp_path)
    made = Notifier(Command(program.command), clock=clock)
    for number in range(notifier.AT_ONCE + notifier.MOST_WAITING + 3):
        made(wall(clock, PoolKey("host.test", f"key-{number}", "m")))
        assert len(made._calls) <= notifier.AT_ONCE
    assert [message.split(":")[1] for message in caplog.messages] == [" too many calls for help wait; not called"] * 3
    await finish(made)
    assert len(program.calls) == notifier.AT_ONCE + notifier.MOST_WAITING
    await made.close()


async def test_a_command_that_fails_is_one_line(tmp_path, clock, caplog):
    made = Notifier(Command(Program(tmp_path, then="sys.exit(3)").command), clock=clock)
    made(wall(clock))
    await finish(made)
    assert caplog.messages == [f"hivemind: the call for help failed: {sys.executable}: exit status 3"]


async def test_a_command_that_is_gone_is_one_line(tmp_path, clock, caplog):
    made = Notifier(Command([str(tmp_path / "gone")]), clock=clock)
    made(wall(clock))
    await finish(made)
    (message,) = caplog.messages
    assert "FileNotFoundError" in message


async def test_a_command_that_does_not_end_is_ended_with_what_it_has_started(tmp_path, clock, caplog, monkeypatch):
    started = tmp_path / "started"
    fork = (
        "child = os.fork()\n"
        f"if child: pathlib.Path({str(started)!r}).write_text(str(child))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True: signal.pause()"
    )
    made = Notifier(Command(Program(tmp_path, then=fork).command), clock=clock)
    start = made.way._start

    async def begun(said):
        """Its time counts from here on."""
        process = await start(said)
        await until(lambda: started.exists() and started.read_text())
        return process

    monkeypatch.setattr(made.way, "_start", begun)
    monkeypatch.setattr(notifier, "TIMEOUT_S", 0.05)
    made(wall(clock))
    await finish(made)
    assert "was ended after" in caplog.text
    await until(lambda: not is_alive(int(started.read_text())))


async def test_calls_end_with_the_proxy(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(notifier, "_LAST_WORD_S", 0.0)
    program = Program(tmp_path, then="signal.pause()")
    made = Notifier(Command(program.command), clock=clock)
    made(wall(clock))
    made(GuardTripped(at=clock.monotonic(), ticket_id=None, where="hook", error="E"))
    await until(lambda: len(program.pids) == 2)
    await made.close()
    assert not any(map(is_alive, program.pids))
