import json
from dataclasses import replace

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim import dialect as wire
from hivemind_addon.lab.sim.dialect import LimitView, SimDialect

from .samples import CALL, REPLY, TURN, data_of


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


def test_messages_headers_hold_instants_and_rounded_tokens():
    limits = [
        LimitView(Dimension.REQUESTS, 50, 49.4, 1.2),
        LimitView(Dimension.INPUT_TOKENS, 30_000, 12_600.7, 34.9),
        LimitView(Dimension.OUTPUT_TOKENS, 8_000, -300, 62),
    ]
    headers = dict(wire.limit_headers(SimDialect.MESSAGES, limits, 1_800_000_000.5))
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


def test_a_tool_call_follows_the_text_and_ends_the_turn():
    reply = replace(REPLY, turn=TURN)
    events = [data_of(event) for event in wire.stream_events(reply)]
    begun = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert begun == [
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "call_1", "name": "Bash", "input": {}},
    ]
    pieces = [event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"]
    assert "".join(pieces) == CALL.arguments
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    whole = json.loads(wire.whole_body(reply))
    assert whole["content"][1]["input"] == {"command": "echo done"}
    assert whole["stop_reason"] == "tool_use"
