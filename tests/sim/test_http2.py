import hashlib
import json
from collections.abc import Callable, Iterator

import pytest

from tests.cases import over

from .clients import H2Client, Heard2, call_body

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


@over("stream", [True, False])
def test_a_stream_is_reset_within_its_body(connect, faults_of, stream):
    client = connect()
    key = faults_of("reset-stream")
    heard = client.finish(client.request("POST", "/v1/messages", key=key, body=call_body(stream=stream)))
    assert heard.stream_reset == INTERNAL_ERROR
    assert heard.headers[":status"] == "200"
    assert heard.body
    assert not heard.ended


@over("fault", ["reset-before-head", "stream-reset"])
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
