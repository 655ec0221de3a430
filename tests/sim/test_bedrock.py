"""The simulated Bedrock: its framing, its errors, and its look at signatures."""

import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim import sigv4
from hivemind_addon.sim.dialect import eventstream
from hivemind_addon.sim.faults import ErrorStatus, StreamCut, StreamError
from hivemind_addon.sim.limits import Limit
from hivemind_addon.sim.provider import ProviderSettings
from lab.running_server import running_server
from tests.cases import each
from tests.patience import PATIENCE_S

from .aws import messages_of, signed
from .clients import hear

BEARER = {"authorization": "Bearer sk-sim-b"}
CONVERSE = {"messages": [{"role": "user", "content": [{"text": "hello"}]}], "inferenceConfig": {"maxTokens": 100}}
INVOKE = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "hello"}],
}
MODEL = "/model/anthropic.claude-sonnet-4-5-v1%3A0"


@pytest.fixture
def server():
    with running_server() as running:
        yield running


def post(server, action, body=CONVERSE, **more):
    return httpx.post(f"{server.url}{MODEL}/{action}", json=body, headers=BEARER, timeout=PATIENCE_S, **more)


def events_of(answer: httpx.Response) -> list[tuple[str, dict]]:
    assert answer.headers["content-type"] == "application/vnd.amazon.eventstream"
    found = messages_of(answer.content)
    assert {headers[":message-type"] for headers, _ in found} <= {"event", "exception"}
    return [
        (headers.get(":event-type") or headers[":exception-type"], json.loads(payload)) for headers, payload in found
    ]


def test_a_message_is_framed_as_aws_frames_it():
    # botocore's EventStreamBuffer reads it as {':a': 'b'} and b'{}'.
    assert eventstream.message({":a": "b"}, b"{}").hex() == "000000190000000796b6bf39023a61070001627b7d9e086d50"


def test_converse_streams_what_it_says_whole_and_tells_the_usage_last(server):
    whole = post(server, "converse").json()
    events = events_of(post(server, "converse-stream"))
    kinds = [kind for kind, _ in events]
    assert kinds == ["messageStart", *["contentBlockDelta"] * 8, "contentBlockStop", "messageStop", "metadata"]
    text = "".join(fields["delta"]["text"] for kind, fields in events if kind == "contentBlockDelta")
    assert text.replace("000002 attempt 2", "000001 attempt 1") == whole["output"]["message"]["content"][0]["text"]
    assert events[-1][1]["usage"] == whole["usage"]
    assert whole["usage"]["outputTokens"] == 8
    assert (whole["stopReason"], events[-2][1]["stopReason"]) == ("end_turn", "end_turn")


def test_converse_keeps_cached_input_apart(server):
    answer = httpx.post(
        f"{server.url}{MODEL}/converse", json=CONVERSE, headers=BEARER | {"x-sim-cached-tokens": "7"}
    ).json()
    truth = server.truth().dialects["bedrock-converse"]
    assert answer["usage"]["cacheReadInputTokens"] == truth.cached_tokens == 7
    assert answer["usage"]["inputTokens"] == truth.input_tokens


def test_invoke_wraps_the_models_own_events(server):
    whole = post(server, "invoke", INVOKE).json()
    events = events_of(post(server, "invoke-with-response-stream", INVOKE))
    assert {kind for kind, _ in events} == {"chunk"}
    inner = [json.loads(b64decode(fields["bytes"])) for _, fields in events]
    assert [event["type"] for event in inner] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 8,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert inner[-2]["usage"] == whole["usage"]
    assert inner[-1]["amazon-bedrock-invocationMetrics"]["outputTokenCount"] == 8
    assert whole["model"] == "anthropic.claude-sonnet-4-5-v1:0"


@each(
    ("status", "name", "sent"),
    [
        (429, "ThrottlingException", 429),
        (424, "ModelErrorException", 424),
        (500, "InternalServerException", 500),
        (529, "ServiceUnavailableException", 503),
        (401, "AccessDeniedException", 403),
    ],
)
def test_the_name_of_an_error_is_in_its_head(server, status, name, sent):
    server.script("sk-sim-b", [ErrorStatus(status, message="m")])
    answer = post(server, "converse-stream")
    assert (answer.status_code, answer.headers["x-amzn-errortype"]) == (sent, name)
    assert answer.json() == {"message": "m"}
    assert "retry-after" not in answer.headers


@each(
    ("status", "kind"),
    [
        (429, "throttlingException"),
        (424, "modelStreamErrorException"),
        (500, "internalServerException"),
        (529, "serviceUnavailableException"),
    ],
)
@each(("action", "body"), [("converse-stream", CONVERSE), ("invoke-with-response-stream", INVOKE)])
def test_an_exception_ends_a_stream(server, status, kind, action, body):
    server.script("sk-sim-b", [StreamError(2, status)])
    answer = post(server, action, body)
    events = events_of(answer)
    assert answer.status_code == 200
    assert (len(events), events[-1][0]) == (3, kind)


def test_a_cut_stream_ends_between_two_messages(server):
    server.script("sk-sim-b", [StreamCut(3)])
    body = json.dumps(CONVERSE).encode()
    head = f"POST {MODEL}/converse-stream HTTP/1.1\r\nhost: s\r\nauthorization: Bearer sk-sim-b\r\n"
    chunks = hear(server.port, f"{head}content-length: {len(body)}\r\n\r\n".encode() + body).body
    data = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        data, chunks = data + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    assert len(messages_of(data)) == 3


@each(("window_s", "words"), [(60, "Too many tokens, please"), (86_400, "Too many tokens per day, please")])
def test_a_maximum_is_reserved_and_given_back(window_s, words):
    body = CONVERSE | {"inferenceConfig": {"maxTokens": 1000}}
    settings = ProviderSettings((Limit(Dimension.OUTPUT_TOKENS, 1010, window_s),), default_max_tokens=10)
    with running_server(settings) as server:
        assert post(server, "converse", body).status_code == 200
        assert post(server, "converse", body).status_code == 200
        too_much = post(server, "converse", body | {"inferenceConfig": {"maxTokens": 1011}})
        assert too_much.status_code == 429
        assert too_much.json()["message"].startswith(words)


# Signatures -----------------------------------------------------------------------------------------------------------


NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
SIGNED = {
    "method": "POST",
    "path": "/model/anthropic.claude-v1%3A0/converse",
    "query": "b=2&a=%20x",
    "headers": {
        "host": "bedrock-runtime.eu-west-1.amazonaws.com",
        "content-type": "application/json",
        "x-amz-date": "20261123T120000Z",
        "x-amz-security-token": "token",
        "user-agent": "anything",
        "authorization": "AWS4-HMAC-SHA256 Credential=AKIASIM/20261123/eu-west-1/bedrock/aws4_request, "
        "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, "
        "Signature=46237762b349b2d7aeb5ef3ba79197257afcebb7af4a65042cda2a0b65e7ad81",
    },
    "body": b'{"messages":[]}',
}
"""As botocore 1.44.5 signed it."""


def refusal(*, after_s: float = 0, **changed: object):
    return sigv4.refusal(**SIGNED | changed, wall_now=NOON.timestamp() + after_s)


def test_what_botocore_signed_is_known_again():
    assert refusal() is None
    assert refusal(after_s=300) is None
    assert refusal(headers=SIGNED["headers"] | {"user-agent": "another"}) is None


@each(
    "changed",
    [
        {"method": "PUT"},
        {"path": "/model/anthropic.claude-v1:0/converse"},
        {"query": "a=%20x"},
        {"body": b'{"messages": []}'},
        {"headers": SIGNED["headers"] | {"host": "localhost"}},
        {"headers": SIGNED["headers"] | {"content-type": "application/json; charset=utf-8"}},
        {"headers": SIGNED["headers"] | {"x-amz-content-sha256": "0" * 64}},
        {"headers": {name: value for name, value in SIGNED["headers"].items() if name != "content-type"}},
    ],
)
def test_any_change_of_what_is_signed_is_refused(changed):
    wrong = refusal(**changed)
    assert (wrong.status, wrong.error) == (403, "InvalidSignatureException")


def test_a_signature_is_good_for_five_minutes():
    assert refusal(after_s=301).message == (
        "Signature expired: 20261123T120000Z is now earlier than 20261123T120001Z (20261123T120501Z - 5 min.)"
    )
    assert refusal(after_s=-301).message.startswith("Signature not yet current: 20261123T120000Z is still later than")


def test_the_server_looks_at_every_signed_request(server):
    path, body = f"{MODEL}/converse", json.dumps(CONVERSE).encode()
    host = f"{server.host}:{server.port}"

    def answer(headers: dict[str, str], content: bytes = body) -> httpx.Response:
        return httpx.post(server.url + path, content=content, headers=headers, timeout=PATIENCE_S)

    assert answer(signed(path, body, host=host)).status_code == 200
    changed = answer(signed(path, body, host=host), body + b" ")
    old = answer(signed(path, body, host=host, at=datetime.now(UTC) - timedelta(minutes=6)))
    assert (changed.status_code, old.status_code) == (403, 403)
    assert changed.headers["x-amzn-errortype"] == old.headers["x-amzn-errortype"] == "InvalidSignatureException"
    assert "does not match the signature" in changed.json()["message"]
    assert old.json()["message"].startswith("Signature expired: ")
    truth = server.truth()
    assert (truth.completed, truth.failed) == (1, 2)
