"""The server over HTTP as it is started: a process of its own, the SDK's client, and who must not get in."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from hivemind_addon.plugins.fleets.leases.sqlite_store import SqliteLeases, default_lease_file
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.mcp.http import MAX_BODY_BYTES
from tests.tools.mcp.stage import failing, given

pytestmark = pytest.mark.slow

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


class Server:
    def __init__(self, folder, *arguments):
        self.environment = os.environ | {"XDG_STATE_HOME": folder, "XDG_RUNTIME_DIR": folder, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-P", "-m", "hivemind_addon", "mcp", "--http", "0", "--agent", "one", "-p", "9"]
        self.process = subprocess.Popen(
            [*command, *arguments], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said = self.process.stdout.readline() + self.process.stdout.readline()
        self.url = re.search(r"http://\S+/mcp", self.said)[0]
        self.port = int(self.url.split(":")[2].split("/")[0])

    @property
    def token(self):
        return re.search(r"Bearer ([\w-]+)", self.said)[1]

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors

    @asynccontextmanager
    async def client(self):
        headers = {"authorization": f"Bearer {self.token}"}
        async with (
            httpx.AsyncClient(headers=headers, trust_env=False, timeout=120) as http,
            streamable_http_client(self.url, http_client=http) as (reading, writing, _),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            yield session


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(prefix="hm") as name:
        yield name


@pytest.fixture(scope="module")
def server(folder):
    made = Server(folder)
    yield made
    if made.process.poll() is None:
        made.end()


def post(server, *, content=None, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
    known = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {server.token}"}
    merged = {name: value for name, value in (known | named).items() if value}
    body = {"json": INITIALIZE} if content is None else {"content": content}
    with httpx.Client(trust_env=False, timeout=120) as client:
        return client.post(server.url, headers=merged, **body)


def held(folder, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", folder)
    with SqliteLeases(default_lease_file()) as store:
        return [one.name for one in store.standings(SystemClock().awake()) if one.leases]


async def test_a_client_that_knows_the_token_calls_tools(server, folder, monkeypatch):
    async with server.client() as client:
        assert {tool.name for tool in (await client.list_tools()).tools} >= {"status", "lease_acquire"}
        assert "no hivemind proxy serves port 9" in await failing(client, "status")
        assert (await given(client, "lease_acquire", names=["http"]))["granted"]
        assert held(folder, monkeypatch) == ["http"]
    async with asyncio.timeout(120):  # it went, and so does its lease
        while await asyncio.to_thread(held, folder, monkeypatch):
            pass


def test_who_does_not_say_the_token_gets_nothing(server):
    for said in ("", "Bearer wrong", "Bearer", "Basic eDp5", f"Bearer {server.token}x", server.token):
        answer = post(server, authorization=said)
        assert (answer.status_code, answer.headers.get("www-authenticate")) == (401, "Bearer"), said
        assert server.token not in answer.text


def test_a_name_that_leads_here_by_a_trick_and_a_web_page_are_refused_even_with_the_token(server):
    port = server.port
    for host in ("evil.test", "127.0.0.1", "localhost:1", f"evil.test:{port}", f"127.0.0.1.evil.test:{port}"):
        answer = post(server, host=host)
        assert (answer.status_code, answer.text) == (421, "Invalid Host header"), host
    for origin in ("http://evil.test", "null", f"https://127.0.0.1:{port}", "http://localhost:1"):
        answer = post(server, origin=origin)
        assert (answer.status_code, answer.text) == (403, "Invalid Origin header"), origin


def test_localhost_by_its_names_and_its_own_origin_get_in(server):
    for host in (f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
        assert post(server, host=host, origin=f"http://{host}").status_code == 200


def test_too_large_a_request_is_not_read_to_its_end(server):
    assert post(server, content=b"x" * (MAX_BODY_BYTES + 1), content_type="application/json").status_code == 413


def test_what_is_no_protocol_is_refused(server):
    assert post(server, content=b"{", content_type="application/json").status_code == 400
    assert post(server, content=b"x", content_type="text/plain").status_code == 400
    with httpx.Client(trust_env=False, timeout=120) as client:
        headers = {"authorization": f"Bearer {server.token}"}
        assert client.get(server.url.replace("/mcp", "/other"), headers=headers).status_code == 404
        assert client.get(server.url.replace("/mcp", "/")).status_code == 401


def test_it_listens_on_loopback_only(server):
    assert server.url.startswith("http://127.0.0.1:")
    rows = [line.split() for line in Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()]
    here = [row[1] for row in rows if row[1].endswith(f":{server.port:04X}") and row[3] == "0A"]
    assert here == [f"0100007F:{server.port:04X}"]


@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
async def test_a_signal_ends_it_quietly_and_frees_what_is_held(folder, tmp_path, monkeypatch, how, status):
    server = Server(folder, "--token-file", str(tmp_path / "token"))
    monkeypatch.setattr(Server, "token", (tmp_path / "token").read_text().strip())
    assert server.token not in server.said
    try:
        async with server.client() as client:
            assert (await given(client, "lease_acquire", names=["sig"]))["granted"]
            assert server.end(how) == (status, "")
            assert held(folder, monkeypatch) == []
    except* (httpx.HTTPError, httpx.StreamError):
        pass  # the client notices
