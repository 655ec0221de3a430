"""Raw clients: what is really on the wire, without a client library's opinion."""

import contextlib
import json
import socket
import ssl
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.settings

from tests.patience import PATIENCE_S


def call_body(*, stream: bool = False, text: str = "hello", **more: object) -> bytes:
    fields = {"model": "sim-1", "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}
    return json.dumps({**fields, "stream": True} if stream else fields).encode()


def h1_request(key: str, body: bytes, *, path: str = "/v1/messages", extra: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: sim\r\nx-api-key: {key}\r\n{extra}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@dataclass
class Heard:
    """All that came on a connection until it ended."""

    data: bytes
    reset: bool

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1])

    @property
    def head(self) -> bytes:
        """In lower case: names of headers have none."""
        return self.data.partition(b"\r\n\r\n")[0].lower()

    @property
    def body(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]


def hear(port: int, request: bytes) -> Heard:
    """Send, and read until the server ends the connection."""
    data = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        try:
            while piece := connection.recv(65536):
                data += piece
        except ConnectionResetError:
            return Heard(data, reset=True)
    return Heard(data, reset=False)


@dataclass
class Heard2:
    """What one HTTP/2 stream, and its connection, got."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    stream_reset: int | None = None
    goaway: int | None = None
    closed: bool = False
    connection_reset: bool = False
    order: list[str] = field(default_factory=list)


class H2Client:
    """One HTTP/2 connection, driven by hand."""

    def __init__(self, port: int, ca: ssl.SSLContext, *, window: int = 65535) -> None:
        ca.set_alpn_protocols(["h2"])
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        # Not ssl.SSLSocket: it takes an RST for an end of file.
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = ca.wrap_bio(self.into, self.out, server_hostname="localhost")
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.socket.sendall(self.out.read())
                self.into.write(self.socket.recv(65536))
        assert self.tls.selected_alpn_protocol() == "h2"
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.local_settings = h2.settings.Settings(
            client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        self.h2.initiate_connection()
        self.heard: dict[int, Heard2] = {}
        self.send()

    def send(self, data: bytes | None = None) -> None:
        self.tls.write(self.h2.data_to_send() if data is None else data)
        self.socket.sendall(self.out.read())

    def receive(self) -> bytes:
        """What came next; empty at the end. Raises ConnectionResetError."""
        while True:
            try:
                return self.tls.read(65536)
            except ssl.SSLWantReadError:
                data = self.socket.recv(65536)
                if not data:
                    return b""
                self.into.write(data)
            except ssl.SSLZeroReturnError:
                return b""

    def request(self, method: str, path: str, *, key: str = "k", body: bytes = b"", **extra: str) -> int:
        id_ = self.h2.get_next_available_stream_id()
        headers = [
            (":method", method),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", path),
            ("x-api-key", key),
            *((name.replace("_", "-"), value) for name, value in extra.items()),
        ]
        self.heard[id_] = Heard2()
        self.h2.send_headers(id_, headers, end_stream=not body)
        while body:
            size = min(self.h2.local_flow_control_window(id_), self.h2.max_outbound_frame_size, len(body))
            if size <= 0:
                self.send()
                self.step()
                continue
            self.h2.send_data(id_, body[:size], end_stream=size == len(body))
            body = body[size:]
        self.send()
        return id_

    def step(self) -> bool:
        """Read once; whether the connection is still open."""
        try:
            data = self.receive()
            for event in self.h2.receive_data(data):
                self.handle(event)
            self.send()
        except ConnectionResetError:
            for heard in self.heard.values():
                heard.connection_reset = True
            return False
        except BrokenPipeError:
            data = b""
        if not data:
            for heard in self.heard.values():
                heard.closed = True
        return bool(data)

    def handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived(stream_id=id_):
                self.heard[id_].headers = dict(event.headers)
                self.heard[id_].order.append("head")
            case h2.events.DataReceived(stream_id=id_):
                self.heard[id_].body += event.data
                self.heard[id_].order.append("data")
                self.h2.acknowledge_received_data(event.flow_controlled_length, id_)
            case h2.events.StreamEnded(stream_id=id_):
                self.heard[id_].ended = True
                self.heard[id_].order.append("end")
            case h2.events.StreamReset(stream_id=id_):
                self.heard[id_].stream_reset = int(event.error_code)
            case h2.events.ConnectionTerminated():
                for heard in self.heard.values():
                    heard.goaway = int(event.error_code)
                    heard.order.append("goaway")
                # A client with grace goes on reading its streams; h2 itself would refuse the frames.
                self.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
            case _:
                pass

    def finish(self, id_: int) -> Heard2:
        """Read until the stream or the connection is over."""
        heard = self.heard[id_]
        while not heard.ended and heard.stream_reset is None and self.step():
            pass
        return heard

    def finish_connection(self) -> None:
        """Read until the server ends the connection."""
        while self.step():
            pass

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()
