"""The words of single providers, on the wire."""

import json

import httpx
import msgspec
import pytest

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.faults import NAMED, OK, Queue, WordedRefusal
from hivemind_addon.sim.limits import Limit
from hivemind_addon.sim.plan import Data, End, Head, PauseStep
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.server import SimServer
from hivemind_addon.sim.shapes import REFUSALS, WAITS, written
from lab.running_server import running_server
from tests.cases import each
from tests.patience import PATIENCE_S

from .clients import call_body
from .test_plan import STREAM, WHOLE, plan

CHAT = "/v1/chat/completions"


@pytest.fixture
def server():
    with running_server() as running:
        yield running


def post(server, *, stream: bool = False, path: str = CHAT) -> httpx.Response:
    headers = {"authorization": "Bearer sk-sim-1"}
    return httpx.post(server.url + path, content=call_body(stream=stream), headers=headers, timeout=PATIENCE_S)


def test_every_refusal_is_a_fault_and_goes_out_as_it_is_written(server):
    server.script("sk-sim-1", [NAMED[name] for name in REFUSALS])
    for name, shape in REFUSALS.items():
        answer = post(server)
        assert answer.status_code == shape.status, name
        assert answer.headers["content-type"] == shape.content_type
        assert "{re" not in answer.text + str(answer.headers)
        expected = msgspec.json.encode(shape.body).decode().replace("{retry_after_s}", "1")
        assert "{re" in expected or answer.json() == json.loads(expected), name
    truth = server.truth()
    assert (truth.failed, truth.completed, truth.input_tokens) == (len(REFUSALS), 0, 0)
    assert truth.by_status[200] == sum(shape.status == 200 for shape in REFUSALS.values())


def test_a_refusal_says_when_it_ends():
    free = written("openrouter-free-day", retry_after_s=90, wall_now=1_800_000_000.5)
    assert b'"X-RateLimit-Reset":"1800000091000"' in free.body
    wall = written("zai-wall", retry_after_s=90, wall_now=1_800_000_000)
    assert b"will reset at 2027-01-15 08:01:30" in wall.body
    assert dict(written("openrouter-in-flight", retry_after_s=1.2, wall_now=0).headers)["retry-after"] == "2"


@each("name", ["openrouter-in-stream", "cerebras-in-stream"])
def test_some_refuse_inside_a_stream(name):
    with running_server(ProviderSettings(faults={name: 1})) as server:
        streamed, whole = post(server, stream=True), post(server)
        truth = server.truth()
    *lines, last = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert streamed.status_code == 200
    assert [line["choices"][0]["delta"] != {} for line in lines] == [True] * 5
    assert last == REFUSALS[name].event
    assert whole.status_code == REFUSALS[name].status
    assert (truth.cut, truth.failed) == (1, 1)


def test_a_limit_and_the_concurrency_may_refuse_in_a_providers_words():
    settings = ProviderSettings((Limit(Dimension.REQUESTS, 1),), refused_as="zai-frequency")
    with running_server(settings) as server:
        first, second = post(server), post(server)
        assert (first.status_code, second.status_code) == (200, 429)
        assert second.json()["error"]["code"] == "1303"
        assert server.truth().refused == 1
    with running_server(ProviderSettings(concurrency=0, overloaded_as="minimax-rpm")) as server:
        answer = post(server)
        assert (answer.status_code, answer.json()["base_resp"]["status_code"]) == (200, 1002)
        assert server.truth().overloaded == 1


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"unknown refusal 'zai'; known: openrouter-in-flight, "):
        SimServer(ProviderSettings(refused_as="zai"))


@each(("request_", "sign"), [(STREAM, b": keep-alive\n\n"), (WHOLE, b"\n")])
def test_a_queue_sends_its_head_at_once_and_then_signs_of_life(request_, sign):
    head, *played = plan(Queue("deepseek-queue", wait_s=25), request_)
    assert isinstance(head, Head)
    assert head.length is None
    assert played[:6] == [Data(sign), PauseStep(10), Data(sign), PauseStep(10), Data(sign), PauseStep(5)]
    assert isinstance(played[-1], End)


def test_a_queued_answer_is_whole(server):
    server.script("sk-sim-1", [Queue(name, wait_s=0.02, every_s=0.01) for name in WAITS], then=OK)
    queued = [post(server) for _ in WAITS]
    assert [answer.text[:2] for answer in queued] == ["\n\n"] * len(WAITS)
    assert all(answer.json()["usage"]["completion_tokens"] == 8 for answer in queued)
    assert server.truth().completed == len(WAITS)


def test_a_refusal_may_be_scripted_with_its_delay(server):
    server.script("sk-sim-1", [WordedRefusal("azure-rate", retry_after_s=22)])
    answer = post(server)
    assert answer.headers["retry-after"] == "22"
    assert "Please retry after 22 seconds." in answer.json()["error"]["message"]
