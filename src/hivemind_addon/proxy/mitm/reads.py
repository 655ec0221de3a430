"""What has come on a connection is read at once: mitmproxy asks for 64 KB, and takes each through all layers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from mitmproxy.connection import Connection
    from mitmproxy.proxy.server import ConnectionHandler

MOST_READ_BYTES = 1024 * 1024


class LargeReads:
    """A connection's reader, as far as mitmproxy uses it."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def read(self, _at_most: int = -1) -> Coroutine[object, object, bytes]:
        """What has come, and if nothing has what comes next; empty at the end."""
        return self._reader.read(MOST_READ_BYTES)

    def at_eof(self) -> bool:
        """Whether nothing more comes."""
        return self._reader.at_eof()


def read_at_once(handler: ConnectionHandler | None, connection: Connection) -> None:
    """From now on, on a TCP connection of which mitmproxy has read nothing."""
    io = handler.transports.get(connection) if handler else None
    if io is not None and isinstance(io.reader, asyncio.StreamReader):
        io.reader = LargeReads(io.reader)  # type: ignore[assignment]  # it does what is asked of it
