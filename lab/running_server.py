"""The simulated provider in a thread of its own, for tests and measurements. It answers more than a provider does:

GET  /echo                                 the request's head, as JSON
POST /upload                               size and SHA-256 of the body
GET  /download?size=N&chunks=M             N bytes in M pieces
"""

import asyncio
import concurrent.futures
import hashlib
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from hivemind_addon.sim.call import Truth
from hivemind_addon.sim.exchange import ConnectionLog, Incoming, Player, RequestView
from hivemind_addon.sim.faults import OK, Fault
from hivemind_addon.sim.plan import Data, End, Head
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.server import SimServer, Tls, answer_json, answer_whole

_PATTERN = bytes(range(251))


class PlainServer(SimServer):
    """The simulated provider, with paths that are no provider's."""

    def arrived(self, incoming: Incoming) -> None:
        """See Service."""
        super().arrived(incoming)
        if incoming.path == "/upload":
            incoming.keep_bytes = sys.maxsize

    async def answer(self, incoming: Incoming, player: Player) -> None:
        """See Service."""
        match incoming.method, incoming.path:
            case "GET", "/echo":
                said = {name: getattr(incoming, name) for name in ("method", "path", "query", "host", "headers")}
                await answer_json(incoming, player, said | {"http2": incoming.log.http2})
            case "POST", "/upload":
                digest = hashlib.sha256(incoming.body).hexdigest()
                await answer_json(incoming, player, {"size": incoming.size, "sha256": digest})
            case "GET", "/download":
                await _download(incoming, player)
            case _:
                await super().answer(incoming, player)


async def _download(incoming: Incoming, player: Player) -> None:
    """As many bytes as asked for; with a number of pieces the length is not said beforehand."""
    query = dict(urllib.parse.parse_qsl(incoming.query))
    asked = query.get("size", "0"), query.get("chunks", "0")
    if not all(number.isascii() and number.isdigit() for number in asked):
        await answer_whole(incoming, player, 400, "text/plain", b"size and chunks are numbers\n")
        return
    size, pieces = (int(number) for number in asked)
    content = ("content-type", "application/octet-stream")
    await player.play(Head(200, (content,), None if pieces else size))
    piece = max(1, -(-size // pieces)) if pieces else 64 * 1024
    for start in range(0, size, piece):
        await player.play(Data(download_bytes(start, min(size, start + piece))))
    await player.play(End())


def download_bytes(start: int, end: int) -> bytes:
    """The bytes of every download from one place to another: their places modulo 251."""
    skip = start % len(_PATTERN)
    return (_PATTERN * ((end - start + skip) // len(_PATTERN) + 1))[skip : skip + end - start]


class RunningServer:
    """A PlainServer in a thread of its own; safe to use from any other."""

    def __init__(self, server: PlainServer, loop: asyncio.AbstractEventLoop) -> None:
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
        server = PlainServer(settings, seed=seed, host=host, port=port, tls=tls, http2=http2)
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
