"""The simulated provider on a real socket: HTTP/1.1 and HTTP/2, with and without TLS.

    POST /v1/messages, …:generateContent, …    the model, with its limits and faults: see sim/route.py
    POST /v1/messages/count_tokens, GET /v1/models, /api/tags, and what sim/side_calls.py knows
    GET  /v1/responses                         a WebSocket with the same model, or 426 (ProviderSettings.websocket_s)
    GET  /echo                                 the request's head, as JSON
    POST /upload                               size and SHA-256 of the body
    GET  /download?size=N&chunks=M             N bytes in M pieces
    anything else                              404, in the provider's shape

`SimServer` lives in a running loop; `running_server` gives it a thread and a loop of its own. As a process:
`python -m hivemind_addon.sim.server --port P`; it prints one JSON line with its address when it is ready, and its
truth as JSON when it is told to stop (SIGTERM or Ctrl-C).
"""

import argparse
import asyncio
import concurrent.futures
import dataclasses
import functools
import random
import signal
import ssl
import sys
import threading
import time
import urllib.parse
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import msgspec

from hivemind_addon.sim import dialect as wire
from hivemind_addon.sim import sigv4
from hivemind_addon.sim.call import AnswerEnding, Truth
from hivemind_addon.sim.dialect import Headers, SimDialect
from hivemind_addon.sim.exchange import ConnectionLog, Incoming, Player, RequestView
from hivemind_addon.sim.faults import OK, ErrorStatus, Fault
from hivemind_addon.sim.http1 import Http1Connection
from hivemind_addon.sim.http2 import Http2Connection
from hivemind_addon.sim.plan import Data, End, Head, steps
from hivemind_addon.sim.provider import ProviderSettings, SimProvider
from hivemind_addon.sim.request import MAX_BODY_BYTES, facts, input_tokens
from hivemind_addon.sim.route import SimTarget, target_of
from hivemind_addon.sim.side_calls import beside

_PATTERN = bytes(range(251))
_KEPT_REQUESTS = 10_000
"""Of the heads that `requests` shows, the newest."""

Tls = ssl.SSLContext | tuple[str, str]
"""A context, which the server then owns, or the files of a certificate chain and its key."""


class SimServer:
    """One listening socket and the provider behind it. Used in the loop that started it."""

    def __init__(
        self,
        settings: ProviderSettings | None = None,
        *,
        seed: int | str = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: Tls | None = None,
        http2: bool = False,
    ) -> None:
        self.host = host
        self.port = port
        """0 until `start` has chosen one."""
        self._settings = settings or ProviderSettings()
        self._seed = seed
        self._http2 = http2
        self._names: weakref.WeakKeyDictionary[ssl.SSLObject, str] = weakref.WeakKeyDictionary()
        self._tls = self._context(tls) if tls is not None else None
        self._wall_offset_s = 0.0
        self._provider = SimProvider(self._settings, random.Random(seed))
        self._logs: list[ConnectionLog] = []
        self._requests: deque[RequestView] = deque(maxlen=_KEPT_REQUESTS)
        self._open: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<SimServer {self.url} {self._provider!r}>"

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"

    @property
    def provider(self) -> SimProvider:
        """The model; another one after `reset`."""
        return self._provider

    async def start(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self.reset()
        self._server = await loop.create_server(lambda: _Front(self), self.host, self.port, ssl=self._tls, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more, and cut what is open. The truth stays."""
        if self._server is None:
            return
        self._server.close()
        for transport in list(self._open):
            transport.abort()
        with suppress(TimeoutError):  # a client in the middle of its TLS handshake is not waited for
            async with asyncio.timeout(1):
                await self._server.wait_closed()
        self._server = None

    def script(self, credential: str, faults: Iterable[Fault], *, then: Fault = OK) -> None:
        """See SimProvider.script."""
        self._provider.script(credential, faults, then=then)

    def truth(self) -> Truth:
        """What really happened since the start or the last reset."""
        return self._provider.truth()

    def connections(self) -> Sequence[ConnectionLog]:
        """All connections since then, in the order of their opening."""
        return [log.copy() for log in self._logs]

    def requests(self) -> Sequence[RequestView]:
        """The newest request heads, oldest first."""
        return list(self._requests)

    def reset(self) -> None:
        """Begin anew: full limits, no scripts, no truth, the same seed. What runs ends in the old books."""
        # The one wall clock: headers hold instants that others compare with theirs, and signatures theirs with ours.
        self._wall_offset_s = time.time() - asyncio.get_running_loop().time()  # noqa: TID251 - see above
        self._provider = SimProvider(self._settings, random.Random(self._seed), wall_offset_s=self._wall_offset_s)
        self._logs = [log for log in self._logs if log.open]
        self._requests.clear()

    def opened(self, *, http2: bool, sni: str | None) -> ConnectionLog:
        """See Service."""
        log = ConnectionLog(self._logs[-1].number + 1 if self._logs else 1, http2, sni)
        self._logs.append(log)
        return log

    def arrived(self, incoming: Incoming) -> None:
        """See Service."""
        log = incoming.log
        log.requests += 1
        log.hosts.add(incoming.host)
        log.header_names.update(incoming.headers)
        at = asyncio.get_running_loop().time()
        self._requests.append(
            RequestView(at, log.number, incoming.method, incoming.path, incoming.query, incoming.headers)
        )
        if incoming.method == "POST" and incoming.path != "/upload":
            incoming.keep_bytes = MAX_BODY_BYTES

    def socket_life_s(self, incoming: Incoming) -> float | None:
        """See Service."""
        is_asked = incoming.method == "GET" and incoming.headers.get("upgrade", "").lower() == "websocket"
        target = target_of(incoming.path, incoming.query)
        is_there = self._settings.websocket_s and target is not None and target.dialect is SimDialect.RESPONSES
        return self._settings.websocket_s if is_asked and is_there else None

    async def answer(self, incoming: Incoming, player: Player) -> None:
        """See Service."""
        if incoming.method == "POST" and (target := target_of(incoming.path, incoming.query)) is not None:
            await self._model_call(target, incoming, player)
            return
        dialect = _guessed(incoming.headers, incoming.path)
        match incoming.method, incoming.path:
            case "POST", "/v1/messages/count_tokens":
                await _json(incoming, player, {"input_tokens": input_tokens(incoming.body)})
            case "GET", "/v1/responses":
                await _whole(incoming, player, 426, "text/plain", b"POST here; this server speaks no WebSocket\n")
            case "GET", "/api/tags":
                await _whole(incoming, player, 200, "application/json", wire.SHAPES[SimDialect.OLLAMA].models_body())
            case "GET", "/foundation-models":
                await _whole(incoming, player, 200, "application/json", wire.SHAPES[SimDialect.CONVERSE].models_body())
            case "GET", "/v1/models":
                await _whole(incoming, player, 200, "application/json", wire.SHAPES[dialect].models_body())
            case "GET", "/echo":
                await _json(
                    incoming,
                    player,
                    {
                        "method": incoming.method,
                        "path": incoming.path,
                        "query": incoming.query,
                        "host": incoming.host,
                        "http2": incoming.log.http2,
                        "headers": incoming.headers,
                    },
                )
            case "POST", "/upload" if incoming.sha256 is not None:
                await _json(incoming, player, {"size": incoming.size, "sha256": incoming.sha256.hexdigest()})
            case "GET", "/download":
                await _download(incoming, player)
            case _ if (said := beside(incoming.method, incoming.path, incoming.body)) is not None:
                await _json(incoming, player, said)
            case _:
                error = wire.error_object(dialect, 404, message=f"no such path: {incoming.path}")
                body = wire.SHAPES[dialect].error_body(error, "req_none")
                await _whole(incoming, player, 404, "application/json", body)

    async def _model_call(self, target: SimTarget, incoming: Incoming, player: Player) -> None:
        provider, loop = self._provider, asyncio.get_running_loop()
        asked = facts(target, incoming.headers, incoming.body, incoming.size)
        if wrong := self._forged(incoming):
            asked = dataclasses.replace(asked, unfit=wrong)
        arrived_at = loop.time()
        answer = provider.begin(arrived_at, asked)
        output_tokens = 0
        ending: AnswerEnding | None = AnswerEnding.ABANDONED
        try:
            for step in steps(answer, http2=incoming.log.http2):
                await player.play(step)
                if isinstance(step, Data):
                    output_tokens += step.output_tokens
            ending = None
        finally:
            if ending is not None and player.dropped:
                ending = AnswerEnding.CUT
            elif answer.reply is not None and output_tokens >= answer.reply.output_tokens:
                ending = None  # all of it was generated, whoever leaves now
            if ending is AnswerEnding.ABANDONED and self._settings.works_on and answer.reply is not None:
                generated_s = (answer.reply.output_tokens - 1) * answer.interval_s if answer.streamed else 0.0
                over_at = max(loop.time(), arrived_at + answer.latency_s + generated_s)
                end = functools.partial(provider.end, over_at, answer, output_tokens=output_tokens, ending=ending)
                loop.call_at(over_at, end)
            else:
                provider.end(loop.time(), answer, output_tokens=output_tokens, ending=ending)

    def _forged(self, incoming: Incoming) -> ErrorStatus | None:
        """What is wrong with a signed request, if anything is."""
        return sigv4.refusal(
            method=incoming.method,
            path=incoming.path,
            query=incoming.query,
            headers={"host": incoming.host, **incoming.headers},
            body=incoming.body,
            wall_now=asyncio.get_running_loop().time() + self._wall_offset_s,
        )

    def entered(self, transport: asyncio.Transport) -> asyncio.Protocol:
        """A connection is open: the protocol that it speaks from now on."""
        self._open.add(transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is None:
            return Http1Connection(self, sni=None)
        sni = self._names.get(tls)
        if tls.selected_alpn_protocol() == "h2":
            return Http2Connection(self, sni=sni)
        return Http1Connection(self, sni=sni)

    def _context(self, tls: Tls) -> ssl.SSLContext:
        if isinstance(tls, tuple):
            certificate, key = tls
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
        else:
            context = tls
        context.set_alpn_protocols(["h2", "http/1.1"] if self._http2 else ["http/1.1"])
        context.sni_callback = self._named
        return context

    def _named(self, tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        if name is not None:
            self._names[tls] = name


class _Front(asyncio.Protocol):
    """Stands in until the connection is open and its HTTP version known."""

    def __init__(self, server: SimServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = cast("asyncio.Transport", transport)
        protocol = self._server.entered(opened)
        opened.set_protocol(protocol)
        protocol.connection_made(opened)


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


def load_settings(path: Path) -> ProviderSettings:
    """The settings in a JSON file: the fields of ProviderSettings. ValueError: an unknown field or a bad value."""
    data = path.read_bytes()
    known = {field.name for field in dataclasses.fields(ProviderSettings)}
    unknown = sorted(set(msgspec.json.decode(data, type=dict[str, msgspec.Raw])) - known)
    if unknown:
        raise ValueError(f"{path}: unknown setting {unknown[0]!r}; known: {', '.join(sorted(known))}")
    return msgspec.json.decode(data, type=ProviderSettings)


def _guessed(headers: Mapping[str, str], path: str) -> SimDialect:
    """Who asks, where the path does not say it."""
    if "anthropic-version" in headers:
        return SimDialect.MESSAGES
    if "x-goog-api-key" in headers or path.startswith(("/v1beta/", "/v1internal", "/v1/projects/")):
        return SimDialect.GEMINI
    return SimDialect.CHAT


async def _whole(incoming: Incoming, player: Player, status: int, content_type: str, body: bytes) -> None:
    headers: Headers = (("content-type", content_type),)
    await player.play(Head(status, headers, len(body)))
    if incoming.method != "HEAD":
        await player.play(Data(body))
    await player.play(End())


async def _json(incoming: Incoming, player: Player, value: object) -> None:
    await _whole(incoming, player, 200, "application/json", msgspec.json.encode(value))


async def _download(incoming: Incoming, player: Player) -> None:
    """As many bytes as asked for; with a number of pieces the length is not said beforehand."""
    query = dict(urllib.parse.parse_qsl(incoming.query))
    asked = query.get("size", "0"), query.get("chunks", "0")
    if not all(number.isascii() and number.isdigit() for number in asked):
        await _whole(incoming, player, 400, "text/plain", b"size and chunks are numbers\n")
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


async def _main(arguments: argparse.Namespace) -> None:
    settings = load_settings(arguments.settings) if arguments.settings else None
    tls = (arguments.tls_cert, arguments.tls_key) if arguments.tls_cert else None
    server = SimServer(
        settings,
        seed=arguments.seed,
        host=arguments.host,
        port=arguments.port,
        tls=tls,
        http2=tls is not None,
    )
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    await server.start()
    _print({"url": server.url, "host": server.host, "port": server.port})
    await over.wait()
    _print({"truth": server.truth(), "connections": len(server.connections())})
    await server.stop()


def _print(value: object) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hivemind_addon.sim.server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", type=Path, help="JSON file with the fields of ProviderSettings")
    parser.add_argument("--tls-cert", help="file with the certificate chain; HTTP/2 is offered then")
    parser.add_argument("--tls-key", help="file with its key")
    arguments = parser.parse_args()
    if bool(arguments.tls_cert) != bool(arguments.tls_key):
        parser.error("--tls-cert and --tls-key go together")
    return arguments


if __name__ == "__main__":
    asyncio.run(_main(_arguments()))
