import asyncio
import sys

import pytest

from hivemind_addon.kernel.values.events import BreakerChanged
from hivemind_addon.kernel.values.snapshot import BreakerState
from hivemind_addon.kernel.values.ticket import PoolKey
from hivemind_addon.proxy.api.event_text import line_of
from hivemind_addon.sim import mitmdump
from hivemind_addon.sim.mitmdump import Mitmdump, MitmdumpNotStarted, running_mitmdump


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """Put a script of the test in the place of mitmdump."""

    def install(body):
        script = tmp_path / "bin" / "mitmdump"
        script.parent.mkdir()
        script.write_text(f"#!{sys.executable}\nimport signal, sys, time\n{body}\n")
        script.chmod(0o755)
        monkeypatch.setattr(mitmdump.sys, "executable", str(script.parent / "python"))

    return install


LISTEN = "print('[12:00:00.000] HTTP(S) proxy listening at 127.0.0.1:4711.', flush=True)"


async def start(tmp_path, *, inside=None):
    async with running_mitmdump(tmp_path, ["a=b"]) as running:
        if inside:
            await inside(running)
        return running


async def test_the_port_is_read_from_its_log(tmp_path, pretend):
    pretend(f"{LISTEN}\nsignal.pause()")
    running = await start(tmp_path)
    assert running.port == 4711
    assert running._process.returncode == -15


async def test_what_it_is_told_are_its_settings_and_the_script(tmp_path, pretend):
    pretend(f"print(' '.join(sys.argv[1:]))\n{LISTEN}")
    running = await start(tmp_path)
    assert "--listen-host 127.0.0.1" in running.lines[0]
    assert "--set a=b" in running.lines[0]
    assert running.lines[0].endswith("/hivemind_addon")


async def test_guard_trips_are_counted(tmp_path, pretend):
    trip = "print('hivemind: guard trip in settle; the request goes on without scheduling', flush=True)"
    pretend(f"{LISTEN}\n{trip}\nprint('guard', flush=True)\n{trip}")

    async def to_the_end(running: Mitmdump):
        await running._process.wait()

    running = await start(tmp_path, inside=to_the_end)
    assert running.guard_trips == 2


async def test_openings_of_the_breaker_are_counted(tmp_path, pretend):
    pool = PoolKey(host="api.sim", account="a", model_group="m")
    said = [line_of(BreakerChanged(at=0.0, pool=pool, state=state.value, reason="529")) for state in BreakerState]
    pretend(f"{LISTEN}\nprint('\\n'.join({said!r}), flush=True)")

    async def to_the_end(running: Mitmdump):
        await running._process.wait()

    assert (await start(tmp_path, inside=to_the_end)).breaker_opened == 1


async def test_one_that_ends_instead_of_listening_is_told_with_its_last_words(tmp_path, pretend):
    pretend("print('hivemind: no such option'); sys.exit(1)")
    with pytest.raises(MitmdumpNotStarted, match="no such option"):
        await start(tmp_path)


async def test_one_that_does_not_listen_in_time_is_ended(tmp_path, pretend, monkeypatch):
    monkeypatch.setattr(mitmdump, "_START_S", 0.2)
    pretend("signal.pause()")
    with pytest.raises(MitmdumpNotStarted, match="it said nothing"):
        await start(tmp_path)


async def test_one_that_does_not_end_is_ended_by_force(tmp_path, pretend, monkeypatch):
    monkeypatch.setattr(mitmdump, "_STOP_S", 0.1)
    pretend(f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{LISTEN}\nwhile True: signal.pause()")
    assert (await start(tmp_path))._process.returncode == -9


async def test_whoever_is_cancelled_leaves_no_process_behind(tmp_path, pretend):
    pretend(f"{LISTEN}\nsignal.pause()")
    seen = []

    async def wait_for_ever(running):
        seen.append(running._process)
        task.cancel()
        await asyncio.Event().wait()

    task = asyncio.create_task(start(tmp_path, inside=wait_for_ever))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen[0].returncode == -15


async def test_a_python_without_mitmdump_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(mitmdump.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(MitmdumpNotStarted, match="no mitmdump beside"):
        await start(tmp_path)
