"""A real mitmdump records what a fleet goes through; what it has written is read, continued and replayed."""

import asyncio
import subprocess
import sys

import pytest

from hivemind_addon.kernel.values.ticket import Dimension, OutcomeKind
from hivemind_addon.plugins.captures.file import read_capture
from hivemind_addon.plugins.captures.model import NotACapture
from hivemind_addon.proxy.api.command import CommandReply, Record
from hivemind_addon.proxy.api.control import send_command
from hivemind_addon.sim.faults import NAMED, OK
from hivemind_addon.sim.limits import Limit
from hivemind_addon.sim.provider import Latency, ProviderSettings
from hivemind_addon.sim.real_replay import run_real
from lab.running_server import running_server
from tests.e2e.proxy import PATIENCE_S, QUICK, body, options, profiles, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("capture")]

KEY = "sk-ant-api03-SECRETSECRETSECRET"
SETTINGS = ProviderSettings(
    limits=(Limit(Dimension.REQUESTS, 600),), latency=Latency(median_s=0.03), chunks=6, interval_s=0.01
)


@pytest.fixture(scope="module")
def server():
    with running_server(SETTINGS, seed=5) as server:
        yield server


@pytest.fixture
def provider(server):
    server.reset()
    return server


@pytest.fixture
def known(tmp_path):
    """The provider's profile."""
    return profiles(tmp_path, sim=f"extends: anthropic\nhosts: [127.0.0.1]\n{QUICK}")


async def one_turn(client, provider, number, *, words="", streamed=True):
    request = body(stream=streamed, messages=[{"role": "user", "content": f"turn {number} {words}"}])
    headers = {
        "x-api-key": KEY,
        "x-claude-code-session-id": f"session-{number % 3}",
        "content-type": "application/json",
    }
    answer = await client.post(f"{provider.url}/v1/messages?key={KEY}", content=request, headers=headers)
    return answer.status_code


def fleet(proxy, provider, turns, **kwargs):
    """So many turns at once; their statuses."""

    async def run():
        async with proxy.async_client() as client:
            return await asyncio.gather(*(one_turn(client, provider, number, **kwargs) for number in range(turns)))

    return asyncio.run(run())


def test_a_fleet_with_failures_is_recorded_call_by_call_for_any_mitmproxy(tmp_path, provider, known):
    provider.script(KEY, [NAMED["529"], NAMED["429-retry-after"], NAMED["reset-before-head"], NAMED["error-first"], OK])
    file = tmp_path / "night.flow"
    with running(tmp_path / "conf", *known, *options(capture=file)) as proxy:
        statuses = fleet(proxy, provider, 9, words=f"my password is {KEY}")
        assert proxy.state()["guard_trips"] == 0
        assert proxy.stop() == 0
        assert "9 calls are in" in proxy.log, proxy.log
    assert statuses == [200] * 9
    assert file.stat().st_mode & 0o777 == 0o600
    assert KEY.encode() not in file.read_bytes()
    capture = read_capture(file)
    assert capture.damage == ()
    assert capture.content
    assert [call.end for call in capture.calls] == ["delivered"] * 9
    attempts = [attempt for call in capture.calls for attempt in call.attempts]
    kinds = [attempt.kind for attempt in attempts]
    assert len(attempts) == provider.truth().attempts
    assert kinds.count(OutcomeKind.SUCCESS) == 9
    assert {OutcomeKind.OVERLOADED, OutcomeKind.THROTTLED, OutcomeKind.FAILED} <= set(kinds)
    good = [attempt for attempt in attempts if attempt.kind is OutcomeKind.SUCCESS]
    assert all(attempt.head_after_s > 0.02 and attempt.usage.reported for attempt in good)
    assert sum(len(attempt.chunks) for attempt in good) > 2 * len(good), "a busy machine sees some of them in one"
    assert all(one.at_s + one.ended_after_s <= call.ended_s + 1e-6 for call in capture.calls for one in call.attempts)
    assert {call.session for call in capture.calls} == {"session-0", "session-1", "session-2"}
    assert {(one.meter, one.limit, one.window_s) for one in capture.limits} >= {("requests", 600.0, 60.0)}
    mitmdump = [sys.executable, "-c", "from mitmproxy.tools.main import mitmdump; mitmdump()"]
    told = subprocess.run([*mitmdump, "-nr", str(file)], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert told.stdout.count("/v1/messages") == 9


def test_it_is_switched_on_and_off_while_the_proxy_runs(tmp_path, provider, known):
    """By a person, over the control socket; by options, without what was said."""
    file, later, socket = tmp_path / "told.flow", tmp_path / "later.flow", tmp_path / "c.sock"

    def tell(command):
        return send_command(socket, command, timeout_s=PATIENCE_S)

    with running(tmp_path / "conf", *known, *options(control=socket)) as proxy:
        proxy.wait_for(lambda _state: socket.exists(), "the control socket")
        assert tell(Record(None)) == CommandReply(done=False, text="nothing was recorded")
        assert tell(Record(str(file))) == CommandReply(done=True, text=f"recording into {file}")
        assert "recorded already" in tell(Record(str(file))).text
        fleet(proxy, provider, 2)
        assert "is no place for a file" in tell(Record("/nowhere/at/all")).text
        fleet(proxy, provider, 1)
        assert tell(Record(None)).done
        fleet(proxy, provider, 1)
        proxy.probe("set", option="hivemind_capture_content=false")
        proxy.probe("set", option=f"hivemind_capture={later}")
        fleet(proxy, provider, 3, words="unspeakable", streamed=False)
        proxy.probe("set", option="hivemind_capture=")
        fleet(proxy, provider, 2)
        proxy.probe("set", option=f"hivemind_capture={later}")
        fleet(proxy, provider, 1)
        assert proxy.stop() == 0
    assert len(read_capture(file).calls) == 3
    assert b"unspeakable" not in later.read_bytes()
    capture = read_capture(later)
    assert len(capture.calls) == 4
    assert not capture.content
    assert all(call.request_bytes > 50 for call in capture.calls)
    assert capture.limits[0].at_s == 0  # known before it began


def recorded(file):
    """How many calls it holds by now: a thread of the proxy's writes it."""
    try:
        return len(read_capture(file).calls)
    except NotACapture:
        return 0


def test_what_a_killed_proxy_leaves_can_be_read_and_continued(tmp_path, provider, known):
    file = tmp_path / "killed.flow"
    with running(tmp_path / "conf", *known, *options(capture=file)) as proxy:
        fleet(proxy, provider, 3)
        proxy.wait_for(lambda _: recorded(file) == 3, "the record of all calls")
        proxy.process.kill()
        proxy.process.wait(PATIENCE_S)
    with file.open("ab") as torn:
        torn.write(b"4711:half a rec")
    assert "torn" in read_capture(file).damage[0]
    with running(tmp_path / "conf", *known, *options(capture=file)) as proxy:
        fleet(proxy, provider, 1)
        assert proxy.stop() == 0
        assert "torn" in proxy.log
    capture = read_capture(file)
    assert capture.damage == ()
    assert len(capture.calls) == 4
    assert capture.calls[-1].at_s > capture.calls[-2].ended_s


def test_what_an_agent_lost_without_the_scheduler_is_delivered_when_it_is_replayed(tmp_path, provider):
    """The file is a bare mitmproxy's."""

    async def one_by_one(proxy):
        async with proxy.async_client() as client:
            return [await one_turn(client, provider, number) for number in range(3)]

    provider.script(KEY, [NAMED["529"], NAMED["500"]])
    file = tmp_path / "direct.flow"
    with running(tmp_path / "conf", "-w", file, "--listen-host", "127.0.0.1", scripts=()) as proxy:
        assert asyncio.run(one_by_one(proxy)) == [529, 500, 200]
        assert proxy.stop() == 0
    capture = read_capture(file)
    assert [call.end for call in capture.calls] == ["gave up", "gave up", "delivered"]
    assert capture.calls[2].attempts[0].head_after_s > 0
    assert capture.calls[2].attempts[0].usage.reported
    assert capture.calls[0].profile == "anthropic"
    replay = run_real(capture, pace=2)
    assert replay.guard_trips == 0
    assert [call.replayed.end for call in replay.calls] == ["delivered"] * 3
