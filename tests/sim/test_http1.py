import json
import socket

from tests.cases import over
from tests.patience import PATIENCE_S

from .clients import call_body, h1_request, hear

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


@over("piece", [1, 7, 1000])
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


@over(
    "request_",
    [
        b"NOT A REQUEST AT ALL\r\n\r\n",
        b"GET / HTTP/3.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n folded: y\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
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


@over("stream", [True, False])
def test_a_head_may_be_followed_by_an_rst(plain, faults_of, stream):
    heard = hear(plain.port, h1_request(faults_of("head-then-reset"), call_body(stream=stream)))
    assert (heard.status, heard.body, heard.reset) == (200, b"", True)


@over(("fault", "reset"), [("body-cut", False), ("body-reset", True)])
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


@over(("fault", "reset"), [("stream-close", False), ("stream-reset", True)])
def test_a_cut_stream_has_content_and_no_end(plain, faults_of, fault, reset):
    heard = hear(plain.port, h1_request(faults_of(fault), call_body(stream=True)))
    assert heard.body.count(b"event: content_block_delta") == 4
    assert b"message_stop" not in heard.body
    assert heard.reset is reset


def test_goaway_on_http1_closes_after_a_whole_answer(plain, faults_of):
    heard = hear(plain.port, h1_request(faults_of("goaway"), call_body(stream=True)))
    assert heard.body.endswith(b"\r\n0\r\n\r\n")
    assert not heard.reset
