"""The simulated provider in a thread of its own, for tests and measurements."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from hivemind_addon.sim.call import Truth
from hivemind_addon.sim.exchange import ConnectionLog, RequestView
from hivemind_addon.sim.faults import OK, Fault
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.server import SimServer, Tls


class RunningServer:
    """A SimServer in a thread of its own; safe to use from any other."""

    def __init__(self, server: SimServer, loop: asyncio.AbstractEventLoop) -> None:
        self.url = server.url
        self.host = server.host
        self.port = server.port
        self.loop = loop
        self._server = server

    def __repr__(self) -> str:
        return f"<RunningServer {self.url}>"

    def script(self, credential: str, faults: Iterable[Fault], *, then: Fault = OK) -> None:
        """See SimProvider.script."""
        self._in_loop(lambda: self._server.script(credential, faults, then=then))

    def set_concurrency(self, concurrency: int | None) -> None:
        """See SimProvider.set_concurrency."""
        self._in_loop(lambda: self._server.provider.set_concurrency(concurrency))

    def truth(self) -> Truth:
        """See SimServer.truth."""
        return self._in_loop(self._server.truth)

    def connections(self) -> Sequence[ConnectionLog]:
        """See SimServer.connections."""
        return self._in_loop(self._server.connections)

    def requests(self) -> Sequence[RequestView]:
        """See SimServer.requests."""
        return self._in_loop(self._server.requests)

    def reset(self) -> None:
        """See SimServer.reset."""
        self._in_loop(self._server.reset)

    def _in_loop[T](self, function: Callable[[], T]) -> T:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def call() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - carried over to the thread that asked
                future.set_exception(error)

        self.loop.call_soon_threadsafe(call)
        return future.result()


@contextmanager
def running_server(
    settings: ProviderSettings | None = None,
    *,
    seed: int = 0,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: Tls | None = None,
    http2: bool = False,
) -> Iterator[RunningServer]:
    """A server in its own thread and loop, until the block ends. Raises what `start` raises."""
    ready: concurrent.futures.Future[tuple[RunningServer, asyncio.Event]] = concurrent.futures.Future()

    async def serve() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        server = SimServer(settings, seed=seed, host=host, port=port, tls=tls, http2=http2)
        try:
            await server.start()
        except OSError as error:
            ready.set_exception(error)
            return
        ready.set_result((RunningServer(server, loop), over))
        await over.wait()
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="sim-server", daemon=True)
    thread.start()
    server, over = ready.result()
    try:
        yield server
    finally:
        server.loop.call_soon_threadsafe(over.set)
        thread.join()
