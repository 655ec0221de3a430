"""How a server of lines over a Unix socket is asked: one connection, one answer. Blocks, and needs no event loop.

What the lines say (JSON, here as everywhere) is their user's business. Where the system has no such sockets (Windows),
nobody answers. `proxy/system/line_server.py` serves them.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path

MAX_LINE_BYTES = 256 * 1024 * 1024
"""Of what a server sends."""


def is_answered(path: Path, *, patience_s: float = 0.3) -> bool:
    """Whether somebody listens at a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience_s)
        try:
            connection.connect(os.fspath(path))
        except OSError:
            return False
    return True


def ask(
    path: Path,
    question: bytes = b"",
    *,
    timeout_s: float | None,
    begins: bytes = b"",
    within: int = 1,
    connected: Callable[[socket.socket], None] = lambda _: None,
) -> bytes | None:
    """The first line that begins so, of at most `within`; None: there is none, since the server is going down.

    Blocks; `timeout_s` is for each part of it. `connected` gets the connection: another thread that shuts it down ends
    the wait. Raises TimeoutError; any other OSError: nobody listens.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(os.fspath(path))
        connected(connection)
        connection.sendall(question)
        with connection.makefile("rb") as lines:
            for _ in range(within):
                line = lines.readline(MAX_LINE_BYTES)
                if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                    return None
                if line.startswith(begins):
                    return line
    return None
