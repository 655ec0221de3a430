import json
from pathlib import Path

import pytest

from hivemind_addon.api.ticket import OutcomeKind, PoolKey
from hivemind_addon.lab.replay.chains import chained
from hivemind_addon.lab.sim.real_replay import one_call, request_body, run_real
from hivemind_addon.proxy.capture.file import read_capture
from tests.capture.samples import make_attempt, make_call, make_capture

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
