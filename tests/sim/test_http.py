"""Both versions of HTTP, as raw clients see them."""

import asyncio
import hashlib
import json
import socket
from collections.abc import Callable, Iterator

import pytest

from hivemind_addon.sim.exchange import ConnectionLog, Incoming, WriteGate, pause
from tests.cases import each
from tests.patience import PATIENCE_S

from .clients import H2Client, Heard2, call_body, h1_request, hear

CLOSE = "connection: close\r\n"


def read_answer(stream) -> tuple[int, dict[str, str], bytes]:
    status = int(stream.readline().split()[1])
    headers = {}
    while (line := stream.readline().decode().strip()) != "":
        name, _, value = line.partition(": ")
        headers[name] = value
    return status, headers, stream.read(int(headers.get("content-length", 0)))


def test_requests_share_one_connection(plain, new_key):
    key = new_key()
    with socket.create_connection((plain.host, plain.port), timeout=PATIENCE_S) as connection:
        stream = connection.makefile("rb")
        attempts = []
        for _ in range(3):
            connection.sendall(h1_request(key, call_body()))
            status, headers, _ = read_answer(stream)
            attempts.append((status, headers["x-sim-attempt"]))
    assert attempts == [(200, "1"), (200, "2"), (200, "3")]


def test_pipelined_requests_are_answered_in_order(plain, new_key):
    slow, fast = new_key(), new_key()
    with socket.create_connection((plain.host, plain.port), timeout=PATIENCE_S) as connection:
        stream = connection.makefile("rb")
        first = h1_request(slow, call_body(text="first"), extra="x-sim-latency-ms: 30\r\n")
        connection.sendall(first + h1_request(fast, call_body(text="second"), extra="x-sim-chunks: 2\r\n"))
        sizes = [json.loads(read_answer(stream)[2])["usage"]["output_tokens"] for _ in range(2)]
    assert sizes == [8, 2]


@each("piece", [1, 7, 1000])
def test_a_chunked_request_is_read_at_any_boundary(plain, new_key, piece):
    body = call_body()
    chunks = b"".join(
        b"%x;ext=1\r\n%b\r\n" % (len(body[at : at + 50]), body[at : at + 50]) for at in range(0, len(body), 50)
    )
    head = (
        f"POST /v1/messages HTTP/1.1\r\nHost: sim\r\nx-api-key: {new_key()}\r\ntransfer-encoding: chunked\r\n\r\n"
    ).encode()
    data = head + chunks + b"0\r\nTrailer: x\r\n\r\n"
    with socket.create_connection((plain.host, plain.port), timeout=PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), piece):
            connection.sendall(data[at : at + piece])
        status, _, answer = read_answer(connection.makefile("rb"))
    assert status == 200
    assert json.loads(answer)["usage"]["input_tokens"] == len(body) // 4


def test_a_large_body_is_read(plain, new_key):
    body = call_body(text="x" * 600_000)
    heard = hear(plain.port, h1_request(new_key(), body, extra=CLOSE))
    assert json.loads(heard.body)["usage"]["input_tokens"] == len(body) // 4


def test_a_client_that_waits_for_continue_is_told_to_go_on(plain, new_key):
    body = call_body()
    head, _, _ = h1_request(new_key(), body, extra="expect: 100-continue\r\n").partition(b"\r\n\r\n")
    with socket.create_connection((plain.host, plain.port), timeout=PATIENCE_S) as connection:
        stream = connection.makefile("rb")
        connection.sendall(head + b"\r\n\r\n")
        assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert stream.readline() == b"\r\n"
        connection.sendall(body)
        assert read_answer(stream)[0] == 200


def test_an_old_client_gets_an_answer_that_ends_with_the_connection(plain, new_key):
    request = h1_request(new_key(), call_body(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    heard = hear(plain.port, request)
    assert b"transfer-encoding" not in heard.head
    assert heard.body.endswith(b'{"type":"message_stop"}\n\n')


@each(
    "request_",
    [
        b"NOT A REQUEST AT ALL\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
        b"x" * 70_000,
    ],
)
def test_what_is_no_http_is_refused_and_the_connection_closed(plain, request_):
    assert hear(plain.port, request_).status == 400


def test_a_streamed_answer_comes_in_chunks(plain, new_key):
    heard = hear(plain.port, h1_request(new_key(), call_body(stream=True), extra=CLOSE))
    assert b"transfer-encoding: chunked" in heard.head
    assert heard.body.endswith(b"\r\n0\r\n\r\n")


def test_reset_before_the_head_is_an_rst_without_a_byte(plain, new_key, faults_of):
    heard = hear(plain.port, h1_request(faults_of("reset-before-head"), call_body()))
    assert (heard.data, heard.reset) == (b"", True)


def test_close_before_the_head_is_an_end_of_file_without_a_byte(plain, faults_of):
    heard = hear(plain.port, h1_request(faults_of("close-before-head"), call_body()))
    assert (heard.data, heard.reset) == (b"", False)


@each("stream", [True, False])
def test_a_head_may_be_followed_by_an_rst(plain, faults_of, stream):
    heard = hear(plain.port, h1_request(faults_of("head-then-reset"), call_body(stream=stream)))
    assert (heard.status, heard.body, heard.reset) == (200, b"", True)


@each(("fault", "reset"), [("body-cut", False), ("body-reset", True)])
def test_a_cut_body_is_shorter_than_content_length(plain, faults_of, fault, reset):
    heard = hear(plain.port, h1_request(faults_of(fault), call_body()))
    length = int(heard.head.partition(b"content-length: ")[2].split(b"\r\n")[0])
    assert 0 < len(heard.body) < length
    assert heard.reset is reset


def test_a_cut_chunked_body_lacks_its_last_chunk(plain, faults_of):
    heard = hear(plain.port, h1_request(faults_of("body-cut-chunked"), call_body()))
    assert b"transfer-encoding: chunked" in heard.head
    assert heard.body
    assert not heard.body.endswith(b"0\r\n\r\n")


@each(("fault", "reset"), [("stream-close", False), ("stream-reset", True)])
def test_a_cut_stream_has_content_and_no_end(plain, faults_of, fault, reset):
    heard = hear(plain.port, h1_request(faults_of(fault), call_body(stream=True)))
    assert heard.body.count(b"event: content_block_delta") == 4
    assert b"message_stop" not in heard.body
    assert heard.reset is reset


def test_goaway_on_http1_closes_after_a_whole_answer(plain, faults_of):
    heard = hear(plain.port, h1_request(faults_of("goaway"), call_body(stream=True)))
    assert heard.body.endswith(b"\r\n0\r\n\r\n")
    assert not heard.reset


# Http2 ----------------------------------------------------------------------------------------------------------------


INTERNAL_ERROR, REFUSED_STREAM = 2, 7


@pytest.fixture
def connect(secure, trusting) -> Iterator[Callable[..., H2Client]]:
    clients = []

    def new(**settings: int) -> H2Client:
        clients.append(H2Client(secure.port, trusting, **settings))
        return clients[-1]

    yield new
    for client in clients:
        client.close()


def test_many_streams_run_on_one_connection(connect, new_key):
    client = connect()
    streams = [
        client.request("POST", "/v1/messages", key=new_key(), body=call_body(stream=True), x_sim_interval_ms="5")
        for _ in range(50)
    ]
    for id_ in streams:
        heard = client.finish(id_)
        assert heard.headers[":status"] == "200"
        assert heard.body.endswith(b'{"type":"message_stop"}\n\n')
        assert heard.headers["x-sim-attempt"] == "1"


def test_a_large_request_body_flows_beyond_the_windows(connect, new_key):
    body = call_body(text="x" * 3_000_000)
    client = connect()
    heard = client.finish(client.request("POST", "/v1/messages", key=new_key(), body=body))
    assert json.loads(heard.body)["usage"]["input_tokens"] == len(body) // 4


def test_a_large_answer_waits_for_a_small_window(connect):
    client = connect(window=1000)
    heard = client.finish(client.request("GET", "/download?size=600000"))
    assert hashlib.sha256(heard.body).digest() == hashlib.sha256(bytes(i % 251 for i in range(600_000))).digest()


def test_goaway_without_error_lets_streams_finish_and_closes_then(connect, faults_of, new_key):
    client = connect()
    long = client.request("POST", "/v1/messages", key=new_key(), body=call_body(stream=True), x_sim_interval_ms="10")
    leaving = client.request("POST", "/v1/messages", key=faults_of("goaway"), body=call_body(stream=True))
    client.finish_connection()
    for id_ in (long, leaving):
        heard = client.heard[id_]
        assert heard.goaway == 0
        assert heard.ended
        assert heard.body.endswith(b'{"type":"message_stop"}\n\n')
        assert heard.closed
    order = client.heard[leaving].order
    assert order.index("data") < order.index("goaway") < order.index("end")


def test_a_stream_after_goaway_is_refused(connect, faults_of, new_key):
    client = connect()
    body = call_body(stream=True)
    leaving = client.request("POST", "/v1/messages", key=faults_of("goaway"), body=body, x_sim_interval_ms="20")
    while client.heard[leaving].goaway is None:
        client.step()
    late = client.request("POST", "/v1/messages", key=new_key(), body=body)
    assert client.finish(late).stream_reset == REFUSED_STREAM
    assert client.finish(leaving).ended


def test_goaway_with_error_ends_the_connection_within_the_stream(connect, faults_of):
    client = connect()
    id_ = client.request("POST", "/v1/messages", key=faults_of("goaway-error"), body=call_body(stream=True))
    client.finish_connection()
    heard = client.heard[id_]
    assert heard.goaway == INTERNAL_ERROR
    assert not heard.ended
    assert b"content_block_delta" in heard.body


def test_a_refused_stream_has_no_head_and_leaves_the_connection(connect, faults_of):
    client, key = connect(), faults_of("refused-stream")
    heard = client.finish(client.request("POST", "/v1/messages", key=key, body=call_body()))
    assert (heard.stream_reset, heard.headers) == (REFUSED_STREAM, {})
    again = client.finish(client.request("POST", "/v1/messages", key=key, body=call_body()))
    assert again.headers["x-sim-attempt"] == "2"


@each("stream", [True, False])
def test_a_stream_is_reset_within_its_body(connect, faults_of, stream):
    client = connect()
    key = faults_of("reset-stream")
    heard = client.finish(client.request("POST", "/v1/messages", key=key, body=call_body(stream=stream)))
    assert heard.stream_reset == INTERNAL_ERROR
    assert heard.headers[":status"] == "200"
    assert heard.body
    assert not heard.ended


@each("fault", ["reset-before-head", "stream-reset"])
def test_an_rst_ends_the_whole_connection(connect, faults_of, secure, fault):
    client = connect()
    other = faults_of()
    before = secure.truth().cut
    slow = client.request("POST", "/v1/messages", key=other, body=call_body(), x_sim_latency_ms="60000")
    id_ = client.request("POST", "/v1/messages", key=faults_of(fault), body=call_body(stream=True))
    client.finish_connection()
    assert client.heard[id_].connection_reset
    assert not client.heard[slow].headers
    assert secure.truth().cut == before + 2


def test_a_client_that_resets_its_stream_abandons_the_attempt(connect, secure, new_key):
    client = connect()
    before = secure.truth()
    id_ = client.request("POST", "/v1/messages", key=new_key(), body=call_body(stream=True), x_sim_interval_ms="60000")
    while not client.heard[id_].body:
        client.step()
    client.h2.reset_stream(id_, 8)
    client.send()
    client.finish(client.request("GET", "/echo"))
    after = secure.truth()
    assert after.abandoned == before.abandoned + 1
    assert after.wasted_output_tokens == before.wasted_output_tokens + 1
    assert after.in_flight == before.in_flight


def test_a_request_that_is_reset_before_it_is_complete_is_no_attempt(connect, secure):
    client = connect()
    before = secure.truth().attempts
    id_ = client.h2.get_next_available_stream_id()
    client.h2.send_headers(
        id_, [(":method", "POST"), (":scheme", "https"), (":authority", "sim"), (":path", "/v1/messages")]
    )
    client.h2.reset_stream(id_, 8)
    client.send()
    assert client.finish(client.request("GET", "/echo")).ended
    assert secure.truth().attempts == before


def test_a_frame_that_breaks_the_protocol_ends_the_connection(connect):
    client = connect()
    client.send(bytes([0, 0, 1, 0, 0, 0, 0, 0, 0]) + b"x")  # DATA on stream 0
    client.heard[1] = Heard2()
    client.finish_connection()
    assert client.heard[1].goaway is not None
    assert client.heard[1].closed


# Exchange -------------------------------------------------------------------------------------------------------------


def incoming(target: str) -> Incoming:
    log = ConnectionLog(1, http2=False, sni=None)
    return Incoming(method="POST", target=target, headers={}, host="sim", log=log)


def test_a_body_is_counted_whole_and_kept_up_to_its_bound():
    request = incoming("/v1/messages?beta=true")
    request.keep_bytes = 5
    request.receive(b"abc")
    request.receive(b"defg")
    assert (request.path, request.query) == ("/v1/messages", "beta=true")
    assert (request.size, bytes(request.body)) == (7, b"abcde")


def test_a_copy_of_a_connections_log_does_not_change_with_it():
    log = ConnectionLog(1, http2=True, sni="api.example")
    copy = log.copy()
    log.requests += 1
    log.hosts.add("api.example")
    assert (copy.requests, copy.hosts) == (0, set())


async def test_a_gate_lets_all_who_wait_go_on():
    gate = WriteGate()
    waiting = [asyncio.create_task(gate.wait()) for _ in range(3)]
    await asyncio.wait(waiting, timeout=0)
    assert not any(task.done() for task in waiting)
    gate.release()
    done, _ = await asyncio.wait(waiting, timeout=120)
    assert len(done) == 3
    assert repr(gate) == "<Gate 0 waiting>"


async def test_a_cancelled_pause_leaves_nobody_waiting():
    task = asyncio.create_task(pause(60))
    await asyncio.wait([task], timeout=0)
    task.cancel()
    await asyncio.wait([task], timeout=120)
    assert task.cancelled()
