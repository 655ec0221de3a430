"""What the simulated provider says in each dialect."""

import json
from dataclasses import replace

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim import dialect as wire
from hivemind_addon.sim.dialect import LimitView, SimDialect, TaskTurn
from lab.running_server import running_server
from tests.cases import each

from .samples import CALL, REPLY, TURN, data_of


@each(
    ("dialect", "words"),
    [
        (SimDialect.MESSAGES, "max_tokens"),
        (SimDialect.CHAT, "length"),
        (SimDialect.RESPONSES, "max_output_tokens"),
        (SimDialect.OLLAMA, "length"),
    ],
)
def test_a_truncated_answer_says_so(dialect, words):
    assert words in wire.whole_body(replace(REPLY, dialect=dialect, truncated=True)).decode()


def test_retry_after_is_never_too_early():
    assert wire.SHAPES[SimDialect.MESSAGES].retry_after_headers(1.01) == (("retry-after", "2"),)
    assert wire.SHAPES[SimDialect.CHAT].retry_after_headers(1.01) == (("retry-after", "2"), ("retry-after-ms", "1010"))


def test_errors_have_the_shape_of_their_dialect():
    messages = wire.SHAPES[SimDialect.MESSAGES].error_body(
        wire.error_object(SimDialect.MESSAGES, 529, message="m"), "req_000001"
    )
    chat = wire.SHAPES[SimDialect.CHAT].error_body(wire.error_object(SimDialect.CHAT, 503, message="m"), "req_000001")
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
    assert "enforced_spend_limit_reached" in str(wire.SHAPES[SimDialect.MESSAGES].words.spent_credit)
    assert wire.SHAPES[SimDialect.CHAT].words.spent_credit["type"] == "insufficient_quota"


def test_an_error_event_of_messages_is_named_error():
    error = wire.error_object(SimDialect.MESSAGES, 529, message="m")
    assert wire.SHAPES[SimDialect.MESSAGES].error_event(error).data.startswith(b"event: error\ndata: ")
    assert wire.SHAPES[SimDialect.CHAT].error_event(error).data.startswith(b"data: ")


def test_each_dialect_lists_one_model():
    for dialect in SimDialect:
        (models,) = (
            value for value in json.loads(wire.SHAPES[dialect].models_body()).values() if isinstance(value, list)
        )
        (name,) = (model.get("id") or model.get("modelId") or model["name"] for model in models)
        assert name.removeprefix("models/") == "sim-1"


def test_each_dialect_names_the_organisation_in_its_own_header():
    assert ("anthropic-organization-id", "org") in wire.SHAPES[SimDialect.MESSAGES].identity_headers("r", "org")
    assert ("openai-organization", "org") in wire.SHAPES[SimDialect.CHAT].identity_headers("r", "org")


# Shape ----------------------------------------------------------------------------------------------------------------


@each(
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


# Reply ----------------------------------------------------------------------------------------------------------------


def test_the_text_names_request_attempt_and_body():
    assert REPLY.text().startswith("req_000007 attempt 2 for 0badcafe:")


def test_the_pieces_count_all_output_tokens():
    assert [tokens for _, tokens in REPLY.deltas()] == [2, 2, 1]


def test_a_turn_replaces_the_text_and_counts_four_characters_a_token():
    reply = replace(REPLY, turn=TURN, output_tokens=TURN.output_tokens)
    assert reply.text() == TURN.text
    assert "".join(text for text, _ in reply.call_deltas()) == CALL.arguments
    delivered = sum(tokens for _, tokens in (*reply.deltas(), *reply.call_deltas()))
    assert delivered == TURN.output_tokens == 11


def test_a_turn_without_words_counts_one():
    assert TaskTurn().output_tokens == 1


# Messages -------------------------------------------------------------------------------------------------------------


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
    headers = dict(wire.SHAPES[SimDialect.MESSAGES].limit_headers(limits, 1_800_000_000.5))
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


# Openai ---------------------------------------------------------------------------------------------------------------


@each("dialect", [SimDialect.CHAT, SimDialect.RESPONSES])
def test_headers_hold_durations(dialect):
    limits = [
        LimitView(Dimension.REQUESTS, 60, 59, 1),
        LimitView(Dimension.TOTAL_TOKENS, 150_000, 149_984.2, 0.006),
        LimitView(Dimension.INPUT_TOKENS, 1, 1, 0),
    ]
    assert dict(wire.SHAPES[dialect].limit_headers(limits, 0)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-tokens": "6ms",
    }


# Chat -----------------------------------------------------------------------------------------------------------------


CHAT = replace(REPLY, dialect=SimDialect.CHAT)


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


def test_a_tool_call_comes_in_pieces_that_name_its_place():
    reply = replace(CHAT, turn=TURN)
    chunks = [data_of(event) for event in wire.stream_events(reply)[:-1]]
    calls = [
        chunk["choices"][0]["delta"]["tool_calls"][0]
        for chunk in chunks
        if "tool_calls" in str(chunk["choices"][0]["delta"])
    ]
    assert (calls[0]["id"], calls[0]["function"]["name"]) == ("call_1", "Bash")
    assert "".join(call["function"]["arguments"] for call in calls) == CALL.arguments
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    message = json.loads(wire.whole_body(reply))["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == CALL.arguments


# Responses ------------------------------------------------------------------------------------------------------------


RESPONSES = replace(REPLY, dialect=SimDialect.RESPONSES)


def test_events_are_named_and_numbered():
    events = wire.stream_events(RESPONSES)
    for number, event in enumerate(events):
        assert data_of(event)["sequence_number"] == number
        assert event.data.startswith(f"event: {data_of(event)['type']}\n".encode())


def test_the_last_event_holds_the_whole_answer():
    events = [data_of(event) for event in wire.stream_events(RESPONSES)]
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"] == json.loads(wire.whole_body(RESPONSES))
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == RESPONSES.text() == events[-1]["response"]["output"][0]["content"][0]["text"]


def test_usage_counts_cached_input_as_input():
    usage = json.loads(wire.whole_body(RESPONSES))["usage"]
    assert (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (50, 10)
    assert (usage["output_tokens"], usage["total_tokens"]) == (5, 55)


@each(
    ("freeform", "kind", "name"),
    [(False, "function_call", "arguments"), (True, "custom_tool_call", "input")],
)
def test_a_tool_call_is_an_item_of_its_own(freeform, kind, name):
    reply = replace(RESPONSES, turn=replace(TURN, call=replace(CALL, freeform=freeform)))
    events = [data_of(event) for event in wire.stream_events(reply)]
    item = events[-1]["response"]["output"][1]
    assert (item["type"], item["call_id"], item[name]) == (kind, "call_1", CALL.arguments)
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"][1] == item
    pieces = [event["delta"] for event in events if event["type"].endswith((f"{name}.delta", "input.delta"))]
    assert "".join(pieces) == CALL.arguments


def test_a_truncated_stream_ends_incomplete():
    last = data_of(wire.stream_events(replace(RESPONSES, truncated=True))[-1])
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")


def test_an_error_in_a_stream_is_a_failed_response():
    error = wire.error_object(SimDialect.RESPONSES, 529, message="m")
    event = data_of(wire.SHAPES[SimDialect.RESPONSES].error_event(error))
    assert event["type"] == "response.failed"
    assert event["response"]["error"] == {"code": "server_is_overloaded", "message": "m"}


def test_openais_own_library_reads_it():
    import openai

    with running_server() as server:
        client = openai.OpenAI(api_key="sk-sim-1", base_url=f"{server.url}/v1", max_retries=0)
        whole = client.responses.create(model="sim-1", input="hello")
        assert whole.output_text.startswith("req_000001 attempt 1")
        with client.responses.stream(model="sim-1", input="hello") as stream:
            kinds = [event.type for event in stream]
            ended = stream.get_final_response()
        assert kinds.count("response.output_text.delta") == 8
        assert ended.output_text.startswith("req_000002 attempt 2")
        assert ended.usage.output_tokens == 8


# Ollama ---------------------------------------------------------------------------------------------------------------


OLLAMA = replace(REPLY, dialect=SimDialect.OLLAMA)


def lines_of(events: list[wire.StreamEvent]) -> list[dict]:
    return [json.loads(event.data) for event in events]


def test_each_event_is_one_line():
    assert all(event.data.endswith(b"\n") and event.data.count(b"\n") == 1 for event in wire.stream_events(OLLAMA))
    assert wire.SHAPES[SimDialect.OLLAMA].stream_type == "application/x-ndjson"


def test_the_last_line_counts():
    *lines, last = lines_of(wire.stream_events(OLLAMA))
    assert not any(line["done"] for line in lines)
    assert last["done"]
    assert (last["prompt_eval_count"], last["eval_count"], last["done_reason"]) == (50, 5, "stop")
    whole = json.loads(wire.whole_body(OLLAMA))
    assert "".join(line["message"]["content"] for line in lines) == whole["message"]["content"] == OLLAMA.text()


def test_a_tool_call_comes_whole_with_an_object_as_its_arguments():
    reply = replace(OLLAMA, turn=TURN, output_tokens=TURN.output_tokens)
    calls = [
        line["message"]["tool_calls"] for line in lines_of(wire.stream_events(reply)) if "tool_calls" in line["message"]
    ]
    assert calls == [[{"function": {"name": "Bash", "arguments": {"command": "echo done"}}}]]
    assert json.loads(wire.whole_body(reply))["message"]["tool_calls"] == calls[0]
    assert sum(event.output_tokens for event in wire.stream_events(reply)) == TURN.output_tokens


def test_errors_are_texts_also_in_a_stream():
    error = wire.error_object(SimDialect.OLLAMA, 500, message="m")
    assert json.loads(wire.SHAPES[SimDialect.OLLAMA].error_body(error, "r")) == {"error": "m"}
    assert wire.SHAPES[SimDialect.OLLAMA].error_event(error).data == b'{"error":"m"}\n'
    assert "maximum pending requests exceeded" in str(wire.error_object(SimDialect.OLLAMA, 503, message="m"))


def test_it_tells_of_no_limits():
    assert wire.SHAPES[SimDialect.OLLAMA].limit_headers([LimitView(Dimension.REQUESTS, 1, 1, 1)], 0) == ()


# Cohere ---------------------------------------------------------------------------------------------------------------


COHERE = replace(REPLY, dialect=SimDialect.COHERE)


def test_a_streamed_cohere_answer_ends_with_its_usage():
    events = [data_of(event) for event in wire.stream_events(COHERE)]
    kinds = ["message-start", "content-start", *["content-delta"] * 3, "content-end", "message-end"]
    assert [event["type"] for event in events] == kinds
    text = "".join(event["delta"]["message"]["content"]["text"] for event in events[2:5])
    whole = json.loads(wire.whole_body(COHERE))
    assert text == whole["message"]["content"][0]["text"]
    assert events[-1]["delta"] == {"finish_reason": "COMPLETE", "usage": whole["usage"]}
    assert whole["usage"]["tokens"] == {"input_tokens": 50, "output_tokens": 5}
    assert whole["usage"]["cached_tokens"] == 10


CALLING = ("tool-call-start", "tool-call-delta")


def test_what_cohere_says_before_a_tool_call_is_a_plan():
    reply = replace(COHERE, turn=TURN)
    events = [data_of(event) for event in wire.stream_events(reply)]
    plan = [event["delta"]["message"]["tool_plan"] for event in events if event["type"] == "tool-plan-delta"]
    calls = [event["delta"]["message"]["tool_calls"] for event in events if event["type"] in CALLING]
    assert "".join(plan) == TURN.text == json.loads(wire.whole_body(reply))["message"]["tool_plan"]
    assert (calls[0]["id"], calls[0]["function"]["name"]) == ("call_1", "Bash")
    assert "".join(call["function"]["arguments"] for call in calls) == CALL.arguments
    assert events[-1]["delta"]["finish_reason"] == "TOOL_CALL"


def test_coheres_error_in_a_stream_is_its_end():
    error = wire.error_object(SimDialect.COHERE, 529, message="m")
    event = data_of(wire.SHAPES[SimDialect.COHERE].error_event(error))
    assert event == {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "m"}}
    assert json.loads(wire.SHAPES[SimDialect.COHERE].error_body(error, "r")) == {"id": "r", "message": "m"}
