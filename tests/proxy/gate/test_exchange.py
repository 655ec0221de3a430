import asyncio
import dataclasses
import json

import pytest
from mitmproxy import http
from msgspec import structs

from hivemind_addon.formats.profile.model import Watchdog
from hivemind_addon.formats.wire.outcome import TransportTrouble
from hivemind_addon.kernel.budget import cost_of
from hivemind_addon.kernel.values.events import AttemptEnded, ContextKept, OddityNoted
from hivemind_addon.kernel.values.ticket import OutcomeKind, Usage
from hivemind_addon.proxy.gate.settings import AgentsFile
from hivemind_addon.proxy.host.port import Alarm, Handling, Look, Next, Stage
from tests.conftest import FakeClock
from tests.proxy.gate.samples import make_flow, make_proxy


@pytest.fixture
async def proxy():
    return make_proxy()


def admitted(proxy, **headers):
    exchange = proxy.make_exchange(make_flow(**headers))
    assert exchange.enter()
    assert exchange.next is Next.SEND
    exchange.sent()
    return exchange


def slots(proxy):
    return sum(pool.in_flight for pool in proxy.driver.snapshot().pools)


def queued(proxy):
    return sum(pool.queued for pool in proxy.driver.snapshot().pools)


SSE = {"content-type": "text/event-stream"}
START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5,"output_tokens":1}}}\n\n'
)
CONTENT = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}\n\n'
STOP = b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
ERROR = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'


async def test_a_good_answer_is_settled_once_with_what_was_used(proxy):
    exchange = admitted(proxy)
    assert slots(proxy) == 1
    body = b'{"usage":{"input_tokens":5,"output_tokens":7}}'
    response = http.Response.make(200, body, {"content-type": "application/json"})
    assert exchange.head(response) is Handling.COLLECT
    assert not exchange.collected(response, body)
    assert exchange.over
    assert slots(proxy) == 0
    exchange.finished()
    exchange.client_gone()
    counters = proxy.driver.snapshot().counters
    assert (counters.delivered, counters.attempts, counters.input_tokens, counters.output_tokens) == (1, 1, 5, 7)


CHAT_URL = "https://api.openai.com/v1/chat/completions"
TEXT = "The capital of France is Paris, which lies on the river Seine in the north of the country."


def chat_flow(*, stream):
    body = {"model": "gpt-4.1", "stream": stream, "messages": [{"role": "user", "content": "Where is Paris? " * 20}]}
    return make_flow(CHAT_URL, content=json.dumps(body).encode(), authorization="Bearer sk-1")


def chat_stream(usage):
    words = [{"index": 0, "delta": {"content": f"{word} "}} for word in TEXT.split(" ")]
    chunks = [{"choices": [choice]} for choice in words]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage is not None:
        chunks.append({"choices": [], "usage": usage})
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks) + b"data: [DONE]\n\n"


LIES = {
    "none": None,
    "too much": {"prompt_tokens": 1e308, "completion_tokens": 28},
    "all zeros": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    "negative": {"prompt_tokens": -80, "completion_tokens": -28},
    "only the output is plausible": {"prompt_tokens": 0, "completion_tokens": 28},
    "only the input is plausible": {"prompt_tokens": 80, "completion_tokens": 0},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("streamed", [True, False])
async def test_what_a_usage_does_not_report_or_not_truly_is_counted_or_expected(proxy, lie, streamed):
    heard = []
    proxy.driver.listen(lambda event: heard.append(event) if isinstance(event, AttemptEnded) else None)
    told = (LIES[lie] or {}).get("completion_tokens", 0)
    output_tokens = told if told > 0 else proxy.runtime.estimator.count(TEXT)
    for _ in range(20):
        exchange = proxy.make_exchange(chat_flow(stream=streamed))
        assert exchange.enter()
        exchange.sent()
        if streamed:
            exchange.head(http.Response.make(200, b"", SSE))
            exchange.look(chat_stream(LIES[lie]))
            exchange.streamed()
        else:
            choice = {"message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
            body = json.dumps({"choices": [choice], "usage": LIES[lie]}).encode()
            response = http.Response.make(200, body, {"content-type": "application/json"})
            exchange.head(response)
            assert not exchange.collected(response, body)
    proxy.driver.tick()
    for ended in heard:
        assert not ended.usage.reported, "it is marked as ours"
        assert abs(ended.usage.output_tokens - output_tokens) <= 2
        assert 80 <= ended.usage.input_tokens <= 130
        assert ended.spend.tokens == ended.usage.total_input_tokens + ended.usage.output_tokens
        assert ended.spend.micro_usd == cost_of(ended.usage, exchange.ticket.price) > 0
    assert len(heard) == 20
    following = proxy.make_exchange(chat_flow(stream=streamed))
    assert following.ticket.expected.tokens < 200, "how long answers are was learned"


JSON = {"content-type": "application/json"}
WORDS = 5
"""Tokens of nine times `CONTENT`."""
DAMAGED = b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 9
BEGUN = START.replace(b'"input_tokens":5', b'"input_tokens":54000')
ENDS = {
    "nothing came": (
        lambda one: one.failed(TransportTrouble.CLOSED_BEFORE_HEAD, "", client_saw_bytes=False),
        "expected",
    ),
    "the client left before the head": (lambda one: one.client_gone(), "expected"),
    "no connection": (lambda one: one.failed(TransportTrouble.CONNECT_FAILED, "", client_saw_bytes=False), "nothing"),
    "429": (lambda one: whole(one, 429, b"{}"), "nothing"),
    "500": (lambda one: whole(one, 500, b"{}"), "nothing"),
    "a page": (lambda one: whole(one, 200, b"<html>"), "nothing"),
    "broken JSON": (lambda one: whole(one, 200, b'{"content":[{"type":"te'), "expected"),
    "a damaged coding": (lambda one: whole(one, 200, DAMAGED, "gzip"), "expected"),
    "a stream in a damaged coding": (lambda one: streaming(one, DAMAGED, coding="gzip").streamed(), "expected"),
    "a cut before the first event": (lambda one: cut(streaming(one)), "input"),
    "a cut before the words": (lambda one: cut(streaming(one, BEGUN)), Usage(54_000, output_tokens=1, reported=True)),
    "a cut": (lambda one: cut(streaming(one, BEGUN, CONTENT * 9)), Usage(54_000, output_tokens=WORDS)),
    "the client left": (
        lambda one: streaming(one, BEGUN, CONTENT * 9).client_gone(),
        Usage(54_000, output_tokens=WORDS),
    ),
    "an error before all": (lambda one: streaming(one, ERROR).failed_in_stream(), "nothing"),
    "an error": (lambda one: streaming(one, BEGUN, CONTENT * 9, ERROR).streamed(), Usage(54_000, output_tokens=WORDS)),
}


def whole(exchange, status, body, coding=""):
    response = http.Response.make(status, body, JSON)
    response.headers["content-encoding"] = coding
    exchange.head(response)
    exchange.collected(response, body)


def streaming(exchange, *chunks, coding=""):
    response = http.Response.make(200, b"", SSE)
    response.headers["content-encoding"] = coding
    exchange.head(response)
    for chunk in chunks:
        exchange.look(chunk)
    return exchange


def cut(exchange):
    exchange.failed(TransportTrouble.CUT, "", client_saw_bytes=True)


@pytest.mark.parametrize("end", ENDS)
async def test_an_attempt_books_what_is_known_of_it_else_what_was_expected(proxy, end):
    heard = []
    proxy.driver.listen(lambda event: heard.append(event) if isinstance(event, AttemptEnded) else None)
    exchange = admitted(proxy)
    ends, usage = ENDS[end]
    ends(exchange)
    proxy.driver.tick()
    expected = exchange.estimate.expected
    named = {"nothing": None, "expected": expected, "input": structs.replace(expected, output_tokens=0)}
    assert [one.usage for one in heard] == [named.get(usage, usage) if isinstance(usage, str) else usage]
    tokens = 0 if heard[0].usage is None else heard[0].usage.total_input_tokens + heard[0].usage.output_tokens
    assert heard[0].spend.tokens == tokens


async def test_a_refused_attempt_is_queued_again_with_the_same_ticket(proxy):
    exchange = admitted(proxy)
    response = http.Response.make(529, b"", {})
    exchange.head(response)
    assert exchange.collected(response, b"")
    assert not exchange.over
    assert (slots(proxy), queued(proxy)) == (0, 1)
    exchange.client_gone()
    assert (slots(proxy), queued(proxy)) == (0, 0)
    assert proxy.live == {}


async def test_a_stream_is_kept_back_until_its_first_content(proxy):
    exchange = admitted(proxy)
    assert exchange.head(http.Response.make(200, b"", SSE)) is Handling.PEEK
    assert exchange.look(START[:20]) is Look.HOLD_BACK
    assert exchange.look(START[20:]) is Look.HOLD_BACK
    assert exchange.look(CONTENT) is Look.RELEASE
    assert exchange.tee(STOP) == STOP
    exchange.streamed()
    counters = proxy.driver.snapshot().counters
    assert (counters.delivered, counters.output_tokens) == (1, 2)
    assert slots(proxy) == 0


async def test_an_error_event_before_the_first_content_is_tried_again(proxy):
    exchange = admitted(proxy)
    exchange.head(http.Response.make(200, b"", SSE))
    assert exchange.look(START) is Look.HOLD_BACK
    assert exchange.look(ERROR) is Look.FAILED
    assert exchange.failed_in_stream()
    assert (slots(proxy), queued(proxy)) == (0, 1)
    exchange.finished()


async def test_what_an_attempt_used_is_not_counted_again_when_the_next_one_does_not_connect(proxy):
    heard = []
    proxy.driver.listen(lambda event: heard.append(event) if isinstance(event, AttemptEnded) else None)
    exchange = admitted(proxy)
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START)
    assert exchange.look(ERROR) is Look.FAILED
    assert exchange.failed_in_stream()
    await exchange.hold()
    assert exchange.failed(TransportTrouble.CONNECT_FAILED, "no route", client_saw_bytes=False)
    exchange.client_gone()
    assert [ended.usage and ended.usage.total_input_tokens for ended in heard] == [5, None]


async def test_a_cut_after_the_first_content_is_not_tried_again(proxy):
    exchange = admitted(proxy)
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START + CONTENT)
    assert not exchange.failed(TransportTrouble.CUT, "cut", client_saw_bytes=True)
    assert exchange.over
    assert slots(proxy) == 0


async def test_whole_delivery_keeps_everything_back_until_the_terminal_event(proxy):
    flow = make_flow(x_hivemind_delivery="whole")
    proxy.intake.take_own_headers(flow)
    exchange = proxy.make_exchange(flow)
    assert exchange.enter()
    exchange.sent()
    exchange.head(http.Response.make(200, b"", SSE))
    assert exchange.look(START + CONTENT) is Look.HOLD_BACK
    assert exchange.look(STOP) is Look.COMPLETE
    assert not exchange.ended()
    exchange.streamed()
    assert exchange.over


async def test_whole_delivery_ends_before_the_client_gives_up(monkeypatch):
    clock = FakeClock()
    proxy = make_proxy()
    monkeypatch.setattr(proxy.driver, "clock", clock)
    exchange = admitted(proxy, user_agent="claude-cli/2.1.330 (external, sdk-cli)")
    clock.advance(100)
    exchange.head(http.Response.make(200, b"", SSE))
    for _ in range(4):
        assert exchange.look(CONTENT) is Look.HOLD_BACK
        assert exchange.alarm(Stage.PEEKED) is Alarm.NOTHING
        assert 0 < exchange.next_alarm_s(Stage.PEEKED) <= exchange.ticket.arrived_at + 150 - clock.monotonic()
        clock.advance(10)
    clock.advance(10)
    assert exchange.alarm(Stage.PEEKED) is Alarm.RELEASE
    exchange.finished()


async def test_an_answer_that_begins_late_is_looked_at_all_the_same(monkeypatch):
    clock = FakeClock()
    proxy = make_proxy()
    monkeypatch.setattr(proxy.driver, "clock", clock)
    exchange = admitted(proxy, user_agent="claude-cli/2.1.330 (external, sdk-cli)")
    clock.advance(200)
    exchange.head(http.Response.make(200, b"", SSE))
    assert exchange.look(START) is Look.HOLD_BACK
    assert exchange.alarm(Stage.PEEKED) is Alarm.NOTHING
    assert exchange.next_alarm_s(Stage.PEEKED) == pytest.approx(exchange.profile.peek.max_s)
    exchange.finished()


async def test_a_plain_answer_that_takes_several_times_as_long_as_any_is_tried_again_and_the_reason_is_told(
    monkeypatch,
):
    clock, heard = FakeClock(), []
    proxy = make_proxy()
    monkeypatch.setattr(proxy.driver, "clock", clock)
    proxy.driver.listen(heard.append)
    exchange = admitted(proxy)
    plain = http.Response.make(200, b'{"usage":{"input_tokens":5,"output_tokens":7}}', {})
    assert exchange.next_alarm_s(Stage.AWAITED) == pytest.approx(900), "nothing is known yet"
    for took_s in [5.0] * 10 + [20.0] * 10:
        clock.advance(took_s)
        exchange.head(plain)
        assert not exchange.collected(plain, plain.content)
        exchange = admitted(proxy)
    assert exchange.next_alarm_s(Stage.AWAITED) == pytest.approx(200)
    clock.advance(199)
    assert exchange.alarm(Stage.AWAITED) is Alarm.NOTHING
    clock.advance(1)
    assert exchange.alarm(Stage.AWAITED) is Alarm.STALLED
    assert exchange.failed(TransportTrouble.STALLED, "no byte came", client_saw_bytes=False), "it is tried again"
    clock.advance(30)
    proxy.driver.tick()
    assert exchange.enter()
    exchange.sent()
    assert exchange.next_alarm_s(Stage.AWAITED) == pytest.approx(400), "a long answer may be rightly long"
    (ended,) = [one for one in heard if isinstance(one, AttemptEnded) and one.outcome.kind is not OutcomeKind.SUCCESS]
    assert ended.outcome.reason == "stalled"
    assert ended.outcome.ambiguous, "it may have been billed"
    (oddity,) = [one.what for one in heard if isinstance(one, OddityNoted)]
    assert oddity == "watchdog: nothing came for 200 s"
    exchange.finished()


EMPTY = b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'


def streams(exchange, body):
    exchange.sent()
    exchange.head(http.Response.make(200, b"", SSE))
    return exchange.look(body)


async def test_garbage_is_fetched_again_under_whole_delivery_and_not_for_ever(monkeypatch):
    clock, heard = FakeClock(), []
    proxy = make_proxy()
    monkeypatch.setattr(proxy.driver, "clock", clock)
    proxy.driver.listen(heard.append)
    exchange = admitted(proxy, user_agent="claude-cli/2.1.330 (external, sdk-cli)")
    for _ in range(2):
        assert streams(exchange, START + EMPTY) is Look.COMPLETE
        assert exchange.ended(), "it is tried again"
        clock.advance(60)
        proxy.driver.tick()
        assert exchange.enter()
    streams(exchange, START + EMPTY)
    assert not exchange.ended(), "the model insists"
    exchange.streamed()
    assert exchange.over
    ends = [one.outcome for one in heard if isinstance(one, AttemptEnded)]
    assert [one.reason for one in ends] == ["garbage: empty answer"] * 2 + ["200, garbage: empty answer"]
    assert {one.garbage for one in ends} == {"empty answer"}
    spent = [one.spend.tokens for one in heard if isinstance(one, AttemptEnded)]
    assert spent == [7, 7, 7], "it was billed"
    (pool,) = proxy.runtime.stats.view(clock.monotonic()).pools
    assert (pool.garbage, pool.delivered, pool.wasted_tokens) == (3, 1, 14)


async def test_a_model_that_says_garbage_to_everybody_is_no_provider_that_is_down(monkeypatch):
    clock = FakeClock()
    proxy = make_proxy()
    monkeypatch.setattr(proxy.driver, "clock", clock)
    for number in range(12):
        agent = {"user_agent": "claude-cli/2.1.330 (external, sdk-cli)", "x_claude_code_session_id": f"s{number}"}
        exchange = admitted(proxy, **agent)
        streams(exchange, START + EMPTY)
        assert exchange.ended()
        exchange.finished()
        clock.advance(5)
    (pool,) = proxy.driver.snapshot().pools
    assert (pool.breaker, pool.blocked_for_s) == ("closed", 0)


async def test_garbage_that_a_person_watches_is_counted_and_goes_on(proxy):
    exchange = admitted(proxy)
    streams(exchange, START + EMPTY)
    exchange.streamed()
    assert proxy.driver.snapshot().counters.delivered == 1
    (pool,) = proxy.runtime.stats.view(proxy.driver.clock.monotonic()).pools
    assert (pool.garbage, pool.failed) == (1, 0)


@pytest.mark.parametrize(("delivery", "again"), [("whole", True), ("stream", False)])
async def test_a_plain_answer_that_is_garbage_is_fetched_again_where_all_are_whole(proxy, delivery, again):
    flow = make_flow(x_hivemind_delivery=delivery)
    proxy.intake.take_own_headers(flow)
    exchange = proxy.make_exchange(flow)
    assert exchange.enter()
    exchange.sent()
    body = b'{"type":"message","content":[],"stop_reason":"end_turn","usage":{"input_tokens":5,"output_tokens":1}}'
    response = http.Response.make(200, body, {"content-type": "application/json"})
    exchange.head(response)
    assert exchange.collected(response, body) is again
    exchange.finished()


async def test_a_legal_empty_turn_is_no_garbage(proxy):
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]}
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "stream": True, "messages": [result]}
    exchange = admitted(proxy, content=json.dumps(body).encode(), user_agent="claude-cli/2.1.330 (external, sdk-cli)")
    streams(exchange, START + EMPTY)
    assert not exchange.ended()
    exchange.streamed()
    (pool,) = proxy.runtime.stats.view(proxy.driver.clock.monotonic()).pools
    assert (pool.garbage, pool.delivered) == (0, 1)


async def test_a_client_that_hangs_up_after_the_last_event_was_served(proxy):
    exchange = admitted(proxy)
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START + CONTENT + STOP)
    exchange.client_gone()
    assert proxy.driver.snapshot().counters.delivered == 1


async def test_a_stopping_scheduler_refuses_in_the_providers_shape(proxy):
    proxy.driver.close()
    exchange = proxy.make_exchange(make_flow())
    assert exchange.enter()
    assert exchange.next is Next.REFUSE
    assert exchange.refusal.status_code == 429
    assert exchange.over
    assert proxy.live == {}


async def test_a_spent_budget_is_refused_once_and_for_all(tmp_path):
    rules = tmp_path / "agents.yaml"
    rules.write_text("everyone: {budgets: [{tokens: 1}]}")
    proxy = make_proxy(agents=AgentsFile(rules))
    exchange = proxy.make_exchange(make_flow())
    assert exchange.enter()
    assert exchange.next is Next.REFUSE
    assert exchange.refusal.status_code == 400
    assert exchange.refusal.headers["x-should-retry"] == "false"
    assert str(rules) in exchange.refusal.text
    assert exchange.over
    assert proxy.live == {}
    told = exchange.committed_error(exchange.refusal, "").decode()
    assert "invalid_request_error" in told
    assert "the budget of everyone" in told


def streamed_attempt(proxy, *, stream):
    content = b'{"model":"claude-sonnet-4-5","max_tokens":9,"stream":%s,"messages":[{"role":"user","content":"hello"}]}'
    proxy.driver.clock = clock = FakeClock(proxy.driver.clock.monotonic())
    exchange = proxy.make_exchange(make_flow(content=content % (b"true" if stream else b"false")))
    assert exchange.enter()
    exchange.sent()
    return exchange, clock


async def test_a_streamed_request_that_hears_nothing_for_long_has_stalled_and_every_byte_puts_that_off(proxy):
    exchange, clock = streamed_attempt(proxy, stream=True)
    silent_s = exchange.profile.watchdog.silent_s
    assert exchange.next_alarm_s(Stage.AWAITED) == pytest.approx(silent_s)
    clock.advance(silent_s - 1)
    assert exchange.alarm(Stage.AWAITED) is Alarm.NOTHING
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START + CONTENT)
    assert passes(exchange, clock, 899, Stage.STREAMED) == []
    exchange.tee(CONTENT)
    assert passes(exchange, clock, 899, Stage.STREAMED) == []
    assert passes(exchange, clock, 1, Stage.STREAMED) == [Alarm.STALLED]
    exchange.finished()


OPENED = b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}\n\n'


def passes(exchange, clock, seconds, stage):
    """The alarms of a time, second by second, but for keep-alives and the look at the beginning."""
    due = []
    for _ in range(seconds):
        clock.advance(1)
        due.append(exchange.alarm(stage))
    return [one for one in due if one not in (Alarm.NOTHING, Alarm.PULSE, Alarm.RELEASE)]


@pytest.mark.parametrize("delivery", ["stream", "whole"])
@pytest.mark.parametrize(
    ("begun", "patience_s", "silent_s"),
    [
        (START, 3600, 3600),
        (START + OPENED, 600, 900),
        (START, 30, 900),
        (b"", 600, 900),
        (START + OPENED + CONTENT, 600, 900),
    ],
    ids=["as long as its client waits", "it thinks", "of an impatient client", "no event", "content"],
)
async def test_a_stream_that_has_begun_may_be_silent_for_minutes_and_not_for_ever(
    proxy, delivery, begun, patience_s, silent_s
):
    proxy.driver.clock = clock = FakeClock(proxy.driver.clock.monotonic())
    flow = make_flow(content=json.dumps({"model": "claude-sonnet-4-5", "stream": True, "messages": []}).encode())
    flow.request.headers["x-stainless-read-timeout"] = str(patience_s)
    flow.request.headers["x-hivemind-delivery"] = delivery
    proxy.intake.take_own_headers(flow)
    exchange = proxy.make_exchange(flow)
    assert exchange.enter()
    exchange.sent()
    exchange.head(http.Response.make(200, b"", SSE))
    if begun:
        exchange.look(begun)
    stage = Stage.PEEKED if delivery == "whole" or begun is START else Stage.STREAMED
    assert passes(exchange, clock, silent_s - 1, stage) == []
    assert passes(exchange, clock, 1, stage) == [Alarm.STALLED]
    exchange.finished()


async def test_how_long_a_model_is_silent_after_content_is_learned_upwards_and_by_model(proxy):
    proxy.driver.clock = clock = FakeClock(float(round(proxy.driver.clock.monotonic())))

    def begun(model):
        exchange = proxy.make_exchange(
            make_flow(content=json.dumps({"model": model, "stream": True, "messages": []}).encode())
        )
        assert exchange.enter()
        exchange.sent()
        exchange.head(http.Response.make(200, b"", SSE))
        exchange.look(START)
        exchange.released(bytearray())
        return exchange

    for number in range(20):  # it thinks; a cut answer tells of it as well
        exchange = begun("claude-sonnet-4-5")
        clock.advance(200)
        exchange.tee(CONTENT + (STOP if number % 2 else b""))
        exchange.failed(TransportTrouble.CUT, "closed", client_saw_bytes=True)
    for model, silent_s in (("claude-sonnet-4-5", 2000), ("claude-sonnet-4-6", 900)):
        exchange = begun(model)
        assert passes(exchange, clock, silent_s - 1, Stage.STREAMED) == []
        assert passes(exchange, clock, 1, Stage.STREAMED) == [Alarm.STALLED]
        exchange.finished()


@pytest.mark.parametrize(("begun", "silent_s"), [(b"", 120), (START + CONTENT, 150)], ids=["no head", "content"])
async def test_an_attempt_after_one_that_stalled_has_twice_the_time_and_one_after_a_refusal_has_not(
    proxy, begun, silent_s
):
    exchange, clock = streamed_attempt(proxy, stream=True)
    exchange.profile = dataclasses.replace(exchange.profile, watchdog=Watchdog(begun_s=150))

    def stalls(after_s):
        if begun:
            exchange.head(http.Response.make(200, b"", SSE))
            exchange.look(begun)
        stage = Stage.PEEKED if begun else Stage.AWAITED
        assert passes(exchange, clock, after_s - 1, stage) == []
        assert passes(exchange, clock, 1, stage) == [Alarm.STALLED]

    def again():
        clock.advance(60)
        proxy.driver.tick()
        assert exchange.enter()
        exchange.sent()

    assert exchange.failed(TransportTrouble.CLOSED_BEFORE_HEAD, "closed", client_saw_bytes=False)
    again()
    stalls(silent_s)
    assert exchange.failed(TransportTrouble.STALLED, "no byte came", client_saw_bytes=False)
    again()
    stalls(2 * silent_s)
    exchange.finished()


@pytest.mark.parametrize(
    ("agent", "sign"),
    [
        ("x/1", b": waiting\n\n"),
        ("codex_exec/0.171.0", b'event: keepalive\ndata: {"type":"keepalive","sequence_number":0}\n\n'),
    ],
)
async def test_the_client_of_a_silent_stream_gets_a_sign_of_life_that_it_counts(proxy, agent, sign):
    proxy.driver.clock = clock = FakeClock(proxy.driver.clock.monotonic())
    content = b'{"model":"gpt-6","stream":true,"input":"x"}'
    flow = make_flow("https://api.openai.com/v1/responses", content=content, user_agent=agent)
    exchange = proxy.make_exchange(flow)
    assert exchange.enter()
    exchange.sent()
    exchange.head(http.Response.make(200, b"", SSE))
    clock.advance(30)
    exchange.look(b'event: response.created\ndata: {"type":"response.created"}\n\n')
    due = []
    for _ in range(60):
        clock.advance(1)
        due.append(exchange.alarm(Stage.STREAMED))
    assert [second for second, one in enumerate(due, 1) if one is Alarm.PULSE] == [20, 40, 60]
    assert exchange.keep_alive == sign
    exchange.finished()


async def test_an_answer_that_is_collected_is_heard(proxy):
    exchange, clock = streamed_attempt(proxy, stream=True)
    exchange.head(http.Response.make(529, b"", {"content-type": "application/json"}))
    clock.advance(exchange.profile.watchdog.silent_s - 1)
    exchange.heard(b'{"a": 1,')
    clock.advance(exchange.profile.watchdog.silent_s - 1)
    assert exchange.alarm(Stage.COLLECTED) is Alarm.NOTHING
    clock.advance(1)
    assert exchange.alarm(Stage.COLLECTED) is Alarm.STALLED
    exchange.finished()


async def test_held_flows_look_held_and_a_hold_ends_with_admission(proxy):
    import asyncio

    running = [admitted(proxy) for _ in range(4)]
    exchange = proxy.make_exchange(make_flow())
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
    assert slots(proxy) == 0


async def test_abort_and_resume_are_heard_while_held(proxy):
    import asyncio

    running = [admitted(proxy) for _ in range(4)]
    patient, pressed, aborted = (proxy.make_exchange(make_flow()) for _ in range(3))
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
    assert (slots(proxy), queued(proxy)) == (0, 0)


def assert_final(refusal):
    """Clients show it and do not retry."""
    assert refusal.status_code == 400
    assert refusal.headers["x-should-retry"] == "false"
    assert "retry-after" not in refusal.headers
    error = json.loads(refusal.content)["error"]
    assert error["type"] == "invalid_request_error"
    assert "a person cancelled" in error["message"]


async def test_an_abort_of_a_running_request_ends_its_attempt(proxy):
    ended = []
    exchange = admitted(proxy)
    proxy.driver.call_off = lambda attempt: (ended.append(attempt.ticket.id), exchange.call_off())
    exchange.flow.live = True
    exchange.nudge()
    assert not exchange.over, "an interface touches flows for many reasons"
    exchange.flow.kill()
    exchange.nudge()
    exchange.nudge()
    assert ended == [exchange.ticket.id]
    assert_final(exchange.refusal)
    assert exchange.over
    assert slots(proxy) == 0
    assert proxy.driver.snapshot().counters.cancelled == 1


async def test_what_is_called_off_is_settled_with_what_was_used_so_far(proxy):
    exchange = admitted(proxy)
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START + CONTENT)
    exchange.call_off()
    exchange.call_off()
    exchange.client_gone()
    exchange.streamed()
    exchange.finished()
    counters = proxy.driver.snapshot().counters
    assert (counters.cancelled, counters.delivered, counters.input_tokens) == (1, 0, 5)
    event = exchange.committed_error(None, "")
    assert event.startswith(b"event: error\n")
    assert b"invalid_request_error" in event
    assert b"a person cancelled" in event
    assert proxy.live == {}
    assert not any(type(one).__name__ == "CommittedStreamFailed" for one in proxy.heard)


async def test_nobody_calls_off_what_waits_or_is_over(proxy):
    exchange = admitted(proxy)
    response = http.Response.make(529, b"", {})
    exchange.head(response)
    assert exchange.collected(response, b"")
    exchange.call_off()
    assert not exchange.over
    exchange.client_gone()
    exchange.call_off()
    assert exchange.refusal is None


@pytest.mark.parametrize("method", ["_take", "_settle"])
async def test_an_exception_of_ours_keeps_the_slot_until_the_request_ends_and_loses_none(proxy, monkeypatch, method):
    def boom(*_, **__):
        raise RuntimeError("broken")

    monkeypatch.setattr("hivemind_addon.proxy.gate.exchange.Exchange." + method, boom)
    exchange = proxy.make_exchange(make_flow())
    if not exchange.enter():
        await exchange.hold()
    assert exchange.next is Next.SEND
    assert slots(proxy) == 1
    response = http.Response.make(529, b"", {})
    exchange.head(response)
    assert not exchange.collected(response, b"")
    exchange.finished()
    assert (slots(proxy), queued(proxy), proxy.guard.trips) == (0, 0, 1)
    assert proxy.live == {}


async def test_a_usage_that_cannot_be_charged_loses_no_slot(proxy, monkeypatch):
    def boom(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(proxy.runtime.estimator, "charged", boom)
    exchange = admitted(proxy)
    body = b'{"usage":{"input_tokens":5,"output_tokens":7}}'
    response = http.Response.make(200, body, {"content-type": "application/json"})
    exchange.head(response)
    assert not exchange.collected(response, body)
    assert slots(proxy) == 1
    exchange.finished()
    assert slots(proxy) == 0
    assert proxy.guard.trips == 1


async def test_while_slots_cannot_be_given_back_requests_go_on_past_the_scheduler(proxy, monkeypatch):
    def boom(*_, **__):
        raise RuntimeError("broken")

    first = admitted(proxy)
    with monkeypatch.context() as broken:
        broken.setattr(proxy.driver, "settle", boom)
        first.finished()
        assert slots(proxy) == 1
        second = proxy.make_exchange(make_flow())
        assert not second.enter()
        await second.hold()
        assert second.next is Next.SEND
        second.finished()
    assert proxy.guard.trips == 1
    third = admitted(proxy)
    assert slots(proxy) == 1
    third.finished()
    assert slots(proxy) == 0


async def test_after_a_trip_nothing_of_the_attempt_before_goes_to_the_client(proxy, monkeypatch):
    exchange = admitted(proxy)
    exchange.head(http.Response.make(200, b"", SSE))
    exchange.look(START)
    assert exchange.look(ERROR) is Look.FAILED
    assert exchange.failed_in_stream()
    monkeypatch.setattr(proxy.driver, "wait", None)
    await exchange.hold()
    assert exchange.tripped
    assert exchange.next is Next.SEND
    exchange.sent()
    assert exchange.head(http.Response.make(200, b"", SSE)) is Handling.PEEK
    assert exchange.look(CONTENT) is Look.RELEASE
    assert exchange.decoded_so_far() == CONTENT
    exchange.finished()
    assert slots(proxy) == 0


# A conversation that a spent budget stops ---------------------------------------------------------------------------------


def keeping_intake(tmp_path, rules="everyone: {budgets: [{tokens: 1}]}"):
    """Everybody's budget is spent, and what it stops is kept."""
    (tmp_path / "agents.yaml").write_text(rules)
    proxy = make_proxy(agents=AgentsFile(tmp_path / "agents.yaml"), journal=tmp_path / "journal.db")
    proxy.files.follow(proxy.settings.current)
    return proxy


async def test_a_conversation_is_on_disk_before_its_client_is_refused(tmp_path):
    proxy = keeping_intake(tmp_path)
    exchange = proxy.make_exchange(make_flow())
    assert not exchange.enter(), "the disk is waited for"
    await exchange.hold()
    assert exchange.next is Next.REFUSE
    assert exchange.over
    assert proxy.live == {}
    (head,) = proxy.files.keeper.store.heads()
    told = f"Its conversation is kept: hivemind context show {head.id}."
    assert head.ticket_id == exchange.ticket.id
    assert told in exchange.refusal.text
    assert told in exchange.committed_error(exchange.refusal, "").decode()
    assert not exchange.flow.intercepted
    await proxy.files.close()
    assert proxy.guard.trips == 0


async def test_who_comes_back_with_the_same_request_is_told_of_the_same_context(tmp_path):
    proxy = keeping_intake(tmp_path)
    told = set()
    for _ in range(3):
        exchange = proxy.make_exchange(make_flow(x_claude_code_session_id="s-1"))
        exchange.enter()
        await exchange.hold()
        told.add(exchange.refusal.text)
    assert len(told) == 1
    await proxy.files.close()


async def test_a_client_that_goes_while_the_disk_works_is_sent_nowhere(tmp_path):
    proxy = keeping_intake(tmp_path)
    exchange = proxy.make_exchange(make_flow())
    assert not exchange.enter()
    holding = asyncio.ensure_future(exchange.hold())
    asyncio.get_running_loop().call_soon(exchange.client_gone)  # once it waits
    await holding
    assert exchange.next is Next.LEAVE
    assert exchange.refusal is None
    assert exchange.over
    store = proxy.files.keeper.store
    await proxy.files.close()
    assert len(store.heads()) == 1


async def test_a_disk_that_cannot_be_written_lets_nobody_past_the_budget(tmp_path):
    proxy = keeping_intake(tmp_path)
    (tmp_path / "contexts").write_text("in the way")
    exchange = proxy.make_exchange(make_flow())
    exchange.enter()
    await exchange.hold()
    assert exchange.next is Next.REFUSE
    assert "context" not in exchange.refusal.text
    assert [event.reason for event in proxy.heard if isinstance(event, ContextKept)] == ["File exists"]
    await proxy.files.close()


async def test_a_request_that_waited_for_its_budget_is_kept_as_well(tmp_path):
    """One attempt has reserved too much of what is left; its answer costs it all."""
    flows = make_flow(), make_flow(x_claude_code_session_id="s-2")
    needed = sum(make_proxy().make_exchange(flow).ticket.expected.tokens for flow in flows)
    proxy = keeping_intake(tmp_path, f"everyone: {{budgets: [{{tokens: {needed - 1}}}]}}")
    first, second = (proxy.make_exchange(flow) for flow in flows)
    assert first.enter()
    first.sent()
    assert not second.enter()
    assert queued(proxy) == 1
    holding = asyncio.ensure_future(second.hold())
    answer = b'{"usage":{"input_tokens":9000,"output_tokens":50}}'
    first.head(http.Response.make(200, answer, {"content-type": "application/json"}))
    first.collected(http.Response.make(200, answer, {}), answer)
    await holding
    assert second.next is Next.REFUSE
    (head,) = proxy.files.keeper.store.heads()
    assert head.ticket_id == second.ticket.id
    assert head.id in second.refusal.text
    await proxy.files.close()


async def test_a_person_who_cancels_and_an_account_that_is_spent_leave_no_context(tmp_path):
    proxy = keeping_intake(tmp_path, "{}")
    exchange = admitted(proxy)
    exchange.call_off()
    assert exchange.refusal is not None
    assert proxy.files.keeper.store.heads() == []
    await proxy.files.close()
