"""A spent window of an account, through a real proxy: everybody hears of it at once, and its end lets one go first."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.e2e.proxy import PATIENCE_S, body, free_port, running
from tests.e2e.raw_provider import raw_provider, whole

pytestmark = pytest.mark.slow

GOOD = b'{"type": "message", "content": [{"type": "text", "text": "hi"}], "usage": {"input_tokens": 5, "output_tokens": 2}}'
SPENT = (
    b'{"type":"error","error":{"type":"rate_limit_error","message":"This would exceed your limit."},"request_id":"r1"}'
)


class Provider:
    """Refuses for long until it is opened; waits for the test's go-ahead before each answer."""

    def __init__(self, lasts_s):
        self.lasts_s = lasts_s
        self.served = 0
        self.go = threading.Event()
        self.is_open = False

    def __call__(self, number, send):
        self.served = number + 1
        assert self.go.wait(PATIENCE_S)
        if self.is_open:
            send(whole(200, GOOD))
            return
        reset = str(int(time.time() + self.lasts_s))
        headers = {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": reset}
        headers |= {"anthropic-ratelimit-unified-5h-utilization": "1.01", "x-said": "provider"}
        send(whole(429, SPENT, **headers))


@contextmanager
def house(tmp_path, provider):
    port = free_port()
    (tmp_path / "profiles").mkdir()
    profile = f"extends: anthropic\nhosts: ['127.0.0.1:{port}']\nconcurrency: {{initial: 1, maximum: 1}}\n"
    (tmp_path / "profiles" / "mine.yaml").write_text(profile)
    arguments = ("--set", f"hivemind_profiles={tmp_path / 'profiles'}")
    with raw_provider(port, None, provider), running(tmp_path / "conf", *arguments) as proxy:
        yield proxy, f"http://127.0.0.1:{port}/v1/messages"


def ask(proxy, url, agent):
    headers = {"x-api-key": "k", "content-type": "application/json"}
    with proxy.client(agent) as client:
        return client.post(url, content=body(), headers=headers)


def wall(state):
    return next((pool["wall"] for pool in state["snapshot"]["pools"]), None)


def test_a_spent_window_is_told_to_everybody_at_once(tmp_path):
    provider = Provider(lasts_s=3600)
    with house(tmp_path, provider) as (proxy, url), ThreadPoolExecutor(4) as threads:
        first = threads.submit(ask, proxy, url, "agent-0")
        proxy.wait_for(lambda state: any(pool["in_flight"] for pool in state["snapshot"]["pools"]), "the first attempt")
        waiting = [threads.submit(ask, proxy, url, f"agent-{number}") for number in (1, 2)]
        proxy.wait_for(lambda state: state["snapshot"]["pools"][0]["queued"] == 2, "two that wait")
        provider.go.set()

        hit = first.result(PATIENCE_S)
        assert (hit.status_code, hit.content) == (429, SPENT), "the very answer of the provider"
        assert hit.headers["x-said"] == "provider"
        for answer in [one.result(PATIENCE_S) for one in waiting] + [ask(proxy, url, "agent-3")]:
            assert answer.status_code == 429
            assert answer.headers["x-should-retry"] == "false"
            assert 0 < int(answer.headers["retry-after"]) <= provider.lasts_s + 1
            assert answer.headers["anthropic-ratelimit-unified-status"] == "rejected"
            assert abs(int(answer.headers["anthropic-ratelimit-unified-reset"]) - time.time()) < provider.lasts_s + 2
            error = answer.json()["error"]
            assert error["type"] == "rate_limit_error"
            assert "until 20" in error["message"]
        assert provider.served == 1
        state = proxy.state()
        assert wall(state)["reason"] == "429 rate_limit_error"
        assert [one["name"] for one in state["snapshot"]["pools"][0]["windows"]] == ["5h", "unified"]
        assert "the account is refused for" in proxy.log
        assert state["snapshot"]["counters"]["refused"] == 3
        assert state["guard_trips"] == 0


def test_the_end_of_a_spent_window_lets_one_go_first(tmp_path):
    provider = Provider(lasts_s=2)
    provider.go.set()
    with house(tmp_path, provider) as (proxy, url), ThreadPoolExecutor(2) as threads:
        assert ask(proxy, url, "agent-0").content == SPENT
        provider.is_open = True
        provider.go.clear()
        proxy.wait_for(lambda state: wall(state)["ends_in_s"] == 0, "the end")
        back = [threads.submit(ask, proxy, url, f"agent-{number}") for number in (1, 2)]
        proxy.wait_for(lambda state: state["snapshot"]["pools"][0]["queued"] == 1, "one that waits for the first")
        provider.go.set()
        assert [one.result(PATIENCE_S).content for one in back] == [GOOD, GOOD]
        assert provider.served == 3
        state = proxy.wait_for(lambda state: state["live"] == 0, "the end")
        assert wall(state) is None
        assert state["guard_trips"] == 0
        assert "the account is served again" in proxy.log


def test_one_whose_wall_stands_again_puts_it_back_for_all(tmp_path):
    provider = Provider(lasts_s=2)
    provider.go.set()
    with house(tmp_path, provider) as (proxy, url):
        assert ask(proxy, url, "agent-0").content == SPENT
        proxy.wait_for(lambda state: wall(state)["ends_in_s"] == 0, "the end")
        provider.lasts_s = 3600
        assert ask(proxy, url, "agent-1").content == SPENT
        refused = ask(proxy, url, "agent-2")
        assert re.search(r"\(in (1 h 0|5\d) min\)", refused.json()["error"]["message"])
        assert provider.served == 2
        assert proxy.state()["guard_trips"] == 0
