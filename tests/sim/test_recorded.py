import pytest

from hivemind_addon.api.ticket import OutcomeKind
from hivemind_addon.lab.sim.plan import Data, Drop, End, Head, PauseStep
from hivemind_addon.lab.sim.recorded import RecordedServer, recorded_attempt, steps
from hivemind_addon.proxy.capture.model import CapturedChunk
from tests.capture.samples import make_attempt, make_call, make_capture, make_limit
from tests.cases import over


def plan(attempt, *, pace=1.0, **changes):
    return list(steps(make_call(attempts=(attempt,), **changes), attempt, number=1, pace=pace))


def lasting(played):
    return sum(step.pause_s for step in played if isinstance(step, PauseStep))


def test_a_streams_chunks_come_at_their_instants():
    chunks = tuple(CapturedChunk(float(second), 100) for second in range(1, 5))
    played = plan(make_attempt(head_after_s=1.0, ended_after_s=4.5, chunks=chunks))
    assert played[:2] == [PauseStep(1.0), played[1]]
    assert isinstance(played[1], Head)
    assert [step.pause_s for step in played[3:] if isinstance(step, PauseStep)] == [1.0, 1.0, 1.0, 0.5]
    assert isinstance(played[-1], End)
    assert b"message_stop" in b"".join(step.data for step in played if isinstance(step, Data))


def test_a_pace_shortens_all_of_it():
    assert lasting(plan(make_attempt(ended_after_s=4.0), pace=8)) == pytest.approx(0.5)


def test_a_refusal_has_its_status_its_error_and_its_retry_after():
    refused = make_attempt(
        kind=OutcomeKind.THROTTLED, reason="429 rate_limit_error", status=429, chunks=(), usage=None, retry_after_s=6.0
    )
    _, head, data, _ = plan(refused, pace=2)
    assert (head.status, dict(head.headers)["retry-after"]) == (429, "3")
    assert b"rate_limit_error" in data.data


def test_what_had_no_head_has_none():
    cut = make_attempt(
        kind=OutcomeKind.FAILED, status=None, head_after_s=None, ended_after_s=2.0, chunks=(), usage=None
    )
    assert [type(step) for step in plan(cut)] == [PauseStep, Drop]


def test_a_cut_stream_is_cut_again_and_an_error_in_it_told_again():
    cut = plan(make_attempt(kind=OutcomeKind.FAILED, reason="cut in the middle of the answer"))
    assert isinstance(cut[-1], Drop)
    assert b"message_stop" not in b"".join(step.data for step in cut if isinstance(step, Data))
    failed = plan(make_attempt(kind=OutcomeKind.OVERLOADED, reason="stream overloaded_error"))
    assert isinstance(failed[-1], End)
    assert b"overloaded_error" in failed[-2].data


def test_an_unstreamed_answer_comes_whole_or_is_cut():
    assert isinstance(plan(make_attempt(), streamed=False)[-1], End)
    assert isinstance(plan(make_attempt(kind=OutcomeKind.FAILED), streamed=False)[-1], Drop)


@over("dialect", ["anthropic-messages", "openai-chat", "openai-responses", "ollama"])
def test_every_dialect_is_spoken(dialect):
    for streamed in (True, False):
        assert isinstance(plan(make_attempt(), dialect=dialect, streamed=streamed)[-1], End)


def test_attempts_beyond_the_recorded_ones_end_as_the_last():
    first, last = make_attempt(1, kind=OutcomeKind.FAILED), make_attempt(2)
    call = make_call(attempts=(first, last))
    assert [recorded_attempt(call, number) for number in range(4)] == [first, last, last, last]
    assert recorded_attempt(make_call(attempts=()), 0).kind is OutcomeKind.SUCCESS


def test_a_lost_call_that_is_tried_once_more_is_answered_unless_that_is_hopeless():
    overloaded, hopeless = make_attempt(kind=OutcomeKind.OVERLOADED), make_attempt(kind=OutcomeKind.IGNORED, status=400)
    assert recorded_attempt(make_call(attempts=(overloaded,)), 1).kind is OutcomeKind.SUCCESS
    assert recorded_attempt(make_call(attempts=(hopeless,)), 1) is hopeless


def test_told_limits_are_those_that_headers_told_last():
    capture = make_capture(
        make_call(), limits=(make_limit(limit=50.0), make_limit(limit=60.0), make_limit(meter="pace", limit=2.0))
    )
    (limit,) = RecordedServer(capture, pace=2)._limits[make_call().pool]
    assert limit.amount == 120
