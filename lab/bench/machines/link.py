"""A network between a proxy and the engine: a cut lets nothing through, and no side notices."""

import asyncio
from contextlib import suppress

_PIECE_BYTES = 64 * 1024


class Link:
    """Forwards a port of loopback to another port, as long as the link is not cut."""

    def __init__(self, to_port):
        self.port = 0
        self._to_port = to_port
        self._whole = asyncio.Event()
        self._whole.set()
        self._server = None
        self._ways = set()

    def __repr__(self):
        return f"<Link {self.port} to {self._to_port}{'' if self._whole.is_set() else ', cut'}>"

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._entered, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)

    def cut(self):
        """What is sent from now on waits in between; connections stay open, and new ones are taken and not answered."""
        self._whole.clear()

    def mend(self):
        """What has waited arrives."""
        self._whole.set()

    async def _entered(self, reader, writer):
        way = asyncio.current_task()
        self._ways.add(way)
        try:
            await self._whole.wait()
            with suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
                try:
                    await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
                finally:
                    far_writer.close()
        except asyncio.CancelledError:
            pass  # the program ends
        finally:
            writer.close()
            self._ways.discard(way)

    async def _pass_on(self, reader, writer):
        with suppress(OSError):
            while piece := await reader.read(_PIECE_BYTES):
                await self._whole.wait()
                writer.write(piece)
                await writer.drain()
        writer.close()
