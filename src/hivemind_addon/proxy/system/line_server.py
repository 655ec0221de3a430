"""A server of lines over a Unix socket that only its owner may open. `proxy/system/json_socket.py` asks one."""

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast


class SocketTaken(OSError):
    """The path cannot be listened on: a living process does, or it is no socket; the text is one line that says so."""


class LineServer:
    """Serves one socket on the running event loop, from `start` to `close`."""

    def __init__(
        self,
        path: Path,
        *,
        heard: Callable[["LineConnection", bytes], None],
        joined: Callable[["LineConnection"], None] = lambda _: None,
        left: Callable[["LineConnection"], None] = lambda _: None,
        max_line_bytes: int,
        max_lines_per_s: float = float("inf"),
        backlog: int = 100,
    ) -> None:
        """`heard` gets each line without its end; a connection that sends more than the bounds say is cut off.

        `joined` and `left` get each connection at its begin and at its end. `backlog`: how many may wait to be let in.
        """
        self.path = path
        self.heard = heard
        self.joined = joined
        self.left = left
        self.max_line_bytes = max_line_bytes
        self.max_lines_per_s = max_lines_per_s
        self.connections: set[LineConnection] = set()
        """Those that are open. To be read."""
        self._backlog = backlog
        self._server: asyncio.Server | None = None
        self._inode = 0

    async def start(self) -> None:
        """Listen. A dead process's socket is replaced. Raises SocketTaken, OSError."""
        _clear_stale(self.path)
        listener = socket.socket(socket.AF_UNIX)
        try:
            # The mask, and not a later chmod: nobody else can open it, not even for a moment.
            mask = os.umask(0o177)
            try:
                listener.bind(os.fspath(self.path))
            finally:
                os.umask(mask)
            self._inode = self.path.stat().st_ino
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: LineConnection(self), sock=listener, backlog=self._backlog
            )
        except BaseException:
            listener.close()
            raise

    def close(self) -> None:
        """End it: connections are cut off, the socket's file goes if it is still ours."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self.connections):
            connection.cut_off()
        with suppress(OSError):  # it was gone already
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()


class LineConnection(asyncio.Protocol):
    """One connection of a server."""

    def __init__(self, server: LineServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._begun = bytearray()
        """Of the next line."""
        self._second_at = 0.0
        """When the running second began."""
        self._lines = 0
        """In it."""

    @property
    def unsent_bytes(self) -> int:
        """What the other side has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def send(self, line: bytes) -> None:
        """Send a line with its end; nothing happens when the other side has gone."""
        if self._transport is not None:
            self._transport.write(line)

    def end(self) -> None:
        """Close it when all is sent."""
        if self._transport is not None:
            self._transport.close()

    def cut_off(self) -> None:
        """Close it now; it is out of the server's connections at once."""
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        if self in self._server.connections:
            self._server.connections.remove(self)
            self._server.left(self)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        self._server.connections.add(self)
        self._server.joined(self)

    def data_received(self, data: bytes) -> None:
        """Some of a line, or several."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = bytes(self._begun) + line
            self._begun.clear()
            if not self._take(whole):
                return
        self._begun += rest
        if len(self._begun) > self._server.max_line_bytes:
            self.cut_off()

    def _take(self, line: bytes) -> bool:
        """False: it is over, or is cut off for this line."""
        assert self._transport is not None
        now = asyncio.get_running_loop().time()
        if now - self._second_at >= 1:
            self._second_at, self._lines = now, 0
        self._lines += 1
        if self._lines > self._server.max_lines_per_s or len(line) > self._server.max_line_bytes:
            self.cut_off()
        elif not self._transport.is_closing():
            self._server.heard(self, line)
        return not self._transport.is_closing()

    def pause_writing(self) -> None:
        """The other side takes nothing: it is not read until it does."""
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It takes what is sent again."""
        assert self._transport is not None
        self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        del exc
        self._leave()


def _clear_stale(path: Path) -> None:
    """Remove the socket of a process that is dead. Raises SocketTaken for one that lives, or that is no socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketTaken(f"{path} is there and is no socket; name another path")
    with socket.socket(socket.AF_UNIX) as attempt:
        attempt.settimeout(1)
        try:
            attempt.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # it is there, and busy
    raise SocketTaken(f"{path} belongs to another running process")
