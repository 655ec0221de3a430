import os
import signal
import sys

import pytest

from hivemind_addon.plugins.fleets.tasks import process
from hivemind_addon.plugins.fleets.tasks.process import TaskNotStarted, start
from hivemind_addon.proxy.system.file_lock import is_free, take_lock
from tests.processes import is_alive


@pytest.fixture
def begin(tmp_path):
    async def begin(script, **more):
        command = more.pop("command", ["sh", "-c", script])
        settings = {
            "environment": os.environ,
            "directory": tmp_path,
            "log": tmp_path / "log",
            "result": tmp_path / "result",
        }
        return await start(command, **settings | more)

    return begin


async def test_words_are_kept_and_the_result_is_standard_output_alone(begin, tmp_path):
    ended = await (await begin("echo out; echo err >&2; pwd; exit 3")).wait(timeout_s=None)
    assert (ended.exit_status, ended.was_ended, ended.timed_out) == (3, False, False)
    assert ended.result == f"out\n{tmp_path}"
    assert sorted((tmp_path / "log").read_text().splitlines()) == sorted(["out", "err", str(tmp_path)])
    assert (tmp_path / "result").read_text() == f"out\n{tmp_path}\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    await (await begin("echo again")).wait(timeout_s=None)
    assert (tmp_path / "result").read_text() == "again\n"
    assert "again" in (tmp_path / "log").read_text()
    assert "err" in (tmp_path / "log").read_text()


async def test_a_talkative_one_fills_no_disk_and_its_last_words_are_known(begin, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "MAX_LOG_BYTES", 1000)
    ended = await (await begin("yes | head -c 300000; echo last")).wait(timeout_s=None)
    assert ended.result.endswith("last")
    assert len(ended.result) <= process.TAIL_BYTES
    assert (tmp_path / "log").stat().st_size < 200_000
    assert "the log is full" in (tmp_path / "log").read_text()


async def test_time_that_is_over_ends_it(begin):
    ended = await (await begin("sleep 600")).wait(timeout_s=0.2)
    assert (ended.timed_out, ended.was_ended, ended.exit_status) == (True, True, 128 + signal.SIGTERM)


async def test_it_can_be_ended_and_killed(begin):
    one = await begin("sleep 600")
    one.end()
    one.end()
    assert (await one.wait(timeout_s=None)).was_ended
    two = await begin("trap '' TERM; sleep 600")
    two.kill()
    assert (await two.wait(timeout_s=None)).exit_status == 128 + signal.SIGKILL


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sessions are read on Linux only")
async def test_a_supervisor_that_is_killed_leaves_nothing(begin, tmp_path):
    one = await begin("sleep 600 & echo $! > pid; mv pid child; wait")
    while not (tmp_path / "child").exists():
        os.sched_yield()
    os.kill(one.pid, signal.SIGKILL)
    assert (await one.wait(timeout_s=None)).exit_status == 128 + signal.SIGKILL
    while is_alive(int((tmp_path / "child").read_text())):
        os.sched_yield()


async def test_a_lock_is_held_until_its_supervisor_ends_and_not_by_what_it_started(begin, tmp_path):
    lock = take_lock(tmp_path / "lock")
    has_it = f"if (: >&{lock}) 2> /dev/null; then echo it; else echo nothing; fi"
    one = await begin(f"while [ ! -e go ]; do sleep 0.01; done; {has_it}", lock=lock)
    os.close(lock)
    assert not is_free(tmp_path / "lock")
    (tmp_path / "go").touch()
    assert (await one.wait(timeout_s=None)).result == "nothing"
    assert is_free(tmp_path / "lock")


async def test_what_cannot_be_started_is_one_line(begin):
    for changes, says in (
        ({"directory": "/nonexistent"}, "/nonexistent: No such file"),
        ({"log": "/nonexistent/log"}, "/nonexistent/log: No such file"),
        ({"command": ["a\0b"]}, "its command or environment is none"),
    ):
        with pytest.raises(TaskNotStarted, match=says):
            await begin("", **changes)
