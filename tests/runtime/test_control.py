"""The control socket, over a real Unix socket: who may read, what they read, and that no reader can hurt."""

import asyncio
import random
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from hivemind_addon.core.pool import PoolSettings
from hivemind_addon.core.scheduler import Scheduler
from hivemind_addon.core.snapshot import SCHEMA_VERSION
from hivemind_addon.observe.report import ProxyView, Report
from hivemind_addon.runtime import control
from hivemind_addon.runtime.control import (
    MAX_MISSED,
    MAX_READERS,
    ControlServer,
    SocketTaken,
    UnreadableReport,
    read_report,
)
from tests.core import samples

PROXY = ProxyView(pid=7, port=8080, listens=("127.0.0.1:8080",), confdir="/c", hosts=("api.anthropic.com",))


@pytest.fixture
def path():
    """A short one: pytest's own folders are too deep for a socket."""
    with tempfile.TemporaryDirectory(prefix="hm") as folder:
        yield Path(folder) / "8080.sock"


@pytest.fixture
def scheduler():
    made = Scheduler(rng=random.Random(1))
    for number in range(8):
        made.submit(samples.ticket(f"t{number}"), PoolSettings(), 0.0)
    made.poll(0.0)
    return made


@pytest.fixture
async def serving(path, scheduler):
    """Start servers; all are closed in the end."""
    started = []

    async def serve(at=path, every_s=0.01, report=None):
        usual = lambda: Report(version=SCHEMA_VERSION, proxy=PROXY, snapshot=scheduler.snapshot(1.0))  # noqa: E731
        server = ControlServer(at, report=report or usual, every_s=every_s)
        await server.start()
        started.append(server)
        return server

    yield serve
    for server in started:
        server.close()


async def read(path, **more):
    return await asyncio.to_thread(read_report, path, **more)


async def test_a_reader_gets_the_whole_snapshot_as_it_is(serving, path, scheduler):
    await serving()
    report = await read(path)
    assert report == Report(version=SCHEMA_VERSION, proxy=PROXY, snapshot=scheduler.snapshot(1.0))
    assert report.snapshot.pools[0].tickets


async def test_only_its_owner_may_open_it(serving, path):
    await serving()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_lines_go_on_as_long_as_somebody_reads(serving, path):
    server = await serving()
    reader, writer = await asyncio.open_unix_connection(path, limit=10_000_000)
    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 1000)  # thrown away
    async with asyncio.timeout(5):
        lines = [await reader.readline() for _ in range(3)]
    assert all(line.startswith(b'{"version":1,') and line.endswith(b"}\n") for line in lines)
    writer.close()
    async with asyncio.timeout(5):
        while server._readers:
            await asyncio.sleep(0.01)


async def test_a_reader_that_does_not_read_misses_lines_and_is_cut_off(serving, path, scheduler):
    written = []

    def report():
        written.append(1)
        return Report(version=SCHEMA_VERSION, proxy=PROXY, snapshot=scheduler.snapshot(1.0))

    server = await serving(every_s=0.0005, report=report)
    with socket.socket(socket.AF_UNIX) as lazy:
        lazy.connect(str(path))
        async with asyncio.timeout(20):
            while not server._readers:
                await asyncio.sleep(0)
            while server._readers:
                await asyncio.sleep(0.005)
                assert all(reader.get_write_buffer_size() < 1_000_000 for reader in server._readers)
    assert MAX_MISSED > 1
    assert await read(path), "others are served as before"


async def test_only_so_many_may_read_at_once(serving, path):
    server = await serving()
    readers = [socket.socket(socket.AF_UNIX) for _ in range(MAX_READERS + 5)]
    for reader in readers:
        reader.connect(str(path))
    async with asyncio.timeout(5):
        while len(server._readers) < MAX_READERS:
            await asyncio.sleep(0.01)
    readers[-1].settimeout(5)
    assert await asyncio.to_thread(_ended, readers[-1])
    assert len(server._readers) == MAX_READERS
    for reader in readers:
        reader.close()


def _ended(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


async def test_a_dead_processs_socket_is_replaced(serving, path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    await serving()
    assert await read(path)


async def test_a_living_processs_socket_is_not(serving, path):
    first = await serving()
    with pytest.raises(SocketTaken, match="another running proxy"):
        await serving()
    assert await read(path)
    first.close()
    assert not path.exists()
    await serving()


async def test_a_file_that_is_no_socket_is_left_alone(serving, path):
    path.write_text("precious")
    with pytest.raises(SocketTaken, match="no socket"):
        await serving()
    assert path.read_text() == "precious"


async def test_closing_leaves_a_successors_socket_alone(serving, path):
    server = await serving()
    path.unlink()
    await serving()
    server.close()
    assert await read(path)


def test_nobody_there_is_none(path):
    assert read_report(path) is None
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert read_report(path) is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"version":99}\n', "version 99"),
        (b'{"version":1,"proxy":{}}\n', "no report of a proxy"),
        (b"HTTP/1.1 400\n", "no report of a proxy"),
        (b"", "nothing answers"),
    ],
)
async def test_what_cannot_be_understood_is_one_line(path, line, says):
    writers = []

    async def answer(_reader, writer):
        writers.append(writer)
        writer.write(line)
        await writer.drain()

    server = await asyncio.start_unix_server(answer, path)
    with pytest.raises(UnreadableReport, match=says) as caught:
        await read(path, timeout_s=0.3)
    writers[0].close()
    server.close()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_each_port_has_its_socket_in_the_runtime_folder(monkeypatch, path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path.parent))
    assert control.control_socket(9090) == path.parent / "hivemind" / "9090.sock"
    assert (path.parent / "hivemind").is_dir()
