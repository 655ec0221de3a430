"""A way on loopback that can be cut, and that agents can have for a proxy: what an agent has without a scheduler."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

_MAX_HEAD_BYTES = 16 * 1024
_PIECE_BYTES = 64 * 1024


class Tunnel:
    """Forwards connections to a port of this machine, until the block ends.

    With ports by host it is an HTTP proxy that knows nothing but CONNECT. Hosts that it does not know are refused, so
    that nothing leaves this machine.
    """

    def __init__(self, to: int | Mapping[str, int]) -> None:
        self.port = 0
        self._to = to
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return (
            f"<Tunnel on port {self.port}, {len(self._running)} connections{'' if self._whole.is_set() else ', cut'}>"
        )

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "the block has begun"
        self._server.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def cut(self) -> None:
        """What is sent from now on waits in between; connections stay open, and new ones are taken and not answered."""
        self._whole.clear()

    def mend(self) -> None:
        """What has waited arrives."""
        self._whole.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served in a task"
        self._running.add(task)
        try:
            await self._whole.wait()
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                if (port := await self._asked(reader, writer)) is not None:
                    await self._join(reader, writer, port)
        except asyncio.CancelledError:
            pass  # the block ends
        finally:
            self._running.discard(task)
            writer.close()

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int | None:
        """The port where a connection is to go; None: it was refused."""
        if isinstance(self._to, int):
            return self._to
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        port = self._to.get(target.rpartition(":")[0]) if method == "CONNECT" else None
        refused = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        writer.write(refused if port is None else b"HTTP/1.1 200 Connection established\r\n\r\n")
        await writer.drain()
        return port

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
        finally:
            far_writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(_PIECE_BYTES):
                await self._whole.wait()
                writer.write(piece)
                await writer.drain()
        writer.close()  # an end or a reset of one side is the other's end, too
