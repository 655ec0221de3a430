"""Installing the peer without the network, and ending what was started."""

import asyncio
import subprocess
import sys

import pytest

from hivemind_addon.lab.evaluate import peer
from hivemind_addon.lab.sim.agents import Habits
from hivemind_addon.lab.sim.library import cases
from tests.e2e.proxy import free_port


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """It may take long to start, and meanwhile no connection of other tests gets its port."""
    monkeypatch.setattr(peer, "_START_S", 120.0)
    monkeypatch.setattr(peer, "_free_port", free_port)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(peer, "state_folder", lambda: tmp_path)
    monkeypatch.setattr(peer.venv, "create", lambda folder, **_: (folder / "bin").mkdir(parents=True))
    return tmp_path / "peer" / "hivemind-scheduler-0.2.0"


def test_it_is_installed_once(folder, monkeypatch):
    calls = []

    def pip(words, **_):
        calls.append(words)
        (folder / "bin" / "hivemind").touch()

    monkeypatch.setattr(peer.subprocess, "run", pip)
    assert peer.install() == folder / "bin" / "hivemind"
    assert peer.install() == folder / "bin" / "hivemind"
    (words,) = calls
    assert words[-1] == "hivemind-scheduler==0.2.0"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (subprocess.CalledProcessError(1, "pip", stderr="noise\nERROR: no matching distribution\n"), "no matching"),
        (subprocess.TimeoutExpired("pip", 300), "timed out"),
        (OSError("no space left"), "no space left"),
    ],
)
def test_where_it_cannot_be_installed_one_line_says_why_and_nothing_half_done_stays(folder, monkeypatch, error, told):
    def pip(*_, **__):
        raise error

    monkeypatch.setattr(peer.subprocess, "run", pip)
    with pytest.raises(peer.PeerUnavailable, match=told) as caught:
        peer.install()
    assert "\n" not in str(caught.value)
    assert not folder.exists()


FAKE = """\
#!{python}
import sys, socket, time
port = int(sys.argv[sys.argv.index("--port") + 1])
assert sys.argv[sys.argv.index("--max-concurrency") + 1] == "3"
server = socket.create_server(("127.0.0.1", port))
while True:
    server.accept()[0].close()
"""


async def test_it_stands_before_the_provider_with_the_true_cap_until_the_block_ends(tmp_path, monkeypatch):
    program = tmp_path / "hivemind"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(peer, "install", lambda: program)
    async with peer.through_peer(cases()["stress"].scenario, 0) as stage:
        assert stage.route.base_url.startswith("http://127.0.0.1:")
        client = stage.route.client("agent", Habits())
        assert client.base_url == stage.route.base_url
        await client.aclose()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(stage.route.base_url.rpartition(":")[2]))


async def test_one_that_does_not_start_is_told(tmp_path, monkeypatch):
    program = tmp_path / "hivemind"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(peer, "install", lambda: program)
    with pytest.raises(peer.MitmdumpNotStarted, match="does not listen"):
        async with peer.through_peer(cases()["stress"].scenario, 0):
            pytest.fail("it never listened")
