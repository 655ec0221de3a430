"""The formats' readers read what the simulated provider writes, and count what its books say."""

from dataclasses import replace

import pytest

from hivemind_addon.formats.base.json_values import read_object
from hivemind_addon.formats.wire.answer import AnswerReader, Phase
from hivemind_addon.formats.wire.dialect import dialect_named
from hivemind_addon.formats.wire.estimate import Estimator
from hivemind_addon.formats.wire.tokenizer import Tokenizer
from hivemind_addon.kernel.values.ticket import Usage
from hivemind_addon.sim import dialect as wire
from hivemind_addon.sim.dialect import SimDialect, TaskTurn
from tests.cases import each

from .samples import REPLY, TURN

FORMATS = {
    SimDialect.MESSAGES: "anthropic",
    SimDialect.VERTEX_MESSAGES: "anthropic",
    SimDialect.CHAT: "openai-chat",
    SimDialect.RESPONSES: "openai-responses",
    SimDialect.OLLAMA: "ollama",
    SimDialect.GEMINI: "gemini",
    SimDialect.GEMINI_ARRAY: "gemini",
    SimDialect.CODE_ASSIST: "code-assist",
    SimDialect.CONVERSE: "bedrock-converse",
    SimDialect.INVOKE: "bedrock-invoke",
    SimDialect.COHERE: "cohere",
}
SAYS = replace(REPLY, include_usage=True)
CALLS = replace(SAYS, turn=TURN, output_tokens=TURN.output_tokens)


def reader_of(dialect: SimDialect) -> AnswerReader:
    return AnswerReader(dialect_named(FORMATS[dialect]), "", wire.SHAPES[dialect].stream_type.partition(";")[0])


def read(dialect: SimDialect, pieces: list[bytes]) -> AnswerReader:
    reader = reader_of(dialect)
    for piece in pieces:
        for at in range(0, len(piece), 7):
            reader.feed(piece[at : at + 7])
    reader.finish()
    return reader


def usage(reply: wire.Reply) -> tuple[int, ...]:
    if reply.dialect is SimDialect.OLLAMA:  # it tells of no cache
        return reply.prompt_tokens, 0, 0, reply.output_tokens
    return reply.input_tokens, reply.cached_tokens, reply.written_tokens, reply.output_tokens


def booked(read_: Usage) -> tuple[int, ...]:
    return read_.input_tokens, read_.cache_read_tokens, read_.cache_write_tokens, read_.output_tokens


@each("dialect", [*FORMATS])
@each("reply", [SAYS, CALLS])
def test_a_streamed_answer_is_complete_and_counts_as_the_books_do(dialect, reply):
    reply = replace(reply, dialect=dialect)
    reader = read(dialect, [event.data for event in wire.stream_events(reply)])
    assert reader.phase is Phase.COMPLETE
    told = reader.usage(lambda _: 0)
    assert told.reported
    assert booked(told) == usage(reply)


@each("dialect", [*FORMATS])
@each("reply", [SAYS, CALLS])
def test_a_whole_answer_counts_as_the_books_do(dialect, reply):
    reply = replace(reply, dialect=dialect)
    known = dialect_named(FORMATS[dialect])
    told = known.usage.in_answer(known.inner(read_object(wire.whole_body(reply))))
    assert booked(known.usage.usage(told, 0)) == usage(reply)


TEXT = "A proxy holds requests back until the provider's limits have room for them. " * 40
LONG = replace(SAYS, turn=TaskTurn(TEXT), output_tokens=TaskTurn(TEXT).output_tokens, tokens_per_delta=8)
EXPECTED = Usage(input_tokens=30, cache_read_tokens=20, output_tokens=700)


@each("dialect", [*FORMATS])
def test_a_stream_cut_anywhere_is_booked_as_reported_and_else_as_counted(dialect):
    """The provider bills the input, and of the output the words that it sent."""
    reply, count = replace(LONG, dialect=dialect), Estimator(Tokenizer()).count
    reader, said, words = reader_of(dialect), "", (text for text, _ in reply.deltas())
    reported = usage(reply)
    for event in wire.stream_events(reply):
        before = reader.usage(count, EXPECTED, has_run=True)
        assert before.output_tokens == pytest.approx(count(said), rel=0.03, abs=1) or booked(before) == reported
        assert booked(before)[:3] in (reported[:3], booked(EXPECTED)[:3])
        reader.feed(event.data)
        said += next(words) if event.output_tokens else ""
    assert said == TEXT
    assert booked(reader.usage(count, EXPECTED, has_run=True)) == reported


@each("dialect", [*FORMATS])
def test_a_cut_stream_is_not_complete(dialect):
    events = [event.data for event in wire.stream_events(replace(SAYS, dialect=dialect))]
    assert read(dialect, events[: len(events) // 2]).phase is Phase.CONTENT


@each("dialect", [*FORMATS])
@each("at", [0, 3])
@each("status", [429, 500, 529])
def test_an_error_in_a_stream_is_seen(dialect, at, status):
    events = [event.data for event in wire.stream_events(replace(SAYS, dialect=dialect))][:at]
    error = wire.error_object(dialect, status, message="m")
    shape = wire.SHAPES[dialect]
    said = (shape.error_event if at else shape.opening_error_event)(error)
    reader = read(dialect, [*events, said.data])
    assert reader.phase is Phase.FAILED
    assert reader.error is not None
