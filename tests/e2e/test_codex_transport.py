"""Codex through a real proxy: its WebSocket becomes plain requests, its streams' failures are obeyed, its plan is read."""

import json
import re
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import zstandard

from tests.e2e.conftest import Call
from tests.e2e.proxy import free_port, running
from tests.e2e.raw_provider import STREAM_HEAD, chunk, raw_provider, whole

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "wire" / "data"
GOOD = (DATA / "codex" / "response.sse").read_bytes()
LIMITED = (
    (DATA / "openai" / "response_failed.sse")
    .read_bytes()
    .replace(b"try again in 11 seconds", b"try again in 0.1 seconds")
)
SPENT = (DATA / "codex" / "response_failed_usage_limit.sse").read_bytes()
PATH = "/backend-api/codex/responses"
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "openai-beta": "responses_websockets=2026-02-06",
}
BODY = json.dumps({"model": "gpt-5.1-codex", "stream": True, "input": [{"role": "user", "content": "hi"}]}).encode()


@contextmanager
def house(tmp_path, *answers):
    """A proxy in front of a provider that gives these answers, one for each request; yields how many it gave, too."""
    port = free_port()
    served = []

    def handler(number, send):
        served.append(number)
        send(answers[number])

    (tmp_path / "profiles").mkdir()
    profile = f"extends: codex\nhosts: ['127.0.0.1:{port}']\nretry: {{first_backoff_s: 0.02, max_backoff_s: 0.1}}\n"
    (tmp_path / "profiles" / "mine.yaml").write_text(profile)
    arguments = ("--set", f"hivemind_profiles={tmp_path / 'profiles'}")
    with raw_provider(port, None, handler), running(tmp_path / "conf", *arguments) as proxy:
        yield proxy, f"http://127.0.0.1:{port}{PATH}", served
        assert proxy.state()["guard_trips"] == 0
        assert "Traceback" not in proxy.log


def streamed(stream):
    return STREAM_HEAD + chunk(stream) + chunk(b"")


def ask(proxy, url, content=BODY, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named |= {"authorization": "Bearer t", "chatgpt-account-id": "acct-1", "content-type": "application/json"}
    with proxy.client() as client:
        return client.post(url, content=content, headers=named)


def test_a_websocket_upgrade_is_answered_426_and_plain_requests_go_on(tmp_path):
    with house(tmp_path, streamed(GOOD)) as (proxy, url, served):
        with proxy.client() as client:
            answer = client.get(url, headers=UPGRADE)
            assert answer.status_code == 426
            assert "plain requests" in answer.json()["error"]["message"]
            assert client.get(url, headers=UPGRADE).status_code == 426, "on the same connection"
        assert served == []
        assert ask(proxy, url).content == GOOD
        assert served == [0]


@pytest.mark.xdist_group("stage")
def test_a_websocket_inside_tls_is_answered_426_too(stage, key):
    call = Call(key, chat=True)
    with stage.proxy.client() as client:
        answer = client.get("https://h1.chat.test/v1/responses", headers=call.headers | UPGRADE)
        assert answer.status_code == 426
        assert stage.providers.attempts(key) == 0
        assert client.send(call.request("https://h1.chat.test")).status_code == 200
    stage.settled()


def test_the_plans_windows_are_read_from_the_stream(tmp_path):
    soon = str(int(time.time()) + 3600).encode()
    told = re.sub(rb'"reset_at": \d+', b'"reset_at": ' + soon, GOOD)
    with house(tmp_path, streamed(told)) as (proxy, url, _):
        assert ask(proxy, url).content == told
        state = proxy.wait_for(lambda state: state["live"] == 0, "the end")
        (pool,) = state["snapshot"]["pools"]
        assert [(one["name"], one["used"]) for one in pool["windows"]] == [("primary", 0.425), ("secondary", 0.07)]
        assert "/acct-1/" in pool["key"]
        assert "window primary 42% used" in proxy.log
        assert state["snapshot"]["counters"]["output_tokens"] == 52


def test_a_response_that_fails_before_its_content_is_tried_again_when_it_says(tmp_path):
    with house(tmp_path, streamed(LIMITED), streamed(GOOD)) as (proxy, url, served):
        began = time.perf_counter()
        assert ask(proxy, url).content == GOOD
        assert time.perf_counter() - began > 0.1
        assert served == [0, 1]


def test_a_plan_that_is_spent_is_told_as_it_came_and_to_everybody_after_it(tmp_path):
    with house(tmp_path, streamed(SPENT)) as (proxy, url, served):
        asked_at = time.time()
        first = ask(proxy, url)
        assert (first.status_code, first.content) == (200, SPENT)
        second = ask(proxy, url)
        assert second.status_code == 429
        error = second.json()["error"]
        assert error["type"] == "usage_limit_reached"
        in_five_minutes = asked_at + 298 < error["resets_at"] < time.time() + 302
        assert in_five_minutes, "nobody said when: it is asked again then"
        assert served == [0]


def test_a_plan_that_says_when_it_comes_back_is_believed(tmp_path):
    resets_at = int(time.time()) + 9000
    body = json.dumps({"error": {"type": "usage_limit_reached", "plan_type": "plus", "resets_at": resets_at}}).encode()
    with house(tmp_path, whole(429, body)) as (proxy, url, served):
        assert ask(proxy, url).content == body
        again = ask(proxy, url)
        assert abs(again.json()["error"]["resets_at"] - resets_at) <= 2
        assert again.headers["x-should-retry"] == "false"
        assert served == [0]


def test_a_compressed_request_reaches_the_provider_as_it_came(tmp_path):
    with house(tmp_path, streamed(GOOD)) as (proxy, url, _):
        packed = zstandard.ZstdCompressor().compress(BODY)
        assert ask(proxy, url, packed, content_encoding="zstd").content == GOOD
        submitted = [event for event in proxy.state()["events"] if event.startswith("Submitted")]
        assert "model='gpt-5.1-codex'" in submitted[0]
        assert "streamed=True" in submitted[0]


def test_other_paths_of_the_host_pass_by(tmp_path):
    with house(tmp_path, whole(200, b"{}")) as (proxy, url, served), proxy.client() as client:
        answer = client.get(url.replace("/responses", "/models"))
        assert isinstance(answer, httpx.Response)
        assert answer.status_code == 200
        assert served == [0]
        assert not [event for event in proxy.state()["events"] if event.startswith("Submitted")]
