"""How it ends: SIGTERM, Ctrl-C, a second signal; and what it outlives: a reload, a clock that jumps."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from tests.e2e.house import running_house
from tests.e2e.origin import PLAIN, STREAMED
from tests.e2e.proxy import MITMDUMP, NO_TLS, PATIENCE_S, PROBE, ROOT, in_flight, queued, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("stop")]

HELD, STREAMING, MANY = 20, 3, 100
AT_ONCE_S = 25
"""Less than the 30 s that running streams have."""


@contextmanager
def busy(folder, *, held=HELD, **more):
    """A house with 3 streaming and more held, and the futures of their answers."""
    with running_house(folder, slots=STREAMING, threads=held + STREAMING + 1, **more) as house:
        streaming = [house.ask("streaming", stream=True) for _ in range(STREAMING)]
        house.origin.wait_for_calls(STREAMING)
        waiting = [house.ask("held", stream=number % 2 == 0) for number in range(held)]
        house.proxy.wait_for(lambda state: queued(state) == held, f"{held} held")
        yield house, streaming, waiting


def assert_come_back(answer):
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-should-retry"] == "true"
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize(("how", "program"), [(signal.SIGTERM, MITMDUMP), (signal.SIGINT, None), (signal.SIGHUP, None)])
def test_held_requests_are_sent_back_at_once_and_streams_run_to_their_end(tmp_path, how, program):
    """`program`: started from nothing, as by a person."""
    if how is signal.SIGHUP and signal.getsignal(how) is signal.SIG_IGN:
        pytest.skip("the tests run under nohup, and so does what they start")
    with busy(tmp_path, executable=program) as (house, streaming, held):
        process = house.proxy.process
        process.send_signal(how)
        for answer in held:
            assert_come_back(answer.result(PATIENCE_S))
            # Whoever comes back is to find another proxy, where a balancer knows of one.
            assert answer.result().headers["connection"] == "close"
        assert not any(stream.done() for stream in streaming)
        assert process.poll() is None
        if how is signal.SIGHUP:
            process.send_signal(how)  # a terminal that is closed sends more than one
        assert_come_back(house.ask("late").result(PATIENCE_S))
        assert len(house.origin.arrived) == STREAMING
        house.origin.open()
        for stream in streaming:
            assert stream.result(PATIENCE_S).content == STREAMED
        assert process.wait(PATIENCE_S) == 0
        assert "guard trip" not in house.proxy.log


def test_a_second_signal_ends_it_at_once(tmp_path):
    with busy(tmp_path) as (house, streaming, held):
        house.proxy.process.send_signal(signal.SIGTERM)
        for answer in held:
            assert_come_back(answer.result(PATIENCE_S))
        assert house.proxy.process.poll() is None
        house.proxy.process.send_signal(signal.SIGTERM)
        house.proxy.process.wait(AT_ONCE_S)
        for stream in streaming:
            with pytest.raises(httpx.RemoteProtocolError):
                stream.result(PATIENCE_S)


def stopped(house, *arguments):
    """What `hivemind stop` of the house's proxy says, when it is done."""
    port = str(house.proxy.port)
    return ThreadPoolExecutor(1).submit(lambda: CliRunner().invoke(main, ["stop", "-p", port, *arguments]))


def test_the_command_waits_for_what_runs_and_says_what_it_has_ended(tmp_path, runtime_dir):
    with busy(tmp_path) as (house, streaming, held):
        said = stopped(house)
        for answer in held:
            assert_come_back(answer.result(PATIENCE_S))
        assert not said.done()
        house.origin.open()
        result = said.result(PATIENCE_S)
        assert result.exit_code == 0
        assert "3 requests in flight let end, 20 requests that waited sent back; of python-httpx-" in result.stdout
        assert result.stdout.endswith(", …\n")
        assert result.stderr.startswith("hivemind: waiting for 3 in flight, half a minute at most; ")
        assert [stream.result(PATIENCE_S).content for stream in streaming] == [STREAMED] * STREAMING


def test_the_command_cuts_off_what_runs_where_it_is_told_to(tmp_path, runtime_dir):
    with busy(tmp_path, held=1) as (house, streaming, _):
        result = stopped(house, "--now").result(AT_ONCE_S)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "3 requests in flight cut off, 1 request that waited sent back" in result.stdout
        for stream in streaming:
            with pytest.raises(httpx.RemoteProtocolError):
                stream.result(PATIENCE_S)


def test_an_idle_proxy_ends_at_once(tmp_path):
    with running(tmp_path) as proxy:
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(AT_ONCE_S) == 0


# Reloads of the script ------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path):
    """A copy of it, for a test to touch."""
    script = tmp_path / "hivemind_addon"
    script.write_bytes((ROOT / "hivemind_addon").read_bytes())
    return script


def reload(proxy, script):
    loads = proxy.log.count(f"Loading script {script}")
    now = script.stat()
    os.utime(script, (now.st_atime, now.st_mtime + 10))
    proxy.wait_for(lambda _: proxy.log.count(f"Loading script {script}") > loads, "a reload")


def test_after_reloads_under_hundreds_nothing_was_admitted_twice_and_nobody_is_stranded(tmp_path, script):
    with busy(tmp_path, held=MANY, scripts=(script, PROBE)) as (house, streaming, held):
        proxy, origin = house.proxy, house.origin
        before = proxy.probe("option", name="listen_host")
        for _ in range(2):
            reload(proxy, script)
        state = proxy.state()
        assert (queued(state), in_flight(state), state["live"]) == (MANY, STREAMING, MANY + STREAMING)
        assert len(origin.arrived) == STREAMING
        after = house.ask("after")
        proxy.wait_for(lambda state: queued(state) == MANY + 1, "the newcomer held")
        origin.open()
        for stream in streaming:
            assert stream.result(PATIENCE_S).content == STREAMED
        for number, answer in enumerate([*held, after]):
            assert answer.result(PATIENCE_S).content == (STREAMED if number % 2 == 0 and number < MANY else PLAIN)
        assert len(origin.arrived) == STREAMING + MANY + 1
        assert proxy.settled()["snapshot"]["counters"]["attempts"] == STREAMING + MANY + 1
        assert proxy.probe("option", name="listen_host") == before


def test_a_reloaded_script_still_drains_on_sigterm(tmp_path, script):
    with busy(tmp_path, scripts=(script, PROBE)) as (house, streaming, held):
        reload(house.proxy, script)
        house.proxy.process.send_signal(signal.SIGTERM)
        for answer in held:
            assert_come_back(answer.result(PATIENCE_S))
        house.origin.open()
        for stream in streaming:
            assert stream.result(PATIENCE_S).content == STREAMED
        assert house.proxy.process.wait(PATIENCE_S) == 0


# A clock that jumps ---------------------------------------------------------------------------------------------------

JUMPING = """
import time
from pathlib import Path

true_time = time.time
time.time = lambda: true_time() + float(Path({offset!r}).read_text() or 0)
"""
"""A script in the proxy: its wall clock is off by the seconds that a file says."""


def test_a_clock_that_is_set_to_and_fro_loses_nobody(tmp_path):
    offset, jump = tmp_path / "offset", tmp_path / "jump.py"
    offset.write_text("0")
    jump.write_text(JUMPING.format(offset=str(offset)))
    # Started from nothing: the script takes the clock away before the addon is imported.
    scripts = (jump, ROOT / "hivemind_addon", PROBE)
    with running_house(tmp_path, scripts=scripts, executable=MITMDUMP) as house:
        proxy, origin = house.proxy, house.origin
        answers = [house.ask("early", stream=True) for _ in range(3)]
        origin.wait_for_calls(1)
        proxy.wait_for(lambda state: queued(state) == 2, "two held")
        for days in (3, -3, 400, 0):
            offset.write_text(str(days * 86_400))
            with httpx.Client(trust_env=False, verify=NO_TLS, timeout=PATIENCE_S) as client:
                assert client.get(f"http://127.0.0.1:{proxy.port}/report.json").status_code == 200
            state = proxy.wait_for(lambda state: state["live"] == 3, "all three are there")
            assert queued(state) == 2
            origin.arrived[-1].go.set()  # one stream goes on, and the next one begins, under each clock
            answers.append(house.ask("late", stream=True))
            origin.wait_for_calls(len(answers) - 2)
            proxy.wait_for(lambda state: queued(state) == 2, "two held again")
        origin.open()
        assert [answer.result(PATIENCE_S).content for answer in answers] == [STREAMED] * 7
        proxy.settled()
        assert "Traceback" not in proxy.log
