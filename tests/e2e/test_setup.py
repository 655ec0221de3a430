"""What `hivemind setup --write` writes is read by the real Claude Code and Codex: the proxy, the CA, the MCP server.

And what `hivemind exec` and fleets set outdoes it, so that names and budgets of their own are kept.
"""

import contextlib
import os
import socket
import ssl
import subprocess
import sys
from base64 import b64decode
from http.client import parse_headers
from threading import Thread

import pytest
import trustme

from fleets.programs import NotInstalled, Programs, install
from hivemind_addon.tools.launch.environment import proxy_url
from tests.e2e.proxy import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]


@pytest.fixture(scope="module")
def programs() -> Programs:
    try:
        return install()
    except NotInstalled as error:
        if os.environ.get("HIVEMIND_REQUIRE_AGENTS") == "1":
            pytest.fail(str(error))
        pytest.skip(f"Claude Code and Codex do not run: {error}")


class Door:
    """A proxy that takes CONNECT, shows a certificate of its CA and refuses what comes: who came, to where, asking what."""

    def __init__(self, ca):
        self.ca = ca
        self.seen = set()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.thread = Thread(target=self.serve, daemon=True)
        self.thread.start()

    def close(self):
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)  # wakes `accept`, which might go on with another's listener
        self.thread.join(PATIENCE_S)
        self.server.close()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.server.accept()
                Thread(target=self.answer, args=(client,), daemon=True).start()

    def answer(self, client):
        with contextlib.suppress(OSError, IndexError), client:
            client.settimeout(PATIENCE_S)
            head = client.recv(65536).decode()
            host = head.split()[1].partition(":")[0]
            named = [line.split()[-1] for line in head.splitlines() if line.lower().startswith("proxy-authorization")]
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.ca.issue_cert(host).configure_cert(context)
            with context.wrap_socket(client, server_side=True) as inside:
                stream = inside.makefile("rb")
                path = stream.readline().decode().split()[1]
                # All of it: who still writes when the connection is closed hears of no 400, and tries for minutes.
                stream.read(int(parse_headers(stream).get("content-length", 0)))
                self.seen.add((b64decode(named[0]).decode(), host, path.partition("?")[0]))
                body = b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}'
                inside.sendall(
                    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
                    b"content-length: %d\r\n\r\n%b" % (len(body), body)
                )


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    (home / ".mitmproxy").mkdir(parents=True)
    return home


@pytest.fixture
def door(home):
    ca = trustme.CA()
    ca.cert_pem.write_to_path(home / ".mitmproxy" / "mitmproxy-ca-cert.pem")
    door = Door(ca)
    yield door
    door.close()


@pytest.fixture
def run(home, tmp_path):
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment = {**kept, "HOME": str(home), "XDG_STATE_HOME": str(tmp_path / "state")}

    def run(*command, **more):
        return subprocess.run(
            list(map(str, command)),
            env=environment | more,
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run


def named_by_exec(door):
    """The variables that say the way, in both spellings, as `hivemind exec` sets them."""
    return dict.fromkeys(("HTTPS_PROXY", "https_proxy"), proxy_url(door.port, agent="night.one", words=["whole"]))


def set_up(run, tool, port):
    done = run(sys.executable, "-m", "hivemind_addon.tools.cli", "setup", tool, "--write", "-p", port)
    assert done.returncode == 0, done.stderr


def test_claude_code_reads_it(programs, home, door, run):
    set_up(run, "claude-code", door.port)
    listed = run(programs.claude, "mcp", "get", "hivemind").stdout
    assert "Scope: User config" in listed
    assert f"Args: mcp -p {door.port}" in listed
    for way in ({}, named_by_exec(door)):
        run(
            *(programs.claude, "-p", "hello", "--model", "claude-sonnet-4-5"),
            ANTHROPIC_API_KEY="sk-ant-none",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
            **way,
        )
    asked = {who for who, host, path in list(door.seen) if (host, path) == ("api.anthropic.com", "/v1/messages")}
    assert asked == {"claude-code:x", "night.one:whole"}


def test_codex_reads_it(programs, home, door, run):
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text('# mine\nmodel = "gpt-5.1-codex"\n')
    set_up(run, "codex", door.port)
    listed = run(programs.codex, "mcp", "get", "hivemind").stdout
    assert f"args: mcp -p {door.port}" in listed
    assert "XDG_RUNTIME_DIR" in listed
    for way in ({}, named_by_exec(door)):
        keys = dict.fromkeys(("OPENAI_API_KEY", "CODEX_API_KEY"), "sk-none")
        run(programs.codex, "exec", "--skip-git-repo-check", "hello", **keys, **way)
    asked = {who for who, host, _ in list(door.seen) if host == "api.openai.com"}
    assert asked == {"codex:x", "night.one:whole"}
