"""What a peer may cost: its heads, its interim answers and its frames are bounded, and no word of ours quotes them."""

import itertools
from types import SimpleNamespace

import h2.config
import h2.connection
import h11
import hpack
import pytest
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from hyperframe import frame as h2_frame
from mitmproxy import http
from mitmproxy.connection import ConnectionState, Server
from mitmproxy.net.http import http1
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layer import NextLayerHook
from mitmproxy.proxy.layers import TCPLayer
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestTrailers,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
    ResponseTrailers,
)
from mitmproxy.proxy.layers.http._http1 import Http1Client, Http1Server
from mitmproxy.proxy.mode_specs import ProxyMode

from hivemind_addon.proxy.host import connections as ours
from hivemind_addon.proxy.host.http_layer import SchedulingHttpLayer
from hivemind_addon.proxy.host.upstream_client import GracefulHttp2Client
from tests.cases import each
from tests.cpu_time import least_cpu_s
from tests.proxy.gate.playbook import Playbook, make_context
from tests.proxy.host.test_stream import FakePort, named, play, request, response

SECRET = b"sk-ant-api03-echoed-by-the-provider"
READ = 65535
"""So much mitmproxy reads at a time."""
LOOP_S = 0.05


def asked(path="/other"):
    """The layer with one request sent: one that is streamed as mitmproxy does, unless its path is `/ours`."""
    book, port = play()
    book.from_client(request(path))
    assert book.opened
    return book, port


# Heads ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nx-key: " + SECRET * 2500, "longer than 64 KB"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: %s\r\n" % SECRET * 257 + b"\r\n", "more than 256 fields"),
        (b"%s\r\n\r\n" % SECRET, "no HTTP/1"),
        (b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % SECRET, "no HTTP/1"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: %s\r\n\r\n" % SECRET, "how long the body is"),
        (b"HTTP/1.1 200 OK\r\nx y %s: 1\r\ncontent-length: 0\r\n\r\n" % SECRET, "invalid fields"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: %s\r\n\r\n" % SECRET * 17, "interim answers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("path", ["/ours", "/other"])
def test_a_providers_bad_head_is_refused_and_nothing_of_it_is_told(path, head, why, caplog):
    book, port = asked(path)
    for start in range(0, len(head), READ):
        book.from_server(head[start : start + READ])
    assert book.to_client.startswith(b"HTTP/1.1 502 Bad Gateway")
    assert why.encode() in book.to_client
    assert book.opened[0].state is ConnectionState.CLOSED
    assert b"sk-ant" not in book.to_client + repr(book.hooks).encode() + caplog.text.encode()
    if path == "/ours":
        assert port.exchanges[0].told[-1] == "failed INVALID"


def test_a_head_that_ends_in_its_middle_is_not_quoted():
    book, _ = asked("/ours")
    book.from_server(b"HTTP/1.1 200 OK\r\nx-key: " + SECRET)
    book.close(book.opened[0])
    assert b"closed in the middle" in book.to_client
    assert SECRET not in book.to_client


def test_an_endless_head_takes_no_time():
    def endless():
        book, _ = asked()
        for _ in range(100):
            if book.opened[0].state is ConnectionState.CLOSED:
                return
            book.from_server(b"x" * READ)
        pytest.fail("it goes on")

    assert least_cpu_s(endless) < LOOP_S


def test_a_clients_endless_head_is_refused_and_not_quoted():
    book, _ = play()
    book.from_client(b"GET http://origin.test/ HTTP/1.1\r\nauthorization: " + SECRET)
    book.from_client(b"x" * READ)
    assert book.to_client.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"longer than 64 KB" in book.to_client
    assert b"sk-ant" not in book.to_client
    assert book.client.state is ConnectionState.CLOSED


@pytest.mark.parametrize(
    "head",
    [
        b"GET http://origin.test/ HTTP/1.1\r\n%s\r\n\r\n" % SECRET,
        b"GET http://origin.test/ %s\r\n\r\n" % SECRET,
        b"POST http://origin.test/ HTTP/1.1\r\nhost: a\r\ncontent-length: %s\r\n\r\n" % SECRET,
    ],
    ids=["field", "version", "length"],
)
def test_a_clients_malformed_head_is_refused_and_not_quoted(head):
    book, _ = play()
    book.from_client(head)
    assert book.to_client.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"bad head" in book.to_client
    assert b"sk-ant" not in book.to_client + b"".join(str(log.message).encode() for log in book.logs)


def test_interim_answers_are_passed_over():
    book, port = asked("/ours")
    book.from_server(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 ")
    assert book.to_client == b""
    book.from_server(b"102 Processing\r\n\r\n" + response(200, b"the answer"))
    assert book.to_client == named(response(200, b"the answer"))
    assert [word for word in port.exchanges[0].told if word.startswith("head")] == ["head 200"]


def test_the_interim_answers_of_one_request_are_not_the_next_ones():
    book, _ = asked("/ours")
    for _ in range(3):
        book.from_server(b"HTTP/1.1 100 Continue\r\n\r\n" * 200)  # as a proxy like ours holds a call
        book.from_server(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * ours.MOST_INTERIMS + response())
        book.from_client(request())
    assert book.to_client.count(b"HTTP/1.1 200 X") == 3
    assert len(book.opened) == 1


# Bodies ---------------------------------------------------------------------------------------------------------------

CHUNKED = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n6\r\nanswer\r\n"


@pytest.mark.parametrize("path", ["/ours", "/other"])
def test_an_answer_with_trailers_comes_to_its_end(path):
    book, _ = asked(path)
    book.from_server(CHUNKED + b"0\r\nx-cost: 3\r\n\r\n")
    assert book.to_client.startswith(b"HTTP/1.1 200 X")
    assert book.to_client.endswith(b"\r\n6\r\nanswer\r\n0\r\n\r\n")
    book.from_client(request(path))
    book.from_server(response())
    assert book.to_client.endswith(named(response()) if path == "/ours" else response())
    assert len(book.opened) == 1


@pytest.mark.parametrize(
    "rest",
    [b"%s\r\n" % SECRET, b"6\r\nanswer%s" % SECRET, b"1" * 2 * READ, b"0\r\nx-cost: " + b"3" * 2 * READ],
    ids=["chunk", "end of chunk", "endless chunk head", "endless trailers"],
)
def test_a_body_in_bad_chunks_is_a_cut_and_not_quoted(rest):
    book, port = asked("/ours")
    book.from_server(CHUNKED)
    for start in range(0, len(rest), READ):
        book.from_server(rest[start : start + READ])
    assert port.exchanges[0].told[-1] == "failed CUT"
    assert b"sk-ant" not in book.to_client
    assert book.opened[0].state is ConnectionState.CLOSED


def test_an_h2_answers_trailers_do_not_stop_an_h1_client():
    book = Playbook(ours.BoundedHttp1Server(make_context()))
    book.from_client(request())
    answer = http.Response.make(200, b"answer")
    for event in (
        ResponseHeaders(1, answer),
        ResponseData(1, b"answer"),
        ResponseTrailers(1, http.Headers([(b"x-cost", b"3")])),
        ResponseEndOfMessage(1),
    ):
        book.tell(event)
    assert book.to_client.endswith(b"\r\n\r\nanswer")


def test_an_h2_requests_trailers_do_not_stop_an_h1_provider():
    context = make_context()
    context.server = Server(address=("127.0.0.1", 9))
    book = Playbook(ours.BoundedHttp1Client(context))
    asked = http.Request.make("POST", "http://origin.test/", b"question")
    for event in (
        RequestHeaders(1, asked, end_stream=False),
        RequestData(1, b"question"),
        RequestTrailers(1, http.Headers([(b"x-cost", b"3")])),
        RequestEndOfMessage(1),
    ):
        book.tell(event)
    assert book.sent[context.server].endswith(b"\r\n\r\nquestion")


def play_h2(path, pieces, *, method="POST", headers=(), trailers=(), retry=False):
    """What an HTTP/1.1 provider gets of an HTTP/2 client's request; all but `/ours` passes as it comes."""

    def on_hook(hook):
        if hook.name == "requestheaders":
            hook.flow.request.stream = hook.flow.request.path in ("/other", "/ours/long")

    port = FakePort((lambda exchange: exchange.retry.append(True)) if retry else (lambda exchange: None))
    context = make_context()
    context.client.alpn = b"h2"
    book = Playbook(SchedulingHttpLayer(context, HTTPMode.regular, port), on_hook=on_hook)
    client = h2.connection.H2Connection(
        h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
    )
    client.initiate_connection()
    pseudo = {":method": method, ":scheme": "http", ":authority": "origin.test", ":path": path}
    client.send_headers(1, [*pseudo.items(), *headers], end_stream=not pieces and not trailers)
    for number, piece in enumerate(pieces, 1):
        client.send_data(1, piece, end_stream=number == len(pieces) and not trailers)
        book.from_client(client.data_to_send())
    if trailers:
        client.send_headers(1, trailers, end_stream=True)
    book.from_client(client.data_to_send())
    return book


def as_provider(sent):
    """The requests that a provider reads in what it got: head by name and body of each."""
    provider, found = h11.Connection(h11.SERVER), []
    provider.receive_data(sent)
    while (event := provider.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        if isinstance(event, h11.Request):
            found.append(({name.decode(): value.decode() for name, value in event.headers}, b""))
        elif isinstance(event, h11.Data):
            found[-1] = found[-1][0], found[-1][1] + bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            found[-1][0]["ended"] = "yes"
            assert not event.headers
    assert provider.trailing_data == (b"", False)
    return found


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("path", ["/other", "/other-kept", "/ours", "/ours/long"])
@pytest.mark.parametrize("trailers", [(), (("x-cost", "3"),)])
@pytest.mark.parametrize("pieces", [(SMUGGLED,), (b"x", b"", SMUGGLED), (b"x" * 16_000, b"", b""), (b"",), ()])
def test_an_h2_request_without_a_length_is_one_request_of_an_h1_provider(path, trailers, pieces):
    """HTTP/2 needs to say none. An empty piece in its middle is no end."""
    ((head, body),) = as_provider(play_h2(path, pieces, trailers=trailers).to_server())
    assert body == b"".join(pieces)
    assert head["ended"]
    assert ("content-length" in head) + ("transfer-encoding" in head) <= 1


def test_an_h2_request_with_a_length_keeps_it_and_one_that_waits_for_a_continue_gets_it():
    length = ("content-length", str(len(SMUGGLED)))
    for path in ("/other", "/ours"):
        book = play_h2(path, (SMUGGLED,), headers=[length, ("expect", "100-continue")])
        ((head, body),) = as_provider(book.to_server())
        assert (head["content-length"], "transfer-encoding" in head, "expect" in head) == (length[1], False, False)
        assert body == SMUGGLED


def test_an_h2_request_that_is_sent_again_is_framed_again():
    book = play_h2("/ours", (b"question",), retry=True)
    book.from_server(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n")
    assert len(book.opened) == 2
    for number in range(2):
        ((_, body),) = as_provider(book.to_server(number))
        assert body == b"question"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET /smuggled HTTP/1.1", "/other"),
        ("POST\t", "/other"),
        ("POST", "/other x"),
        ("POST", "/other\tx"),
        ("POST", "http://evil.test/other"),
        ("POST", "*/other"),
    ],
)
def test_an_h2_request_whose_line_would_be_another_request_of_http1_is_refused(method, path):
    book = play_h2(path, (b"x",), method=method)
    assert not book.opened
    assert book.client.state is ConnectionState.CLOSED
    assert play_h2("*", (), method="OPTIONS").opened


# HTTP/2 ---------------------------------------------------------------------------------------------------------------


class Peer:
    """The other end of one of our HTTP/2 connections."""

    def __init__(self, layer_type):
        context = make_context()
        context.server = Server(address=("127.0.0.1", 9))
        context.server.state, context.server.alpn = ConnectionState.OPEN, b"h2"
        self.layer = layer_type(context)
        self.is_client = layer_type is ours.BoundedHttp2Server
        self.commands = []
        self.clock_s = 0.0
        config = h2.config.H2Configuration(client_side=self.is_client, header_encoding=False)
        self.h2 = h2.connection.H2Connection(config)
        self.layer.h2_conn.frames = ours.Frames(lambda: self.clock_s, from_client=self.is_client)
        self.h2.initiate_connection()
        self.tell(events.Start())
        if self.is_client:
            self.say()

    def tell(self, event):
        self.commands += (told := list(self.layer.handle_event(event)))
        for command in told:
            if isinstance(command, commands.SendData) and not self.is_closed:
                self.h2.receive_data(command.data)

    def ask(self):
        """One request of ours, to a provider."""
        self.tell(
            RequestHeaders(
                1, http.Request.make("POST", "https://origin.test/", b"", {"host": "origin.test"}), end_stream=True
            )
        )
        self.say()

    def say(self, data=None):
        """Send bytes, or what the library has to say; as mitmproxy reads them, until the connection is closed."""
        data = self.h2.data_to_send() if data is None else data
        for start in range(0, len(data), READ):
            if self.is_closed:
                return
            self.tell(events.DataReceived(self.layer.conn, data[start : start + READ]))

    @property
    def is_closed(self):
        return any(isinstance(command, commands.CloseConnection) for command in self.commands)

    @property
    def errors(self):
        received = (command.event for command in self.commands if isinstance(command, ReceiveHttp))
        return [event.message for event in received if isinstance(event, ResponseProtocolError)]

    @property
    def words(self):
        return repr(self.errors) + "".join(
            command.message for command in self.commands if isinstance(command, commands.Log)
        )


def provider():
    peer = Peer(GracefulHttp2Client)
    peer.ask()
    return peer


def client():
    return Peer(ours.BoundedHttp2Server)


def resets(count):
    encoder = hpack.Encoder()
    head = [(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", "origin.test")]
    return b"".join(
        h2_frame.HeadersFrame(number, encoder.encode(head), flags=["END_HEADERS", "END_STREAM"]).serialize()
        + h2_frame.RstStreamFrame(number, 8).serialize()
        for number in range(1, 2 * count, 2)
    )


def many_settings(count):
    return h2_frame.SettingsFrame(0, settings={0x1000 + number: 1 for number in range(count)}).serialize()


def heads(count, status):
    encoder = hpack.Encoder()
    return b"".join(
        h2_frame.HeadersFrame(1, encoder.encode([(":status", status)]), flags=["END_HEADERS"]).serialize()
        for _ in range(count)
    )


@pytest.mark.parametrize("answers", [True, False])
def test_a_provider_that_is_silent_and_answers_pings_is_left_alone_and_a_dead_one_is_found_in_three_minutes(
    monkeypatch, answers
):
    now = [1000.0]
    monkeypatch.setattr("mitmproxy.proxy.layers.http._http2.time", SimpleNamespace(time=lambda: now[0]))
    peer = provider()
    lost_after_s = None
    for _ in range(10):
        (*_, alarm) = (command for command in peer.commands if isinstance(command, commands.RequestWakeup))
        now[0] += alarm.delay
        peer.tell(events.Wakeup(alarm))
        if peer.is_closed:
            lost_after_s = now[0] - 1000
            break
        if answers:
            peer.say()
    assert peer.errors == ([] if answers else ["no answer to HTTP/2 pings"])
    assert lost_after_s is None if answers else 150 < lost_after_s < 180


FLOODS = {
    "settings": h2_frame.SettingsFrame(0, settings={4: 65535}).serialize() * 20_000,
    "settings of many": many_settings(10_000) * 20,
    "ping": h2_frame.PingFrame(0, b"12345678").serialize() * 20_000,
    "empty data": heads(1, "200") + h2_frame.DataFrame(1, b"").serialize() * 20_000,
    "tiny data": heads(1, "200") + h2_frame.DataFrame(1, b"x").serialize() * 20_000,
    "window updates": h2_frame.WindowUpdateFrame(0, 1).serialize() * 20_000,
    "priority": h2_frame.PriorityFrame(1, depends_on=3).serialize() * 20_000,
    "resets of nothing": h2_frame.RstStreamFrame(1, 0).serialize() * 20_000,
    "unknown": h2_frame.ExtensionFrame(0xBB, 1, flag_byte=0, body=b"").serialize() * 20_000,
    "interim answers": heads(20_000, "103"),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_providers_flood_of_frames_that_carry_nothing_costs_a_moment_and_its_connection(flood):
    peers = []

    def run():
        peers.append(provider())
        peers[-1].say(FLOODS[flood])

    assert least_cpu_s(run) < LOOP_S
    assert all(peer.is_closed for peer in peers)
    assert "HTTP/2 protocol error" in peers[0].errors[0]


@pytest.mark.parametrize("flood", ["settings", "ping", "window updates", "rapid resets"])
def test_a_clients_flood_costs_a_moment_and_its_connection(flood):
    data = FLOODS.get(flood) or resets(20_000)

    def run():
        layer = SchedulingHttpLayer(make_context(), HTTPMode.regular, FakePort())
        layer.context.client.alpn = b"h2"
        book = Playbook(layer, on_hook=lambda hook: False)
        book.from_client(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + h2_frame.SettingsFrame(0).serialize())
        for start in range(0, len(data), READ):
            if book.client.state is ConnectionState.CLOSED:
                return
            book.from_client(data[start : start + READ])
        pytest.fail("it goes on")

    assert least_cpu_s(run) < LOOP_S


def test_what_a_provider_says_in_the_course_of_a_day_is_no_flood():
    peer = provider()
    for _ in range(1000):
        peer.clock_s += 60
        peer.say(h2_frame.PingFrame(0, b"12345678").serialize() * 10 + h2_frame.SettingsFrame(0).serialize())
    assert not peer.is_closed


def test_a_stream_of_short_lines_however_fast_is_no_flood():
    """A server that sends each line of an event by itself, some of them nearly empty."""
    peer = provider()
    event = (b"event: content_block_delta\n", b'data: {"type":"content_block_delta","delta":{"text":" a"}}\n', b"\n")
    peer.say(heads(1, "200"))
    for _ in range(2000):
        peer.say(b"".join(h2_frame.DataFrame(1, line).serialize() for line in event))
    assert not peer.is_closed


def test_window_updates_for_what_we_send_are_no_flood():
    """A provider tells that it has read a body of 50 MB, piece by piece."""
    peer = provider()
    upload = http.Request.make("POST", "https://origin.test/", b"", {"host": "origin.test"})
    del upload.headers["content-length"]
    peer.tell(RequestHeaders(3, upload, end_stream=False))
    sent = 0
    while sent < 50_000_000:
        window = min(peer.h2.inbound_flow_control_window, 4 * 16_384)
        peer.tell(RequestData(3, b"x" * window))
        sent += window
        for _ in range(window // 2048):
            peer.say(h2_frame.WindowUpdateFrame(0, 2048).serialize() + h2_frame.WindowUpdateFrame(3, 2048).serialize())
            peer.h2._inbound_flow_control_window_manager.window_opened(2048)
            peer.h2._get_stream_by_id(3)._inbound_window_manager.window_opened(2048)
    assert not peer.is_closed


def test_a_client_may_cancel_all_its_requests_at_once():
    peer = client()
    peer.say(resets(100))
    assert not peer.is_closed


def test_a_head_of_many_frames_that_does_not_end_is_refused():
    peer = provider()
    peer.say(h2_frame.HeadersFrame(1, b"").serialize() + h2_frame.ContinuationFrame(1, b"x" * 60_000).serialize() * 60)
    assert peer.is_closed
    assert "longer than 64 KB" in peer.errors[0]
    assert len(peer.layer.h2_conn.incoming_buffer._headers_buffer) <= 4


@pytest.mark.parametrize(
    "fields",
    [
        [(":status", "200"), *((f"x-{number}", SECRET) for number in range(257))],
        [(":status", SECRET)],
        [(":status", "200"), ("X-UPPER-" + SECRET.decode(), "1")],
        [(":status", "200"), ("x y " + SECRET.decode(), "1")],
        [(":status", "200"), ("content-length", SECRET)],
        [(":status", "200"), ("x", SECRET * 3000)],
    ],
    ids=["many fields", "status", "upper case", "space", "length", "long"],
)
def test_an_h2_providers_bad_head_is_refused_and_nothing_of_it_is_told(fields):
    peer = provider()
    block = hpack.Encoder().encode(fields)
    parts = [block[start : start + 16_000] for start in range(0, len(block), 16_000)]
    frames = [h2_frame.HeadersFrame(1, parts[0]), *(h2_frame.ContinuationFrame(1, part) for part in parts[1:])]
    frames[-1].flags.add("END_HEADERS")
    peer.say(b"".join(frame.serialize() for frame in frames))
    assert peer.is_closed
    assert len(peer.errors) == 1
    assert "sk-ant" not in peer.words


def test_a_goaways_debug_data_is_not_told():
    peer = provider()
    peer.say(h2_frame.GoAwayFrame(0, last_stream_id=0, error_code=11, additional_data=SECRET).serialize())
    assert peer.is_closed
    assert "ENHANCE_YOUR_CALM" in peer.errors[0]
    assert "sk-ant" not in peer.words


# Through another proxy ------------------------------------------------------------------------------------------------


def through(answer, request=b"GET http://origin.test/ HTTP/1.1\r\nhost: origin.test\r\n\r\n", mode=HTTPMode.regular):
    """What becomes of a request, and of a client's CONNECT, whose proxy answers so to ours."""
    context = make_context()
    context.client.proxy_mode = ProxyMode.parse("upstream:http://corp.test:3128")
    context.server.via = ("http", ("corp.test", 3128))
    context.server.address = ("origin.test", 80)

    def on_hook(hook):
        if isinstance(hook, NextLayerHook):
            hook.data.layer = TCPLayer(hook.data.context, ignore=True)

    book = Playbook(SchedulingHttpLayer(context, mode, FakePort()), on_hook=on_hook)
    book.from_client(request)
    if mode is HTTPMode.upstream:
        book.from_client(b"what is in the tunnel")
    assert book.to_server().startswith(b"CONNECT origin.test:")
    for start in range(0, len(answer), READ):
        if book.opened[-1].state is ConnectionState.CLOSED:
            break
        book.from_server(answer[start : start + READ])
    return book


@pytest.mark.parametrize("mode", [HTTPMode.regular, HTTPMode.upstream])
def test_what_a_proxy_answers_to_connect_is_bounded_and_not_told(mode):
    connect = b"CONNECT origin.test:443 HTTP/1.1\r\nhost: origin.test:443\r\n\r\n"
    request = {"request": connect, "mode": mode} if mode is HTTPMode.upstream else {}
    for answer in (
        b"HTTP/1.1 200 " + SECRET * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300 + b"\r\n",
        SECRET + b"\r\n\r\n",
        b"HTTP/1.1 403 " + SECRET + b"\r\n\r\n",
    ):
        book = through(answer, **request)
        assert book.opened[-1].state is ConnectionState.CLOSED
        told = book.to_client + repr([log.message for log in book.logs]).encode()
        assert SECRET not in told


def test_a_proxy_that_connects_is_gone_through():
    book = through(b"HTTP/1.1 200 Connection established\r\nvia: x\r\n\r\n")
    assert book.to_server().endswith(b"GET / HTTP/1.1\r\nhost: origin.test\r\n\r\n")
    book.from_server(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert book.to_client.startswith(b"HTTP/1.1 204")


# Ends


ASKED = [
    b"POST / HTTP/1.1\r\n",
    b"HEAD / HTTP/1.1\r\n",
    b"POST / HTTP/1.0\r\n",
    b"CONNECT origin.test:443 HTTP/1.1\r\n",
    b"POST / HTTP/1.1\r\nconnection: close\r\n",
    b"POST / HTTP/1.1\r\nConnection: Keep-Alive\r\n",
]
ANSWERED = [
    b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 1, 1\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: x, close\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: keep-alive\r\n",
    b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n",
    b"HTTP/2.0 200 OK\r\ncontent-length: 3\r\n",
    b"HTTP/1.1 101 Switching\r\n",
    b"HTTP/1.1 204 No Content\r\n",
]


@pytest.mark.parametrize(
    ("kind", "base"), [(ours.BoundedHttp1Server, Http1Server), (ours.BoundedHttp1Client, Http1Client)]
)
@pytest.mark.parametrize("behind", [b"", b"GET"])
def test_a_connection_goes_on_after_a_message_where_mitmproxys_does(kind, base, behind):
    went_on = 0
    for asked, answered in itertools.product(ASKED, ANSWERED):
        states = []
        for mark_done in (kind.mark_done, base.mark_done):
            context = make_context()
            context.server = Server(address=("origin.test", 80))
            connection = kind(context)
            connection.request = http1.read_request_head((asked + b"x: y").split(b"\r\n"))
            connection.response = http1.read_response_head((answered + b"x: y").split(b"\r\n"))
            connection.stream_id = 5
            connection.state = connection.read_headers
            connection.buf += behind
            told = [type(each) for each in mark_done(connection, request=True)]
            told += [type(each) for each in mark_done(connection, response=True)]
            told += [connection.state.__name__, connection.stream_id, connection.request is None]
            states.append([*told, connection.request_done, connection.response_done])
        assert states[0] == states[1], (asked, answered)
        went_on += connection.state == connection.read_headers
    assert went_on > 10


# Bodies


def test_a_provider_can_be_asked_again_at_the_end_of_its_answer():
    """As a retry that goes at once does, with hooks that are called at once."""
    context = make_context()
    context.server = Server(address=("origin.test", 80))
    context.server.state = ConnectionState.OPEN
    client = ours.BoundedHttp1Client(context)
    assert list(client.handle_event(events.Start())) == []
    for stream_id in (1, 3):
        ask = http.Request.make("GET", "http://origin.test/")
        sent = list(client.handle_event(RequestHeaders(stream_id, ask, end_stream=True)))
        sent += client.handle_event(RequestEndOfMessage(stream_id))
        assert b"".join(command.data for command in sent).startswith(b"GET / HTTP/1.1")
        answer = client.handle_event(events.DataReceived(context.server, response(body=b"x")))
        for command in answer:
            if isinstance(command.event, (ResponseEndOfMessage, ours.WholeResponse)):
                assert client.stream_id is None
                break
        else:
            pytest.fail("it does not end")


@pytest.mark.parametrize(("path", "pieces"), [("/ours", [b"abcdef"]), ("/other", [b"a", b"bc", b"def"])])
def test_a_body_of_known_length_comes_in_one_piece_where_it_is_kept(path, pieces):
    seen = []
    book, port = play()
    # Its listeners are called at once; the addon says what is streamed.
    port.call_hook = lambda hook: setattr(hook.flow.request, "stream", not port.is_ours(hook.flow))
    whole = request(path, b"abcdef") + request(path, b"next")
    head = whole.index(b"\r\n\r\n") + 4
    server = book.layer.connections[book.client]
    handle = server._handle_event
    server._handle_event = lambda event: noted(handle(event), seen)
    for start, end in ((0, head + 1), (head + 1, head + 3), (head + 3, len(whole))):
        book.from_client(whole[start:end])
    book.from_server(response())
    assert seen[: len(pieces)] == pieces
    assert b"".join(seen).startswith(b"abcdef")


@pytest.mark.parametrize("path", ["/ours", "/other"])
@pytest.mark.parametrize("first", [20_000, 50_000])
def test_a_head_with_much_behind_it_is_read_as_any(path, first):
    seen = []
    book, port = play()
    port.call_hook = lambda hook: setattr(hook.flow.request, "stream", not port.is_ours(hook.flow))
    body, empty_lines = bytes(range(256)) * 160, b"\r\n\r\n"
    whole = empty_lines + request(path, body) + request(path, b"next")
    server = book.layer.connections[book.client]
    handle = server._handle_event
    server._handle_event = lambda event: noted(handle(event), seen)
    for start, end in ((0, first), (first, len(whole))):
        if whole[start:end]:
            book.from_client(whole[start:end])
    book.from_server(response())
    told = b"".join(seen)
    assert told.startswith(body)
    assert {type(piece) for piece in seen} == {bytes}
    assert path == "/other" or seen[0] == body


def noted(commands_, seen):
    for command in commands_:
        if isinstance(command, ReceiveHttp) and isinstance(command.event, RequestData):
            seen.append(command.event.data)
        if isinstance(command, ReceiveHttp) and isinstance(command.event, ours.WholeRequest):
            seen.append(command.event.content)
        yield command


def test_a_client_that_leaves_in_the_middle_of_a_body_is_told_apart_from_one_that_is_done():
    book, port = play()
    whole = request(body=b"x" * 1000)
    book.from_client(whole[:-900])
    book.from_client(whole[-900:-500])
    book.close(book.client)
    assert port.exchanges == []
    (error,) = [hook.flow.error for hook in book.hooks if hook.name == "error"]
    assert "received 500 bytes, expected 1000" in error.msg


def test_chunks_that_come_together_are_one_piece_and_what_follows_is_told_after_it():
    reader, buf = ours._body_reader(None), ReceiveBuffer()
    buf += b"2\r\nab\r\n3\r\ncde\r\n2\r\nf"
    assert (reader(buf).data, reader(buf)) == (b"abcdef", None)
    buf += b"g\r\n0\r\n\r\n"
    assert reader(buf).data == b"g"
    assert isinstance(reader(buf), h11.EndOfMessage)
    broken, buf = ours._body_reader(None), ReceiveBuffer()
    buf += b"2\r\nab\r\nno number\r\n"
    assert broken(buf).data == b"ab"
    with pytest.raises(h11.ProtocolError, match="malformed chunk"):
        broken(buf)


CHUNKED_BODIES = {
    "whole": b"2\r\nab\r\n1F\r\n" + b"x" * 31 + b"\r\n0\r\n\r\n",
    "extensions, zeros, trailers": b"02;a=b\r\nab\r\n3 \r\ncde\r\n00\r\nt: x\r\n\r\n",
    "line ends inside": b"4\r\n\r\n0\r\r\n5\r\n0\r\n\r\n\r\n0\r\n\r\n",
    "no line end after the data": b"2\r\nab\r\n2\r\ncdXX0\r\n\r\n",
    "no number": b"2\r\nab\r\n-1\r\ncd\r\n0\r\n\r\n",
    "cut": b"2\r\nab\r\n9\r\ncd",
}


def read_by(reader, pieces):
    """The bytes of a chunked body that comes in pieces, and how it ends."""
    buf, body = ReceiveBuffer(), b""
    for piece in pieces:
        buf += piece
        while True:
            try:
                event = reader(buf)
            except h11.ProtocolError:
                return body, "broken"
            if isinstance(event, h11.EndOfMessage):
                return body, "end"
            if event is None:
                break
            body += event.data
    return body, "open"


@each("body", CHUNKED_BODIES.values())
def test_wherever_a_chunked_body_is_cut_it_is_read_as_h11_reads_it(body):
    expected = read_by(ChunkedReader(), [body])
    cuts = [(first, second) for first in range(len(body)) for second in range(first, len(body))]
    for first, second in cuts:
        pieces = body[:first], body[first:second], body[second:]
        assert read_by(ours._body_reader(None), pieces) == expected, pieces
