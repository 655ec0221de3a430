import pytest
from mitmproxy import http

from hivemind_addon.api.ticket import OutcomeKind
from hivemind_addon.proxy.capture.tape import Tape
from hivemind_addon.proxy.mitm.attempt import JUDGED_BODY_MAX_BYTES, AnswerInProgress, plain_headers
from hivemind_addon.proxy.profile.load import load_profiles
from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire.answer import Phase
from tests.conftest import FakeClock

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
def attempt(clock):
    made = AnswerInProgress(
        load_profiles(None).by_name["anthropic"], DialectName.ANTHROPIC_MESSAGES, clock, Tape(100.0, 100.0)
    )
    made.sent()
    return made


def streaming(attempt, *chunks):
    assert attempt.head(http.Response.make(200, b"", SSE))
    for chunk in chunks:
        attempt.look(chunk)
    return attempt


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
def test_only_a_good_answer_of_the_dialects_media_type_is_a_stream(attempt, status, content_type, is_stream):
    assert attempt.head(http.Response.make(status, b"", {"content-type": content_type})) is is_stream
    assert (attempt.phase is Phase.BEFORE_CONTENT) is is_stream


def test_its_head_tells_of_limits(attempt):
    attempt.head(http.Response.make(429, b"", {"retry-after": "7"}))
    assert attempt.hints.retry_after_s == 7


def test_every_piece_is_heard(attempt, clock):
    clock.advance(1)
    streaming(attempt)
    assert (attempt.sent_at, attempt.head_at, attempt.last_byte_at) == (100, 101, 101)
    clock.advance(1)
    attempt.look(START)
    assert attempt.last_byte_at == 102
    clock.advance(1)
    attempt.tee(CONTENT)
    assert attempt.last_byte_at == 103
    clock.advance(1)
    attempt.heard()
    assert attempt.last_byte_at == 104


def test_what_is_kept_back_is_handed_out_once(attempt):
    streaming(attempt, START, CONTENT)
    assert attempt.looked_bytes == len(START + CONTENT)
    assert attempt.take_kept() == START + CONTENT
    assert attempt.take_kept() == b""
    assert attempt.tee(STOP) == STOP


@pytest.mark.parametrize(
    ("chunks", "kind", "reason"),
    [
        ((START, CONTENT, STOP), OutcomeKind.SUCCESS, "200"),
        ((START, CONTENT), OutcomeKind.FAILED, "cut in the middle of the answer"),
        ((START, ERROR), OutcomeKind.OVERLOADED, "overloaded_error"),
    ],
    ids=["complete", "cut", "an error event"],
)
def test_a_stream_is_judged_by_its_last_event(attempt, chunks, kind, reason):
    streaming(attempt, *chunks).finish()
    outcome = attempt.judge_stream()
    assert outcome.kind is kind
    assert reason in outcome.reason


def test_a_stream_that_nobody_can_decode_is_passed_on_as_a_success(attempt):
    assert attempt.head(http.Response.make(200, b"", {**SSE, "content-encoding": "gzip"}))
    attempt.look(b"not gzip at all")
    assert attempt.unreadable
    attempt.finish()
    assert attempt.judge_stream().kind is OutcomeKind.SUCCESS


def test_a_stream_tells_what_it_used_so_far_and_a_plain_answer_does_not(attempt):
    assert attempt.usage(none) is None
    streaming(attempt, START, CONTENT, STOP)
    usage = attempt.usage(none)
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (5, 2)


def test_a_plain_answer_tells_what_it_used_or_is_counted(attempt):
    attempt.head(http.Response.make(200, b"", {"content-type": "application/json"}))
    outcome, usage = attempt.judge_body(200, b'{"usage":{"input_tokens":5,"output_tokens":7}}', none)
    assert outcome.kind is OutcomeKind.SUCCESS
    assert usage is not None
    assert (usage.output_tokens, usage.reported) == (7, True)
    _, usage = attempt.judge_body(200, b'{"type": "message"}', len)
    assert usage is not None
    assert (usage.output_tokens, usage.reported) == (19, False)


def test_a_plain_answer_that_cannot_be_decoded_or_is_too_long_is_judged_by_its_status(attempt):
    attempt.head(http.Response.make(529, b"", {"content-encoding": "gzip"}))
    outcome, usage = attempt.judge_body(529, b"not gzip at all", none)
    assert outcome.kind is OutcomeKind.OVERLOADED
    assert usage is None
    assert attempt.unreadable
    attempt.unreadable = None
    outcome, usage = attempt.judge_body(529, bytes(JUDGED_BODY_MAX_BYTES + 1), none)
    assert (outcome.kind, usage, attempt.unreadable) == (OutcomeKind.OVERLOADED, None, None)


def test_headers_are_found_by_lower_case_name_and_joined():
    headers = http.Headers([(b"X-One", b"1"), (b"x-two", b"2"), (b"x-ONE", b"3")])
    assert plain_headers(headers) == {"x-one": "1, 3", "x-two": "2"}
