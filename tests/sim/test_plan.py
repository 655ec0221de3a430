"""How an answer goes out on a socket, and in virtual time."""

import random
import zlib
from dataclasses import replace

import brotli
import pytest
import zstandard

from hivemind_addon.formats.profile.formats import format_named
from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.wire.outcome import TransportTrouble
from hivemind_addon.sim import faults
from hivemind_addon.sim.call import SimAnswer, SimRequestFacts
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.faults import NAMED, ODD_ENDS, Fault, Hangup, KeepAlive, OddEnd
from hivemind_addon.sim.plan import (
    GAP_S,
    Data,
    Drop,
    DropStream,
    End,
    Head,
    Leave,
    LeaveInError,
    PauseStep,
    Step,
    StreamReset,
    course_of,
    steps,
)
from hivemind_addon.sim.provider import ProviderSettings, SimProvider
from tests.cases import each

STREAM = SimRequestFacts(SimDialect.MESSAGES, "sk-sim-a", stream=True, chunks=4)
WHOLE = replace(STREAM, stream=False)


def answer_of(fault: Fault, request: SimRequestFacts = STREAM, **settings: object) -> SimAnswer:
    sim = SimProvider(ProviderSettings(**settings), random.Random(0))
    sim.script(request.credential, [fault])
    return sim.begin(0, request)


def plan(fault: Fault, request: SimRequestFacts = STREAM, *, http2: bool = False) -> list[Step]:
    return list(steps(answer_of(fault, request), http2=http2))


def body(plan: list[Step]) -> bytes:
    return b"".join(step.data for step in plan if isinstance(step, Data))


def events_before(plan: list[Step], kind: type) -> int:
    index = next(index for index, step in enumerate(plan) if isinstance(step, kind))
    return sum(isinstance(step, Data) for step in plan[:index])


@each("dialect", list(SimDialect))
@each("stream", [True, False])
@each("http2", [True, False])
@each("name", list(NAMED))
def test_every_plan_ends_once_and_says_its_head_at_most_once(name, http2, stream, dialect):
    request = replace(STREAM, stream=stream, dialect=dialect)
    *before, last = plan(NAMED[name], request, http2=http2)
    ends = (End, Drop, DropStream, LeaveInError)
    assert isinstance(last, ends)
    assert not any(isinstance(step, ends) for step in before)
    heads = [index for index, step in enumerate(before) if isinstance(step, Head)]
    assert len(heads) <= 1
    assert all(heads and index > heads[0] for index, step in enumerate(before) if isinstance(step, Data))
    if not http2:
        assert not any(isinstance(step, DropStream | LeaveInError) for step in [*before, last])


def test_a_clean_length_is_the_bodys():
    head, data, _ = plan(NAMED["ok"], WHOLE)
    assert isinstance(head, Head)
    assert head.length == len(data.data)


def test_a_cut_body_is_shorter_than_its_head_says():
    head, data, *_, last = plan(NAMED["body-cut"], WHOLE)
    assert len(data.data) < head.length
    assert last == Drop(Hangup.CLOSE)


def test_a_cut_chunked_body_says_no_length():
    head, *_, last = plan(NAMED["body-cut-chunked"], WHOLE)
    assert head.length is None
    assert last == Drop(Hangup.CLOSE)


@each(("place", "events"), [(0, 0), (3, 3), (None, 5), (99, 10)])
def test_a_stream_is_cut_after_so_many_events(place, events):
    cut = plan(faults.StreamCut(place, Hangup.RESET))
    assert events_before(cut, Drop) == events
    assert cut[-1] == Drop(Hangup.RESET)


@each(("place", "index"), [(0, 0), (1, 1), (None, 5)])
def test_an_error_event_stands_at_its_place_and_ends_the_stream_cleanly(place, index):
    pieces = [step for step in plan(faults.StreamError(place)) if isinstance(step, Data)]
    assert b"overloaded_error" in pieces[index].data
    assert len(pieces) == index + 1


def test_a_stall_is_a_pause_after_which_all_goes_on():
    stalled = plan(faults.Stall(7, 2))
    assert events_before(stalled, PauseStep) == 2
    assert [step.pause_s for step in stalled if isinstance(step, PauseStep)] == [7]
    assert body(stalled) == body(plan(NAMED["ok"]))


def test_the_pieces_of_the_content_are_paced_and_nothing_else_is():
    answer = answer_of(NAMED["ok"], replace(STREAM, interval_s=0.5))
    pauses = [step.pause_s for step in steps(answer, http2=False) if isinstance(step, PauseStep)]
    assert pauses == [0.5] * 3


def test_latency_comes_before_the_head():
    answer = answer_of(NAMED["ok"], replace(STREAM, latency_s=1.5))
    assert next(steps(answer, http2=False)) == PauseStep(1.5)


def test_a_streamed_request_may_get_an_unstreamed_answer():
    head, data, _ = plan(NAMED["json-for-stream"])
    assert ("content-type", "application/json") in head.headers
    assert data.data.startswith(b'{"id":"msg_')


DECODERS = {
    "gzip": lambda: zlib.decompressobj(wbits=31).decompress,
    "br": lambda: brotli.Decompressor().process,
    "zstd": lambda: zstandard.ZstdDecompressor().decompressobj().decompress,
}


@each("name", list(DECODERS))
def test_each_event_of_an_encoded_stream_can_be_read_when_it_arrives(name):
    decode = DECODERS[name]()
    plain = [step.data for step in plan(NAMED["ok"]) if isinstance(step, Data)]
    encoded = [step.data for step in plan(NAMED[name]) if isinstance(step, Data)]
    assert [decode(piece) for piece in encoded] == plain


@each("name", list(DECODERS))
def test_an_encoded_body_says_its_coding_and_encoded_length(name):
    head, data, _ = plan(NAMED[name], WHOLE)
    assert ("content-encoding", name) in head.headers
    assert head.length == len(data.data)
    assert DECODERS[name]()(data.data) == body(plan(NAMED["ok"], WHOLE))


def test_goaway_without_error_leaves_the_stream_whole():
    leaving = plan(NAMED["goaway"], http2=True)
    assert events_before(leaving, Leave) == 5
    assert body(leaving) == body(plan(NAMED["ok"]))


def test_http2_faults_have_relatives_on_http1():
    assert plan(NAMED["refused-stream"], http2=True) == [DropStream(StreamReset.REFUSED_STREAM)]
    assert plan(NAMED["refused-stream"]) == [Drop(Hangup.CLOSE)]
    assert plan(NAMED["reset-stream"], http2=True)[-1] == DropStream(StreamReset.INTERNAL_ERROR)
    assert plan(NAMED["reset-stream"])[-1] == Drop(Hangup.RESET)
    assert plan(NAMED["goaway-error"], http2=True)[-1] == LeaveInError()
    assert plan(NAMED["goaway-error"])[-1] == Drop(Hangup.CLOSE)


def test_tokens_are_counted_piece_by_piece():
    assert [step.output_tokens for step in plan(NAMED["ok"]) if isinstance(step, Data)] == [
        *(0, 0, 0),
        *(1, 1, 1, 1),
        *(0, 0, 0),
    ]


def test_a_silent_hold_comes_before_the_head():
    hold = faults.Hold(40)
    assert isinstance(plan(hold)[0], PauseStep)
    assert plan(hold)[0].pause_s == 40
    assert body(plan(hold, WHOLE))


@each(("manner", "sign"), [(KeepAlive.COMMENTS, b": still here\n\n"), (KeepAlive.BLANK_LINES, b"\n")])
def test_a_hold_says_its_head_and_then_signs_of_life(manner, sign):
    steps_ = plan(faults.Hold(40, manner))
    assert isinstance(steps_[0], Head)
    assert [step.pause_s for step in steps_ if isinstance(step, PauseStep)] == [15, 15, 10]
    assert [step.data for step in steps_ if isinstance(step, Data)][:3] == [sign] * 3


def test_pings_come_after_the_message_has_begun():
    data = [step.data for step in plan(faults.Hold(20, KeepAlive.PINGS)) if isinstance(step, Data)]
    assert b"message_start" in data[0]
    assert all(piece.startswith(b"event: ping") for piece in data[1:4])  # two of the hold, and the usual one


def test_a_hold_keeps_every_attempt_back_until_the_same_instant():
    sim = SimProvider(ProviderSettings(), random.Random(0))
    sim.script(STREAM.credential, [], then=faults.Hold(100))
    lengths = [getattr(sim.begin(now, STREAM).fault, "hold_s", None) for now in (5, 65, 105)]
    assert lengths == [100, 40, None]


@each("http2", [True, False])
@each("request", [STREAM, WHOLE])
@each("how", ODD_ENDS)
def test_all_of_an_answer_comes_before_an_odd_end(how, request, http2):
    odd, whole = plan(OddEnd(how), request, http2=http2), body(plan(NAMED["ok"], request))
    head = odd[0]
    assert isinstance(head, Head)
    assert (head.length == len(whole) + 1) is (how == "length-too-large")
    assert isinstance(odd[-1], End) is (how in ("left-open", "no-terminal", "other-label"))
    is_streams = dict(head.headers)["content-type"].startswith("text/event-stream")
    assert is_streams is (request.stream is not (how == "other-label"))
    missing = whole.removeprefix(body(odd))
    if how in ("half-terminal", "no-terminal") and request.stream:
        last = plan(NAMED["ok"])[-2].data
        assert missing == (last if how == "no-terminal" else last[len(last) // 2 :])
    else:
        assert missing == b""


# Course ---------------------------------------------------------------------------------------------------------------


PROFILE = load_profiles(None).by_name["anthropic"]
FORMATS = {
    SimDialect.MESSAGES: "anthropic",
    SimDialect.VERTEX_MESSAGES: "anthropic",
    SimDialect.OLLAMA: "ollama",
    SimDialect.GEMINI_ARRAY: "gemini",
}


def course(fault, dialect=SimDialect.MESSAGES, *, stream=True):
    provider = SimProvider(ProviderSettings(), random.Random(0))
    provider.script("key", (NAMED[fault],))
    asked = SimRequestFacts(dialect, "key", stream=stream, chunks=101, max_tokens=200, interval_s=0.1, latency_s=2.0)
    profile = replace(PROFILE, format=format_named(FORMATS.get(dialect, dialect.value)))
    return course_of(provider.begin(0.0, asked), profile)


def test_a_good_answer_ends_when_all_is_generated():
    good = course("ok")
    assert (good.head_s, good.end_s, good.trouble, good.share) == (2.0, pytest.approx(12.0), None, 1.0)


@each(
    ("fault", "head_s", "end_s", "trouble", "shows"),
    [
        ("reset-before-head", None, 2.0, TransportTrouble.CLOSED_BEFORE_HEAD, False),
        ("refused-stream", None, 2.0, TransportTrouble.REFUSED_STREAM, False),
        ("head-then-reset", 2.0, 2.0 + GAP_S, TransportTrouble.CUT, False),
        ("stream-reset", 2.0, 7.0 + GAP_S, TransportTrouble.CUT, True),
    ],
)
def test_a_fault_ends_it_sooner(fault, head_s, end_s, trouble, shows):
    cut = course(fault)
    assert (cut.head_s, cut.end_s, cut.trouble, cut.shows_content) == (head_s, pytest.approx(end_s), trouble, shows)


def test_an_error_inside_a_stream_shows_content_unless_it_comes_first():
    assert not course("error-first").shows_content
    assert course("error-in-the-middle").shows_content
    assert course("error-in-the-middle").error is not None


def test_a_stall_is_a_long_silence():
    assert course("stall").silent_s == 5
    assert course("stall").end_s == pytest.approx(17.0)


@each("dialect", list(SimDialect))
@each("stream", [True, False])
@each("how", ODD_ENDS)
def test_an_answer_with_an_odd_end_is_whole(how, stream, dialect):
    odd, good = course(how, dialect, stream=stream), course("ok", dialect, stream=stream)
    assert replace(odd, late_s=0) == good
    # What says that nothing comes after it needs no wait.
    needs_wait = not stream or dialect in (SimDialect.GEMINI, SimDialect.GEMINI_ARRAY, SimDialect.CODE_ASSIST)
    assert (odd.late_s > 0) is (how == "left-open" and needs_wait)
