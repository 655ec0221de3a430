"""What a person reads of bodies, in every dialect, whole and cut."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.wire.transcript import Part, answer_of, request_of
from tests.dialects import ALL, ANTHROPIC, CHAT, OLLAMA, RESPONSES

DATA = Path(__file__).parent / "data"


def sse(*events):
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        lines.append(f"{name}data: {json.dumps(event)}\n\n")
    return "".join(lines).encode()


def recorded(path):
    body = (DATA / path).read_bytes()
    return json.dumps(json.loads(body)["body"]).encode() if path.endswith(".json") else body


def pairs(parts):
    return [(part.heading, part.text) for part in parts]


CALL = '{\n  "path": "a.py"\n}'

MESSAGES_STREAM = sse(
    {"type": "message_start", "message": {"model": "claude-x", "usage": {"input_tokens": 5}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "abc"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "I "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "read."}},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "name": "Read", "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"path":'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '"a.py"}'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
)
CHAT_STREAM = (
    sse(
        {"model": "gpt-x", "choices": [{"index": 0, "delta": {"role": "assistant", "reasoning_content": "hm"}}]},
        {"model": "gpt-x", "choices": [{"index": 0, "delta": {"content": "I "}}]},
        {"model": "gpt-x", "choices": [{"index": 0, "delta": {"content": "read."}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "Read", "arguments": '{"path":'}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "Read", "arguments": '"a.py"}'}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_use"}]},
    )
    + b"data: [DONE]\n\n"
)
RESPONSES_STREAM = sse(
    {"type": "response.created", "response": {"model": "codex-x"}},
    {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "summary": []}},
    {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "hm"},
    {"type": "response.output_item.added", "output_index": 1, "item": {"type": "message", "content": []}},
    {"type": "response.output_text.delta", "output_index": 1, "delta": "I "},
    {"type": "response.output_text.delta", "output_index": 1, "delta": "read."},
    {
        "type": "response.output_item.added",
        "output_index": 2,
        "item": {"type": "function_call", "name": "Read", "arguments": ""},
    },
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"path":'},
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '"a.py"}'},
    {
        "type": "response.output_item.done",
        "output_index": 2,
        "item": {"type": "function_call", "name": "Read", "arguments": '{"path":"a.py"}'},
    },
    {"type": "response.completed", "response": {"status": "tool_use", "output": []}},
)
OLLAMA_STREAM = b"\n".join(
    json.dumps(line).encode()
    for line in (
        {"model": "llama-x", "message": {"role": "assistant", "thinking": "hm"}},
        {"model": "llama-x", "message": {"content": "I "}},
        {"model": "llama-x", "message": {"content": "read."}},
        {"message": {"tool_calls": [{"function": {"name": "Read", "arguments": {"path": "a.py"}}}]}},
        {"done": True, "done_reason": "tool_use", "eval_count": 3},
    )
)
SAME = [("thinking", "hm"), ("text", "I read."), ("tool call Read", CALL)]


@pytest.mark.parametrize(
    ("dialect", "stream", "model"),
    [
        (ANTHROPIC, MESSAGES_STREAM, "claude-x"),
        (CHAT, CHAT_STREAM, "gpt-x"),
        (RESPONSES, RESPONSES_STREAM, "codex-x"),
        (OLLAMA, OLLAMA_STREAM, "llama-x"),
    ],
)
def test_a_stream_is_put_together_to_the_same_page_in_every_dialect(dialect, stream, model):
    said = answer_of(dialect, stream)
    assert (said.model, said.stop, said.error) == (model, "tool_use", "")
    assert pairs(said.parts) == SAME


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        (
            ANTHROPIC,
            {
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "text", "text": "I read."},
                    {"type": "tool_use", "name": "Read", "input": {"path": "a.py"}},
                ],
                "stop_reason": "tool_use",
            },
        ),
        (
            CHAT,
            {
                "choices": [
                    {
                        "message": {
                            "reasoning": "hm",
                            "content": "I read.",
                            "tool_calls": [{"function": {"name": "Read", "arguments": '{"path":"a.py"}'}}],
                        },
                        "finish_reason": "tool_use",
                    }
                ]
            },
        ),
        (
            RESPONSES,
            {
                "status": "tool_use",
                "output": [
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I read."}]},
                    {"type": "function_call", "name": "Read", "arguments": '{"path":"a.py"}'},
                ],
            },
        ),
        (
            OLLAMA,
            {
                "message": {
                    "thinking": "hm",
                    "content": "I read.",
                    "tool_calls": [{"function": {"name": "Read", "arguments": {"path": "a.py"}}}],
                },
                "done_reason": "tool_use",
            },
        ),
    ],
)
def test_a_plain_answer_makes_that_page_too(dialect, answer):
    said = answer_of(dialect, json.dumps(answer | {"model": "m"}).encode())
    assert (said.model, said.stop) == ("m", "tool_use")
    assert pairs(said.parts) == SAME


@pytest.mark.parametrize(
    ("dialect", "stream"),
    [
        (ANTHROPIC, MESSAGES_STREAM),
        (CHAT, CHAT_STREAM),
        (RESPONSES, RESPONSES_STREAM),
    ],
)
def test_of_a_cut_stream_half_a_tool_call_is_shown_as_it_came(dialect, stream):
    said = answer_of(dialect, stream[: stream.index(b'\\"a.py')])
    assert pairs(said.parts)[:2] == SAME[:2]
    assert said.parts[2] == Part("tool call Read", '{"path":')
    assert said.stop == ""


@pytest.mark.parametrize(
    ("dialect", "name", "error"),
    [
        (ANTHROPIC, "anthropic/overloaded.json", "overloaded_error: Overloaded"),
        (ANTHROPIC, "anthropic/overloaded_after_content.sse", "overloaded_error: Overloaded"),
        (OLLAMA, "ollama/busy.json", "server busy, please try again.  maximum pending requests exceeded"),
        (RESPONSES, "codex/response_failed_usage_limit.sse", "usage_limit_reached: The usage limit has been reached"),
    ],
)
def test_errors_say_what_they_are(dialect, name, error):
    assert answer_of(dialect, recorded(name)).error == error


def test_recorded_answers_can_be_read(subtests):
    cases = [
        (ANTHROPIC, "anthropic/message.sse"),
        (ANTHROPIC, "anthropic/message.json"),
        (CHAT, "groq/chat.sse"),
        (CHAT, "deepseek/chat.sse"),
        (CHAT, "cerebras/chat.json"),
        (RESPONSES, "codex/response.sse"),
        (OLLAMA, "ollama/chat.json"),
        (OLLAMA, "ollama/chat.ndjson"),
    ]
    for dialect, path in cases:
        with subtests.test(dialect=dialect, path=path):
            said = answer_of(dialect, recorded(path))
            assert "".join(part.text for part in said.parts)


def test_a_legacy_completion_is_text():
    answer = answer_of(CHAT, b'{"choices": [{"text": "Hello", "finish_reason": "stop"}]}')
    assert (pairs(answer.parts), answer.stop) == ([("text", "Hello")], "stop")


def test_streamed_sound_says_nothing_to_people():
    answer = answer_of(CHAT, sse({"choices": [{"delta": {"audio": {"data": "QUJD"}}}]}))
    assert answer.unsaid
    assert answer.parts == []


def test_a_conversation_is_read_in_messages_form():
    request = {
        "model": "claude-x",
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "hi"},
                    {"type": "tool_use", "name": "Read", "input": {"path": "a.py"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "content": [{"type": "text", "text": "x = 1"}]},
                    {"type": "tool_result", "content": "no such file", "is_error": True},
                    {"type": "image", "source": {}},
                ],
            },
        ],
    }
    said = request_of(ANTHROPIC, json.dumps(request).encode())
    assert pairs(said.parts) == [
        ("system", "Be brief."),
        ("user", "hello"),
        ("assistant", "hi"),
        ("tool call Read", CALL),
        ("tool result", "x = 1"),
        ("tool result (failed)", "no such file"),
        ("user", "(image)"),
    ]


def test_a_conversation_is_read_in_chat_form():
    request = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image_url"}]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "Read", "arguments": '{"path":"a.py"}'}}]},
            {"role": "tool", "content": "x = 1"},
            {"role": "tool", "content": [{"type": "text", "text": "y = 2"}]},
        ],
    }
    said = request_of(CHAT, json.dumps(request).encode())
    assert pairs(said.parts) == [
        ("system", "Be brief."),
        ("user", "hello"),
        ("user", "(image_url)"),
        ("tool call Read", CALL),
        ("tool result", "x = 1"),
        ("tool result", "y = 2"),
    ]


def test_a_conversation_is_read_in_responses_form():
    request = {
        "instructions": "Be brief.",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "function_call", "name": "Read", "arguments": '{"path":"a.py"}'},
            {"type": "function_call_output", "output": "x = 1"},
            {"type": "custom_tool_call", "name": "patch", "input": "*** Begin"},
            {"type": "web_search_call", "action": {"query": "q"}},
        ],
    }
    said = request_of(RESPONSES, json.dumps(request).encode())
    assert pairs(said.parts) == [
        ("system", "Be brief."),
        ("user", "hello"),
        ("tool call Read", CALL),
        ("tool result", "x = 1"),
        ("tool call patch", "*** Begin"),
        ("tool call web_search", '{\n  "query": "q"\n}'),
    ]
    assert pairs(request_of(RESPONSES, b'{"input":"hello"}').parts) == [("user", "hello")]


def test_a_conversation_is_read_in_ollama_form():
    request = {"messages": [{"role": "user", "content": "what is it?", "images": ["aGk="]}]}
    said = request_of(OLLAMA, json.dumps(request).encode())
    assert pairs(said.parts) == [("user", "what is it?"), ("user", "(1 images)")]
    assert pairs(request_of(OLLAMA, b'{"prompt":"why?","system":"Be brief."}').parts) == [
        ("system", "Be brief."),
        ("user", "why?"),
    ]


NAMES = """
type role content message messages choices delta index input output item response error text tool_calls function name
arguments thinking content_block system summary
"""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON, dialect=st.sampled_from(ALL))
def test_nothing_that_others_send_raises(value, dialect):
    body = json.dumps(value).encode()
    request_of(dialect, body)
    answer_of(dialect, body)
    for name in ("content_block_start", "content_block_delta", "response.output_item.added", "response.completed"):
        answer_of(dialect, f"event: {name}\ndata: ".encode() + body + b"\n\n")


@given(body=st.binary(max_size=60), dialect=st.sampled_from(ALL))
def test_nor_do_other_bytes(body, dialect):
    request_of(dialect, body)
    answer_of(dialect, body)
