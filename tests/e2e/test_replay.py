"""A replayed flow is held anew: it was admitted once, and that says nothing."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.e2e.origin import PLAIN, STREAMED, running_origin
from tests.e2e.proxy import NO_TLS, PATIENCE_S, body, free_port, running

pytestmark = pytest.mark.slow


@contextmanager
def single(folder, origin, *arguments):
    """A proxy that lets one request at a time go upstream."""
    (folder / "profiles").mkdir(exist_ok=True)
    text = f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\nconcurrency: {{initial: 1, maximum: 1}}\n"
    (folder / "profiles" / "single.yaml").write_text(text)
    settings = ("--set", f"hivemind_profiles={folder / 'profiles'}", *arguments)
    with running(folder / "conf", *settings, modes=("regular", f"reverse:{origin.url}")) as proxy:
        yield proxy


@pytest.fixture
def origin():
    with running_origin() as origin:
        yield origin


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as threads:
        yield threads


def ask(proxy, name, *, stream=False):
    headers = {"x-api-key": "k", "content-type": "application/json", "x-test-id": name}
    return httpx.post(
        f"http://127.0.0.1:{proxy.ports[1]}/v1/messages",
        content=body(stream=stream),
        headers=headers,
        timeout=PATIENCE_S,
        trust_env=False,
        verify=NO_TLS,
    )


def numbers(state):
    pools = state["snapshot"]["pools"]
    return {name: sum(pool[name] for pool in pools) for name in ("in_flight", "queued")} | {"live": state["live"]}


IDLE = {"in_flight": 0, "queued": 0, "live": 0}


@pytest.mark.parametrize("stream", [False, True])
def test_a_replayed_flow_is_held_while_the_slot_is_used_up_and_settles(tmp_path, origin, threads, stream):
    with single(tmp_path, origin) as proxy:
        first = threads.submit(ask, proxy, "again", stream=stream)
        origin.wait_for_calls(1)
        origin.arrived[0].go.set()
        assert first.result(PATIENCE_S).content == (STREAMED if stream else PLAIN)
        proxy.wait_for(lambda state: numbers(state) == IDLE, "the end of the first")

        filler = threads.submit(ask, proxy, "filler", stream=True)
        origin.wait_for_calls(2)
        proxy.probe("replay", name="again")
        state = proxy.wait_for(
            lambda state: numbers(state) == {"in_flight": 1, "queued": 1, "live": 2}, "the hold of the replay"
        )
        assert len(origin.arrived) == 2
        assert state["snapshot"]["counters"]["tickets"] == 3

        origin.arrived[1].go.set()
        assert filler.result(PATIENCE_S).content == STREAMED
        origin.wait_for_calls(3)
        assert origin.arrived[2].headers["x-test-id"] == "again"
        assert origin.arrived[2].complete.wait(PATIENCE_S)
        assert origin.arrived[2].body == origin.arrived[0].body
        assert numbers(proxy.state())["in_flight"] == 1
        origin.arrived[2].go.set()
        state = proxy.wait_for(lambda state: numbers(state) == IDLE, "the end of the replay")
        assert proxy.probe("flow", name="again")["content"] == (STREAMED if stream else PLAIN).decode()
        assert state["snapshot"]["counters"]["delivered"] == 3
        assert state["guard_trips"] == 0


def test_a_replay_that_finds_no_provider_gives_its_slot_back(tmp_path, origin, threads):
    port = free_port()
    with single(tmp_path, origin, "--set", f"hivemind_redirect=127.0.0.1=127.0.0.1:{origin.port}") as proxy:
        origin.open()
        assert ask(proxy, "again").content == PLAIN
        assert proxy.probe("set", option=f"hivemind_redirect=127.0.0.1=127.0.0.1:{port}") == "ok"
        proxy.probe("replay", name="again")
        proxy.wait_for(
            lambda state: state["snapshot"]["counters"]["tickets"] == 2 and numbers(state) == IDLE,
            "the end of the replay",
        )
        assert proxy.probe("set", option=f"hivemind_redirect=127.0.0.1=127.0.0.1:{origin.port}") == "ok"
        assert ask(proxy, "after").content == PLAIN
        assert proxy.state()["guard_trips"] == 0


def test_flows_from_a_file_are_scheduled_like_new_ones(tmp_path, origin):
    origin.open()
    file = tmp_path / "flows"
    with single(tmp_path, origin, "-w", str(file)) as proxy:
        for stream in (False, True, False):
            assert ask(proxy, "recorded", stream=stream).status_code == 200
        assert proxy.stop() == 0
    with single(tmp_path, origin, "-C", str(file)) as proxy:
        state = proxy.wait_for(
            lambda state: state["snapshot"]["counters"]["delivered"] == 3 and numbers(state) == IDLE,
            "the replay of all",
        )
        assert state["snapshot"]["counters"]["tickets"] == 3
        assert state["guard_trips"] == 0
    calls = [request for request in origin.arrived if request.headers.get("x-test-id") == "recorded"]
    assert [bytes(request.body) for request in calls[:3]] == [bytes(request.body) for request in calls[3:]]
