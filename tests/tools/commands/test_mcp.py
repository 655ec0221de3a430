"""`hivemind mcp` on standard input and output: what it says no to, and that it never outlives its client."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

import pexpect
import pytest
from click.testing import CliRunner

from hivemind_addon.plugins.fleets.leases.sqlite_store import SqliteLeases, default_lease_file
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands.mcp import _allowed
from hivemind_addon.tools.mcp.session import Permission


def run(*arguments):
    return CliRunner().invoke(main, ["mcp", *arguments])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--allow", "submit,budget"], "'budget' is nothing to allow; there are submit, batch, budgets, config"),
        (["--allow", "budget"], "did you mean budgets?"),
        (["--token-file", "t"], "--token-file is for --http PORT"),
        (["--allow-commands"], "add --allow submit, batch or config"),
        (["--allow-commands", "--allow", "budgets"], "add --allow submit, batch or config"),
        (["--http", "x"], "is not a valid integer"),
        (["-p", "0"], "0 is not in the range"),
    ],
)
def test_a_slip_is_told_in_one_line(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_words_are_told_apart_by_commas_and_blanks():
    assert _allowed(None, None, ("submit, Batch setup",)) == {Permission.SUBMIT, Permission.BATCH, Permission.SETUP}
    assert _allowed(None, None, ("all",)) == frozenset(Permission)


def test_a_port_that_is_taken_and_a_bad_token_file_are_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("--http", str(taken.getsockname()[1]))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "in use" in result.stderr
    open_to_all = tmp_path / "token"
    open_to_all.write_text("x" * 40)
    open_to_all.chmod(0o644)
    assert f"chmod 600 {open_to_all}" in run("--http", "0", "--token-file", str(open_to_all)).stderr
    assert "is a directory" in run("--http", "0", "--token-file", str(tmp_path)).stderr
    nowhere = run("--http", "0", "--token-file", str(tmp_path / "gone" / "token"))
    assert (nowhere.exit_code, nowhere.stderr.count("\n")) == (1, 1)
    assert "gone/token: No such file" in nowhere.stderr


@pytest.fixture
def folder(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="hm") as name:
        monkeypatch.setenv("XDG_STATE_HOME", name)
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield name


class Client:
    """A client of a few lines, which sees every byte."""

    def __init__(self, *arguments):
        command = [sys.executable, "-P", "-m", "hivemind_addon", "mcp", "-p", "9", "--agent", "one", *arguments]
        self.process = subprocess.Popen(
            command, env=dict(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._number = 0
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        assert self.ask("initialize", **client)["serverInfo"]["name"] == "hivemind"
        self.tell("notifications/initialized")

    def tell(self, method, **params):
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method, **params):
        self._number += 1
        self.send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        while (answer := json.loads(self.process.stdout.readline())).get("id") != self._number:
            assert answer["jsonrpc"] == "2.0"
        return answer["result"]

    def send(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def call(self, tool, **arguments):
        return self.ask("tools/call", name=tool, arguments=arguments)


def held():
    with SqliteLeases(default_lease_file()) as store:
        return [one.name for one in store.standings(SystemClock().awake()) if one.leases]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status"),
    [
        (lambda process: process.stdin.close(), 0),
        (lambda process: process.send_signal(signal.SIGTERM), -signal.SIGTERM),
        (lambda process: process.send_signal(signal.SIGINT), -signal.SIGINT),
        (lambda process: process.send_signal(signal.SIGKILL), -signal.SIGKILL),
    ],
    ids=["client goes", "SIGTERM", "SIGINT", "SIGKILL"],
)
def test_however_it_ends_its_leases_are_free_at_once_and_nothing_is_said(folder, end, status):
    client = Client()
    try:
        assert not client.call("lease_acquire", names=["a"]).get("isError")
        assert held() == ["a"]
        # One more call is under way.
        client.send(
            {
                "jsonrpc": "2.0",
                "id": 99,
                "method": "tools/call",
                "params": {"name": "lease_acquire", "arguments": {"names": ["a"], "wait_s": 60}},
            }
        )
        end(client.process)
        assert client.process.wait(120) == status
        assert held() == []
        assert client.process.stderr.read() == b""
    finally:
        client.process.kill()
        client.process.wait()


@pytest.mark.slow
def test_what_is_no_protocol_does_not_bring_it_down(folder):
    client = Client()
    try:
        for line in (b"not json\n", b"\xff\xfe\n", b"[]\n", b"\n", b'{"jsonrpc": "2.0"}\n'):
            client.process.stdin.write(line)
        assert client.call("lease_list")["structuredContent"] == {"names": []}
        assert "there is no tool" in client.call("nothing")["content"][0]["text"]
        assert client.ask("tools/list")["tools"]
        client.process.stdin.close()
        assert client.process.wait(120) == 0
    finally:
        client.process.kill()
        client.process.wait()


@pytest.mark.slow
def test_who_starts_it_in_a_terminal_is_told_what_it_is_for(folder):
    command = [sys.executable, "-P", "-m", "hivemind_addon", "mcp", "-p", "9"]
    child = pexpect.spawn(command[0], command[1:], timeout=120, encoding="utf-8")
    child.expect("an agent's tool starts this")
    child.sendeof()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_a_cluster_that_is_none_stops_the_start_with_one_line():
    result = CliRunner().invoke(main, ["mcp"], env={"HIVEMIND_CLUSTER": "cache:6379"})
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: HIVEMIND_CLUSTER: 'cache:6379' is no engine's URL; write valkey://")
    assert result.stderr.count("\n") == 1
