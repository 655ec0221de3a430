"""What seldom happens, in a real process: a clock that jumps, a hundred streams on one connection, a reload under 500."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Call
from tests.e2e.origin import PLAIN, STREAMED, running_origin
from tests.e2e.proxy import MITMDUMP, NO_TLS, PATIENCE_S, PROBE, ROOT, body, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("extremes")]

KEY = {"x-api-key": "sk-test", "content-type": "application/json"}
JUMP = Path(__file__).parent / "jump.py"
STREAMS, HELD = 100, 500


@pytest.fixture
def origin():
    with running_origin() as origin:
        yield origin


def settings(folder, origin, slots):
    (folder / "profiles").mkdir()
    (folder / "profiles" / "few.yaml").write_text(
        f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\nconcurrency: {{initial: {slots}, maximum: {slots}}}\n"
    )
    return "--set", f"hivemind_profiles={folder / 'profiles'}"


def queued(state):
    return sum(pool["queued"] for pool in state["snapshot"]["pools"])


def test_a_clock_that_is_set_to_and_fro_loses_nobody(tmp_path, origin, monkeypatch):
    offset = tmp_path / "offset"
    offset.write_text("0")
    monkeypatch.setenv("TEST_CLOCK_OFFSET", str(offset))
    scripts = (JUMP, ROOT / "hivemind_addon", PROBE)
    modes = ("regular", f"reverse:{origin.url}")
    with (
        # Started from nothing: it takes the clock away before the addon is imported.
        running(
            tmp_path / "conf", *settings(tmp_path, origin, 1), modes=modes, scripts=scripts, executable=MITMDUMP
        ) as proxy,
        ThreadPoolExecutor(4) as threads,
    ):
        url = f"http://127.0.0.1:{proxy.ports[1]}/v1/messages"

        def call():
            content = body(stream=True)
            return httpx.post(url, content=content, headers=KEY, timeout=PATIENCE_S, trust_env=False, verify=NO_TLS)

        try:
            answers = [threads.submit(call) for _ in range(3)]
            origin.wait_for_calls(1)
            proxy.wait_for(lambda state: queued(state) == 2, "two held")
            for days in (3, -3, 400, 0):
                offset.write_text(str(days * 86_400))
                with httpx.Client(trust_env=False, verify=NO_TLS, timeout=PATIENCE_S) as client:
                    assert client.get(f"http://127.0.0.1:{proxy.port}/health").status_code == 200
                state = proxy.wait_for(lambda state: state["live"] == 3, "all three are there")
                assert queued(state) == 2
                origin.arrived[-1].go.set()  # one stream goes on, and the next one begins, under each clock
                answers.append(threads.submit(call))
                origin.wait_for_calls(len(answers) - 2)
                proxy.wait_for(lambda state: queued(state) == 2, "two held again")
        finally:
            origin.open()
        assert [answer.result(PATIENCE_S).content for answer in answers] == [STREAMED] * 7
        assert proxy.wait_for(lambda state: not state["live"], "the end of all")["guard_trips"] == 0
        assert "Traceback" not in proxy.log


@pytest.mark.parametrize("upstream", ["h1", "h2"])
async def test_a_hundred_streams_on_one_connection_are_all_answered(stage, key, upstream):
    call = Call(key, stream=True)
    async with stage.proxy.async_client(http2=True) as http:
        await http.send(call.request(f"https://{upstream}.sim.test"))  # now one connection is known to be enough
        answers = await asyncio.gather(
            *(http.send(call.request(f"https://{upstream}.sim.test")) for _ in range(STREAMS))
        )
    assert [answer.status_code for answer in answers] == [200] * STREAMS
    assert [answer.http_version for answer in answers] == ["HTTP/2"] * STREAMS
    assert all(answer.content == call.answer_of(answer) for answer in answers)
    stage.settled()


async def test_a_reload_under_500_held_requests_strands_nobody(tmp_path, origin):
    script = tmp_path / "hivemind_addon"
    script.write_bytes((ROOT / "hivemind_addon").read_bytes())
    modes = ("regular", f"reverse:{origin.url}")
    content = body(stream=False).encode()
    ask = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"

    async def call(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ask % len(content) + content)
        answer = await reader.read()
        writer.close()
        return answer

    with running(tmp_path / "conf", *settings(tmp_path, origin, 8), modes=modes, scripts=(script, PROBE)) as proxy:
        calls = [asyncio.ensure_future(call(proxy.ports[1])) for _ in range(HELD + 8)]
        try:
            await asyncio.to_thread(proxy.wait_for, lambda state: queued(state) == HELD, "500 held")
            now = script.stat()
            os.utime(script, (now.st_atime, now.st_mtime + 10))
            loaded = f"Loading script {script}"
            await asyncio.to_thread(proxy.wait_for, lambda _: proxy.log.count(loaded) == 2, "a reload")
            state = await asyncio.to_thread(proxy.state)
            assert (queued(state), state["live"]) == (HELD, HELD + 8)
        finally:
            origin.open()
        answers = await asyncio.gather(*calls)
        assert all(answer.startswith(b"HTTP/1.1 200") and answer.endswith(PLAIN) for answer in answers)
        state = await asyncio.to_thread(proxy.wait_for, lambda state: not state["live"], "the end of all")
        assert state["guard_trips"] == 0
        assert len(origin.arrived) == HELD + 8, "nothing was admitted twice"
