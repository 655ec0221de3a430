"""A client of Responses over a WebSocket, straight or through a proxy."""

import base64
import json
import socket
import ssl

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.extensions import PerMessageDeflate

from tests.patience import PATIENCE_S

ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}


def create(text="hello", **more):
    """A turn's frame."""
    said = {"type": "response.create", "model": "gpt-5.1", "stream": True, "input": [{"role": "user", "content": text}]}
    return said | more


class Closed(OSError):
    """The connection has ended; its code is the argument."""


class Refused(OSError):
    """The upgrade was; its status is the argument."""


class SocketClient:
    """One connection. `proxy`: port of a proxy that a tunnel leads through, with `user` as its user."""

    def __init__(self, host, port, *, path="/v1/responses", key="k", headers=(), proxy=None, user="agent-1", tls=None):
        self._socket = socket.create_connection(("127.0.0.1", proxy or port), timeout=PATIENCE_S)
        if proxy:
            word = base64.b64encode(f"{user}:x".encode()).decode()
            self._socket.sendall(
                f"CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}:{port}\r\nproxy-authorization: basic {word}\r\n\r\n".encode()
            )
            head = b""
            while b"\r\n\r\n" not in head:
                head += self._socket.recv(4096)
            assert b" 200 " in head.split(b"\r\n")[0], head
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._ws = WSConnection(ConnectionType.CLIENT)
        named = [(b"authorization", f"Bearer {key}".encode()), *headers]
        request = Request(host=f"{host}:{port}", target=path, extensions=[PerMessageDeflate()], extra_headers=named)
        self._socket.sendall(self._ws.send(request))
        self._events = iter(())
        self.pings = 0
        self.frames = []
        """All that came."""
        match self._next():
            case AcceptConnection():
                pass
            case RejectConnection() as refusal:
                while not isinstance(event := self._next(), RejectData) or not event.body_finished:
                    pass
                raise Refused(refusal.status_code)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _next(self):
        while True:
            for event in self._events:
                return event
            data = self._socket.recv(65536)
            self._ws.receive_data(data or None)
            self._events = self._ws.events()

    def send(self, **frame):
        """One text frame."""
        self._socket.sendall(self._ws.send(TextMessage(json.dumps(frame))))

    def ping(self):
        """Ask for a sign of life."""
        self._socket.sendall(self._ws.send(Ping(b"x")))
        while not isinstance(self._next(), Pong):
            pass

    def hear(self):
        """The next text frame. Raises Closed."""
        text = ""
        while True:
            match self._next():
                case TextMessage(data=data, message_finished=done):
                    text += data
                    if done:
                        self.frames.append(json.loads(text))
                        return self.frames[-1]
                case CloseConnection(code=code):
                    if self._ws.state is ConnectionState.REMOTE_CLOSING:
                        self._socket.sendall(self._ws.send(CloseConnection(code)))
                    raise Closed(code)

    def answer(self):
        """The frames of one answer, without ours that only tell that it is held."""
        heard = []
        while not heard or heard[-1]["type"] not in ENDS:
            frame = self.hear()
            if frame["type"] != "hivemind.held":
                heard.append(frame)
        return heard

    def ask(self, text="hello", **more):
        """One turn: its last frame."""
        self.send(**create(text, **more))
        return self.answer()[-1]

    def close(self):
        """Go, with a good-bye."""
        if self._ws.state is ConnectionState.OPEN:
            self._socket.sendall(self._ws.send(CloseConnection(1000)))
        self._socket.close()

    def reset(self):
        """Go without a word."""
        self._socket.close()


def trusting(ca):
    """A TLS context that trusts the proxy's CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    return context
