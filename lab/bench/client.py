"""The load client, a process of its own: raw HTTP/1.1 or HTTP/2 over kept connections, as light as Python allows.

It reads one JSON object a line and answers each with one. Connections stay open from one to the next:

    {"do": "load", "route": ROUTE, "concurrency": …, "requests": …, "body_bytes": …, "streamed": …, "sessions": …,
     "format": one of bench.plan's, Messages if there is none}
        → {"latencies_s": […], "firsts_s": […], "transits_s": […], "duration_s": …, "failures": […]}
    {"do": "leave", "route": ROUTE, …}    like load, but returns when all requests are written; the answers are not awaited
    {"do": "close", "route": ROUTE}

Each request is of another session, which makes it another agent; with `sessions` they come again after so many, and
with `own` each connection has one for each kind of request.
`transits_s`: of pieces that tell when the provider wrote them, the seconds until they were read here.

ROUTE: {"port": …, "host": Host header, "tls": CA file or null, "connect": "host:port" to ask a proxy for, or null,
        "http2": whether it is offered, and nothing else}
"""

import asyncio
import json
import os
import re
import socket
import ssl
import sys
from collections import defaultdict
from functools import cache
from time import gmtime, perf_counter, strftime

from lab.bench.bodies import conversation, converse_request, gemini_request
from lab.bench.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    PREFACE,
    STATUS_200,
    WIDE_WINDOWS,
    Frames,
    Kind,
    frame,
    literal,
)
from lab.bench.plan import CONVERSE, GEMINI, MESSAGES

_LAST_CHUNK = b"\r\n0\r\n\r\n"
_WRITTEN = re.compile(rb" at=([\d.]+)")
_SESSION = b"bench-00000000"
_PATHS = {
    MESSAGES: "/v1/messages",
    GEMINI: "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse",
    CONVERSE: "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream",
}
_HEADERS = {
    MESSAGES: {"x-api-key": "sk-bench", "anthropic-version": "2023-06-01"},
    GEMINI: {"x-goog-api-key": "sk-bench"},
    CONVERSE: {
        "authorization": (
            "AWS4-HMAC-SHA256 Credential=AKIABENCH/20260901/us-east-1/bedrock/aws4_request, "  # nobody checks it
            f"SignedHeaders=content-type;host;x-amz-date, Signature={'0' * 64}"
        ),
    },
}


class Connection(asyncio.Protocol):
    """A request at a time."""

    def __init__(self):
        self.number = 0
        """Among those that go the same way."""
        self.open = False
        self.busy = False
        self.transits_s = []
        self.on_done = None
        """Called with status (0: the connection was lost), seconds to the first byte of the body, and to the last."""

    def connection_made(self, transport):
        self.transport = transport
        self.open = True

    def ask(self, asked, session):
        """Send such a request."""
        head = asked.http1_head.replace(_SESSION, session)
        self.head = b""
        self.left = None
        self.tail = b""
        self.send(b"".join((head, asked.body)))

    def send(self, data):
        self.busy = True
        self.first_s = 0.0
        self.began = perf_counter()
        self.transport.write(data)

    def data_received(self, data):
        if self.left is None:
            self.head += data
            head, end, data = self.head.partition(b"\r\n\r\n")
            if not end:
                return
            head = head.lower()
            self.status = int(head[9:12])
            self.chunked = b"transfer-encoding: chunked" in head
            self.left = 0 if self.chunked else int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if not data:
            return
        self.came(data)
        if self.chunked:
            self.tail = (self.tail + data)[-len(_LAST_CHUNK) :]
            over = self.tail == _LAST_CHUNK
        else:
            self.left -= len(data)
            over = self.left <= 0
        if over:
            self.done(self.status)

    def came(self, data):
        """Some of a body."""
        now = perf_counter()
        if not self.first_s:
            self.first_s = now - self.began
        if b" at=" in data:
            self.transits_s += [now - float(at) for at in _WRITTEN.findall(data)]

    def connection_lost(self, _error):
        self.open = False
        if self.busy:
            self.done(0)

    def done(self, status):
        self.busy = False
        self.on_done(self, status, self.first_s, perf_counter() - self.began)


class Http2Connection(Connection):
    """The same over HTTP/2: a stream after the other, with windows so wide that no stream has to wait."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self.frames = Frames()
        self.stream = -1
        transport.write(PREFACE + WIDE_WINDOWS)

    def ask(self, asked, session):
        self.stream += 2
        self.status = 0
        parts = [frame(Kind.HEADERS, END_HEADERS, self.stream, asked.http2_head.replace(_SESSION, session))]
        for start in range(0, len(asked.body), FRAME_BYTES):
            last = END_STREAM if start + FRAME_BYTES >= len(asked.body) else 0
            parts.append(frame(Kind.DATA, last, self.stream, asked.body[start : start + FRAME_BYTES]))
        self.send(b"".join(parts))

    def data_received(self, data):
        for kind, flags, _stream, content in self.frames.read(data):
            match kind:
                case Kind.DATA if content:
                    self.came(content)
                case Kind.HEADERS:
                    self.status = self.status or (200 if content[0] == STATUS_200 else 1)
                case Kind.SETTINGS | Kind.PING if not flags & ACK:
                    self.transport.write(frame(kind, ACK, 0, content if kind == Kind.PING else b""))
                case Kind.RESET | Kind.GOAWAY:
                    self.transport.abort()
            if self.busy and kind in (Kind.DATA, Kind.HEADERS) and flags & END_STREAM:
                self.done(self.status)


class Asked:
    """Requests that differ in their session only."""

    def __init__(self, host, body_bytes, streamed, api=MESSAGES, signed_at=""):
        self.body = _body(body_bytes, streamed, api)
        path = _PATHS[api]
        headers = {
            **_HEADERS[api],
            "content-type": "application/json",
            "x-session-id": _SESSION.decode(),
            "content-length": str(len(self.body)),
        }
        if api == CONVERSE:
            headers["x-amz-date"] = signed_at
        lines = "".join(f"{name}: {value}\r\n" for name, value in ({"host": host} | headers).items())
        self.http1_head = f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode()
        pseudo = {":method": "POST", ":scheme": "https", ":path": path, ":authority": host}
        self.http2_head = b"".join(literal(name, value) for name, value in (pseudo | headers).items())


def _body(body_bytes, streamed, api):
    if api == MESSAGES:
        return conversation(body_bytes, streamed=streamed)
    return (gemini_request if api == GEMINI else converse_request)(body_bytes)


asked = cache(Asked)


class Client:
    def __init__(self):
        self.connections = defaultdict(list)
        self.sent = 0

    async def ready(self, route, concurrency):
        """So many open connections."""
        pool = self.connections[_kind(route)]
        pool[:] = [connection for connection in pool if connection.open and not connection.busy]
        while len(pool) < concurrency:
            pool.append(await connect(route))
        for number, connection in enumerate(pool):
            connection.number = number
        return pool[:concurrency]

    async def load(self, plan):
        connections = await self.ready(plan["route"], plan["concurrency"])
        return await self.run(connections, plan, plan["requests"])

    async def run(self, connections, plan, count):
        over = asyncio.get_running_loop().create_future()
        latencies_s, firsts_s, transits_s, failures = [], [], [], []
        started = finished = 0

        def go(connection):
            nonlocal started
            started += 1
            self.ask(connection, plan)

        def on_done(connection, status, first_s, latency_s):
            nonlocal finished
            finished += 1
            if status == 200:
                latencies_s.append(latency_s)
                firsts_s.append(first_s)
            else:
                failures.append(status)
            if started < count and connection.open:
                go(connection)
            elif finished == started:
                over.set_result(None)

        began = perf_counter()
        for connection in connections[:count]:
            connection.on_done = on_done
            connection.transits_s = transits_s
            go(connection)
        await over
        return {
            "latencies_s": latencies_s,
            "firsts_s": firsts_s,
            "transits_s": transits_s,
            "duration_s": perf_counter() - began,
            "failures": failures,
        }

    async def leave(self, plan):
        for connection in await self.ready(plan["route"], plan["concurrency"]):
            connection.on_done = lambda *_: None
            self.ask(connection, plan)
        return {}

    async def close(self, plan):
        for connection in self.connections.pop(_kind(plan["route"]), ()):
            connection.on_done = lambda *_: None
            connection.transport.abort()
        return {}

    def ask(self, connection, plan):
        self.sent += 1
        if plan.get("own"):
            session = plan["body_bytes"] // 1000 * 10_000 + plan["streamed"] * 1000 + connection.number
        else:
            session = self.sent % plan["sessions"] if plan["sessions"] else self.sent
        api = plan.get("format", MESSAGES)
        # A signature that is minutes old would not be scheduled.
        signed_at = strftime("%Y%m%dT%H%M00Z", gmtime()) if api == CONVERSE else ""
        requests = asked(plan["route"]["host"], plan["body_bytes"], plan["streamed"], api, signed_at)
        connection.ask(requests, b"bench-%08d" % session)


def _kind(route):
    """Which of the connections go there."""
    return route["port"], route["connect"], route["http2"]


async def connect(route):
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await loop.sock_connect(sock, ("127.0.0.1", route["port"]))
    if route["connect"]:
        target = route["connect"]
        await loop.sock_sendall(sock, f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += await loop.sock_recv(sock, 1024)
        assert b" 200 " in answer, answer
    http2 = route["http2"]
    context = _trust(route["tls"], "h2" if http2 else "http/1.1") if route["tls"] else None
    name = "localhost" if context else None
    protocol = Http2Connection if http2 else Connection
    _, connection = await loop.create_connection(protocol, sock=sock, ssl=context, server_hostname=name)
    return connection


@cache
def _trust(file, alpn):
    context = ssl.create_default_context(cafile=file)
    context.set_alpn_protocols([alpn])
    return context


async def main():
    loop = asyncio.get_running_loop()
    client = Client()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        plan = json.loads(line)
        answer = await getattr(client, plan["do"])(plan)
        print(json.dumps(answer | {"sent": client.sent, "pid": os.getpid()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
