import pytest

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.wire.answer import Phase
from hivemind_addon.formats.wire.answer_in_progress import JUDGED_BODY_MAX_BYTES, AnswerInProgress
from hivemind_addon.formats.wire.outcome import TransportTrouble, judge_transport
from hivemind_addon.kernel.values.ticket import OutcomeKind
from tests.conftest import FakeClock
from tests.dialects import ANTHROPIC, OLLAMA

SSE = {"content-type": "text/event-stream"}
START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5,"output_tokens":1}}}\n\n'
)
CONTENT = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}\n\n'
STOP = b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
ERROR = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'


@pytest.fixture
def clock():
    return FakeClock(100.0)


@pytest.fixture
def answer(clock):
    made = AnswerInProgress(load_profiles(None).by_name["anthropic"], ANTHROPIC, clock)
    made.sent()
    return made


def streaming(answer, *chunks):
    assert answer.head(200, SSE)
    for chunk in chunks:
        answer.look(chunk)
    return answer


def none(_text):
    return 0


@pytest.mark.parametrize(
    ("status", "content_type", "is_stream"),
    [
        (200, "text/event-stream", True),
        (200, "Text/Event-Stream; charset=utf-8", True),
        (200, "application/json", False),
        (529, "text/event-stream", False),
    ],
)
def test_only_a_good_answer_of_the_dialects_media_type_is_a_stream(answer, status, content_type, is_stream):
    assert answer.head(status, {"content-type": content_type}) is is_stream
    assert (answer.phase is Phase.BEFORE_CONTENT) is is_stream


@pytest.mark.parametrize(
    ("pieces", "is_stream"),
    [
        ([b'{"a": 1}\n', b'{"a": 2}\n'], True),
        ([b'{"a": 1}\n{"a"', b": 2}\n"], True),
        ([b'{"a": 1}\n', b"\n"], False),
        ([b'{"a":\n', b" 1}"], False),
        ([b'{"a": 1', b"}"], False),
    ],
    ids=["two lines", "in one piece", "one line", "one object in lines", "one object"],
)
def test_what_is_called_json_is_lines_where_an_object_follows_another_one(clock, pieces, is_stream):
    answer = AnswerInProgress(load_profiles(None).by_name["ollama"], OLLAMA, clock, is_stream_asked=True)
    answer.head(200, {"content-type": "application/json"})
    assert (True in [answer.heard(piece) for piece in pieces]) is is_stream


def test_its_head_tells_of_limits(answer):
    answer.head(429, {"retry-after": "7"})
    assert answer.hints.retry_after_s == 7


def test_every_piece_is_heard(answer, clock):
    clock.advance(1)
    streaming(answer)
    assert (answer.sent_at, answer.head_at, answer.last_byte_at) == (100, 101, 101)
    clock.advance(1)
    answer.look(START)
    assert answer.last_byte_at == 102
    clock.advance(1)
    answer.tee(CONTENT)
    assert answer.last_byte_at == 103
    clock.advance(1)
    answer.heard(b"{")
    assert answer.last_byte_at == 104


def test_what_is_kept_back_is_handed_out_once(answer):
    streaming(answer, START, CONTENT)
    assert answer.looked_bytes == len(START + CONTENT)
    assert answer.take_kept() == START + CONTENT
    assert answer.take_kept() == b""
    assert answer.tee(STOP) == STOP


@pytest.mark.parametrize(
    ("chunks", "kind", "reason"),
    [
        ((START, CONTENT, STOP), OutcomeKind.SUCCESS, "200"),
        ((START, CONTENT), OutcomeKind.FAILED, "cut in the middle of the answer"),
        ((START, ERROR), OutcomeKind.OVERLOADED, "overloaded_error"),
    ],
    ids=["complete", "cut", "an error event"],
)
def test_a_stream_is_judged_by_its_last_event(answer, chunks, kind, reason):
    streaming(answer, *chunks).finish()
    outcome = answer.judge_stream()
    assert outcome.kind is kind
    assert reason in outcome.reason


def test_a_stream_that_nobody_can_decode_is_passed_on_as_a_success(answer):
    assert answer.head(200, {**SSE, "content-encoding": "gzip"})
    answer.look(b"not gzip at all")
    assert answer.unreadable
    answer.finish()
    assert answer.judge_stream().kind is OutcomeKind.SUCCESS


def test_a_stream_tells_what_it_used_so_far_and_a_plain_answer_does_not(answer):
    cut = judge_transport(TransportTrouble.CUT)
    assert answer.usage(cut, none) is None
    streaming(answer, START, CONTENT, STOP)
    usage = answer.usage(cut, none)
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (5, 2)


def test_a_plain_answer_tells_what_it_used_or_is_counted(answer):
    answer.head(200, {"content-type": "application/json"})
    outcome, usage = answer.judge_body(200, b'{"usage":{"input_tokens":5,"output_tokens":7}}', none)
    assert outcome.kind is OutcomeKind.SUCCESS
    assert usage is not None
    assert (usage.output_tokens, usage.reported) == (7, True)
    _, usage = answer.judge_body(200, b'{"type": "message"}', len)
    assert usage is not None
    assert (usage.output_tokens, usage.reported) == (19, False)


def test_a_plain_answer_that_cannot_be_decoded_or_is_too_long_is_judged_by_its_status(answer):
    answer.head(529, {"content-encoding": "gzip"})
    outcome, usage = answer.judge_body(529, b"not gzip at all", none)
    assert outcome.kind is OutcomeKind.OVERLOADED
    assert usage is None
    assert answer.unreadable
    answer.unreadable = None
    outcome, usage = answer.judge_body(529, bytes(JUDGED_BODY_MAX_BYTES + 1), none)
    assert (outcome.kind, usage, answer.unreadable) == (OutcomeKind.OVERLOADED, None, None)
