"""What has come on a connection is read at once: mitmproxy asks for 64 KB, and takes each through all layers.

asyncio's reader copies what comes into its buffer and out of it again, and stops the transport for each 128 KB. Here
the transport gives its pieces away as they are: to mitmproxy's layers at once, if all that a task of mitmproxy's would
do is to take a piece to them; else they wait for that task.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from mitmproxy.proxy.events import DataReceived

if TYPE_CHECKING:
    from mitmproxy.connection import Connection
    from mitmproxy.proxy.server import ConnectionHandler

MOST_READ_BYTES = 1024 * 1024
"""Of a connection that has brought as much as asyncio asks for at a time (256 KB)."""
MOST_WAITING_BYTES = 512 * 1024
"""So much may wait to be read; then its sender waits."""
MOST_KEPT_BYTES = 64 * 1024
"""mitmproxy keeps the last piece until the next one comes, of a request that is held for minutes, too."""
_TAIL_BYTES = 1024
_PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 5}
"""Seconds of silence, seconds between probes, and probes: a dead peer is found after 135 s. macOS calls the first one
`TCP_KEEPALIVE`, and each system has what it knows."""


class LargeReads(asyncio.Protocol):
    """A connection's reader, as far as mitmproxy uses it, and the protocol of its transport."""

    def __init__(
        self,
        handler: ConnectionHandler,
        connection: Connection,
        reader: asyncio.StreamReader,
        transport: asyncio.Transport,
        stuck: set[object],
    ) -> None:
        """From now on what comes comes here; what else happens is told to the protocol that `reader` belongs to.

        `stuck`: those of the handler's connections that take no more for now; what comes on any of them waits.
        """
        self._handler = handler
        self._connection = connection
        self._reader = reader
        self.stuck = stuck
        self._holds = 0
        self._transport = transport
        self._theirs = transport.get_protocol()
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_over = False
        """Their reader tells how: with the end, or what broke it."""
        self._is_paused = False
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._asked_bytes = getattr(transport, "max_size", 0)
        """At a time; 0: it is no matter, or the most already."""
        self._tail = b""
        """The end of a large piece comes apart from it: then it is this end that is kept."""
        transport.set_protocol(self)
        self._take_over()

    def _take_over(self) -> None:
        """What has come before, as far as their reader would tell it without a wait."""
        reading = self._reader.read(MOST_READ_BYTES)
        try:
            reading.send(None)
        except StopIteration as told:
            self._pieces = [told.value] if told.value else []
            self._is_over = self._reader.at_eof()
        except Exception:  # noqa: BLE001 - it tells that again when it is asked
            self._is_over = True
        else:
            reading.close()

    # The transport tells ---------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Give a piece to the layers; or keep it until it is read."""
        if len(data) == self._asked_bytes:
            self._asked_bytes = 0
            self._transport.max_size = MOST_READ_BYTES  # type: ignore[attr-defined]  # asyncio's own transports have it
        waiter = self._waiter
        if waiter is None or waiter.done() or self._holds or self.stuck or not self._is_given(data):
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def _is_given(self, data: bytes) -> bool:
        """Do with it what mitmproxy's task does, which waits for the next one. False: the task has to do it itself."""
        handling = self._handler.server_event(DataReceived(self._connection, data))
        try:
            handling.send(None)
        except StopIteration:
            return True
        handling.close()  # it has not begun: other events wait for their turn, so that this one does, too
        return False

    def eof_received(self) -> bool | None:
        """Nothing more comes."""
        self._is_over = True
        stays_open = self._theirs.eof_received()  # type: ignore[attr-defined]  # that of a stream
        self._wake()
        return bool(stays_open)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._is_over = True
        self._theirs.connection_lost(exc)
        self.stuck.discard(self)
        self._wake()

    def pause_writing(self) -> None:
        """Whoever writes has to wait."""
        self._theirs.pause_writing()
        self.stuck.add(self)

    def resume_writing(self) -> None:
        """Or not any more."""
        self._theirs.resume_writing()
        self.stuck.discard(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # mitmproxy asks --------------------------------------------------------------------------------------------------

    async def read(self, _at_most: int = -1) -> bytes:
        """What has come, and if nothing has what comes next; empty at the end."""
        if self._tail:
            piece, self._tail = self._tail, b""
            return piece
        if not self._may_read.is_set():
            await self._may_read.wait()
        if not (self._pieces or self._is_over):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.stuck:
            await self._handler.drain_writers()  # what was given may have filled them
        if not self._pieces or self._reader.exception() is not None:
            return await self._reader.read(MOST_READ_BYTES)
        pieces, self._pieces, self._waiting_bytes = self._pieces, [], 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(piece) > MOST_KEPT_BYTES:
            piece, self._tail = piece[:-_TAIL_BYTES], piece[-_TAIL_BYTES:]
        return piece

    def hold(self, *, held: bool) -> None:
        """Leave what comes where it is, at last with its sender; or go on, as soon as all who wanted that say so.

        Of HTTP/2 several requests have one connection.
        """
        self._holds += 1 if held else -1
        if self._holds:
            self._may_read.clear()
        else:
            self._may_read.set()

    def at_eof(self) -> bool:
        """Whether nothing more comes."""
        return not (self._tail or self._pieces) and self._is_over and self._reader.at_eof()


def read_at_once(handler: ConnectionHandler | None, connection: Connection) -> None:
    """From now on, on a TCP connection of which mitmproxy has read nothing."""
    io = handler.transports.get(connection) if handler else None
    if handler and io and isinstance(io.reader, asyncio.StreamReader) and isinstance(io.writer, asyncio.StreamWriter):
        stuck: set[object]
        client = handler.transports.get(handler.client)
        if client is io or client is None:
            stuck = set()
        elif isinstance(client.reader, LargeReads):
            stuck = client.reader.stuck
        else:
            stuck = {client.reader}  # it does not tell when it is
        reads = LargeReads(handler, connection, io.reader, cast("asyncio.Transport", io.writer.transport), stuck)
        io.reader = reads  # type: ignore[assignment]  # as is asked of it
        _probe(io.writer.get_extra_info("socket"))


def _probe(own: socket.socket) -> None:
    """Let the system ask a silent peer whether it lives: an answer may be silent for as long as its client waits."""
    with suppress(OSError):  # a connection that has just ended
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBES.items():
            if hasattr(socket, name):
                own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def hold_reading(handler: ConnectionHandler | None, connection: Connection, *, held: bool) -> None:
    """Read nothing more of a connection, or go on."""
    io = handler.transports.get(connection) if handler else None
    if io is not None and isinstance(io.reader, LargeReads):
        io.reader.hold(held=held)
