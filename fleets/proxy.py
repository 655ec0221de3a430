"""The real proxy of a fleet: mitmdump with the addon, brought back when it dies."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx

from fleets import inside
from hivemind_addon.sim.mitmdump import Mitmdump, running_mitmdump

_BOOKS_S = 30


class FleetProxy:
    """One proxy, whichever process it is at the moment."""

    def __init__(self, folder: Path, settings: Sequence[str]) -> None:
        self.port = _free_port()
        """The same for all its processes."""
        self.authority = folder / "mitmproxy-ca-cert.pem"
        self._folder = folder
        self._settings = settings
        self._mitmdump: Mitmdump | None = None
        self._trips_of_dead = 0
        self._serves = asyncio.Event()

    def __repr__(self) -> str:
        return f"<FleetProxy {self._mitmdump!r}>"

    @property
    def guard_trips(self) -> int:
        """Exceptions of the addon's own, in all its processes."""
        return self._trips_of_dead + (self._mitmdump.guard_trips if self._mitmdump else 0)

    @property
    def lines(self) -> Sequence[str]:
        """The newest lines of its log."""
        return tuple(self._mitmdump.lines) if self._mitmdump else ()

    async def serve(self) -> None:
        """Run it; whenever it ends, run it again. Raises NotStarted."""
        while True:
            scripts = (Path(inside.__file__),)
            async with running_mitmdump(self._folder, self._settings, port=self.port, scripts=scripts) as mitmdump:
                self._mitmdump = mitmdump
                self._serves.set()
                await mitmdump.ended()
            self._trips_of_dead += mitmdump.guard_trips
            self._mitmdump = None
            self._serves.clear()

    async def serves(self) -> None:
        """Wait until it listens."""
        await self._serves.wait()

    async def ended(self) -> None:
        """Wait until its present process has."""
        if self._mitmdump is not None:
            await self._mitmdump.ended()
            self._serves.clear()

    def kill(self) -> None:
        """Kill its process, as a crash would."""
        assert self._mitmdump is not None, "it serves"
        self._mitmdump.kill()

    async def books(self) -> Mapping[str, int]:
        """The addon's counters."""
        proxy = f"http://127.0.0.1:{self.port}"
        async with httpx.AsyncClient(proxy=proxy, trust_env=False, timeout=_BOOKS_S) as client:
            response = await client.get(f"http://{inside.BOOKS_HOST}/")
            counters: Mapping[str, int] = response.raise_for_status().json()
            return counters


@asynccontextmanager
async def running_proxy(folder: Path, settings: Sequence[str]) -> AsyncIterator[FleetProxy]:
    """It listens, until the block ends. `settings`: `name=value`, for `--set`. Raises NotStarted."""
    proxy = FleetProxy(folder, settings)
    serving = asyncio.create_task(proxy.serve())
    listens = asyncio.create_task(proxy.serves())
    try:
        await asyncio.wait((serving, listens), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        yield proxy
    finally:
        listens.cancel()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
