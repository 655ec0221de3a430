"""The simulated provider on a real socket: HTTP/1.1 and HTTP/2, with and without TLS.

    POST /v1/messages, …:generateContent, …    the model, with its limits and faults: see sim/route.py
    POST /v1/messages/count_tokens, GET /v1/models, /api/tags, and what sim/side_calls.py knows
    GET  /v1/responses                         a WebSocket with the same model, or 426 (ProviderSettings.websocket_s)
    anything else                              404, in the provider's shape

`SimServer` lives in a running loop.
"""

import asyncio
import dataclasses
import functools
import random
import ssl
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
        if incoming.method == "POST":
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
                await answer_json(incoming, player, {"input_tokens": input_tokens(incoming.body)})
            case "GET", "/v1/responses":
                await answer_whole(incoming, player, 426, "text/plain", b"POST here; this server speaks no WebSocket\n")
            case "GET", "/api/tags":
                await _models(incoming, player, SimDialect.OLLAMA)
            case "GET", "/foundation-models":
                await _models(incoming, player, SimDialect.CONVERSE)
            case "GET", "/v1/models":
                await _models(incoming, player, dialect)
            case _ if (said := beside(incoming.method, incoming.path, incoming.body)) is not None:
                await answer_json(incoming, player, said)
            case _:
                error = wire.error_object(dialect, 404, message=f"no such path: {incoming.path}")
                body = wire.SHAPES[dialect].error_body(error, "req_none")
                await answer_whole(incoming, player, 404, "application/json", body)

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


def _guessed(headers: Mapping[str, str], path: str) -> SimDialect:
    """Who asks, where the path does not say it."""
    if "anthropic-version" in headers:
        return SimDialect.MESSAGES
    if "x-goog-api-key" in headers or path.startswith(("/v1beta/", "/v1internal", "/v1/projects/")):
        return SimDialect.GEMINI
    return SimDialect.CHAT


async def answer_whole(incoming: Incoming, player: Player, status: int, content_type: str, body: bytes) -> None:
    """Play an answer with this body."""
    headers: Headers = (("content-type", content_type),)
    await player.play(Head(status, headers, len(body)))
    if incoming.method != "HEAD":
        await player.play(Data(body))
    await player.play(End())


async def _models(incoming: Incoming, player: Player, dialect: SimDialect) -> None:
    await answer_whole(incoming, player, 200, "application/json", wire.SHAPES[dialect].models_body())


async def answer_json(incoming: Incoming, player: Player, value: object) -> None:
    """Play an answer that is this value."""
    await answer_whole(incoming, player, 200, "application/json", msgspec.json.encode(value))
