"""A capture again through a real proxy: the provider that answers as recorded, the calls, the table."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from hivemind_addon.kernel.values.ticket import OutcomeKind, PoolKey
from hivemind_addon.plugins.captures.file import read_capture
from hivemind_addon.plugins.captures.model import CapturedChunk
from hivemind_addon.sim.plan import Data, Drop, End, Head, PauseStep
from hivemind_addon.sim.real_replay import RealReplay, ReplayedCall, one_call, real_view, request_body, run_real
from hivemind_addon.sim.recorded import RecordedServer, recorded_attempt, steps
from hivemind_addon.sim.replay.chains import chained
from tests.cases import each
from tests.plugins.captures.samples import make_attempt, make_call, make_capture, make_limit

CAPTURES = Path(__file__).parents[1] / "captures"


def test_what_a_client_sent_again_is_one_call():
    refused = make_attempt(kind=OutcomeKind.OVERLOADED, reason="529", status=529, ended_after_s=1.0)
    lost = make_call("1", end="gave up", ended_s=1.0, attempts=(refused,), waited_s=0.5)
    again = make_call("2", at_s=3.0, ended_s=7.0, waited_s=0.25)
    (turn,) = chained([lost, again])
    call = one_call(turn)
    assert (call.id, call.at_s, call.ended_s, call.end, call.waited_s) == ("1", 0.0, 7.0, "delivered", 0.75)
    assert [(attempt.number, attempt.kind) for attempt in call.attempts] == [
        (1, OutcomeKind.OVERLOADED),
        (2, OutcomeKind.SUCCESS),
    ]


@each("dialect", ["anthropic", "openai-chat", "openai-responses", "ollama"])
def test_a_body_is_as_large_as_the_captured_one_and_shares_what_it_shared(dialect):
    one, two = (
        request_body(
            make_call(str(n), dialect=dialect, request_bytes=5000, prefix="p", prefix_tokens=300, request_hash=str(n))
        )
        for n in (1, 2)
    )
    assert len(one) == len(two) == 5000
    assert one != two
    assert json.loads(one)["model"] == "claude-sonnet-4-5"
    assert "instructions p" in one.decode()


@pytest.mark.slow
@pytest.mark.xdist_group("capture")
def test_failures_are_met_again_and_survived_again_for_every_dialect():
    refused = make_attempt(
        1,
        kind=OutcomeKind.OVERLOADED,
        reason="529 overloaded_error",
        status=529,
        chunks=(),
        usage=None,
        ended_after_s=0.1,
        head_after_s=0.1,
    )
    good = make_attempt(2, at_s=1.0, head_after_s=0.1, ended_after_s=0.4, chunks=())
    hosts = {
        "anthropic": "api.anthropic.com",
        "openai-responses": "api.openai.com",
        "openai-chat": "llm.corp.test",
        # Played as Messages, at a host whose own profile has no such calls.
        "gemini": "generativelanguage.googleapis.com",
        "bedrock-converse": "bedrock-runtime.eu-west-1.amazonaws.com",
    }
    calls = [
        make_call(
            f"{dialect}-{turn}",
            session=dialect,
            agent=dialect,
            dialect=dialect,
            at_s=turn * 2.0,
            ended_s=turn * 2 + 1.4,
            pool=PoolKey(host, "key-1", "m"),
            attempts=(refused, good) if turn else (good,),
        )
        for dialect, host in hosts.items()
        for turn in range(2)
    ]
    replay = run_real(make_capture(*calls), pace=4)
    assert replay.guard_trips == 0
    assert not [call.recorded.id for call in replay.calls if call.differs]
    assert replay.attempts == 3 * len(hosts)
    assert [len(call.replayed.attempts) for call in replay.calls] == [
        len(call.recorded.attempts) for call in replay.calls
    ]


@pytest.mark.slow
@pytest.mark.xdist_group("capture")
def test_a_captured_fleet_of_real_agents_ends_as_it_did():
    capture = read_capture(CAPTURES / "mixed.flow")
    replay = run_real(capture, pace=4)
    assert replay.guard_trips == 0
    assert not [call.recorded.id for call in replay.calls if call.differs]
    assert replay.attempts == sum(len(call.attempts) for call in capture.calls)


# Real view ------------------------------------------------------------------------------------------------------------


def shown(*calls, width=80, guard_trips=0):
    console = Console(width=width, file=io.StringIO())
    console.print(real_view(RealReplay(pace=4, calls=calls, elapsed_s=8.1, attempts=9, guard_trips=guard_trips)))
    return console.file.getvalue()


@each("width", [80, 120])
def test_each_call_has_its_line_then_and_now(width):
    same = ReplayedCall(make_call("same"), make_call("x", waited_s=2.0))
    text = shown(same, ReplayedCall(make_call("lost"), None), width=width)
    assert "same" in text
    assert "never came" in text
    assert "replayed in 8.1s, 4 times as fast: 1 delivered; recorded: 2 delivered" in text
    assert max(map(len, text.splitlines())) <= width


def test_of_many_calls_those_that_differ_are_shown():
    calls = [ReplayedCall(make_call(f"call-{n}"), make_call("x")) for n in range(100)]
    odd = ReplayedCall(make_call("odd-one"), make_call("x", end="gave up"))
    text = shown(*calls, odd)
    assert "odd-one" in text
    assert "and 61 more" in text


def test_a_guard_trip_is_said():
    assert "2 guard trips" in shown(guard_trips=2)


# Recorded -------------------------------------------------------------------------------------------------------------


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


@each("dialect", ["anthropic", "openai-chat", "openai-responses", "ollama"])
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
    (limit,) = RecordedServer(capture, pace=2)._doors[make_call().pool].told
    assert limit.amount == 120


def test_a_limit_that_was_known_as_the_capture_began_refuses_anew():
    refused, answered = make_attempt(kind=OutcomeKind.THROTTLED, status=429), make_attempt()
    call = make_call(attempts=(refused, answered))
    known = make_limit(meter="hidden limit", limit=2.0, left=1.0, full_in_s=5.0)
    door = RecordedServer(make_capture(call, limits=(known,)))._doors[call.pool]
    assert [door.lets_in(call, 0.0) for _ in range(2)] == [True, False]
    assert door.admitted(call).attempts == (answered,)
    assert door.refusal is refused
    of_old = RecordedServer(make_capture(call, limits=(make_limit(meter="hidden limit", limit=1.0),)))._doors[call.pool]
    assert [of_old.lets_in(call, 0.0) for _ in range(2)] == [True, True]
    assert of_old.admitted(call) is call
