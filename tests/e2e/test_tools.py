"""Calls of services that are no models, through a real mitmdump: scheduled by their heads, whatever they carry."""

import asyncio
import base64
import hashlib
import socket
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import requests
import uvicorn
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.server.fastmcp import FastMCP

from tests.e2e.proxy import PATIENCE_S, in_flight, options, profiles, queued, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tools")]

ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PIECE = bytes(range(256)) * 1024
MINE = """
kind: plain
hosts: ['127.0.0.1:{port}']
groups: {{narrow: ["/narrow/*"], paced: ["/paced"], turns: ["/turns"]}}
stated:
  - {{limit: pace, amount: 2, per_s: 600, groups: [paced]}}
  - {{limit: turn, amount: 1, per_s: 5, groups: [turns]}}
patience: {{default_s: 60, clients: {{"hasty/*": 1}}}}
safe_paths: ["/find"]
retry: {{first_backoff_s: 0.02, max_backoff_s: 0.1}}
concurrency: {{initial: 8, maximum: 16}}
"""


class Service:
    """What came, and what is to go on."""

    def __init__(self):
        self.calls = Counter()
        self.go = threading.Event()
        self.lock = threading.Lock()
        self.most_at_once = self.at_once = 0

    def count(self, what):
        with self.lock:
            self.calls[what] += 1
            return self.calls[what]


def _handler(service):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def _answer(self, status, body=b"", **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _body(self):
            digest, size = hashlib.sha256(), 0
            if "chunked" in self.headers.get("transfer-encoding", ""):
                while length := int(self.rfile.readline(), 16):
                    digest.update(self.rfile.read(length))
                    size += length
                    self.rfile.readline()
                self.rfile.readline()
            left = int(self.headers.get("content-length", 0))
            while left and (piece := self.rfile.read1(min(left, 1 << 20))):
                left -= len(piece)
                size += len(piece)
                digest.update(piece)
            return size, digest.hexdigest()

        def _any(self):
            path = self.path.partition("?")[0]
            size, digest = self._body()
            nth = service.count(f"{self.command} {path}")
            with suppress(OSError):
                if path == "/limited" and nth == 1:
                    self._answer(429, b'{"message": "slow down"}', retry_after="0")
                elif path in ("/broken", "/find") and nth == 1:
                    self._answer(500, b"first half of an error")
                elif path == "/narrow/slow":
                    service.go.wait(PATIENCE_S)
                    self._answer(200, b"done")
                elif path == "/missing":
                    self._answer(404, b"there is none")
                elif path == "/upload":
                    self._answer(200, f"{size} {digest}".encode())
                elif path == "/download":
                    self._answer(200, PIECE * 40)
                elif path == "/events":
                    self._events()
                elif path == "/socket":
                    self._socket()
                elif path == "/model":
                    self._answer(200, b'{"usage": {"input_tokens": 7, "output_tokens": 9}, "model": "m"}')
                else:
                    self._answer(200, path.encode())

        def __getattr__(self, name):
            if name.startswith("do_"):
                return self._any
            raise AttributeError(name)

        def _events(self):
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            service.go.wait(PATIENCE_S)
            self.wfile.write(b"9\r\ndata: 1\n\n\r\n0\r\n\r\n")

        def _socket(self):
            key = self.headers["sec-websocket-key"].encode() + ACCEPT
            self.send_response(101)
            self.send_header("upgrade", "websocket")
            self.send_header("connection", "upgrade")
            self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key).digest()).decode())
            self.end_headers()
            self.wfile.write(b"\x81\x05hello")
            self.wfile.flush()
            self.rfile.read(1)
            self.close_connection = True

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        """A connection that was cut is what some tests want."""


@contextmanager
def running_service():
    service = Service()
    server = _Server(("127.0.0.1", 0), _handler(service))
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    service.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.go.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def proxy_and_port(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    with running_service() as service:
        agents = folder / "agents.yaml"
        agents.write_text("agents: {'thrifty': {budgets: [{calls: 2}]}}\n")
        single = f"kind: plain\nhosts: ['localhost:{service.port}']\nconcurrency: {{initial: 1, maximum: 1}}\n"
        mine = profiles(folder, mine=MINE.format(port=service.port), single=single)
        with running(folder / "conf", *mine, *options(agents=agents)) as proxy:
            yield proxy, service
            assert "Traceback" not in proxy.log, proxy.log
            proxy.settled()


@pytest.fixture
def proxy(proxy_and_port):
    return proxy_and_port[0]


@pytest.fixture
def service(proxy_and_port):
    service = proxy_and_port[1]
    service.calls.clear()
    service.go.clear()
    yield service
    service.go.set()


@pytest.fixture
def client(proxy):
    with proxy.client(headers={"user-agent": "tests/1", "authorization": "Bearer t"}) as client:
        yield client


def test_any_method_and_path_is_a_ticket_of_its_groups_pool(client, proxy, service):
    before = proxy.state()["snapshot"]["counters"]["tickets"]
    for method, path in (
        ("GET", "/a?b=c"),
        ("PATCH", "/x"),
        ("DELETE", "/narrow/y"),
        ("HEAD", "/z"),
        ("POST", "/model"),
    ):
        assert client.request(method, service.url + path).status_code == 200
    snapshot = proxy.settled()["snapshot"]
    assert snapshot["counters"]["tickets"] == before + 5
    groups = {pool["key"].rpartition("/")[2] for pool in snapshot["pools"]}
    assert groups >= {"*", "narrow"}


def test_what_a_limit_refuses_is_sent_again_whatever_its_method(client, service):
    assert client.post(f"{service.url}/limited", content=b"x").status_code == 200
    assert service.calls["POST /limited"] == 2


def test_what_failed_is_sent_again_only_where_that_is_safe(client, service):
    assert client.get(f"{service.url}/broken").status_code == 200
    assert client.put(f"{service.url}/broken", content=b"x").status_code == 200
    failed = client.post(f"{service.url}/broken", content=b"x")
    assert (failed.status_code, failed.content) == (500, b"first half of an error")
    service.calls.clear()
    kept = client.post(f"{service.url}/broken", content=b"x", headers={"idempotency-key": "1"})
    assert (kept.status_code, service.calls["POST /broken"]) == (200, 2)
    assert client.post(f"{service.url}/find", content=b"x").status_code == 200  # a search that is a POST


def test_what_is_not_there_is_an_answer_as_any_other(client, proxy, service):
    before = proxy.settled()["snapshot"]["counters"]
    missing = client.get(f"{service.url}/missing")
    assert (missing.status_code, missing.content) == (404, b"there is none")
    after = proxy.settled()["snapshot"]["counters"]
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {
        "tickets": 1,
        "attempts": 1,
        "delivered": 1,
    }
    assert f"{missing.headers['x-hivemind-request']}: gave up" not in proxy.log


def test_long_bodies_pass_both_ways(client, proxy, service):
    whole = hashlib.sha256(PIECE * 20).hexdigest()
    known = client.post(f"{service.url}/upload", content=PIECE * 20)
    endless = client.post(f"{service.url}/upload", content=(PIECE for _ in range(20)))
    assert known.text == endless.text == f"{20 * len(PIECE)} {whole}"
    assert client.get(f"{service.url}/download").content == PIECE * 40


def test_a_body_that_waits_stays_with_its_client(proxy, service):
    """A call that is held reads little more than it may keep, and nothing is lost of it."""
    hold = {"user-agent": "tests/1", "authorization": "Bearer held"}
    one_at_a_time = f"http://localhost:{service.port}"
    with proxy.client(headers=hold) as client, ThreadPoolExecutor(2) as pool:
        slow = pool.submit(client.get, f"{one_at_a_time}/narrow/slow")
        proxy.wait_for(lambda state: in_flight(state) == 1, "the call that is in the way")
        sent = Counter()

        def pieces():
            for _ in range(200):
                sent["bytes"] += len(PIECE)
                yield PIECE

        answer = pool.submit(client.post, f"{one_at_a_time}/upload", content=pieces())
        proxy.wait_for(lambda state: queued(state) == 1, "a held call")
        before = -1
        while sent["bytes"] != before:
            before = sent["bytes"]
            time.sleep(0.1)
        assert before < 150 * len(PIECE)  # what sockets take of it is theirs
        service.go.set()
        assert slow.result().content == b"done"
        assert answer.result().text.startswith(f"{200 * len(PIECE)} ")


def test_events_and_sockets_hold_no_slot(client, proxy, service):
    with client.stream("GET", f"{service.url}/events", headers={"accept": "text/event-stream"}) as events:
        assert events.status_code == 200  # the head comes though nothing is said
        assert in_flight(proxy.state()) == 0
        service.go.set()
        assert events.read() == b"data: 1\n\n"
    with closing(socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S)) as connection:
        connection.sendall(
            f"GET {service.url}/socket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode()
        )
        said = b""
        while b"hello" not in said:
            said += connection.recv(4096) or pytest.fail(f"closed after {said!r}")
        assert said.startswith(b"HTTP/1.1 101")
        assert in_flight(proxy.state()) == 0


def test_a_call_that_waits_too_long_comes_back_before_its_client_gives_up(proxy, service):
    """The stated limit lets two through in ten minutes; the third is told when to come back, in plain JSON."""
    with proxy.client(headers={"user-agent": "hasty/1", "authorization": "Bearer paced"}) as client:
        assert [client.get(f"{service.url}/paced").status_code for _ in range(2)] == [200, 200]
        refused = client.get(f"{service.url}/paced")
    assert refused.status_code == 429
    assert 500 < int(refused.headers["retry-after"]) <= 601
    assert "retry" in refused.json()["message"]
    assert service.calls["GET /paced"] == 2


def test_a_held_client_of_python_hears_that_its_call_waits(proxy, service):
    """Each waits 4 s for the next byte, and the last one is held for 15 s."""
    url, address = f"{service.url}/turns", f"http://one@127.0.0.1:{proxy.port}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": address}))
    calls = (
        lambda: httpx.get(url, proxy=address, timeout=4).status_code,
        lambda: requests.get(url, proxies={"http": address}, timeout=4).status_code,
        lambda: opener.open(url, timeout=4).status,
        lambda: httpx.post(url, proxy=address, timeout=4, content=b"x").status_code,
    )
    with ThreadPoolExecutor(len(calls)) as pool:
        assert [call.result() for call in [pool.submit(call) for call in calls]] == [200] * len(calls)


class RefusesForAWhile:
    """An MCP server whose provider refuses tool calls for 7 s."""

    def __init__(self):
        self.server = FastMCP("adds", stateless_http=True, json_response=True)
        self.server.add_tool(lambda a, b: a + b, name="add")
        self.app = self.server.streamable_http_app()
        self.opens_at = None
        self.refused = 0

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        first = await receive()
        if b'"tools/call"' in first.get("body", b""):
            now = time.monotonic()
            self.opens_at = self.opens_at or now + 7
            if now < self.opens_at:
                self.refused += 1
                await send({"type": "http.response.start", "status": 429, "headers": [(b"retry-after", b"2")]})
                return await send({"type": "http.response.body"})
        came = iter([first])

        async def again():
            return next(came, None) or await receive()

        return await self.app(scope, again, send)


@contextmanager
def running_mcp(app):
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


async def add_one(proxy, url, number):
    """As agents' programs do it: MCP's own client, on httpx."""
    async with (
        httpx.AsyncClient(proxy=f"http://one@127.0.0.1:{proxy.port}", timeout=httpx.Timeout(30, read=300)) as client,
        streamable_http_client(url, http_client=client) as (reads, writes, _),
        ClientSession(reads, writes) as session,
    ):
        await session.initialize()
        return (await session.call_tool("add", {"a": number, "b": 1})).content[0].text


def test_mcps_own_clients_wait_for_their_tools_in_the_queue(tmp_path):
    app = RefusesForAWhile()

    async def all_of_them(proxy, url):
        return await asyncio.gather(*(add_one(proxy, url, number) for number in range(6)))

    with running_mcp(app) as port, running(tmp_path / "conf", *options(tools=f"mcp=127.0.0.1:{port}")) as proxy:
        assert asyncio.run(all_of_them(proxy, f"http://127.0.0.1:{port}/mcp")) == [str(n + 1) for n in range(6)]
        assert 1 <= app.refused <= 12
        assert "Traceback" not in proxy.log, proxy.log


def test_a_budget_counts_calls(proxy, service):
    with proxy.client("thrifty", headers={"user-agent": "tests/1"}) as client:
        got = [client.get(f"{service.url}/a") for _ in range(3)]
    assert [answer.status_code for answer in got] == [200, 200, 403]
    assert "2 calls of 2 calls" in got[-1].json()["message"]
    assert service.calls["GET /a"] == 2


class Github:
    """As strict as its documents: 100 calls at once and 900 points in a minute, of which a refused call takes its point."""

    def __init__(self):
        self.at_once = self.calls = 0
        self.refused = Counter()

    def refuses(self):
        """The limit that refuses the call which has just come; empty: none."""
        self.calls += 1
        self.at_once += 1
        limit = "concurrency" if self.at_once > 100 else "points" if self.calls > 900 else ""
        self.refused += Counter([limit] if limit else [])
        return limit


@contextmanager
def running_github():
    """A GitHub of one minute, on a socket."""
    github, lock = Github(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            with lock:
                limit = github.refuses()
            time.sleep(0.05 if limit else 0.2)
            body = b'{"message": "You have exceeded a secondary rate limit."}' if limit else b"{}"
            self.send_response(403 if limit else 200)
            said = {"content-type": "application/json", "content-length": str(len(body))}
            told = {
                "limit": 5000,
                "remaining": 5000 - github.calls,
                "reset": int(time.time()) + 3600,
                "resource": "core",
            }
            for name, value in (said | {f"x-ratelimit-{name}": str(value) for name, value in told.items()}).items():
                self.send_header(name, value)
            if limit:
                self.send_header("retry-after", "60")
            with lock:
                github.at_once -= 1
            with suppress(OSError):
                self.end_headers()
                self.wfile.write(body)

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield github, server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def test_a_fleet_that_calls_at_once_meets_no_limit_of_github(tmp_path):
    """Twenty agents with eight calls each: more at a time than GitHub takes."""

    async def agent(number):
        headers = {"user-agent": "octokit-core.js/6", "authorization": "Bearer one"}
        async with proxy.async_client(f"agent-{number}", headers=headers) as client:
            got = await asyncio.gather(*(client.get(f"http://127.0.0.1:{port}/repos/o/r/{n}") for n in range(8)))
        return [answer.status_code for answer in got]

    async def fleet():
        return await asyncio.gather(*(agent(number) for number in range(20)))

    with (
        running_github() as (github, port),
        running(tmp_path / "conf", *options(tools=f"github=127.0.0.1:{port}")) as proxy,
    ):
        statuses = Counter(status for answers in asyncio.run(fleet()) for status in answers)
        assert statuses == {200: 160}
        assert (github.calls, github.refused.total()) == (160, 0)
        (pool,) = proxy.settled()["snapshot"]["pools"]
        assert pool["key"].endswith("/core")


def test_hosts_that_nobody_names_are_not_scheduled(tmp_path, service):
    with running(tmp_path / "conf", *options(tools=f"github,mcp=127.0.0.1:{service.port}")) as proxy:
        with proxy.client(headers={"user-agent": "tests/1"}) as client:
            assert client.get(f"{service.url}/x").status_code == 200
        assert [pool["key"].rpartition("/")[2] for pool in proxy.settled()["snapshot"]["pools"]] == ["*"]
