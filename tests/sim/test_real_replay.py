import json
from pathlib import Path

import pytest

from hivemind_addon.core.ticket import OutcomeKind, PoolKey
from hivemind_addon.mitm.capture_file import read_capture
from hivemind_addon.sim.real_replay import predecessors, request_body, run_real
from tests.capture.samples import make_attempt, make_call, make_capture

CAPTURES = Path(__file__).parents[1] / "captures"


def before(*calls):
    return {call_id: one.id for call_id, one in predecessors(calls).items()}


def test_a_turn_waits_for_the_one_before_it():
    calls = [
        make_call("1", at_s=0.0, ended_s=4.0),
        make_call("2", at_s=5.0, ended_s=9.0),
        make_call("3", at_s=9.5, ended_s=10.0),
    ]
    assert before(*calls) == {"2": "1", "3": "2"}


def test_calls_side_by_side_wait_for_the_same():
    calls = [make_call("1", ended_s=4.0), make_call("2", at_s=5.0, ended_s=9.0), make_call("3", at_s=6.0, ended_s=8.0)]
    assert before(*calls) == {"2": "1", "3": "1"}


def test_a_sub_agent_waits_for_its_parents_turn():
    calls = [make_call("1", ended_s=4.0), make_call("2", session="sub", parent_session="s-1", at_s=4.5, ended_s=9.0)]
    assert before(*calls) == {"2": "1"}


@pytest.mark.parametrize("dialect", ["anthropic-messages", "openai-chat", "openai-responses", "ollama"])
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
        "anthropic-messages": "api.anthropic.com",
        "openai-responses": "api.openai.com",
        "openai-chat": "llm.corp.test",
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
    assert replay.attempts == 9
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
