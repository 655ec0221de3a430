"""Side by side on real sockets: a small scenario, straight and through a real mitmdump; and the peer without the network."""

import asyncio
import dataclasses
import subprocess
import sys

import pytest

from hivemind_addon.sim.library import cases
from lab.evaluate import sockets
from tests.e2e.proxy import free_port


@pytest.mark.slow
@pytest.mark.xdist_group("live")
def test_the_scheduler_keeps_agents_alive_that_die_on_their_own(monkeypatch):
    case = cases()["replay-11"]
    (crowd,) = case.scenario.crowds
    # Three turns each: 33 calls at a cap of 5, a seventh of which fails.
    small = dataclasses.replace(
        case, scenario=dataclasses.replace(case.scenario, crowds=(dataclasses.replace(crowd, turns=3),))
    )
    monkeypatch.setattr(sockets, "_FACTORS", {"replay-11": 5})
    monkeypatch.setattr(sockets, "cases", lambda: {"replay-11": small})
    told = []
    runs = sockets.run_on_sockets(names=("replay-11",), done=told.append)
    assert [(run.way, run.kind.value) for run in runs] == [
        ("direct", "bucket"),
        ("hivemind", "bucket"),
        ("direct", "window"),
        ("hivemind", "window"),
    ]
    assert len(told) == sockets.socket_setups(("replay-11",)) == 1
    for direct, ours in (runs[:2], runs[2:]):
        assert ours.figures.lost == 0, ours.deaths
        assert ours.figures.turns_done == 33
        assert direct.figures.lost > 0.2
        assert direct.deaths


# The peer


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """It may take long to start, and meanwhile no connection of other tests gets its port."""
    monkeypatch.setattr(sockets, "_START_S", 120.0)
    monkeypatch.setattr(sockets, "free_port", lambda _: free_port())


@pytest.fixture
def no_environment(monkeypatch):
    monkeypatch.setattr(sockets.venv, "create", lambda folder, **_: (folder / "bin").mkdir(parents=True))


def test_the_peer_is_installed_in_a_folder_that_goes_again(no_environment, monkeypatch):
    calls = []
    monkeypatch.setattr(sockets.subprocess, "run", lambda words, **_: calls.append(words))
    with sockets.installed_peer() as staging:
        (program,) = staging.args
        assert program.parent.is_dir()
    assert not program.parent.exists()
    ((python, *words),) = calls
    assert python.parent == program.parent
    assert words[-1] == "hivemind-scheduler==0.2.0"


def test_where_it_cannot_be_installed_one_line_says_why(no_environment, monkeypatch):
    for error, told in (
        (subprocess.CalledProcessError(1, "pip", stderr="noise\nERROR: no matching distribution\n"), "no matching"),
        (subprocess.TimeoutExpired("pip", 300), "timed out"),
        (OSError("no space left"), "no space left"),
    ):

        def pip(*_, error=error, **__):
            raise error

        monkeypatch.setattr(sockets.subprocess, "run", pip)
        with pytest.raises(sockets.PeerUnavailable, match=told) as caught, sockets.installed_peer():
            pytest.fail("it was not installed")
        assert "\n" not in str(caught.value)


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
    async with sockets.through_peer(program, cases()["stress"].scenario, 0) as stage:
        assert stage.route.base_url.startswith("http://127.0.0.1:")
        client = stage.route.client("agent", 600)
        assert client.base_url == stage.route.base_url
        await client.aclose()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(stage.route.base_url.rpartition(":")[2]))


async def test_one_that_does_not_start_is_told(tmp_path, monkeypatch):
    program = tmp_path / "hivemind"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(sockets.MitmdumpNotStarted, match="does not listen"):
        async with sockets.through_peer(program, cases()["stress"].scenario, 0):
            pytest.fail("it never listened")
