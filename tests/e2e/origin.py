"""An upstream that answers when the test says so: what arrived, in order, and when each may go on.

POST .../messages, .../completions    at once the head and a first piece (streamed) or nothing (plain); the rest
                                      when it was let go
GET /halves                           the first half at once, the other when it was let go
any other POST, any other GET         at once 200 with the path; a body is seen while it arrives
"""

import json
import ssl
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.e2e.proxy import PATIENCE_S

_HEAD = [
    ("message_start", {"message": {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m", "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 1}}}),
    ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "one "}}),
]  # fmt: skip
_TAIL = [
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "two"}}),
    ("content_block_stop", {"index": 0}),
    ("message_delta", {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 2}}),
    ("message_stop", {}),
]


def _sse(events):
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (name.encode(), json.dumps({"type": name} | data).encode())
        for name, data in events
    )


FIRST_PIECE, LAST_PIECE = _sse(_HEAD), _sse(_TAIL)
STREAMED = FIRST_PIECE + LAST_PIECE
PLAIN = json.dumps(
    {"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "one two"}], "model": "m", "stop_reason": "end_turn", "usage": {"input_tokens": 9, "output_tokens": 2}}
).encode()  # fmt: skip


@dataclass
class Arrived:
    """One request."""

    method: str
    path: str
    headers: dict
    """Lower-case names."""
    connection: int
    body: bytearray = field(default_factory=bytearray)
    complete: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)


class Origin:
    def __init__(self, server, scheme):
        self.port = server.server_address[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.arrived = []
        self.says = {}
        """Headers of whole answers."""
        self._open = False
        self._changed = threading.Condition()

    def note(self, request):
        with self._changed:
            self.arrived.append(request)
            if self._open:
                request.go.set()
            self._changed.notify_all()

    def grown(self):
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, condition, what):
        """Wait until `condition(arrived)` holds."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.arrived), PATIENCE_S), (
                f"{what} did not happen: {self.arrived}"
            )

    def wait_for_calls(self, count):
        self.wait_for(lambda arrived: len(arrived) >= count, f"{count} requests")

    def open(self):
        """Let everything go, now and later."""
        with self._changed:
            self._open = True
            for request in self.arrived:
                request.go.set()


def _handler(of):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def _arrive(self):
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Arrived(self.command, self.path, headers, self.client_address[1])
            of().note(request)
            return request

        def _pieces(self):
            if "chunked" in self.headers.get("transfer-encoding", ""):
                while size := int(self.rfile.readline(), 16):
                    yield self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            left = int(self.headers.get("content-length", 0))
            while left:
                piece = self.rfile.read1(left)
                if not piece:
                    return
                left -= len(piece)
                yield piece

        def do_POST(self):
            request = self._arrive()
            for piece in self._pieces():
                request.body += piece
                of().grown()
            request.complete.set()
            of().grown()
            with suppress(OSError):
                if not self.path.partition("?")[0].endswith(("/messages", "/completions")):
                    self._whole("text/plain", self.path.encode())
                elif b'"stream": true' in request.body:
                    self.send_response(200)
                    self.send_header("content-type", "text/event-stream")
                    self.send_header("transfer-encoding", "chunked")
                    self.end_headers()
                    self._chunk(FIRST_PIECE)
                    request.go.wait(PATIENCE_S)
                    self._chunk(LAST_PIECE)
                    self._chunk(b"")
                else:
                    request.go.wait(PATIENCE_S)
                    self._whole("application/json", PLAIN)

        def do_GET(self):
            request = self._arrive()
            request.complete.set()
            with suppress(OSError):
                if self.path.startswith("/halves"):
                    self.send_response(200)
                    self.send_header("transfer-encoding", "chunked")
                    self.end_headers()
                    self._chunk(b"first half")
                    request.go.wait(PATIENCE_S)
                    self._chunk(b", second half")
                    self._chunk(b"")
                else:
                    self._whole("text/plain", self.path.encode())

        def _chunk(self, data):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def _whole(self, content_type, body):
            self.send_response(200)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            for name, value in of().says.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        """A connection that was cut is what some tests want."""


@contextmanager
def running_origin(tls: ssl.SSLContext | None = None):
    origin = None
    server = _Server(("127.0.0.1", 0), _handler(lambda: origin))
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    origin = Origin(server, "https" if tls else "http")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield origin
    finally:
        origin.open()
        server.shutdown()
        server.server_close()
        thread.join()
