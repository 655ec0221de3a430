import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.base.json_values import read_object
from hivemind_addon.formats.wire.answer import UsageReader
from hivemind_addon.formats.wire.answer_in_progress import usage_in
from hivemind_addon.formats.wire.dialect import Dialect
from hivemind_addon.formats.wire.ndjson import NdjsonParser
from hivemind_addon.formats.wire.sse import SseEvent, SseParser
from hivemind_addon.kernel.values.ticket import Usage
from tests.dialects import ALL, ANTHROPIC, CHAT, OLLAMA, RESPONSES

DATA = Path(__file__).parent / "data"


def usage_in_body(name: Dialect, body: bytes) -> Usage | None:
    return usage_in(name, read_object(body))


def read_stream(name: Dialect, stream: bytes) -> UsageReader:
    reader = UsageReader(name)
    for event in SseParser().feed(stream):
        reader.feed(event)
    return reader


def test_recorded_answers_report_their_usage(subtests):
    cases = [
        (ANTHROPIC, "anthropic/message", Usage(12, 18432, 2048, 7, reported=True)),
        (CHAT, "openai/chat", Usage(86, 1920, 0, 300, reported=True)),
        (CHAT, "groq/chat", Usage(9, 0, 0, 2, reported=True)),
        (RESPONSES, "openai/response", Usage(18, 300, 10, 52, reported=True)),
        (CHAT, "together/chat", None),
        (ANTHROPIC, "anthropic/rate_limit", None),
        (RESPONSES, "openai/response_failed", None),
        (RESPONSES, "openai/compact", Usage(200, 4800, 0, 400, reported=True)),
        (OLLAMA, "ollama/chat", Usage(26, 0, 0, 4, reported=True)),
        (OLLAMA, "ollama/busy", None),
    ]
    for name, path, usage in cases:
        with subtests.test(name=name, path=path):
            body = json.loads((DATA / f"{path}.json").read_text())["body"]
            assert usage_in_body(name, json.dumps(body).encode()) == usage


def test_recorded_streams_report_their_usage(subtests):
    cases = [
        (ANTHROPIC, "anthropic/message", Usage(25, 5000, 1000, 89, reported=True), True),
        (ANTHROPIC, "anthropic/cut", Usage(25, 5000, 1000, 1, reported=True), False),
        (CHAT, "openai/chat", None, False),
        (CHAT, "openai/chat_with_usage", Usage(15, 4, 0, 10, reported=True), True),
        (CHAT, "groq/chat", Usage(9, 0, 0, 2, reported=True), True),
        (CHAT, "deepseek/chat", Usage(4, 16, 0, 5, reported=True), True),
        (RESPONSES, "openai/response", Usage(28, 300, 0, 52, reported=True), True),
        (RESPONSES, "openai/response_incomplete", Usage(28, 300, 0, 52, reported=True), True),
        (RESPONSES, "openai/response_failed", None, False),
    ]
    for name, path, usage, final in cases:
        with subtests.test(name=name, path=path):
            reader = read_stream(name, (DATA / f"{path}.sse").read_bytes())
            assert reader.usage == usage
            assert reader.final is final


@pytest.mark.parametrize("path", ["anthropic/message", "openai/response"])
def test_streams_without_event_lines_report_the_same(path):
    name = ANTHROPIC if path.startswith("anthropic") else RESPONSES
    stream = (DATA / f"{path}.sse").read_bytes()
    nameless = b"\n".join(line for line in stream.split(b"\n") if not line.startswith(b"event:"))
    assert read_stream(name, nameless).usage == read_stream(name, stream).usage


def test_a_cumulative_delta_replaces_only_what_it_tells():
    reader = UsageReader(ANTHROPIC)
    reader.feed(
        SseEvent(
            "message_start", b'{"message":{"usage":{"input_tokens":5,"cache_read_input_tokens":7,"output_tokens":1}}}'
        )
    )
    reader.feed(
        SseEvent("message_delta", b'{"usage":{"output_tokens":10,"input_tokens":6,"cache_read_input_tokens":null}}')
    )
    reader.feed(SseEvent("message_delta", b'{"usage":{"output_tokens":20}}'))
    assert reader.usage == Usage(6, 7, 0, 20, reported=True)


def test_a_body_of_a_server_that_counts_continuously_keeps_the_last_count():
    reader = UsageReader(CHAT)
    for tokens in (1, 2, 3):
        reader.feed(SseEvent("", b'{"choices":[{}],"usage":{"prompt_tokens":9,"completion_tokens":%d}}' % tokens))
    assert reader.usage == Usage(9, 0, 0, 3, reported=True)


LIES = ["-1", "true", '"12"', "1e308", "1e999", "9" * 30, "20000001", "1.5", "[3]", "{}"]


def test_a_usage_with_one_impossible_number_counts_as_none(subtests):
    for lie in LIES:
        with subtests.test(lie=lie):
            chats = (
                f'{{"usage":{{"prompt_tokens":{lie},"completion_tokens":3}}}}',
                f'{{"usage":{{"prompt_tokens":9,"completion_tokens":{lie}}}}}',
                f'{{"usage":{{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{{"cached_tokens":{lie}}}}}}}',
            )
            for chat in chats:
                assert usage_in_body(CHAT, chat.encode()) is None
                assert not read_stream(CHAT, f"data: {chat}\n\n".encode()).final
            anthropic = f'{{"usage":{{"input_tokens":4,"output_tokens":3,"cache_read_input_tokens":{lie}}}}}'
            assert usage_in_body(ANTHROPIC, anthropic.encode()) is None
            assert usage_in_body(OLLAMA, f'{{"prompt_eval_count":4,"eval_count":{lie}}}'.encode()) is None


def test_an_answer_without_input_does_not_exist(subtests):
    cases = [
        (CHAT, '"prompt_tokens":0,"completion_tokens":0'),
        (CHAT, '"prompt_tokens":0,"completion_tokens":28'),
        (CHAT, '"completion_tokens":28'),
        (RESPONSES, '"input_tokens":0,"output_tokens":0,"total_tokens":0'),
        (ANTHROPIC, '"input_tokens":0,"output_tokens":0'),
        (ANTHROPIC, '"output_tokens":7'),
    ]
    for name, usage in cases:
        with subtests.test(name=name, usage=usage):
            assert usage_in_body(name, f'{{"usage":{{{usage}}}}}'.encode()) is None


def test_beginning_and_end_of_a_stream_are_believed_together(subtests):
    cases = [
        ('"input_tokens":5,"output_tokens":1', '"output_tokens":7', Usage(5, 0, 0, 7, reported=True)),
        ('"input_tokens":5,"output_tokens":1', '"input_tokens":0,"output_tokens":7', Usage(5, 0, 0, 7, reported=True)),
        ('"input_tokens":0,"output_tokens":0', '"input_tokens":5,"output_tokens":7', Usage(5, 0, 0, 7, reported=True)),
        ('"input_tokens":0,"output_tokens":0', '"output_tokens":7', None),
        ('"input_tokens":-5,"output_tokens":1', '"output_tokens":7', None),
        ('"input_tokens":5,"output_tokens":1', '"output_tokens":-7', None),
    ]
    for start, delta, final in cases:
        with subtests.test(start=start, delta=delta):
            reader = UsageReader(ANTHROPIC)
            reader.feed(SseEvent("message_start", f'{{"message":{{"usage":{{{start}}}}}}}'.encode()))
            reader.feed(SseEvent("message_delta", f'{{"usage":{{{delta}}}}}'.encode()))
            assert (reader.usage if reader.final else None) == final


def test_what_is_absent_or_null_is_no_lie():
    body = b'{"usage":{"input_tokens":4,"output_tokens":3,"cache_read_input_tokens":null}}'
    assert usage_in_body(ANTHROPIC, body) == Usage(4, 0, 0, 3, reported=True)
    assert usage_in_body(OLLAMA, b'{"eval_count":3}') == Usage(output_tokens=3, reported=True), "its cache had it all"


def test_more_cached_than_sent_is_cut_to_what_was_sent():
    body = b'{"usage":{"prompt_tokens":10,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":99,"cache_write_tokens":5}}}'
    assert usage_in_body(CHAT, body) == Usage(0, 10, 0, 1, reported=True)


numbers = st.integers(0, 2 * 10**7)


@given(st.integers(1, 2 * 10**7), numbers, numbers, numbers)
def test_openai_input_is_split_without_loss(prompt, completion, cached, written):
    details = {"cached_tokens": cached, "cache_write_tokens": written}
    for name, keys in ((CHAT, ("prompt", "completion")), (RESPONSES, ("input", "output"))):
        value = {f"{keys[0]}_tokens": prompt, f"{keys[1]}_tokens": completion, f"{keys[0]}_tokens_details": details}
        usage = usage_in_body(name, json.dumps({"usage": value}).encode())
        assert usage is not None
        assert usage.total_input_tokens == prompt
        assert usage.output_tokens == completion
        assert min(usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) >= 0


KEYS = st.sampled_from(
    [
        "usage",
        "message",
        "response",
        "x_groq",
        "input_tokens",
        "prompt_tokens",
        "output_tokens",
        "completion_tokens",
        "prompt_tokens_details",
        "input_tokens_details",
        "cached_tokens",
        "cache_read_input_tokens",
    ]
)
values = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.dictionaries(KEYS, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=10,
)
hostile = st.one_of(st.binary(max_size=50), st.dictionaries(KEYS, values).map(lambda value: json.dumps(value).encode()))


@given(
    st.sampled_from(ALL),
    st.sampled_from(["", "message_start", "message_delta", "response.completed", "x"]),
    hostile,
)
def test_nothing_raises_on_hostile_data_and_counts_stay_plausible(name, event_name, data):
    reader = UsageReader(name)
    reader.feed(SseEvent(event_name, data))
    for usage in (reader.usage, usage_in_body(name, data)):
        assert usage is None or usage.reported
        counts = (
            ()
            if usage is None
            else (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens, usage.output_tokens)
        )
        assert all(0 <= count <= 10**9 for count in counts)
    assert repr(reader).startswith("<UsageReader")


@pytest.mark.parametrize(
    ("path", "usage", "final"),
    [
        ("chat", Usage(26, 0, 0, 4, reported=True), True),
        ("generate", Usage(0, 0, 0, 3, reported=True), True),
        ("cut", None, False),
    ],
)
def test_the_last_line_of_ollama_reports_the_usage(path, usage, final):
    reader = UsageReader(OLLAMA)
    for event in NdjsonParser().feed((DATA / f"ollama/{path}.ndjson").read_bytes()):
        reader.feed(event)
    assert reader.usage == usage
    assert reader.final is final
