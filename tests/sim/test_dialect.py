import json
from dataclasses import replace

import pytest

from hivemind_addon.core.ticket import Dimension
from hivemind_addon.sim import dialect as wire
from hivemind_addon.sim.dialect import Dialect, LimitView, Reply

REPLY = Reply(
    dialect=Dialect.MESSAGES,
    request_id="req_000007",
    attempt=2,
    digest="0badcafe",
    model="sim-1",
    input_tokens=40,
    cached_tokens=10,
    output_tokens=5,
    tokens_per_delta=2,
    truncated=False,
    include_usage=False,
)
CHAT = replace(REPLY, dialect=Dialect.CHAT)


def data_of(event: wire.StreamEvent) -> dict:
    line = next(line for line in event.data.decode().splitlines() if line.startswith("data: "))
    return json.loads(line.removeprefix("data: "))


def test_the_text_names_request_attempt_and_body():
    assert REPLY.text().startswith("req_000007 attempt 2 for 0badcafe:")


def test_the_pieces_count_all_output_tokens():
    assert [tokens for _, tokens in REPLY.deltas()] == [2, 2, 1]


def test_a_streamed_messages_answer_carries_the_same_text_and_usage_as_the_whole_one():
    events = [data_of(event) for event in wire.stream_events(REPLY)]
    whole = json.loads(wire.whole_body(REPLY))
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "".join(event["delta"]["text"] for event in events[3:6]) == whole["content"][0]["text"]
    assert events[-2]["usage"] == whole["usage"]
    assert whole["usage"] == {
        "input_tokens": 40,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 10,
        "output_tokens": 5,
    }


def test_a_messages_event_is_named_like_its_type():
    for event in wire.stream_events(REPLY):
        assert event.data.startswith(f"event: {data_of(event)['type']}\n".encode())


def test_a_streamed_chat_answer_ends_with_finish_and_done():
    *events, done = wire.stream_events(CHAT)
    chunks = [data_of(event) for event in events]
    assert done.data == b"data: [DONE]\n\n"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == json.loads(wire.whole_body(CHAT))["choices"][0]["message"]["content"]


def test_chat_usage_comes_in_a_chunk_of_its_own_and_only_when_asked_for():
    asked = [data_of(event) for event in wire.stream_events(replace(CHAT, include_usage=True))[:-1]]
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"] == json.loads(wire.whole_body(CHAT))["usage"]
    assert asked[-1]["usage"]["total_tokens"] == 55
    assert not any("usage" in data_of(event) for event in wire.stream_events(CHAT)[:-1])


@pytest.mark.parametrize(("dialect", "words"), [(Dialect.MESSAGES, "max_tokens"), (Dialect.CHAT, "length")])
def test_a_truncated_answer_says_so(dialect, words):
    assert words in wire.whole_body(replace(REPLY, dialect=dialect, truncated=True)).decode()


def test_messages_headers_hold_instants_and_rounded_tokens():
    limits = [
        LimitView(Dimension.REQUESTS, 50, 49.4, 1.2),
        LimitView(Dimension.INPUT_TOKENS, 30_000, 12_600.7, 34.9),
        LimitView(Dimension.OUTPUT_TOKENS, 8_000, -300, 62),
    ]
    headers = dict(wire.limit_headers(Dialect.MESSAGES, limits, 1_800_000_000.5))
    assert headers == {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:02Z",
        "anthropic-ratelimit-input-tokens-limit": "30000",
        "anthropic-ratelimit-input-tokens-remaining": "13000",
        "anthropic-ratelimit-input-tokens-reset": "2027-01-15T08:00:36Z",
        "anthropic-ratelimit-output-tokens-limit": "8000",
        "anthropic-ratelimit-output-tokens-remaining": "0",
        "anthropic-ratelimit-output-tokens-reset": "2027-01-15T08:01:03Z",
        "anthropic-ratelimit-tokens-limit": "38000",
        "anthropic-ratelimit-tokens-remaining": "13000",
        "anthropic-ratelimit-tokens-reset": "2027-01-15T08:01:03Z",
    }


def test_chat_headers_hold_durations():
    limits = [
        LimitView(Dimension.REQUESTS, 60, 59, 1),
        LimitView(Dimension.TOTAL_TOKENS, 150_000, 149_984.2, 0.006),
        LimitView(Dimension.INPUT_TOKENS, 1, 1, 0),
    ]
    assert dict(wire.limit_headers(Dialect.CHAT, limits, 0)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-tokens": "6ms",
    }


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.0121, "13ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (179.56, "2m59.56s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
    ],
)
def test_durations_are_written_as_go_does(seconds, written):
    assert wire.duration(seconds) == written


def test_retry_after_is_never_too_early():
    assert wire.retry_after_headers(Dialect.MESSAGES, 1.01) == (("retry-after", "2"),)
    assert wire.retry_after_headers(Dialect.CHAT, 1.01) == (("retry-after", "2"), ("retry-after-ms", "1010"))


def test_errors_have_the_shape_of_their_dialect():
    messages = wire.error_body(Dialect.MESSAGES, wire.error_object(Dialect.MESSAGES, 529, message="m"), "req_000001")
    chat = wire.error_body(Dialect.CHAT, wire.error_object(Dialect.CHAT, 503, message="m"), "req_000001")
    assert json.loads(messages) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "m"},
        "request_id": "req_000001",
    }
    assert json.loads(chat) == {
        "error": {
            "message": "m",
            "type": "service_unavailable_error",
            "param": None,
            "code": "server_is_overloaded",
        }
    }


def test_spent_credit_is_told_from_a_rate_limit_by_its_code():
    assert "enforced_spend_limit_reached" in str(wire.spent_credit(Dialect.MESSAGES))
    assert wire.spent_credit(Dialect.CHAT)["type"] == "insufficient_quota"


def test_an_error_event_of_messages_is_named_error():
    error = wire.error_object(Dialect.MESSAGES, 529, message="m")
    assert wire.error_event(Dialect.MESSAGES, error).data.startswith(b"event: error\ndata: ")
    assert wire.error_event(Dialect.CHAT, error).data.startswith(b"data: ")


def test_each_dialect_lists_one_model():
    for dialect in Dialect:
        assert [model["id"] for model in json.loads(wire.models_body(dialect))["data"]] == ["sim-1"]


def test_each_dialect_names_the_organisation_in_its_own_header():
    assert ("anthropic-organization-id", "org") in wire.identity_headers(Dialect.MESSAGES, "r", "org")
    assert ("openai-organization", "org") in wire.identity_headers(Dialect.CHAT, "r", "org")
