import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.base.json_values import read_value
from hivemind_addon.formats.wire.conversation_parts import Assembly
from hivemind_addon.formats.wire.dialect import EventClass, dialect_named, event_name
from hivemind_addon.formats.wire.error import ErrorFacts, error_in_body
from hivemind_addon.formats.wire.sse import SseEvent, SseParser
from tests.dialects import ANTHROPIC, CHAT, GEMINI, OLLAMA, RESPONSES

DATA = Path(__file__).parent / "data"
NAMES = st.sampled_from([ANTHROPIC, CHAT, RESPONSES, OLLAMA])


def recorded(path: str) -> list[SseEvent]:
    return SseParser().feed((DATA / path).read_bytes())


def event(name: str, value: object) -> SseEvent:
    return SseEvent(name, json.dumps(value).encode())


def said(dialect, *events: SseEvent) -> str:
    answer = Assembly()
    for each in events:
        top = read_value(each.data)
        if isinstance(top, dict):
            dialect.wording.read_event(event_name(each), top, answer)
    return answer.said()


def letters(dialect, events: list[SseEvent]) -> str:
    return "".join(dialect.classify(each).name[0] for each in events)


def test_recorded_streams_are_bookkeeping_then_content_then_an_end(subtests):
    cases = [
        (ANTHROPIC, "anthropic/message.sse", "BBBCCCBCCCCT"),
        (ANTHROPIC, "anthropic/overloaded_before_content.sse", "BBE"),
        (CHAT, "openai/chat.sse", "BCCCT"),
        (CHAT, "openai/chat_with_usage.sse", "BCCBT"),
        (CHAT, "openai/chat_tools.sse", "BCCCCT"),
        (CHAT, "openai/chat_error_before_content.sse", "BE"),
        (CHAT, "openrouter/error_mid_stream.sse", "BCE"),
        (CHAT, "azure/chat.sse", "BBCCT"),
        (CHAT, "deepseek/chat.sse", "BCCCT"),
        (RESPONSES, "openai/response.sse", "BBBBCCT"),
        (RESPONSES, "openai/response_incomplete.sse", "BBBBCCT"),
        (RESPONSES, "openai/response_failed.sse", "BBBBE"),
        (RESPONSES, "openai/response_error.sse", "BE"),
    ]
    for dialect, path, expected in cases:
        with subtests.test(dialect=dialect, path=path):
            assert letters(dialect, recorded(path)) == expected


def test_only_listed_names_are_bookkeeping():
    events = [event("message_start", {"type": "message_start"}), event("", {"type": "ping"})]
    assert [ANTHROPIC.classify(each) for each in events] == [EventClass.BOOKKEEPING] * 2
    assert [RESPONSES.classify(each) for each in events] == [EventClass.CONTENT] * 2
    assert RESPONSES.classify(event("keepalive", {"type": "keepalive"})) is EventClass.BOOKKEEPING


def test_recorded_error_events_are_read(subtests):
    cases = [
        ("anthropic/overloaded_before_content.sse", ErrorFacts(type="overloaded_error", message="Overloaded")),
        (
            "openai/chat_error_before_content.sse",
            ErrorFacts(type="server_error", message="The server had an error while processing your request."),
        ),
        ("openrouter/error_mid_stream.sse", ErrorFacts(code="502", message="Provider disconnected")),
        (
            "openai/response_failed.sse",
            ErrorFacts(
                code="rate_limit_exceeded", message="Rate limit reached for gpt-5. Please try again in 11 seconds."
            ),
        ),
        (
            "openai/response_error.sse",
            ErrorFacts(type="error", code="server_error", message="The server had an error."),
        ),
    ]
    for path, facts in cases:
        with subtests.test(path=path, facts=facts):
            dialect = ANTHROPIC if path.startswith("anthropic") else RESPONSES if "response" in path else CHAT
            *before, last = recorded(path)
            assert dialect.error_of(last) == facts
            assert [dialect.error_of(each) for each in before] == [None] * len(before)


def test_generated_text_and_tool_arguments_are_taken_out(subtests):
    cases = [
        (ANTHROPIC, "anthropic/message.sse", 'Hello worldread{"path": "a.py"}'),
        (CHAT, "openai/chat.sse", "Hello world"),
        (CHAT, "openai/chat_tools.sse", 'read{"path":"a.py"}'),
        (CHAT, "deepseek/chat.sse", "HmHi"),
        (RESPONSES, "openai/response.sse", "Hello world"),
    ]
    for dialect, path, text in cases:
        with subtests.test(dialect=dialect, path=path):
            assert said(dialect, *recorded(path)) == text


def test_text_is_found_without_an_event_line_and_in_legacy_completions():
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}
    assert said(ANTHROPIC, event("", delta)) == "a"
    assert said(CHAT, event("", {"choices": [{"text": "b"}]})) == "b"
    assert said(RESPONSES, event("", {"type": "response.function_call_arguments.delta", "delta": "c"})) == "c"
    assert said(RESPONSES, event("response.audio.delta", {"delta": "QUJD"})) == ""


def test_after_content_only_a_real_error_ends_a_chat():
    tricky = event("", {"choices": [{"delta": {"content": 'say "error": now'}}]})
    no_error = event("", {"error": None, "choices": [{"delta": {"content": "x"}}]})
    error = event("", {"error": {"message": "x"}})
    kinds = [CHAT.classify_after_content(each) for each in (tricky, no_error, error, SseEvent("", b" [DONE]"))]
    assert kinds == [EventClass.CONTENT, EventClass.CONTENT, EventClass.ERROR, EventClass.TERMINAL]


def test_a_chat_may_end_with_its_finish_reason_or_usage_alone():
    assert CHAT.ends_without_terminal(event("", {"choices": [{"delta": {}, "finish_reason": "stop"}]}))
    assert CHAT.ends_without_terminal(event("", {"choices": [], "usage": {"prompt_tokens": 1}}))
    assert not CHAT.ends_without_terminal(event("", {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}))
    assert not CHAT.ends_without_terminal(SseEvent("", b"{"))
    assert ANTHROPIC.ends_without_terminal(event("message_delta", {"delta": {"stop_reason": "end_turn"}}))
    assert not ANTHROPIC.ends_without_terminal(event("message_delta", {"delta": {"stop_reason": None}}))


def test_the_first_bytes_tell_how_a_body_is_framed(subtests):
    cases = [
        (CHAT, b"data: {", "text/event-stream"),
        (CHAT, b"\xef\xbb\xbf\r\n: ping\n", "text/event-stream"),
        (CHAT, b"retry: 3\n", "text/event-stream"),
        (CHAT, b'{"data": 1}', ""),
        (CHAT, b"<html>", ""),
        (CHAT, b" \n", None),
        (CHAT, b"dat", None),
        (CHAT, b"\xef", None),
        (OLLAMA, b'{"done"', "application/x-ndjson"),
        (OLLAMA, b"data: {", ""),
        (GEMINI, b"[{", "application/json"),
    ]
    for dialect, start, media_type in cases:
        with subtests.test(dialect=dialect, start=start):
            assert dialect.media_type_in(start) == media_type


@given(NAMES, st.integers(100, 999), st.sampled_from(["", "some_error"]), st.text())
def test_error_bodies_say_what_they_were_given_and_are_read_back(name, status, error, message):
    dialect = name
    facts = error_in_body(dialect.error_body(status, error, message))
    assert facts is not None
    if name is OLLAMA:  # whose errors are a text and nothing else
        assert facts.message == (message or error or "failed")[:2000]
        return
    assert facts.message == message[:2000]
    assert facts.type == error if error else facts.type


@given(NAMES, st.text(min_size=1), st.text(), st.none() | st.floats(0, 1000))
def test_an_error_event_is_one_event_of_its_own_dialect(name, error, message, retry_after_s):
    dialect = name
    written = dialect.error_event(error, message, retry_after_s)
    (read,) = dialect.parser().feed((b": keep-alive\n\n" if dialect.form.keep_alive else b"\n") + written)
    assert dialect.classify(read) is EventClass.ERROR
    assert dialect.classify_after_content(read) is EventClass.ERROR
    facts = dialect.error_of(read)
    assert facts is not None
    assert b"[DONE]" not in written or "[DONE]" in error + message


def test_error_events_have_each_providers_shape():
    assert ANTHROPIC.error_event("overloaded_error", "Overloaded", None) == (
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
    )
    assert CHAT.error_event("server_error", "No.", None) == (
        b'data: {"error":{"message":"No.","type":"server_error","param":null,"code":"server_error"}}\n\n'
    )


def test_responses_come_back_when_it_is_worth_it():
    (come,) = SseParser().feed(RESPONSES.error_event("server_is_overloaded", "Busy.", 12.0))
    assert come.event == "response.failed"
    assert json.loads(come.data)["response"]["error"] == {
        "code": "rate_limit_exceeded",
        "message": "Busy. Please try again in 12 s.",
    }
    (stay,) = SseParser().feed(RESPONSES.error_event("insufficient_quota", "Spent.", None))
    assert json.loads(stay.data)["response"]["error"] == {"code": "insufficient_quota", "message": "Spent."}


def test_codex_stops_and_shows_the_message_where_nothing_cures_it(subtests):
    cases = [
        ("billing_hard_limit_reached", "invalid_prompt"),
        ("usage_limit_reached", "invalid_prompt"),
        ("context_length_exceeded", "context_length_exceeded"),
        ("usage_not_included", "usage_not_included"),
        ("server_error", "server_error"),
        ("", "server_error"),
    ]
    for error, code in cases:
        with subtests.test(error=error, code=code):
            (event,) = SseParser().feed(RESPONSES.error_event(error, "Spent until noon.", None))
            assert json.loads(event.data)["response"]["error"] == {"code": code, "message": "Spent until noon."}


def test_a_spent_limit_says_when_it_comes_back_where_the_format_has_a_place_for_it():
    assert json.loads(RESPONSES.error_body(429, "usage_limit_reached", "m", 1795177800))["error"] == {
        "message": "m",
        "type": "usage_limit_reached",
        "param": None,
        "code": "usage_limit_reached",
        "resets_at": 1795177800,
    }
    assert b"1795177800" not in ANTHROPIC.error_body(429, "rate_limit_error", "m", 1795177800)
    assert json.loads(OLLAMA.error_body(503, "x", "m", 1)) == {"error": "m"}


# Ollama's lines -----------------------------------------------------------------------------------------------------------


def line(value):
    return SseEvent("", json.dumps(value).encode())


def test_lines_of_ollama_are_told_apart(subtests):
    cases = [
        ({"message": {"role": "assistant", "content": ""}, "done": False}, EventClass.BOOKKEEPING),
        ({"response": "", "done": False}, EventClass.BOOKKEEPING),
        ({"message": {"role": "assistant", "content": "a"}, "done": False}, EventClass.CONTENT),
        ({"message": {"role": "assistant", "content": "", "thinking": "t"}, "done": False}, EventClass.CONTENT),
        ({"message": {"content": "", "tool_calls": [{"function": {"name": "f"}}]}, "done": False}, EventClass.CONTENT),
        ({"response": "a", "done": False}, EventClass.CONTENT),
        ({"message": {"content": ""}, "done": True, "done_reason": "stop", "eval_count": 3}, EventClass.TERMINAL),
        ({"error": "an error was encountered while running the model"}, EventClass.ERROR),
        ([1], EventClass.CONTENT),
    ]
    for value, kind in cases:
        with subtests.test(value=value, kind=kind):
            assert OLLAMA.classify(line(value)) is kind
            if kind in {EventClass.ERROR, EventClass.TERMINAL}:
                assert OLLAMA.classify_after_content(line(value)) is kind


def test_after_content_generated_text_is_no_end_and_no_error():
    tricky = line({"message": {"content": 'say "error", then "done":true'}, "done": False})
    assert OLLAMA.classify_after_content(tricky) is EventClass.CONTENT


def test_text_and_calls_of_ollama_are_taken_out():
    assert said(OLLAMA, line({"message": {"thinking": "Hm", "content": "Hi"}})) == "HmHi"
    assert said(OLLAMA, line({"response": "Hi"})) == "Hi"
    assert said(OLLAMA, line({"message": {"tool_calls": [{"function": {"name": "read"}}]}})) == "read"
    assert OLLAMA.error_event("x", "m", None) == b'{"error":"m"}\n'


def test_a_status_has_a_usual_error(subtests):
    cases = [
        (ANTHROPIC, 429, "rate_limit_error"),
        (ANTHROPIC, 503, "overloaded_error"),
        (ANTHROPIC, 502, "api_error"),
        (ANTHROPIC, 400, "invalid_request_error"),
        (CHAT, 429, "rate_limit_exceeded"),
        (RESPONSES, 503, "server_is_overloaded"),
        (CHAT, 502, "server_error"),
        (RESPONSES, 400, "invalid_request_error"),
    ]
    for dialect, status, expected in cases:
        with subtests.test(dialect=dialect, status=status):
            assert json.loads(dialect.error_body(status, "", "m"))["error"]["type"] == expected


KEYS = st.sampled_from(
    [
        "error",
        "type",
        "code",
        "message",
        "details",
        "error_code",
        "response",
        "object",
        "choices",
        "delta",
        "usage",
        "content",
        "tool_calls",
        "function",
        "arguments",
        "text",
        "finish_reason",
        "role",
        "function_call",
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
hostile = st.one_of(
    st.binary(max_size=40),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(KEYS, json_values).map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [b"[" * 3000, b'{"error":' * 3000, b'{"choices":' + b"[" * 3000, b'{"error":1e999}', b'{"a":"\xff"}']
    ),
)


@given(
    NAMES,
    st.sampled_from(["", "error", "message_stop", "ping", "content_block_delta", "response.failed", "x.delta"]),
    hostile,
)
def test_nothing_raises_on_hostile_data(name, event_name, data):
    dialect = name
    each = SseEvent(event_name, data)
    kind = dialect.classify(each)
    assert kind in EventClass
    assert dialect.classify_after_content(each) is not EventClass.BOOKKEEPING
    assert (dialect.error_of(each) is not None) == (kind is EventClass.ERROR)
    assert isinstance(said(dialect, each), str)
    assert isinstance(dialect.ends_without_terminal(each), bool)
    facts = error_in_body(data)
    assert facts is None or isinstance(facts.message, str)


MARKS = st.lists(
    st.sampled_from(
        [
            *(
                f'"{name}":{value}'
                for name in ("usage", "error", "done", "x_groq")
                for value in ("null", "true", "false")
            ),
            '"usage":{"prompt_tokens":3,"completion_tokens":2,"input_tokens":3}',
            '"x_groq":{"usage":{"prompt_tokens":3}}',
            '"error":{"type":"overloaded_error"}',
            '"message":{"done":false}',
            '"eval_count":7',
            '"type":"message_stop"',
        ]
    )
).map(lambda members: f"{{{','.join(members)}}}".encode())


@given(
    NAMES,
    st.sampled_from(
        ["", "error", "message_stop", "message_delta", "content_block_delta", "response.failed", "x.delta"]
    ),
    hostile | MARKS | st.just(b"[DONE]"),
)
def test_what_surely_is_only_content_is_read_as_nothing_else(name, event_name, data):
    dialect, each = name, SseEvent(event_name, data)
    if dialect.is_only_content(each):
        assert dialect.classify_after_content(each) is EventClass.CONTENT
        assert not dialect.usage.in_event(each)


@pytest.mark.parametrize(
    ("dialect", "name", "data"),
    [
        (ANTHROPIC, "content_block_delta", b'{"delta":{"text":"a"}}'),
        (CHAT, "", b'{"choices":[{"delta":{"content":"a"}}],"usage":null}'),
        (RESPONSES, "response.output_text.delta", b'{"delta":"a"}'),
        (OLLAMA, "", b'{"message":{"content":"a"},"done":false}'),
    ],
)
def test_the_usual_event_surely_is_only_content(dialect, name, data):
    assert dialect.is_only_content(SseEvent(name, data))


def test_a_stream_is_kept_alive_where_its_client_overlooks_what_comes():
    gemini = dialect_named("gemini")
    path = "/v1beta/models/gemini-3:streamGenerateContent"
    assert gemini.may_keep_alive(f"{path}?key=k&alt=sse")
    assert not gemini.may_keep_alive(path), "an array over time"
    assert CHAT.may_keep_alive("/v1/chat/completions")
    assert not OLLAMA.may_keep_alive("/api/chat")
