"""The simulated Google: Gemini, Code Assist and Vertex, on the wire."""

import json

import httpx
import pytest

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.call import TruthPart
from hivemind_addon.sim.faults import ErrorStatus, StreamCut, StreamError
from hivemind_addon.sim.limits import Limit, RetryAfter
from hivemind_addon.sim.provider import ProviderSettings
from lab.running_server import running_server
from tests.cases import each
from tests.patience import PATIENCE_S

from .clients import hear

KEY = {"x-goog-api-key": "sk-sim-g"}
ASK = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
MODEL = "/v1beta/models/gemini-2.5-pro"
STREAM = f"{MODEL}:streamGenerateContent?alt=sse"
PLACE = "/v1/projects/p-1/locations/europe-west1/publishers"


@pytest.fixture
def server():
    with running_server() as running:
        yield running


def post(server, path, body=ASK, headers=KEY):
    return httpx.post(server.url + path, json=body, headers=headers, timeout=PATIENCE_S)


def events_of(answer: httpx.Response) -> list[dict]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    *pieces, rest = answer.text.split("\r\n\r\n")
    assert rest == ""
    return [json.loads(piece.removeprefix("data: ")) for piece in pieces]


def output(answer: dict) -> int:
    usage = answer["usageMetadata"]
    return usage["candidatesTokenCount"] + usage["thoughtsTokenCount"]


def texts(events: list[dict]) -> str:
    return "".join(part["text"] for event in events for part in event["candidates"][0]["content"]["parts"])


def test_whole_and_streamed_answers_say_and_count_the_same(server):
    whole = post(server, f"{MODEL}:generateContent").json()
    events = events_of(post(server, STREAM))
    assert texts([whole]).startswith("req_000001 attempt 1 ")
    assert texts(events).replace("000002 attempt 2", "000001 attempt 1") == texts([whole])
    assert events[-1]["usageMetadata"] == whole["usageMetadata"]
    assert (whole["usageMetadata"]["candidatesTokenCount"], whole["usageMetadata"]["thoughtsTokenCount"]) == (6, 2)
    assert [output(event) for event in events] == [*range(1, 9), 8]
    reasons = [event["candidates"][0].get("finishReason") for event in events]
    assert reasons == [*[None] * 8, "STOP"]
    assert {event["modelVersion"] for event in events} == {"gemini-2.5-pro"}


def test_without_sse_a_stream_is_one_array(server):
    answer = post(server, f"{MODEL}:streamGenerateContent")
    assert answer.headers["content-type"].startswith("application/json")
    assert texts(answer.json()).startswith("req_000001 attempt 1 ")
    assert len(answer.json()) == 9


@each(("at_event", "before"), [(0, 0), (None, 4)])
def test_an_error_inside_an_array_is_its_last_element(server, at_event, before):
    server.script("sk-sim-g", [StreamError(at_event)])
    *elements, last = post(server, f"{MODEL}:streamGenerateContent").json()
    assert len(elements) == before
    assert last["error"]["status"] == "UNAVAILABLE"


def test_the_maximum_ends_an_answer(server):
    answer = post(server, f"{MODEL}:generateContent", ASK | {"generationConfig": {"maxOutputTokens": 3}}).json()
    assert answer["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert output(answer) == 3


@each("path", [f"{MODEL}:generateContent?key=sk-sim-query", f"{STREAM}&key=sk-sim-query"])
def test_the_key_may_be_in_the_query(server, path):
    assert post(server, path, headers={}).status_code == 200
    assert set(server.truth().agents) == {"sk-sim-query"}


def test_without_a_key_or_a_prompt_it_refuses_as_google_does(server):
    nobody, empty = post(server, STREAM, headers={}), post(server, STREAM, {})
    assert (nobody.status_code, nobody.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert (empty.status_code, empty.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert empty.json()["error"]["message"] == "contents is missing"


@each(
    ("dimension", "window_s", "quota"),
    [
        (Dimension.REQUESTS, 60, "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"),
        (Dimension.REQUESTS, 86_400, "GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
        (Dimension.INPUT_TOKENS, 60, "GenerateContentInputTokensPerModelPerMinute-FreeTier"),
    ],
)
def test_a_rate_limit_names_its_quota_and_the_delay(dimension, window_s, quota):
    with running_server(ProviderSettings((Limit(dimension, 20, window_s),), charge_failures=False)) as server:
        while (answer := post(server, STREAM)).status_code == 200:
            pass
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["status"]) == (429, 429, "RESOURCE_EXHAUSTED")
        failure, delay = error["details"]
        assert failure["violations"][0]["quotaId"] == quota
        assert delay["@type"] == "type.googleapis.com/google.rpc.RetryInfo"
        assert f"Please retry in {delay['retryDelay']}." in error["message"]
        assert not {"retry-after", "x-ratelimit-limit-requests"} & set(answer.headers)
        assert server.truth().refused == 1


def test_an_output_maximum_takes_nothing_from_the_limits():
    limits = (Limit(Dimension.OUTPUT_TOKENS, 100),)
    with running_server(ProviderSettings(limits)) as server:
        asked = ASK | {"generationConfig": {"maxOutputTokens": 100_000}}
        assert [post(server, STREAM, asked).status_code for _ in range(3)] == [200] * 3


def test_a_limit_may_tell_no_delay():
    settings = ProviderSettings((Limit(Dimension.REQUESTS, 1),), retry_after=RetryAfter.MISSING)
    with running_server(settings) as server:
        first, second = post(server, STREAM), post(server, STREAM)
        assert (first.status_code, second.status_code) == (200, 429)
        error = {"code": 429, "message": "Resource exhausted. Please try again later.", "status": "RESOURCE_EXHAUSTED"}
        assert second.json() == {"error": error}


def test_overload_is_503_also_where_others_say_529(server):
    server.script("sk-sim-g", [ErrorStatus(529), ErrorStatus(429, retry_after_s=1.5)])
    full, told = post(server, STREAM), post(server, STREAM)
    assert (full.status_code, full.json()["error"]["status"]) == (503, "UNAVAILABLE")
    assert told.json()["error"]["details"][0]["retryDelay"] == "1.5s"
    assert server.truth().by_status == {503: 1, 429: 1}


def test_an_error_inside_a_stream_is_bare_json_in_a_piece_of_its_own(server):
    server.script("sk-sim-g", [StreamError()])
    with httpx.stream("POST", server.url + STREAM, json=ASK, headers=KEY, timeout=PATIENCE_S) as answer:
        *_, last = answer.iter_raw()
    assert json.loads(last)["error"]["code"] == 503
    assert last.startswith(b'{\n  "error": {\n')


def test_a_cut_stream_has_no_reason_to_end(server):
    server.script("sk-sim-g", [StreamCut(3)])
    body = json.dumps(ASK).encode()
    head = f"POST {STREAM} HTTP/1.1\r\nhost: sim\r\nx-goog-api-key: sk-sim-g\r\ncontent-length: {len(body)}\r\n\r\n"
    heard = hear(server.port, head.encode() + body)
    assert heard.data.count(b"data: ") == 3
    assert b"finishReason" not in heard.data
    assert not heard.data.endswith(b"0\r\n\r\n")


def test_it_counts_tokens_and_lists_models(server):
    listed = httpx.get(f"{server.url}/v1beta/models", headers=KEY).json()["models"]
    assert [model["name"] for model in listed] == ["models/sim-1"]
    assert httpx.get(f"{server.url}/v1/models", headers=KEY).json()["models"] == listed
    assert httpx.get(f"{server.url}{MODEL}", headers=KEY).json()["name"] == "models/gemini-2.5-pro"
    for path in (f"{MODEL}:countTokens", f"{PLACE}/google/models/m:countTokens", "/v1internal:countTokens"):
        assert post(server, path).json()["totalTokens"] > 0
    assert post(server, f"{PLACE}/anthropic/models/count-tokens:rawPredict").json()["input_tokens"] > 0
    assert post(server, "/v1beta/models/m:nothing").json()["error"]["status"] == "NOT_FOUND"
    assert server.truth().attempts == 0


# Code Assist ----------------------------------------------------------------------------------------------------------


BEARER = {"authorization": "Bearer sk-sim-login"}
WRAPPED = {"model": "gemini-2.5-pro", "project": "sim-project", "request": ASK | {"session_id": "s"}}


def test_code_assist_wraps_every_event(server):
    whole = post(server, "/v1internal:generateContent", WRAPPED, BEARER).json()
    events = events_of(post(server, "/v1internal:streamGenerateContent?alt=sse", WRAPPED, BEARER))
    assert all(set(event) >= {"response", "traceId"} for event in (whole, *events))
    assert texts([event["response"] for event in events]).startswith("req_000002 attempt 2 ")
    assert events[-1]["response"]["usageMetadata"] == whole["response"]["usageMetadata"]
    assert server.truth().agents["sk-sim-login"].completed == 2


def test_code_assists_rate_limit_names_the_service():
    with running_server(ProviderSettings((Limit(Dimension.REQUESTS, 1, 86_400),))) as server:
        _, refused = (post(server, "/v1internal:generateContent", WRAPPED, BEARER) for _ in range(2))
        about = refused.json()["error"]["details"][0]
        assert (about["reason"], about["domain"]) == ("QUOTA_EXHAUSTED", "cloudcode-pa.googleapis.com")


def test_a_login_finds_its_project(server):
    loaded = post(server, "/v1internal:loadCodeAssist", {}, BEARER).json()
    assert loaded["cloudaicompanionProject"] == "sim-project"
    assert post(server, "/v1internal:onboardUser", {}, BEARER).json()["done"]
    assert httpx.get(f"{server.url}/v1internal/operations/sim").json()["done"]
    assert post(server, "/v1internal:recordCodeAssistMetrics", {}, BEARER).json() == {}
    assert post(server, "/v1internal:unknown", {}, BEARER).status_code == 404


# Vertex ---------------------------------------------------------------------------------------------------------------


def test_vertex_serves_gemini_below_its_projects(server):
    path = f"{PLACE}/google/models/gemini-2.5-pro"
    assert texts(events_of(post(server, f"{path}:streamGenerateContent?alt=sse", headers=BEARER)))
    assert post(server, f"{path}:generateContent", headers=BEARER).json()["modelVersion"] == "gemini-2.5-pro"


def test_vertex_serves_messages_with_the_model_in_the_path_and_googles_errors(server):
    path = f"{PLACE}/anthropic/models/claude-sonnet-4-5@20250929"
    body = {"anthropic_version": "vertex-2023-10-16", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    whole = post(server, f"{path}:rawPredict", body, BEARER).json()
    streamed = post(server, f"{path}:streamRawPredict", body, BEARER)
    assert (whole["type"], whole["model"]) == ("message", "claude-sonnet-4-5@20250929")
    assert streamed.text.startswith("event: message_start\n")
    server.script("sk-sim-login", [ErrorStatus(429), StreamError()])
    refused, failed = (post(server, f"{path}:streamRawPredict", body, BEARER) for _ in range(2))
    assert refused.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert (
        failed.text.splitlines()[-2]
        == 'data: {"type":"error","error":{"type":"overloaded_error","message":"The model is overloaded. Please try again later."}}'
    )


# Books ----------------------------------------------------------------------------------------------------------------


def test_each_dialect_has_books_of_its_own(server):
    answers = [
        post(server, f"{MODEL}:generateContent", headers=KEY | {"x-sim-cached-tokens": "5"}).json(),
        events_of(post(server, STREAM))[-1],
    ]
    wrapped = post(server, "/v1internal:generateContent", WRAPPED, BEARER).json()["response"]["usageMetadata"]
    truth = server.truth()
    assert set(truth.dialects) == {"gemini", "code-assist"}
    assert truth.dialects["gemini"] == TruthPart(
        attempts=2,
        completed=2,
        input_tokens=sum(answer["usageMetadata"]["promptTokenCount"] for answer in answers) - 5,
        cached_tokens=5,
        output_tokens=sum(output(answer) for answer in answers),
    )
    assert truth.dialects["code-assist"].input_tokens == wrapped["promptTokenCount"]
