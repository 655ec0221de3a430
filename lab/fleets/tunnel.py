"""An HTTP proxy that knows nothing but CONNECT, and few hosts: what an agent has when it has no scheduler.

Hosts that it does not know are refused, so that nothing leaves this machine.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

_MAX_HEAD_BYTES = 16 * 1024
_PIECE_BYTES = 64 * 1024


class Tunnel:
    """A listening tunnel."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self.port = 0
        self._ports = ports
        self._running: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Tunnel on port {self.port}, {len(self._running)} connections>"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client's connection."""
        task = asyncio.current_task()
        assert task is not None, "a connection is served in a task"
        self._running.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
                port = self._ports.get(target.rpartition(":")[0]) if method == "CONNECT" else None
                if port is None:
                    writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    await writer.drain()
                    return
                await _join(reader, writer, port)
        finally:
            self._running.discard(task)
            writer.close()

    def end(self) -> None:
        """Cut what is open."""
        for task in list(self._running):
            task.cancel()


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, far_writer))
            group.create_task(_copy(far_reader, writer))
    finally:
        far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()  # an end or a reset of one side is the other's end, too


@asynccontextmanager
async def running_tunnel(ports: Mapping[str, int]) -> AsyncIterator[Tunnel]:
    """A tunnel on loopback; `ports`: host → port of this machine."""
    tunnel = Tunnel(ports)
    server = await asyncio.start_server(tunnel.serve, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)
    tunnel.port = server.sockets[0].getsockname()[1]
    try:
        yield tunnel
    finally:
        server.close()
        tunnel.end()
