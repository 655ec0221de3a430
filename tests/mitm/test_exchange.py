import asyncio
import json

import pytest
from mitmproxy import http

from hivemind_addon.core.events import CheckpointKept
from hivemind_addon.mitm.agents_file import AgentsFile
from hivemind_addon.mitm.port import Alarm, Handling, Look, Next, Stage
from hivemind_addon.wire.outcome import TransportTrouble
from tests.conftest import FakeClock
from tests.mitm.samples import make_flow, make_intake


@pytest.fixture
async def intake():
    return make_intake()


def admitted(intake, **headers):
    exchange = intake.intake(make_flow(**headers))
    assert exchange.enter()
    assert exchange.next is Next.SEND
    exchange.sent()
    return exchange


def slots(intake):
    return sum(pool.in_flight for pool in intake.driver.snapshot().pools)


def queued(intake):
    return sum(pool.queued for pool in intake.driver.snapshot().pools)


SSE = {"content-type": "text/event-stream"}
START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5,"output_tokens":1}}}\n\n'
)
CONTENT = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}\n\n'
STOP = b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
ERROR = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'


async def test_a_good_answer_is_settled_once_with_what_was_used(intake):
    exchange = admitted(intake)
    assert slots(intake) == 1
    body = b'{"usage":{"input_tokens":5,"output_tokens":7}}'
    response = http.Response.make(200, body, {"content-type": "application/json"})
    assert exchange.head(response) is Handling.COLLECT
    assert not exchange.collected(response, body)
    assert exchange.over
    assert slots(intake) == 0
    exchange.finished()
    exchange.client_gone()
    counters = intake.driver.snapshot().counters
    assert (counters.delivered, counters.attempts, counters.input_tokens, counters.output_tokens) == (1, 1, 5, 7)


async def test_a_refused_attempt_is_queued_again_with_the_same_ticket(intake):
    exchange = admitted(intake)
    response = http.Response.make(529, b"", {})
    exchange.head(response)
    assert exchange.collected(response, b"")
    assert not exchange.over
    assert (slots(intake), queued(intake)) == (0, 1)
    exchange.client_gone()
    assert (slots(intake), queued(intake)) == (0, 0)
    assert intake.live == {}


async def test_a_stream_is_kept_back_until_its_first_content(intake):
    exchange = admitted(intake)
    assert exchange.head(http.Response.make(200, b"", SSE)) is Handling.PEEK
    assert exchange.look(START[:20]) is Look.HOLD_BACK
    assert exchange.look(START[20:]) is Look.HOLD_BACK
    assert exchange.look(CONTENT) is Look.RELEASE
    assert exchange.tee(STOP) == STOP
    exchange.streamed()
    counters = intake.driver.snapshot().counters
    assert (counters.delivered, counters.output_tokens) == (1, 2)
    assert slots(intake) == 0


async def test_an_error_event_before_the_first_content_is_tried_again(intake):
    exchange = admitted(intake)
    exchange.head(http.Response.make(200, b"", SSE))
    assert exchange.look(START) is Look.HOLD_BACK
    assert exchange.look(ERROR) is Look.FAILED
    assert exchange.failed_in_stream()
    assert (slots(intake), queued(intake)) == (0, 1)
    exchange.finished()


async def test_a_cut_after_the_first_content_is_not_tried_again(intake):
    exchange = admitted(intake)
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START + CONTENT)
    assert not exchange.failed(TransportTrouble.CUT, "cut", client_saw_bytes=True)
    assert exchange.over
    assert slots(intake) == 0


async def test_whole_delivery_keeps_everything_back_until_the_terminal_event(intake):
    flow = make_flow(x_hivemind_delivery="whole")
    intake.take_own_headers(flow)
    exchange = intake.intake(flow)
    assert exchange.enter()
    exchange.sent()
    exchange.head(http.Response.make(200, b"", SSE))
    assert exchange.look(START + CONTENT) is Look.HOLD_BACK
    assert exchange.look(STOP) is Look.HOLD_BACK
    assert not exchange.ended()
    exchange.streamed()
    assert exchange.over


async def test_a_client_that_hangs_up_after_the_last_event_was_served(intake):
    exchange = admitted(intake)
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START + CONTENT + STOP)
    exchange.client_gone()
    assert intake.driver.snapshot().counters.delivered == 1


async def test_a_stopping_scheduler_refuses_in_the_providers_shape(intake):
    intake.driver.close()
    exchange = intake.intake(make_flow())
    assert exchange.enter()
    assert exchange.next is Next.REFUSE
    assert exchange.refusal.status_code == 429
    assert exchange.over
    assert intake.live == {}


async def test_a_spent_budget_is_refused_once_and_for_all(tmp_path):
    rules = tmp_path / "agents.yaml"
    rules.write_text("everyone: {budgets: [{tokens: 1}]}")
    intake = make_intake(agents=AgentsFile(rules))
    exchange = intake.intake(make_flow())
    assert exchange.enter()
    assert exchange.next is Next.REFUSE
    assert exchange.refusal.status_code == 400
    assert exchange.refusal.headers["x-should-retry"] == "false"
    assert str(rules) in exchange.refusal.text
    assert exchange.over
    assert intake.live == {}
    told = exchange.committed_error(exchange.refusal, "").decode()
    assert "invalid_request_error" in told
    assert "the budget of everyone" in told


def streamed_attempt(intake, *, stream):
    content = b'{"model":"claude-sonnet-4-5","max_tokens":9,"stream":%s,"messages":[{"role":"user","content":"hello"}]}'
    exchange = intake.intake(make_flow(content=content % (b"true" if stream else b"false")))
    intake.driver.clock = clock = FakeClock(intake.driver.clock.monotonic())
    assert exchange.enter()
    exchange.sent()
    return exchange, clock


async def test_a_streamed_request_that_hears_nothing_for_long_has_stalled_and_every_byte_puts_that_off(intake):
    exchange, clock = streamed_attempt(intake, stream=True)
    silent_s = exchange.profile.watchdog.silent_s
    assert exchange.next_alarm_s(Stage.AWAITED) == pytest.approx(silent_s)
    clock.advance(silent_s - 1)
    assert exchange.alarm(Stage.AWAITED) is Alarm.NOTHING
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START + CONTENT)
    clock.advance(silent_s - 1)
    assert exchange.alarm(Stage.STREAMED) is Alarm.NOTHING
    exchange.tee(CONTENT)
    assert exchange.next_alarm_s(Stage.STREAMED) == pytest.approx(silent_s)
    clock.advance(silent_s)
    assert exchange.alarm(Stage.STREAMED) is Alarm.STALLED
    exchange.finished()


async def test_an_answer_that_is_collected_is_heard(intake):
    exchange, clock = streamed_attempt(intake, stream=True)
    exchange.head(http.Response.make(529, b"", {"content-type": "application/json"}))
    clock.advance(exchange.profile.watchdog.silent_s - 1)
    exchange.heard()
    clock.advance(exchange.profile.watchdog.silent_s - 1)
    assert exchange.alarm(Stage.COLLECTED) is Alarm.NOTHING
    clock.advance(1)
    assert exchange.alarm(Stage.COLLECTED) is Alarm.STALLED
    exchange.finished()


async def test_a_plain_request_may_be_silent_as_long_as_its_client_waits(intake):
    exchange, clock = streamed_attempt(intake, stream=False)
    clock.advance(10_000)
    assert exchange.next_alarm_s(Stage.AWAITED) is None
    assert exchange.alarm(Stage.AWAITED) is Alarm.NOTHING
    exchange.finished()


async def test_held_flows_look_held_and_a_hold_ends_with_admission(intake):
    import asyncio

    running = [admitted(intake) for _ in range(4)]
    exchange = intake.intake(make_flow())
    assert not exchange.enter()
    hold = asyncio.ensure_future(exchange.hold())
    await asyncio.wait([hold], timeout=0)
    assert exchange.flow.intercepted
    running[0].client_gone()
    await hold
    assert exchange.next is Next.SEND
    assert not exchange.flow.intercepted
    for one in (*running, exchange):
        one.finished()
    assert slots(intake) == 0


async def test_abort_and_resume_are_heard_while_held(intake):
    import asyncio

    running = [admitted(intake) for _ in range(4)]
    patient, pressed, aborted = (intake.intake(make_flow()) for _ in range(3))
    holds = []
    for exchange in (patient, pressed, aborted):
        exchange.flow.live = True
        assert not exchange.enter()
        holds.append(asyncio.ensure_future(exchange.hold()))
    await asyncio.wait(holds, timeout=0)
    pressed.flow.resume()
    pressed.nudge()
    aborted.flow.kill()
    aborted.nudge()
    await holds[2]
    assert aborted.next is Next.REFUSE
    assert_final(aborted.refusal)
    assert aborted.over
    assert aborted.flow.error is None, "mitmproxy answers nothing for a flow that is killed"
    assert not holds[1].done()
    running[0].finished()
    await holds[1]
    assert not holds[0].done()
    for one in (*running, pressed):
        one.finished()
    await holds[0]
    patient.finished()
    assert (slots(intake), queued(intake)) == (0, 0)


def assert_final(refusal):
    """Clients show it and do not retry."""
    assert refusal.status_code == 400
    assert refusal.headers["x-should-retry"] == "false"
    assert "retry-after" not in refusal.headers
    error = json.loads(refusal.content)["error"]
    assert error["type"] == "invalid_request_error"
    assert "a person cancelled" in error["message"]


async def test_an_abort_of_a_running_request_ends_its_attempt(intake):
    ended = []
    exchange = admitted(intake)
    intake.driver.call_off = lambda reservation: (ended.append(reservation.ticket.id), exchange.call_off())
    exchange.flow.live = True
    exchange.nudge()
    assert not exchange.over, "an interface touches flows for many reasons"
    exchange.flow.kill()
    exchange.nudge()
    exchange.nudge()
    assert ended == [exchange.ticket.id]
    assert_final(exchange.refusal)
    assert exchange.over
    assert slots(intake) == 0
    assert intake.driver.snapshot().counters.cancelled == 1


async def test_what_is_called_off_is_settled_with_what_was_used_so_far(intake):
    exchange = admitted(intake)
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START + CONTENT)
    exchange.call_off()
    exchange.call_off()
    exchange.client_gone()
    exchange.streamed()
    exchange.finished()
    counters = intake.driver.snapshot().counters
    assert (counters.cancelled, counters.delivered, counters.input_tokens) == (1, 0, 5)
    event = exchange.committed_error(None, "")
    assert event.startswith(b"event: error\n")
    assert b"invalid_request_error" in event
    assert b"a person cancelled" in event
    assert intake.live == {}
    assert not any(type(one).__name__ == "CommittedStreamFailed" for one in intake.runtime.events)


async def test_nobody_calls_off_what_waits_or_is_over(intake):
    exchange = admitted(intake)
    response = http.Response.make(529, b"", {})
    exchange.head(response)
    assert exchange.collected(response, b"")
    exchange.call_off()
    assert not exchange.over
    exchange.client_gone()
    exchange.call_off()
    assert exchange.refusal is None


@pytest.mark.parametrize("method", ["_take", "_settle"])
async def test_an_exception_of_ours_keeps_the_slot_until_the_request_ends_and_loses_none(intake, monkeypatch, method):
    def boom(*_, **__):
        raise RuntimeError("broken")

    monkeypatch.setattr("hivemind_addon.mitm.exchange.Exchange." + method, boom)
    exchange = intake.intake(make_flow())
    if not exchange.enter():
        await exchange.hold()
    assert exchange.next is Next.SEND
    assert slots(intake) == 1
    response = http.Response.make(529, b"", {})
    exchange.head(response)
    assert not exchange.collected(response, b"")
    exchange.finished()
    assert (slots(intake), queued(intake), intake.guard.trips) == (0, 0, 1)
    assert intake.live == {}


async def test_a_usage_that_cannot_be_charged_loses_no_slot(intake, monkeypatch):
    def boom(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(intake.runtime.estimator, "charged", boom)
    exchange = admitted(intake)
    body = b'{"usage":{"input_tokens":5,"output_tokens":7}}'
    response = http.Response.make(200, body, {"content-type": "application/json"})
    exchange.head(response)
    assert not exchange.collected(response, body)
    assert slots(intake) == 1
    exchange.finished()
    assert slots(intake) == 0
    assert intake.guard.trips == 1


async def test_while_slots_cannot_be_given_back_requests_go_on_past_the_scheduler(intake, monkeypatch):
    def boom(*_, **__):
        raise RuntimeError("broken")

    first = admitted(intake)
    with monkeypatch.context() as broken:
        broken.setattr(intake.driver, "settle", boom)
        first.finished()
        assert slots(intake) == 1
        second = intake.intake(make_flow())
        assert not second.enter()
        await second.hold()
        assert second.next is Next.SEND
        second.finished()
    assert intake.guard.trips == 1
    third = admitted(intake)
    assert slots(intake) == 1
    third.finished()
    assert slots(intake) == 0


async def test_after_a_trip_nothing_of_the_attempt_before_goes_to_the_client(intake, monkeypatch):
    exchange = admitted(intake)
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START)
    assert exchange.look(ERROR) is Look.FAILED
    assert exchange.failed_in_stream()
    monkeypatch.setattr(intake.driver, "wait", None)
    await exchange.hold()
    assert exchange.tripped
    assert exchange.next is Next.SEND
    exchange.sent()
    assert exchange.head(http.Response.make(200, b"", SSE)) is Handling.PEEK
    assert exchange.look(CONTENT) is Look.RELEASE
    assert exchange.decoded_so_far() == CONTENT
    exchange.finished()
    assert slots(intake) == 0


# A conversation that a spent budget stops ---------------------------------------------------------------------------------


def keeping_intake(tmp_path, rules="everyone: {budgets: [{tokens: 1}]}"):
    """Everybody's budget is spent, and what it stops is kept."""
    (tmp_path / "agents.yaml").write_text(rules)
    intake = make_intake(agents=AgentsFile(tmp_path / "agents.yaml"), journal=tmp_path / "journal.db")
    intake.files.follow(intake.settings)
    return intake


async def test_a_conversation_is_on_disk_before_its_client_is_refused(tmp_path):
    intake = keeping_intake(tmp_path)
    exchange = intake.intake(make_flow())
    assert not exchange.enter(), "the disk is waited for"
    await exchange.hold()
    assert exchange.next is Next.REFUSE
    assert exchange.over
    assert intake.live == {}
    (head,) = intake.files.keeper.store.heads()
    told = f"Its conversation is kept: hivemind checkpoint show {head.id}."
    assert head.id == exchange.ticket.id
    assert told in exchange.refusal.text
    assert told in exchange.committed_error(exchange.refusal, "").decode()
    assert not exchange.flow.intercepted
    await intake.files.close()
    assert intake.guard.trips == 0


async def test_who_comes_back_with_the_same_request_is_told_of_the_same_checkpoint(tmp_path):
    intake = keeping_intake(tmp_path)
    told = set()
    for _ in range(3):
        exchange = intake.intake(make_flow(x_claude_code_session_id="s-1"))
        exchange.enter()
        await exchange.hold()
        told.add(exchange.refusal.text)
    assert len(told) == 1
    await intake.files.close()


async def test_a_client_that_goes_while_the_disk_works_is_sent_nowhere(tmp_path):
    intake = keeping_intake(tmp_path)
    exchange = intake.intake(make_flow())
    assert not exchange.enter()
    holding = asyncio.ensure_future(exchange.hold())
    asyncio.get_running_loop().call_soon(exchange.client_gone)  # once it waits
    await holding
    assert exchange.next is Next.LEAVE
    assert exchange.refusal is None
    assert exchange.over
    await intake.files.close()
    assert len(list((tmp_path / "checkpoints").glob("*.checkpoint"))) == 1


async def test_a_disk_that_cannot_be_written_lets_nobody_past_the_budget(tmp_path):
    intake = keeping_intake(tmp_path)
    (tmp_path / "checkpoints").write_text("in the way")
    exchange = intake.intake(make_flow())
    exchange.enter()
    await exchange.hold()
    assert exchange.next is Next.REFUSE
    assert "checkpoint" not in exchange.refusal.text
    assert [event.reason for event in intake.runtime.events if isinstance(event, CheckpointKept)] == ["File exists"]
    await intake.files.close()


async def test_a_request_that_waited_for_its_budget_is_kept_as_well(tmp_path):
    """One attempt has reserved too much of what is left; its answer costs it all."""
    flows = make_flow(), make_flow(x_claude_code_session_id="s-2")
    needed = sum(make_intake().intake(flow).ticket.expected.tokens for flow in flows)
    intake = keeping_intake(tmp_path, f"everyone: {{budgets: [{{tokens: {needed - 1}}}]}}")
    first, second = (intake.intake(flow) for flow in flows)
    assert first.enter()
    first.sent()
    assert not second.enter()
    assert queued(intake) == 1
    holding = asyncio.ensure_future(second.hold())
    answer = b'{"usage":{"input_tokens":9000,"output_tokens":50}}'
    first.head(http.Response.make(200, answer, {"content-type": "application/json"}))
    first.collected(http.Response.make(200, answer, {}), answer)
    await holding
    assert second.next is Next.REFUSE
    assert second.ticket.id in second.refusal.text
    await intake.files.close()


async def test_a_person_who_cancels_and_an_account_that_is_spent_leave_no_checkpoint(tmp_path):
    intake = keeping_intake(tmp_path, "{}")
    exchange = admitted(intake)
    exchange.call_off()
    assert exchange.refusal is not None
    assert intake.files.keeper.store.heads() == []
    await intake.files.close()
