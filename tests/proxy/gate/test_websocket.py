"""The turns of a WebSocket through the real scheduler; what its layer does stands in for mitmproxy's."""

import asyncio
import json

import pytest
from mitmproxy.test import tflow
from mitmproxy.websocket import WebSocketMessage
from wsproto.frame_protocol import Opcode

from hivemind_addon.kernel.values.command import Cancel, Pause, Resume
from hivemind_addon.kernel.values.events import AttemptEnded, Submitted, TicketEnded
from hivemind_addon.kernel.values.ticket import REQUEST_HEADER
from hivemind_addon.proxy.gate.interfaces.annotation import annotation_of
from hivemind_addon.proxy.gate.settings import AgentsFile
from hivemind_addon.proxy.gate.websocket import ScheduledSocket
from hivemind_addon.proxy.host.turns import MOST_LANES
from tests.conftest import FakeClock
from tests.patience import PATIENCE_S
from tests.proxy.gate.samples import make_flow, make_proxy

URL = "https://api.openai.com/v1/responses"
PROFILE = """extends: openai
websocket: turns
retry: {first_backoff_s: 0.001}
concurrency: {initial: 1, maximum: 1}
keep_alive_s: 0.01
"""
CREATED = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
DELTA = {"type": "response.output_text.delta", "delta": "hi", "output_index": 0}
USAGE = {"input_tokens": 50, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 20}}
DONE = {
    "type": "response.completed",
    "response": {
        "id": "resp_1",
        "status": "completed",
        "usage": USAGE,
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}],
    },
}
ANSWER = (CREATED, DELTA, DONE)
LIMITED = {
    "type": "error",
    "status": 429,
    "error": {"type": "rate_limit_exceeded", "code": "rate_limit_exceeded", "message": "slow"},
    "headers": {"retry-after-ms": "1", "x-ratelimit-limit-requests": "50", "x-ratelimit-remaining-requests": "0"},
}
HELD = {"type": "hivemind.held"}


def create(text="hello", **more):
    said = {"type": "response.create", "model": "gpt-5.1", "stream": True, "input": [{"role": "user", "content": text}]}
    return said | more


class Socket:
    """One socket, and what its layer would write."""

    wrote: asyncio.Event

    def __init__(self, proxy, **headers):
        self.flow = make_flow(URL, method="GET", content=b"", authorization="Bearer sk-1", **headers)
        self.flow.websocket = tflow.twebsocketflow().websocket
        self.flow.websocket.messages.clear()
        self.proxy = proxy
        self.wire = ScheduledSocket(self.flow, proxy.claims.profile_of_turns(self.flow), proxy)
        self.to_client, self.to_server, self.is_closed = [], [], False
        before = proxy.wake_layer
        proxy.wake_layer = lambda flow: (
            asyncio.get_running_loop().call_soon(self.write) if flow is self.flow else before(flow)
        )

    def write(self):
        for written in self.wire.take():
            if written is None:
                self.is_closed = True
                self.wire.closed(by_client=True)
            else:
                (self.to_client if written[0] else self.to_server).append(json.loads(written[1]))
        self.wrote.set()

    def _came(self, frame, *, from_client, passed):
        data = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
        self._told(WebSocketMessage(Opcode.TEXT, from_client, data), frame, passed)

    def says_in_binary(self, data):
        self._told(WebSocketMessage(Opcode.BINARY, True, data), data, self.to_server)

    def _told(self, message, frame, passed):
        self.flow.websocket.messages.append(message)
        self.wire.came(message)
        self.write()
        if not message.dropped:
            passed.append(frame)

    def asks(self, *frames):
        for frame in frames:
            self._came(frame, from_client=True, passed=self.to_server)

    def answers(self, *frames):
        for frame in frames:
            self._came(frame, from_client=False, passed=self.to_client)

    @property
    def heard(self):
        return [frame for frame in self.to_client if frame["type"] != "hivemind.held"]


async def until(what):
    async with asyncio.timeout(PATIENCE_S):
        while not what():
            Socket.wrote.clear()
            await Socket.wrote.wait()


def slots(proxy):
    return [(pool.in_flight, pool.queued) for pool in proxy.driver.snapshot().pools]


def ends(proxy):
    proxy.driver.tick()
    return [(one.outcome.kind.value, one.outcome.reason) for one in proxy.heard if isinstance(one, AttemptEnded)]


@pytest.fixture(autouse=True)
async def _heard():
    Socket.wrote = asyncio.Event()


@pytest.fixture
async def proxy(tmp_path):
    (tmp_path / "openai.yaml").write_text(PROFILE)
    proxy = make_proxy(tmp_path)
    yield proxy
    assert proxy.guard.trips == 0
    assert proxy.live == {}
    assert all(pool == (0, 0) for pool in slots(proxy))


async def test_a_turn_is_a_ticket_and_its_usage_is_booked(proxy):
    socket = Socket(proxy)
    socket.asks(create())
    assert socket.to_server == [create()]
    assert slots(proxy) == [(1, 0)]
    socket.answers(*ANSWER)
    assert socket.heard == list(ANSWER)
    counters = proxy.driver.snapshot().counters
    assert (counters.tickets, counters.delivered, counters.input_tokens, counters.output_tokens) == (1, 1, 50, 7)
    socket.asks(create(previous_response_id="resp_1"))
    socket.answers(*ANSWER)
    assert len(socket.heard) == 6
    assert ends(proxy) == [("success", "200")] * 2


async def test_a_turn_is_held_until_there_is_room_and_its_client_hears_that(proxy):
    first, second = Socket(proxy), Socket(proxy)
    first.asks(create())
    second.asks(create("another"))
    assert (second.to_server, slots(proxy)) == ([], [(1, 1)])
    await until(lambda: second.to_client.count(HELD) > 2)
    first.answers(*ANSWER)
    await until(lambda: second.to_server)
    second.answers(*ANSWER)
    assert second.heard == list(ANSWER)


async def test_frames_of_other_kinds_pass_also_while_a_turn_is_held(proxy):
    socket = Socket(proxy)
    proxy.driver.command(Pause())
    others = [{"type": "response.processed"}, {"type": "response.steer", "x": 1}]
    socket.asks(create(), *others)
    assert socket.to_server == others
    socket.answers({"type": "session.news"})
    assert socket.heard == [{"type": "session.news"}]
    proxy.driver.command(Resume())
    await until(lambda: len(socket.to_server) == 3)
    socket.answers(*ANSWER)


UNREADABLE = (
    b'{"type":"response.create","model":"gpt-5.1","input":"x",}',
    b'{"type":"response.create","model":"gpt-5.1","input":%b}' % (b"[" * 5000 + b"]" * 5000),
    b'[{"type":"response.create","model":"gpt-5.1","input":"x"}]',
    b'{"type":"response.create","model":"gpt-5.1","input":"x","type":"response.processed"}',
    b'{"type":"response.create","generate":true,"model":"gpt-5.1","input":"x","generate":false}',
    b"response.create",
    b"null",
)


@pytest.mark.parametrize("frame", UNREADABLE)
@pytest.mark.parametrize("way", ["asks", "says_in_binary"])
async def test_a_frame_that_may_be_a_turn_and_cannot_be_read_is_refused_and_the_connection_goes_on(proxy, frame, way):
    socket = Socket(proxy)
    getattr(socket, way)(frame)
    assert socket.to_server == []
    ((refusal),) = socket.heard
    assert (refusal["type"], refusal["status"], refusal["error"]["code"]) == ("error", 400, "invalid_json")
    socket.asks(b" ", create())
    socket.answers(*ANSWER)
    assert socket.to_server == [b" ", create()]
    assert socket.heard[1:] == list(ANSWER)


@pytest.mark.parametrize(
    "frame",
    [
        rb'{"type":"response.create","model":"gpt-5.1","input":"\ud83d"}',
        b'{"type":"response.create","model":"gpt-5.1","input":"x","temperature":NaN}',
        b'\xef\xbb\xbf{"type":"response.create","model":"gpt-5.1","input":"x"}',
        b'{"type":"response.create","model":"gpt-5.1","input":"x"}',
    ],
)
@pytest.mark.parametrize("way", ["asks", "says_in_binary"])
async def test_what_javascript_python_and_net_write_is_a_turn_and_goes_as_it_came(proxy, frame, way, monkeypatch):
    socket = Socket(proxy)
    sent = []
    monkeypatch.setattr(ScheduledSocket, "to_server", lambda _, text: sent.append(text))
    getattr(socket, way)(frame)
    assert (sent, slots(proxy)) == ([frame], [(1, 0)])
    socket.answers(*ANSWER)
    assert proxy.driver.snapshot().counters.input_tokens == 50
    (submitted,) = [event for event in proxy.heard if isinstance(event, Submitted)]
    assert submitted.ticket.model == "gpt-5.1"
    assert submitted.ticket.streamed


async def test_lanes_that_are_idle_make_room_and_beyond_those_that_are_busy_a_client_is_told_to_come_back(tmp_path):
    (tmp_path / "openai.yaml").write_text(PROFILE.replace("1, maximum: 1", "100, maximum: 100"))
    proxy = make_proxy(tmp_path)
    socket = Socket(proxy)
    for number in range(MOST_LANES + 3):
        socket.asks(create(stream_id=f"one-{number}"))
        socket.answers(*({**frame, "stream_id": f"one-{number}"} for frame in ANSWER))
    assert proxy.driver.snapshot().counters.delivered == MOST_LANES + 3
    for number in range(MOST_LANES + 1):
        socket.asks(create(stream_id=f"other-{number}"))
    assert len(socket.to_server) == 2 * MOST_LANES + 3
    refusal = socket.heard[-1]
    assert (refusal["status"], refusal["stream_id"]) == (429, f"other-{MOST_LANES}")
    socket.answers({**DONE, "stream_id": "other-0"})
    socket.asks(create(stream_id="late"))
    assert len(socket.to_server) == 2 * MOST_LANES + 4
    socket.wire.closed(by_client=True)
    assert proxy.live == {}


async def test_warm_ups_with_no_turn_between_them_are_scheduled(proxy):
    """Each writes a cache, for input tokens."""
    socket = Socket(proxy)
    done = {"type": "response.completed", "response": {"id": "resp_0"}}
    for number, delivered in enumerate((0, 1, 2)):
        socket.asks(create(generate=False, stream_id=f"lane-{number}"))
        socket.answers({**CREATED, "stream_id": f"lane-{number}"}, {**done, "stream_id": f"lane-{number}"})
        assert proxy.driver.snapshot().counters.delivered == delivered
    socket.asks(create())
    socket.answers(*ANSWER)
    socket.asks(create(generate=False))
    socket.answers(CREATED, done)
    assert proxy.driver.snapshot().counters.delivered == 3


async def test_a_warm_up_takes_no_ticket_and_its_answer_is_not_the_turns(proxy):
    socket = Socket(proxy)
    warm_up = create(generate=False)
    socket.asks(warm_up, create(previous_response_id="resp_0"))
    assert len(socket.to_server) == 2
    done = {"type": "response.completed", "response": {"id": "resp_0"}}
    socket.answers(CREATED, done)
    assert slots(proxy) == [(1, 0)], "the turn is not over"
    socket.answers(*ANSWER)
    assert slots(proxy) == [(0, 0)]
    socket.asks(create(), create(generate=False), create())
    assert len(socket.to_server) == 3, "what is asked behind a turn waits for its end"
    socket.answers(*ANSWER)
    assert socket.to_server[3:] == [warm_up, create()]
    socket.answers(CREATED, done, *ANSWER)
    assert proxy.driver.snapshot().counters.delivered == 3


OVERLOADED = {"type": "error", "status": 503, "error": {"code": "server_is_overloaded", "message": "full"}}
FAILED = {
    "type": "response.failed",
    "response": {"error": {"code": "rate_limit_exceeded", "message": "Please try again in 1ms."}},
}
SLOW_DOWN = {"type": "response.failed", "response": {"error": {"code": "slow_down", "message": "full"}}}
FIVE_HUNDRED = {"type": "error", "status": 500, "error": {"code": "server_error", "message": "oh"}}


@pytest.mark.parametrize("failure", [LIMITED, OVERLOADED, FAILED, SLOW_DOWN, FIVE_HUNDRED])
@pytest.mark.parametrize("begun", [(), (CREATED,)])
async def test_a_first_turn_that_fails_is_sent_again_unseen(proxy, failure, begun):
    socket = Socket(proxy)
    socket.asks(create())
    socket.answers(*begun, failure)
    assert socket.heard == []
    await until(lambda: len(socket.to_server) == 2)
    assert socket.to_server == [create(), create()]
    socket.answers(*ANSWER)
    assert socket.heard == list(ANSWER)
    assert [kind for kind, _ in ends(proxy)][1:] == ["success"]


@pytest.mark.parametrize("failure", [LIMITED, OVERLOADED, FAILED, SLOW_DOWN, FIVE_HUNDRED])
async def test_a_chained_turn_that_fails_is_answered_so_that_its_client_sends_all_of_it(proxy, failure):
    socket = Socket(proxy)
    socket.asks(create(previous_response_id="resp_0"))
    socket.answers(CREATED, failure)
    (frame,) = socket.heard
    ticket_id = next(one.ticket.id for one in proxy.heard if isinstance(one, Submitted))
    told = {"retry-after": "1", REQUEST_HEADER: ticket_id}
    assert (frame["type"], frame["status"], frame["headers"]) == ("error", 429, told)
    assert frame["error"]["code"] == "rate_limit_exceeded"
    assert frame["error"]["message"].endswith("Please try again in 1 s.")
    proxy.driver.tick()
    assert len(socket.to_server) == 1
    assert [one.end for one in proxy.heard if isinstance(one, TicketEnded)] == ["shed"]


async def test_a_turn_that_follows_a_warm_up_is_sent_again_behind_another_one(proxy):
    socket = Socket(proxy)
    warm_up, turn = create("all", generate=False), create("hello", previous_response_id="resp_0")

    def warm(number):
        return CREATED, {"type": "response.completed", "response": {"id": f"resp_{number}"}}

    socket.asks(warm_up)
    socket.answers(*warm(0))
    socket.asks(turn)
    del socket.to_client[:]
    socket.answers(CREATED, OVERLOADED)
    await until(lambda: len(socket.to_server) == 3)
    socket.answers(LIMITED | {"headers": {}})
    await until(lambda: len(socket.to_server) == 4)
    assert socket.to_server[2:] == [warm_up, warm_up], "a warm-up may fail as well"
    socket.answers(*warm(9))
    assert socket.to_server[4:] == [turn | {"previous_response_id": "resp_9"}]
    assert socket.heard == []
    socket.answers(*ANSWER)
    assert socket.heard == list(ANSWER)
    socket.asks(create(previous_response_id="resp_1"))
    socket.answers(FIVE_HUNDRED)
    assert socket.heard[-1]["headers"]["retry-after"] == "1", "what follows goes on from the turn"


HARD = [
    {"type": "error", "status": 400, "error": {"code": "previous_response_not_found", "message": "gone"}},
    {"type": "error", "status": 400, "error": {"code": "websocket_connection_limit_reached", "message": "60 min"}},
    {"type": "error", "status": 429, "error": {"type": "usage_limit_reached", "resets_at": 9999999999, "message": "x"}},
]


@pytest.mark.parametrize("failure", HARD)
@pytest.mark.parametrize("chain", [{}, {"previous_response_id": "resp_0"}])
async def test_what_no_waiting_cures_reaches_the_client_as_it_came(proxy, failure, chain):
    socket = Socket(proxy)
    socket.asks(create(**chain))
    socket.answers(failure)
    assert socket.heard == [failure]


async def test_no_code_that_ends_a_turn_for_good_is_passed_on(proxy):
    socket = Socket(proxy)
    socket.asks(create())
    socket.answers(CREATED, DELTA, SLOW_DOWN)
    assert socket.heard[:2] == [CREATED, DELTA]
    error = socket.heard[2]["response"]["error"]
    assert error == {"code": "rate_limit_exceeded", "message": "full. Please try again in 1 s."}
    socket.asks(create(generate=False))
    socket.answers(OVERLOADED)
    assert (socket.heard[3]["status"], socket.heard[3]["headers"]) == (429, {"retry-after": "1"})
    socket.asks(create())
    socket.answers(CREATED, DELTA, {"type": "error", "error": {"code": "odd"}})
    assert socket.heard[-1]["status"] == 500, "one without a status would be overlooked"
    assert slots(proxy) == [(0, 0)]


async def test_a_held_turn_is_shed_when_the_proxy_stops(proxy):
    socket = Socket(proxy)
    proxy.driver.command(Pause())
    socket.asks(create())
    proxy.driver.close()
    await until(lambda: socket.heard)
    (frame,) = socket.heard
    assert (frame["status"], frame["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "stopping" in frame["error"]["message"]
    assert 1 <= int(frame["headers"]["retry-after"]) <= 30


async def test_a_spent_budget_and_a_blocked_account_are_told_in_a_form_that_is_not_retried(tmp_path):
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "openai.yaml").write_text(PROFILE)
    rules = tmp_path / "agents.yaml"
    rules.write_text("everyone: {budgets: [{tokens: 1}]}")
    proxy = make_proxy(tmp_path / "profiles", agents=AgentsFile(rules))
    socket = Socket(proxy)
    socket.asks(create())
    (frame,) = socket.heard
    assert (frame["status"], frame["error"]["code"]) == (400, "billing_hard_limit_reached")

    proxy = make_proxy(tmp_path / "profiles")
    socket = Socket(proxy)
    socket.asks(create())
    socket.answers(HARD[2])
    socket.asks(create("again"))
    frame = socket.heard[-1]
    assert len(socket.to_server) == 1
    assert (frame["status"], frame["error"]["type"]) == (429, "usage_limit_reached")
    assert frame["error"]["resets_at"] > 1_700_000_000


async def test_a_turn_ends_with_its_connection(proxy):
    for chain in ({}, {"previous_response_id": "resp_0"}):
        socket = Socket(proxy)
        socket.asks(create(**chain), create("behind"))
        socket.answers(CREATED)
        socket.wire.closed(by_client=False)
    socket = Socket(proxy)
    socket.asks(create())
    socket.answers(CREATED, DELTA)
    socket.wire.closed(by_client=True)
    assert ends(proxy) == [
        ("failed", "cut in the middle of the answer"),
        ("failed", "cut in the middle of the answer"),
        ("cancelled", "client gone"),
    ]
    proxy.driver.command(Pause())
    socket = Socket(proxy)
    socket.asks(create())
    socket.wire.closed(by_client=True)
    assert slots(proxy) == [(0, 0)]


async def test_a_person_cancels_a_turn_that_runs_or_waits(proxy):
    proxy.driver.call_off = lambda attempt: proxy.end_attempt(attempt, lambda flow: None, called_off=True)
    socket = Socket(proxy)
    socket.asks(create())
    (exchange,) = proxy.live.values()
    proxy.driver.command(Cancel(exchange.ticket.id))
    await until(lambda: socket.is_closed)
    assert [(frame["status"], frame["error"]["code"]) for frame in socket.heard] == [(400, "invalid_request_error")]
    proxy.driver.command(Pause())
    socket = Socket(proxy)
    socket.asks(create())
    (exchange,) = proxy.live.values()
    proxy.driver.command(Cancel(exchange.ticket.id))
    await until(lambda: socket.heard)
    assert (socket.heard[0]["status"], socket.is_closed) == (400, False)


async def test_a_client_that_has_come_back_elsewhere_ends_what_it_left(proxy):
    socket = Socket(proxy)
    socket.asks(create())
    (exchange,) = proxy.live.values()
    proxy.end_attempt(exchange._attempt, lambda flow: None)
    await until(lambda: socket.is_closed)
    assert (socket.heard, ends(proxy)) == ([], [("cancelled", "client gone")])


async def test_lanes_are_answered_beside_each_other(tmp_path):
    (tmp_path / "openai.yaml").write_text(PROFILE.replace("initial: 1, maximum: 1", "initial: 2, maximum: 2"))
    proxy = make_proxy(tmp_path)
    socket = Socket(proxy)
    one, two = create(stream_id="a"), create("other", stream_id="b")
    socket.asks(one, two)
    assert socket.to_server == [one, two]
    in_b = [frame | {"stream_id": "b"} for frame in ANSWER]
    in_a = [frame | {"stream_id": "a"} for frame in ANSWER]
    socket.answers(in_a[0], in_b[0], in_b[1], in_b[2], in_a[1])
    assert slots(proxy) == [(1, 0)]
    socket.answers(LIMITED | {"stream_id": "b"}, in_a[2])
    assert slots(proxy) == [(0, 0)]
    assert [frame["stream_id"] for frame in socket.heard if frame["type"] == "response.completed"] == ["b", "a"]


async def test_a_plans_windows_and_the_limits_in_an_errors_headers_are_read(tmp_path):
    (tmp_path / "openai.yaml").write_text(PROFILE)
    proxy = make_proxy(tmp_path)
    socket = Socket(proxy)
    windows = {"type": "codex.rate_limits", "rate_limits": {"primary": {"used_percent": 42.5, "window_minutes": 300}}}
    socket.asks(create())
    socket.answers(CREATED, windows, DELTA, DONE)
    assert socket.heard == [CREATED, windows, DELTA, DONE]
    socket.asks(create("more"))
    socket.answers(LIMITED)
    (pool,) = proxy.driver.snapshot().pools
    assert [(one.name, one.used) for one in pool.windows] == [("primary", 0.425)]
    assert [meter.limit for meter in pool.meters if meter.name == "requests"] == [50]
    socket.wire.closed(by_client=True)


async def test_frames_name_the_session_and_what_the_turn_is_for(proxy):
    socket = Socket(proxy, session_id="s-1")
    metadata = {"x-codex-turn-metadata": json.dumps({"request_kind": "compaction"}), "turn_id": "t"}
    socket.asks(create(client_metadata=metadata))
    (exchange,) = proxy.live.values()
    assert (exchange.ticket.session, exchange.ticket.kind.value) == ("s-1", "compaction")
    assert exchange.flow.request.headers.get("upgrade") is None
    socket.answers(*ANSWER)


async def test_the_connections_flow_tells_each_turn_in_a_line(proxy):
    socket = Socket(proxy)
    socket.asks(create())
    socket.answers(*ANSWER)
    socket.asks(create(previous_response_id="resp_1"))
    socket.answers(FIVE_HUNDRED)
    second, first = socket.flow.comment.split("\n")
    assert first.endswith("] turn 1")
    assert second.endswith("] turn 2")
    assert annotation_of(socket.flow).history.end
    assert len(socket.flow.websocket.messages) > 4, "somebody may read them"
    proxy.annotator.is_read = lambda: False
    socket.asks(create())
    socket.answers(*ANSWER)
    assert len(socket.flow.websocket.messages) == 4


async def test_a_fault_of_ours_makes_a_tunnel_of_it(tmp_path, monkeypatch):
    (tmp_path / "openai.yaml").write_text(PROFILE)
    proxy = make_proxy(tmp_path)
    proxy.driver.command(Pause())
    socket = Socket(proxy)
    socket.asks(create(), create("behind"))
    monkeypatch.setattr("hivemind_addon.proxy.host.turns.read_told", lambda text: 1 / 0)
    socket.answers(CREATED)
    assert socket.to_server == [create(), create("behind")]
    assert socket.heard == [CREATED]
    socket.asks(create("more"))
    assert len(socket.to_server) == 3
    assert (proxy.guard.trips, proxy.live, slots(proxy)) == (1, {}, [(0, 0)])


async def test_what_waits_behind_a_turn_whose_connection_we_end_is_never_begun(proxy):
    socket = Socket(proxy)
    socket.asks(create(), create("behind"))
    (exchange,) = proxy.live.values()
    proxy.end_attempt(exchange._attempt, lambda flow: None)
    await until(lambda: socket.is_closed)
    assert socket.to_server == [create()]
    assert ends(proxy) == [("cancelled", "client gone")]


async def test_a_fault_of_ours_leaves_no_turn_behind_whose_warm_up_is_asked_for_again(tmp_path, monkeypatch):
    (tmp_path / "openai.yaml").write_text(PROFILE)
    proxy = make_proxy(tmp_path)
    socket = Socket(proxy)
    socket.asks(create("all", generate=False))
    socket.answers(CREATED, DONE)
    turn = create("hello", previous_response_id="resp_1")
    socket.asks(turn)
    socket.answers(CREATED, OVERLOADED)
    await until(lambda: len(socket.to_server) == 3)
    monkeypatch.setattr("hivemind_addon.proxy.host.turns.read_told", lambda text: 1 / 0)
    socket.answers(CREATED)
    assert socket.to_server[3:] == [turn], "its client would wait for an answer that nobody has asked for"
    assert (proxy.guard.trips, proxy.live, slots(proxy)) == (1, {}, [(0, 0)])


async def test_a_fault_of_ours_lets_go_of_what_was_kept_back(tmp_path, monkeypatch):
    (tmp_path / "openai.yaml").write_text(PROFILE)
    proxy = make_proxy(tmp_path)
    socket = Socket(proxy)
    socket.asks(create())
    socket.answers(CREATED)
    assert socket.heard == []
    monkeypatch.setattr("hivemind_addon.proxy.host.turns.read_told", lambda text: 1 / 0)
    socket.answers(DELTA, DONE)
    assert socket.heard == list(ANSWER)


@pytest.mark.parametrize("behind", [False, True])
async def test_a_turn_that_cannot_be_begun_goes_as_it_came(tmp_path, monkeypatch, behind):
    (tmp_path / "openai.yaml").write_text(PROFILE)
    proxy = make_proxy(tmp_path)
    socket = Socket(proxy)
    if behind:
        socket.asks(create("first"), create())
    monkeypatch.setattr("hivemind_addon.proxy.gate.websocket._plain", lambda flow, turn: 1 / 0)
    if behind:
        socket.answers(*ANSWER)
    else:
        socket.asks(create())
    assert socket.to_server[-1] == create()
    assert (proxy.guard.trips, proxy.live) == (1, {})


@pytest.mark.parametrize("begun", [(), (CREATED,), (CREATED, DELTA)], ids=["no frame", "it thinks", "content"])
async def test_a_turn_that_has_begun_may_be_silent_for_minutes_and_not_for_ever(proxy, begun):
    proxy.driver.clock = clock = FakeClock(proxy.driver.clock.monotonic())
    socket = Socket(proxy)
    socket.asks(create())
    socket.answers(*begun)
    (turn,) = proxy._turns.values()
    clock.advance(899)
    for _ in ("released", "kept alive"):
        turn.rings()
        socket.write()
    assert not socket.is_closed
    assert socket.to_client[-1] == {"type": "hivemind.held"}
    clock.advance(1)
    turn.rings()
    socket.write()
    assert socket.is_closed
    assert ends(proxy) == [("failed", "stalled")]
