"""What has come on a connection is read at once: mitmproxy asks for 64 KB, and takes each through all layers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mitmproxy.connection import Connection
    from mitmproxy.proxy.server import ConnectionHandler

MOST_READ_BYTES = 1024 * 1024
MOST_KEPT_BYTES = 64 * 1024
"""mitmproxy keeps the last piece until the next one comes, of a request that is held for minutes, too."""
_TAIL_BYTES = 1024


class LargeReads:
    """A connection's reader, as far as mitmproxy uses it."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._holds = 0
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._tail = b""
        """The end of a large piece comes apart from it: then it is this end that is kept."""

    async def read(self, _at_most: int = -1) -> bytes:
        """What has come, and if nothing has what comes next; empty at the end."""
        if self._tail:
            piece, self._tail = self._tail, b""
            return piece
        await self._may_read.wait()
        piece = await self._reader.read(MOST_READ_BYTES)
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
        return not self._tail and self._reader.at_eof()


def read_at_once(handler: ConnectionHandler | None, connection: Connection) -> None:
    """From now on, on a TCP connection of which mitmproxy has read nothing."""
    io = handler.transports.get(connection) if handler else None
    if io is not None and isinstance(io.reader, asyncio.StreamReader):
        io.reader = LargeReads(io.reader)  # type: ignore[assignment]  # it does what is asked of it


def hold_reading(handler: ConnectionHandler | None, connection: Connection, *, held: bool) -> None:
    """Read nothing more of a connection, or go on."""
    io = handler.transports.get(connection) if handler else None
    if io is not None and isinstance(io.reader, LargeReads):
        io.reader.hold(held=held)
