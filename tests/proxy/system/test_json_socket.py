"""Lines over a real Unix socket: who may open it, what cuts a connection off, and whose socket is replaced."""

import asyncio
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from hivemind_addon.proxy.system.json_socket import ask, is_answered
from hivemind_addon.proxy.system.line_server import LineServer, SocketTaken
from tests.cases import each


@pytest.fixture
def path():
    """A short one: pytest's own folders are too deep for a socket."""
    with tempfile.TemporaryDirectory(prefix="hm") as folder:
        yield Path(folder) / "x.sock"


@pytest.fixture
async def serving(path):
    """Start servers that send each line back; all are closed in the end."""
    started = []

    async def serve(**more):
        usual = {"heard": lambda one, line: one.send(line + b"\n"), "max_line_bytes": 1000}
        server = LineServer(path, **usual | more)
        await server.start()
        started.append(server)
        return server

    yield serve
    for server in started:
        server.close()


@pytest.fixture
async def connect(path):
    writers = []

    async def connected():
        reader, writer = await asyncio.open_unix_connection(path)
        writers.append(writer)
        return reader, writer

    yield connected
    for writer in writers:
        writer.close()


async def asked(path, question, **more):
    return await asyncio.to_thread(ask, path, question, **{"timeout_s": 120} | more)


async def becomes(condition):
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.to_thread(lambda: None)


async def read_all(reader):
    async with asyncio.timeout(120):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def test_a_line_is_answered_and_only_its_owner_may_ask(serving, path):
    assert not is_answered(path)
    await serving()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert is_answered(path)
    assert await asked(path, b"hello\n") == b"hello\n"
    assert await asked(path, b"a\nb\nc\n", begins=b"b", within=2) == b"b\n"


async def test_a_server_that_goes_down_has_no_answer(serving, path):
    await serving(heard=lambda one, _: (one.send(b"half a line"), one.end()))
    assert await asked(path, b"hello\n") is None


async def test_a_server_that_says_nothing_is_waited_for_no_longer_than_told(serving, path):
    await serving(heard=lambda *_: None)
    with pytest.raises(TimeoutError):
        await asked(path, b"hello\n", timeout_s=0.2)
    waiting, held = asyncio.Event(), []
    loop = asyncio.get_running_loop()
    connected = lambda one: (held.append(one), loop.call_soon_threadsafe(waiting.set))  # noqa: E731
    answer = asyncio.ensure_future(asked(path, b"hello\n", timeout_s=None, connected=connected))
    await waiting.wait()
    held[0].shutdown(socket.SHUT_RDWR)
    with suppress(OSError):  # it was shut down before it had asked
        assert await answer is None


async def test_a_line_that_comes_in_pieces_is_one_line(serving, connect):
    heard = []
    await serving(heard=lambda _, line: heard.append(line))
    _, writer = await connect()
    for piece in (b"one ", b"line", b"\nand another", b"\n"):
        writer.write(piece)
        await writer.drain()
        await asyncio.to_thread(lambda: None)
    await becomes(lambda: len(heard) == 2)
    assert heard == [b"one line", b"and another"]


@each("line", [b"x" * 1001, b"x" * 1001 + b"\n"])
async def test_too_long_a_line_cuts_its_connection_off(serving, path, connect, line):
    heard = []
    server = await serving(heard=lambda one, line: (heard.append(line), one.send(b"here\n")))
    reader, writer = await connect()
    writer.write(line)
    assert await read_all(reader) == b""
    assert heard == []
    assert await asked(path, b"hello\n"), "others are served as before"
    server.close()


async def test_too_many_lines_a_second_cut_their_connection_off(serving, path, connect, monkeypatch):
    heard = []
    await serving(heard=lambda one, line: (heard.append(line), one.send(b"here\n")), max_lines_per_s=10)
    reader, writer = await connect()
    now = asyncio.get_running_loop().time()
    with monkeypatch.context() as one_second:
        one_second.setattr(asyncio.get_running_loop(), "time", lambda: now)
        writer.write(b"again\n" * 100)
        await read_all(reader)
    assert len(heard) == 10
    assert await asked(path, b"hello\n"), "others are served as before"


async def test_a_client_that_takes_nothing_is_not_heard_until_it_does(serving, path):
    server = await serving(heard=lambda one, _: one.send(b"x" * 1_000_000 + b"\n"))
    with socket.socket(socket.AF_UNIX) as lazy:
        lazy.connect(str(path))
        lazy.sendall(b"hello\n")
        await becomes(lambda: any(one.unsent_bytes for one in server.connections))
        (connection,) = server.connections
        assert not connection._transport.is_reading()
        assert len(await asyncio.to_thread(lambda: lazy.makefile("rb").readline())) == 1_000_001
        await becomes(connection._transport.is_reading)


async def test_each_connection_is_told_of_once_at_its_begin_and_at_its_end(serving, connect):
    told = []
    server = await serving(joined=lambda _: told.append("joined"), left=lambda _: told.append("left"))
    writers = [(await connect())[1] for _ in range(3)]
    await becomes(lambda: len(server.connections) == 3)
    writers[0].close()
    await becomes(lambda: len(server.connections) == 2)
    next(iter(server.connections)).cut_off()
    assert len(server.connections) == 1
    server.close()
    await asyncio.to_thread(lambda: None)
    assert told == ["joined"] * 3 + ["left"] * 3


async def test_a_dead_processs_socket_is_replaced_and_a_living_ones_is_not(serving, path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(ConnectionRefusedError):
        ask(path, b"hello\n", timeout_s=1)
    first = await serving()
    with pytest.raises(SocketTaken, match="another running process"):
        await serving()
    assert await asked(path, b"hello\n")
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
    assert await asked(path, b"hello\n")


def test_uvloop_s_connections_are_served_as_well(path):
    uvloop = pytest.importorskip("uvloop")

    async def ask_once():
        server = LineServer(path, heard=lambda one, line: one.send(line + b"\n"), max_line_bytes=1000)
        await server.start()
        answer = await asked(path, b"hello\n")
        server.close()
        return answer

    assert uvloop.run(ask_once()) == b"hello\n"
