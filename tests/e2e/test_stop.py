"""How it ends: SIGTERM, Ctrl-C, a second signal, a reload."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.e2e.origin import PLAIN, STREAMED, running_origin
from tests.e2e.proxy import MITMDUMP, NO_TLS, PATIENCE_S, PROBE, ROOT, body, running

pytestmark = pytest.mark.slow

HELD, STREAMING = 20, 3
AT_ONCE_S = 25
"""Less than the 30 s that running streams have."""
KEY = {"x-api-key": "sk-test", "content-type": "application/json"}


@pytest.fixture
def origin():
    with running_origin() as origin:
        yield origin


@contextmanager
def busy(folder, origin, **more):
    """A proxy with 3 streaming and 20 held; the futures of their answers."""
    (folder / "profiles").mkdir()
    (folder / "profiles" / "three.yaml").write_text(
        f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\nconcurrency: {{initial: {STREAMING}, maximum: {STREAMING}}}\n"
    )
    settings = ("--set", f"hivemind_profiles={folder / 'profiles'}")
    modes = ("regular", f"reverse:{origin.url}")
    with (
        running(folder / "conf", *settings, modes=modes, executable=MITMDUMP, **more) as proxy,
        ThreadPoolExecutor(HELD + STREAMING + 1) as threads,
    ):
        url = f"http://127.0.0.1:{proxy.ports[1]}/v1/messages"

        def call(stream):
            return httpx.post(
                url, content=body(stream=stream), headers=KEY, timeout=PATIENCE_S, trust_env=False, verify=NO_TLS
            )

        try:
            streaming = [threads.submit(call, stream=True) for _ in range(STREAMING)]
            origin.wait_for_calls(STREAMING)
            held = [threads.submit(call, stream=number % 2 == 0) for number in range(HELD)]
            proxy.wait_for(lambda state: queued(state) == HELD, f"{HELD} held")
            yield proxy, streaming, held, lambda: threads.submit(call, stream=False)
        finally:
            origin.open()


def queued(state):
    return sum(pool["queued"] for pool in state["snapshot"]["pools"])


def assert_come_back(answer):
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-should-retry"] == "true"
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_held_requests_are_sent_back_at_once_and_streams_run_to_their_end(tmp_path, origin, how):
    if how is signal.SIGHUP and signal.getsignal(how) is signal.SIG_IGN:
        pytest.skip("the tests run under nohup, and so does what they start")
    with busy(tmp_path, origin) as (proxy, streaming, held, call):
        proxy.process.send_signal(how)
        for answer in held:
            assert_come_back(answer.result(PATIENCE_S))
        assert not any(stream.done() for stream in streaming)
        assert proxy.process.poll() is None
        if how is signal.SIGHUP:
            proxy.process.send_signal(how)  # a terminal that is closed sends more than one
        late = call()
        assert_come_back(late.result(PATIENCE_S))
        assert len(origin.arrived) == STREAMING
        origin.open()
        for stream in streaming:
            assert stream.result(PATIENCE_S).content == STREAMED
        assert proxy.process.wait(PATIENCE_S) == 0
        assert "guard trip" not in proxy.log


def test_a_second_signal_ends_it_at_once(tmp_path, origin):
    with busy(tmp_path, origin) as (proxy, streaming, held, _):
        proxy.process.send_signal(signal.SIGTERM)
        for answer in held:
            assert_come_back(answer.result(PATIENCE_S))
        assert proxy.process.poll() is None
        proxy.process.send_signal(signal.SIGTERM)
        proxy.process.wait(AT_ONCE_S)
        for stream in streaming:
            with pytest.raises(httpx.RemoteProtocolError):
                stream.result(PATIENCE_S)


def test_an_idle_proxy_ends_at_once(tmp_path):
    with running(tmp_path, executable=MITMDUMP) as proxy:
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(AT_ONCE_S) == 0


def test_after_a_reload_nothing_was_admitted_twice_and_nobody_is_stranded(tmp_path, origin):
    script = tmp_path / "hivemind_addon"
    script.write_bytes((ROOT / "hivemind_addon").read_bytes())
    with busy(tmp_path, origin, scripts=(script, PROBE)) as (proxy, streaming, held, call):
        before = proxy.probe("option", name="listen_host")
        for _ in range(2):
            loads = proxy.log.count(f"Loading script {script}")
            now = script.stat()
            os.utime(script, (now.st_atime, now.st_mtime + 10))
            proxy.wait_for(lambda _, loads=loads: proxy.log.count(f"Loading script {script}") > loads, "a reload")
        assert proxy.log.count(f"Loading script {script}") == 3
        state = proxy.state()
        assert queued(state) == HELD
        assert state["live"] == HELD + STREAMING
        assert state["snapshot"]["pools"][0]["in_flight"] == STREAMING
        assert len(origin.arrived) == STREAMING
        after = call()
        proxy.wait_for(lambda state: queued(state) == HELD + 1, "the newcomer held")
        origin.open()
        for stream in streaming:
            assert stream.result(PATIENCE_S).content == STREAMED
        for number, answer in enumerate([*held, after]):
            assert answer.result(PATIENCE_S).content == (STREAMED if number % 2 == 0 and number < HELD else PLAIN)
        assert len(origin.arrived) == STREAMING + HELD + 1
        state = proxy.wait_for(lambda state: not state["live"], "the end of all")
        assert state["guard_trips"] == 0
        assert state["snapshot"]["counters"]["attempts"] == STREAMING + HELD + 1
        assert state["snapshot"]["pools"][0]["in_flight"] == 0
        assert proxy.probe("option", name="listen_host") == before


def test_a_reloaded_script_still_drains_on_sigterm(tmp_path, origin):
    script = tmp_path / "hivemind_addon"
    script.write_bytes((ROOT / "hivemind_addon").read_bytes())
    with busy(tmp_path, origin, scripts=(script, PROBE)) as (proxy, streaming, held, _):
        now = script.stat()
        os.utime(script, (now.st_atime, now.st_mtime + 10))
        proxy.wait_for(lambda _: proxy.log.count(f"Loading script {script}") == 2, "a reload")
        proxy.process.send_signal(signal.SIGTERM)
        for answer in held:
            assert_come_back(answer.result(PATIENCE_S))
        origin.open()
        for stream in streaming:
            assert stream.result(PATIENCE_S).content == STREAMED
        assert proxy.process.wait(PATIENCE_S) == 0
