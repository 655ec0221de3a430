"""Events that surely are content: an answer that is read from them says the same as one that is read with care."""

import json
from pathlib import Path

import pytest

from hivemind_addon.formats.wire import answer as answer_module
from hivemind_addon.formats.wire.answer import AnswerReader, Phase
from hivemind_addon.formats.wire.dialect import Dialect
from hivemind_addon.formats.wire.sse import SseEvent
from hivemind_addon.formats.wire.transcript import dialect_named
from hivemind_addon.kernel.values.ticket import Usage
from tests.dialects import ANTHROPIC, CHAT, CODE_ASSIST, COHERE, GEMINI, OLLAMA, RESPONSES
from tests.formats.wire.eventstream import event_message, eventstream_message

DATA = Path(__file__).parent / "data"
CONVERSE = dialect_named("bedrock-converse")


def event(name: str, end: str = "\n", **members: object) -> bytes:
    head = f"event: {name}{end}" if name else ""
    return f"{head}data: {json.dumps(members, separators=(',', ':'))}{end}{end}".encode()


def named(text: str, end: str = "\n") -> bytes:
    return event("content_block_delta", end, type="content_block_delta", index=0, delta={"text": text})


def chat(text: str, **more: object) -> bytes:
    return event("", choices=[{"index": 0, "delta": {"content": text}}], **more)


def generated(text: str, end: str = "\r\n", **more: object) -> bytes:
    return event("", end, candidates=[{"content": {"parts": [{"text": text}]}} | more], usageMetadata=_COUNTS)


def converse(text: str) -> bytes:
    return event_message("contentBlockDelta", json.dumps({"delta": {"text": text}}).encode())


_COUNTS = {"promptTokenCount": 5, "candidatesTokenCount": 7}
DELTAS = {
    "named": (ANTHROPIC, named),
    "nameless Messages": (
        ANTHROPIC,
        lambda text: b'data: {"type":"content_block_delta","index":0,"delta":{"text":"%b"}}\n\n' % text.encode(),
    ),
    "chat": (CHAT, chat),
    "chat that says null": (CHAT, lambda text: chat(text, usage=None)),
    "Responses": (RESPONSES, lambda text: event("response.output_text.delta", delta=text, output_index=0)),
    "Gemini": (GEMINI, generated),
    "Code Assist": (
        CODE_ASSIST,
        lambda text: event("", "\r\n", response={"candidates": [{"content": {"parts": [{"text": text}]}}]}),
    ),
    "Ollama": (OLLAMA, lambda text: b'{"response":"%b","done":false}\n' % text.encode()),
    "Bedrock": (CONVERSE, converse),
    "Cohere": (COHERE, lambda text: event("content-delta", delta={"message": {"content": {"text": text}}})),
}


def events_of(dialect: Dialect, piece: bytes) -> list[SseEvent]:
    events = dialect.parser().feed(piece)
    assert events
    return events if dialect.unwrapper is None else list(map(dialect.unwrapper.unwrap, events))


@pytest.mark.parametrize("kind", DELTAS)
def test_usual_events_are_not_read_and_say_the_same_in_the_end(kind: str):
    dialect, delta = DELTAS[kind]
    words = [f" w{number}" for number in range(9)]
    watched = AnswerReader(dialect, "")
    for word in words:
        assert watched.feed(delta(word)) == delta(word)
        assert all(map(dialect.is_only_content, events_of(dialect, delta(word))))
    assert watched.usage(len).output_tokens == (7 if kind == "Gemini" else len("".join(words)))
    answer = watched.answer()
    assert answer is not None
    assert [part.text for part in answer.parts] == ["".join(words)]


@pytest.mark.parametrize(
    ("dialect", "piece"),
    [
        (ANTHROPIC, event("message_delta", usage={"output_tokens": 3})),
        (ANTHROPIC, named(" a") + event("message_stop", type="message_stop")),
        (ANTHROPIC, event("", type="content_block_delta", usage={}, delta={"text": "a"})),
        (
            ANTHROPIC,
            event("", type="content_block_delta", delta={"text": "a"}) + event("", type="a", other="of length"),
        ),
        (CHAT, chat(" a", usage={"prompt_tokens": 1, "completion_tokens": 2})),
        (CHAT, chat(" a", usage=None) + chat("", usage={"prompt_tokens": 1, "completion_tokens": 2})),
        (CHAT, b"data: [DONE]\n\n"),
        (CHAT, b"data: {}\n\n"),
        (GEMINI, generated(" a", finishReason="STOP")),
        (GEMINI, generated(" a") + b'{"error":{"code":503}}\n'),
        (OLLAMA, b'{"response":"a","done":true}\n'),
        (CONVERSE, event_message("metadata", b'{"usage":{"inputTokens":1,"outputTokens":2}}')),
        (CONVERSE, eventstream_message({":message-type": "exception", ":exception-type": "contentBlockDelta"}, b"{}")),
    ],
)
def test_what_is_more_than_content_is_read(dialect: Dialect, piece: bytes):
    assert not all(map(dialect.is_only_content, events_of(dialect, piece)))


def test_a_stream_that_is_cut_amid_an_event_goes_on_with_it():
    watched = AnswerReader(ANTHROPIC, "")
    for piece in (named(" a"), named(" b"), named(" c")[:30], named(" c")[30:], named(" d")):
        watched.feed(piece)
    answer = watched.answer()
    assert answer is not None
    assert [part.text for part in answer.parts] == [" a b c d"]


@pytest.mark.parametrize(
    ("dialect", "path"),
    [
        (ANTHROPIC, "anthropic/message.sse"),
        (CHAT, "openai/chat_tools.sse"),
        (CHAT, "openai/chat_with_usage.sse"),
        (RESPONSES, "openai/response.sse"),
        (RESPONSES, "codex/response.sse"),
    ],
)
def test_recorded_answers_say_the_same_however_they_come(dialect: Dialect, path: str):
    stream = (DATA / path).read_bytes()
    told = []
    for pieces in ([stream], [one + b"\n\n" for one in stream.split(b"\n\n")[:-1]], [bytes([one]) for one in stream]):
        watched = AnswerReader(dialect, "")
        for piece in pieces:
            watched.feed(piece)
        watched.finish()
        told.append((watched.phase, watched.usage(len), watched.answer(), watched.windows))
    assert told[0] == told[1] == told[2]
    assert told[0][0] is Phase.COMPLETE


def test_of_a_long_answer_the_end_is_read_and_all_is_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answer_module, "_MAX_READ_BYTES", 3000)
    monkeypatch.setattr(answer_module, "_MAX_OLDEST_BYTES", 3000)
    watched = AnswerReader(ANTHROPIC, "")
    for _ in range(1000):
        watched.feed(named("four"))
    assert watched.usage(len) == Usage(output_tokens=pytest.approx(4000, rel=0.01))
    answer = watched.answer()
    assert answer is not None
    assert answer.is_tail
