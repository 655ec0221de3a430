"""Providers of a few lines that send exactly the bytes that a test wants, when it wants; with TLS or without.

For what the simulated provider cannot do: wait for the test's go-ahead between two pieces, cut a body into HTTP chunks
at any byte, leave with a GOAWAY that disowns some of the requests.
"""

import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import h2.config
import h2.connection
import h2.events
from hyperframe.frame import GoAwayFrame

from tests.e2e.proxy import PATIENCE_S

Send = Callable[[bytes], None]
Handler = Callable[[int, Send], None]
"""Called once a request with its number (from 0) and what sends bytes; returns when the answer is complete."""

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
NDJSON_HEAD = STREAM_HEAD.replace(b"text/event-stream", b"application/x-ndjson")
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk; an empty one ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(status: int, body: bytes, **headers: str) -> bytes:
    """A complete JSON answer; underscores in the headers' names stand for hyphens."""
    head = {"content-type": "application/json", "content-length": str(len(body))}
    head |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} CommandReply", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    return "\r\n".join(lines).encode() + body


@contextmanager
def raw_provider(port: int, tls: ssl.SSLContext | None, handler: Handler) -> Iterator[None]:
    """HTTP/1.1. It listens until the block ends; a thread for each connection."""
    with _listening(port, lambda listener: _serve(listener, tls, handler)):
        yield


@contextmanager
def _listening(port: int, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    listener = socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=serve, args=(listener,), name="raw-provider", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        thread.join(PATIENCE_S)
        listener.close()


def _serve(listener: socket.socket, tls: ssl.SSLContext | None, handler: Handler) -> None:
    numbers = itertools.count()
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_converse, args=(plain, tls, handler, numbers), daemon=True).start()


def _converse(plain: socket.socket, tls: ssl.SSLContext | None, handler: Handler, numbers: Iterator[int]) -> None:
    with suppress(OSError), tls.wrap_socket(plain, server_side=True) if tls else plain as connection:
        while _read_request(connection):
            handler(next(numbers), connection.sendall)


def _read_request(connection: socket.socket) -> bool:
    """Read one request, whose body has a content-length where there is any. Whether there was one."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return False
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0].partition(b":")[2]) - len(body) if lengths else 0
    while missing > 0:
        piece = connection.recv(65536)
        if not piece:
            return False
        missing -= len(piece)
    return True


@contextmanager
def disowning_provider(port: int, tls: ssl.SSLContext, body: bytes) -> Iterator[list[int]]:
    """HTTP/2. Its first connection takes three requests, answers two and says that it never saw the third.

    Every other request gets `body`. Yields the number of requests of each connection, as they come.
    """
    counts: list[int] = []
    tls.set_alpn_protocols(["h2"])

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            counts.append(0)
            threading.Thread(target=_serve_h2, args=(plain, tls, body, counts, len(counts) - 1), daemon=True).start()

    with _listening(port, serve):
        yield counts


def _serve_h2(plain: socket.socket, tls: ssl.SSLContext, body: bytes, counts: list[int], mine: int) -> None:
    first = mine == 0
    protocol = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    complete: list[int] = []

    def answer(stream_id: int) -> None:
        protocol.send_headers(stream_id, [(":status", "200"), ("content-type", "application/json")])
        protocol.send_data(stream_id, body, end_stream=True)

    with suppress(OSError), tls.wrap_socket(plain, server_side=True) as connection:
        protocol.initiate_connection()
        connection.sendall(protocol.data_to_send())
        while data := connection.recv(65536):
            for event in protocol.receive_data(data):
                if isinstance(event, h2.events.StreamEnded):
                    counts[mine] += 1
                    complete.append(event.stream_id)
                    if not first or len(complete) == 1:
                        answer(event.stream_id)
            if first and len(complete) == 3:
                owned = sorted(complete)[1]
                connection.sendall(GoAwayFrame(0, last_stream_id=owned, error_code=0).serialize())
                answer(owned)
                first = False
            connection.sendall(protocol.data_to_send())
