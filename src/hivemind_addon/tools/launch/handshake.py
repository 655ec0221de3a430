"""A client's way through the proxy, tried for real: CONNECT, TLS with the client's bundle, one request."""

import base64
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

_CONNECT_S = 10.0
_ANSWER_S = 10.0
_MAX_HEAD_BYTES = 64 * 1024
_FROM_PROXY = {502, 503, 504}
"""Statuses that the proxy itself answers with where the provider cannot be reached."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """TLS was agreed on."""

    wall_date_at: float | None
    """The provider's clock, epoch seconds; None: it did not answer, or told no time."""


def shake_hands(port: int, host: str, bundle: Path) -> Handshake | str:
    """Go through the proxy on `port` to `host`, trusting `bundle` only. A text says what failed."""
    try:
        context = ssl.create_default_context(cafile=str(bundle))
        with socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_S) as plain:
            credentials = base64.b64encode(b"hivemind-doctor:x").decode()
            lines = (f"CONNECT {host}:443 HTTP/1.1", f"Host: {host}:443", f"Proxy-Authorization: Basic {credentials}")
            plain.sendall("\r\n".join((*lines, "", "")).encode())
            head = _head(plain)
            if _status(head) != 200:
                return f"the proxy answers CONNECT with {head.splitlines()[0] if head else 'nothing'!r}"
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return Handshake(wall_date_at=_date(secure, host))
    except (OSError, ssl.SSLError) as error:
        return str(error)


def _date(secure: ssl.SSLSocket, host: str) -> float | None:
    """What time the provider says it is; that needs the network."""
    secure.settimeout(_ANSWER_S)
    with suppress(OSError, ValueError):
        secure.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head = _head(secure)
        if head and _status(head) not in _FROM_PROXY:
            for line in head.splitlines():
                name, _, value = line.partition(":")
                if name.lower() == "date":
                    return parsedate_to_datetime(value.strip()).timestamp()
    return None


def _head(connection: socket.socket) -> str:
    """A response's head; empty: there was none."""
    data = b""
    while b"\r\n\r\n" not in data and len(data) < _MAX_HEAD_BYTES:
        chunk = connection.recv(4096)
        if not chunk:
            break
        data += chunk
    return data.decode("latin-1")


def _status(head: str) -> int:
    words = head.split(maxsplit=2)
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0
