"""Heads are read, checked and measured as mitmproxy does it, whatever is in them."""

import random
from operator import attrgetter

import pytest
from h11._receivebuffer import ReceiveBuffer
from mitmproxy import http
from mitmproxy.net.http import http1
from mitmproxy.net.http.http1 import read
from mitmproxy.net.http.validate import validate_headers

from hivemind_addon.proxy.host import heads as ours
from tests.cpu_time import least_cpu_s

REQUEST_LINES = [
    b"POST /v1/messages?beta=true HTTP/1.1",
    b"GET / HTTP/1.0",
    b"GET http://origin.test:8080/a HTTP/1.1",
    b"GET HTTPS://origin.test HTTP/1.1",
    b"CONNECT origin.test:443 HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"GET  /\tHTTP/1.1 ",
    b"GET /\xff HTTP/1.1",
    b"GET / HTTP/2",
    b"GET /",
    b"",
    b"x" * 300,
]
STATUS_LINES = [
    b"HTTP/1.1 200 OK",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 204 ",
    b"HTTP/1.1 304",
    b"HTTP/1.1 404 Not  Found",
    b"HTTP/1.1 103 Early",
    b"HTTP/1.1 abc",
    b"HTTP/x 200 OK",
    b"",
]
FIELDS = [
    b"content-length: 10",
    b"Content-Length:7",
    b"content-length: 0",
    b"content-length: 010",
    b"content-length: -1",
    b"content-length:",
    b"transfer-encoding: chunked",
    b"Transfer-Encoding: Chunked",
    b"transfer-encoding: gzip, chunked",
    b"transfer-encoding: gzip",
    b"transfer-encoding:",
    b"host: origin.test",
    b"x-a:\t two  words",
    b"x-a: trailing ",
    b"x-a: \xff\xc3\xa9",
    b"x-a: a\x0bb\x0c",
    b"x-a:: b:c",
    b"x-empty:",
    b"x-empty: ",
    b" continued",
    b"\tcontinued",
    b"x y: 1",
    b"x\xff: 1",
    b": nameless",
    b"no colon",
    b"x-null: \x00",
    b"X-A: 1\rb",
]
ENDS = [b"\r\n"] * 20 + [b"\n", b"\r\r\n"]


def heads(lines):
    """What peers may send: mostly usual heads, and such with anything in them."""
    rng = random.Random(5)
    for line in lines:
        yield line + b"\r\n\r\n"
        for field in FIELDS:
            yield b"%b\r\n%b\r\n\r\n" % (line, field)
    for _ in range(3000):
        fields = rng.choices(FIELDS[:13] if rng.random() < 0.7 else FIELDS, k=rng.randrange(6))
        whole = b"".join(one + rng.choice(ENDS) for one in (rng.choice(lines), *fields))
        yield rng.choice([b"", b"", b"", b"\r\n", b"\n"]) + whole + rng.choice([b"\r\n", b"\r\n", b"\n", b""])
    for count in (255, 256, 257):
        yield lines[0] + b"\r\n" + b"x: 1\r\n" * count + b"\r\n"
    for size in (ours.LONGEST_HEAD_BYTES - 10, ours.LONGEST_HEAD_BYTES, ours.LONGEST_HEAD_BYTES + 10):
        yield (lines[0] + b"\r\nx: ").ljust(size - 4, b"y") + b"\r\n\r\n"


def told(ask, *of):
    try:
        return ask(*of)
    except ValueError as error:
        return type(error), str(error)


def state_of(head):
    if not isinstance(head, http.Message):
        return head
    return head.get_state() | {"timestamp_start": None}, type(head.headers), head.stream


@pytest.mark.parametrize(
    ("lines", "take", "theirs"),
    [
        (REQUEST_LINES, ours.take_request, http1.read_request_head),
        (STATUS_LINES, ours.take_response, http1.read_response_head),
    ],
)
def test_a_head_is_read_as_mitmproxy_reads_it(lines, take, theirs):
    usual = 0
    for head in heads(lines):
        mine, known = ReceiveBuffer(), ReceiveBuffer()
        mine += head + b"behind"
        known += head + b"behind"
        expected = told(ours._take_any, known, theirs)
        assert state_of(told(take, mine)) == state_of(expected), head
        assert bytes(mine) == bytes(known), head
        usual += isinstance(expected, http.Message) and ours._USUAL.fullmatch(head) is not None
    assert usual > 400


def test_heads_of_one_first_line_are_not_one_head():
    buf = ReceiveBuffer()
    buf += b"HTTP/1.1 200 OK\r\na: 1\r\n\r\n" * 2
    first, second = ours.take_response(buf), ours.take_response(buf)
    first.headers["a"] = "2"
    first.status_code, first.stream = 404, True
    assert (second.headers["a"], second.status_code, second.stream) == ("1", 200, False)
    assert first.timestamp_start > 0


def test_a_buffer_that_is_another_inside_is_read_all_the_same(monkeypatch):
    monkeypatch.setattr(ours, "_come", bytes)
    buf = ReceiveBuffer()
    buf += b"HTTP/1.1 200 OK\r\na: 1\r\n\r\nbody"
    assert ours.take_response(buf).headers["a"] == "1"
    assert bytes(buf) == b"body"


def test_h11s_buffer_is_as_this_file_believes():
    assert isinstance(ours._come, attrgetter)


@pytest.mark.parametrize("filler", [b" ", b"x", b"x: \t", b"x:1 \r\n", b"\r"])
def test_no_head_takes_long_to_be_told_from_a_usual_one(filler):
    head = (b"GET / HTTP/1.1\r\nx:" + filler * ours.LONGEST_HEAD_BYTES)[: ours.LONGEST_HEAD_BYTES - 5] + b"\x00\r\n\r\n"

    def read_it():
        assert ours._USUAL.fullmatch(head) is None

    assert least_cpu_s(read_it) < 0.05


def test_heads_are_checked_and_measured_as_mitmproxy_does_it():
    asks = [http.Request.make(method, "http://origin.test/") for method in ("POST", "HEAD", "connect", "GET")]
    checked = 0
    for _ in range(2):  # the second time all valid names are known
        for lines, theirs in ((REQUEST_LINES, http1.read_request_head), (STATUS_LINES, http1.read_response_head)):
            for head in heads(lines):
                buf = ReceiveBuffer()
                buf += head
                message = told(ours._take_any, buf, theirs)
                if not isinstance(message, http.Message):
                    continue
                checked += 1
                assert told(ours.validate, message) == told(validate_headers, message), head
                pairs = [(ask, message) for ask in asks] if isinstance(message, http.Response) else [(message, None)]
                for pair in pairs:
                    assert told(ours.expected_body_size, *pair) == told(read.expected_http_body_size, *pair), head
    assert checked > 2000


def test_a_strangers_names_are_not_all_remembered():
    for number in range(5000):
        ours.validate(http.Response.make(200, headers={f"x-{number}": ""}))
        ours.validate(http.Response.make(200, headers={"x" * 300: ""}))
    assert len(ours._valid_names) < 1100
    assert b"x" * 300 not in ours._valid_names
