import json

from mitmproxy import flow as mflow

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.kernel.values.ticket import CallKind, OutcomeKind
from hivemind_addon.plugins.captures.foreign import ForeignCalls
from tests.plugins.captures.captured import STREAM, answered
from tests.proxy.gate.samples import make_flow

ERROR = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).encode()


def read(*flows):
    return [call for call, _ in ForeignCalls(load_profiles(None)).read(flows)]


def at(flow, wall):
    flow.request.timestamp_start = wall
    return flow


def streamed(**headers):
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "stream": True,
        "messages": [{"role": "user", "content": "hello"}],
    }
    return make_flow(content=json.dumps(body).encode(), **headers)


def test_a_call_is_told_by_the_same_parsers_and_mitmproxys_stamps():
    (call,) = read(answered(at(streamed(x_claude_code_session_id="s-1", x_claude_code_agent_id="a-1"), 1000.0)))
    (attempt,) = call.attempts
    assert (call.session, call.parent_session, call.kind) == ("s-1/a-1", "s-1", CallKind.SUBAGENT)
    assert (call.end, call.at_s, call.ended_s, call.streamed) == ("delivered", 0.0, 3.0, True)
    assert (attempt.status, attempt.head_after_s, attempt.ended_after_s) == (200, 1.0, 3.0)
    assert (attempt.usage.input_tokens, attempt.usage.output_tokens, attempt.usage.reported) == (9, 7, True)
    assert attempt.chunks[0].size == len(STREAM)
    assert call.demand.input_tokens > 0


def test_calls_are_timed_from_the_first_one():
    calls = read(answered(at(make_flow(), 1007.5)), answered(at(make_flow(), 1000.0)))
    assert [call.at_s for call in calls] == [0.0, 7.5]


def test_refusals_cuts_and_errors_in_streams_are_told_apart():
    refused = answered(at(streamed(), 1.0), ERROR, 529, content_type="application/json", retry_after="4")
    cut = answered(at(streamed(), 2.0), STREAM[: len(STREAM) // 2])
    failed = answered(at(streamed(), 3.0), b"event: error\ndata: " + ERROR + b"\n\n")
    calls = read(refused, cut, failed)
    assert [call.attempts[0].kind for call in calls] == [
        OutcomeKind.OVERLOADED,
        OutcomeKind.FAILED,
        OutcomeKind.OVERLOADED,
    ]
    assert [call.end for call in calls] == ["gave up"] * 3
    assert calls[0].attempts[0].retry_after_s == 4.0


def test_a_client_that_went_is_no_failure_of_the_provider():
    flow = at(make_flow(), 1.0)
    flow.response = None
    flow.error = mflow.Error("Client disconnected.", timestamp=3.5)
    (call,) = read(flow)
    assert (call.end, call.ended_s) == ("cancelled", 2.5)


def test_limits_are_told_when_they_change():
    def limited(limit, wall):
        return answered(
            at(make_flow(), wall),
            anthropic_ratelimit_requests_limit=str(limit),
            anthropic_ratelimit_requests_remaining="9",
            anthropic_ratelimit_requests_reset="2026-01-01T00:00:00Z",
        )

    told = [
        beside.limits
        for _, beside in ForeignCalls(load_profiles(None)).read([limited(50, 1.0), limited(50, 2.0), limited(60, 3.0)])
    ]
    assert [[one.limit for one in limits] for limits in told] == [[50.0], [], [60.0]]


def test_other_requests_are_passed_over():
    assert (
        read(
            make_flow("https://example.org/", method="GET"),
            make_flow("https://api.anthropic.com/v1/models", method="GET"),
        )
        == []
    )


def test_a_body_that_cannot_be_read_is_a_call_all_the_same():
    (call,) = read(answered(make_flow(content=b"\xff\xff"), b"\x1f\x8b broken", content_encoding="gzip"))
    assert call.model == ""
