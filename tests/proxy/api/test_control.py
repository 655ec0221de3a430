"""The control socket, over a real Unix socket: who may read, what they read, and that no reader can hurt."""

import asyncio
import json
import random
import socket
import tempfile
from pathlib import Path

import pytest

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import Pause, Resume, SetLimit, SetPriority
from hivemind_addon.kernel.values.snapshot import SCHEMA_VERSION
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.api import control
from hivemind_addon.proxy.api.command import CommandReply
from hivemind_addon.proxy.api.control import CommandUnanswered, UnreadableReport, read_report, send_command
from hivemind_addon.proxy.api.control_server import (
    MAX_COMMAND_BYTES,
    MAX_COMMANDS,
    MAX_MISSED,
    MAX_READERS,
    ControlServer,
    pause_s,
)
from hivemind_addon.proxy.api.replies import reply
from hivemind_addon.proxy.api.report import ProxyView, Report
from tests.kernel import samples
from tests.proxy.api.samples import reports_of

PROXY = ProxyView(pid=7, port=8080, listens=("127.0.0.1:8080",), confdir="/c", hosts=("api.anthropic.com",))


@pytest.fixture
def path():
    """A short one: pytest's own folders are too deep for a socket."""
    with tempfile.TemporaryDirectory(prefix="hm") as folder:
        yield Path(folder) / "8080.sock"


@pytest.fixture
def scheduler():
    made = Scheduler(rng=random.Random(1))
    settings = PoolSettings(concurrency=ConcurrencySettings(initial=4, maximum=4))
    for number in range(8):
        made.submit(samples.ticket(f"t{number}"), settings, 0.0)
    made.poll(0.0)
    return made


@pytest.fixture
async def serving(path, scheduler):
    """Start servers; all are closed in the end."""
    started = []

    async def serve(at=path, every_s=0.01, report=None, command=None):
        usual = lambda: Report(version=SCHEMA_VERSION, proxy=PROXY, snapshot=scheduler.snapshot(1.0))  # noqa: E731
        server = ControlServer(
            at,
            reports=reports_of(report or usual),
            command=command or (lambda one: reply(one, scheduler.command(one, 1.0))),
            every_s=every_s,
        )
        await server.start()
        started.append(server)
        return server

    yield serve
    for server in started:
        server.close()


async def read(path, **more):
    return await asyncio.to_thread(read_report, path, **{"timeout_s": 120} | more)


async def test_a_reader_gets_the_whole_snapshot_as_it_is(serving, path, scheduler):
    await serving()
    report = await read(path)
    assert report == Report(version=SCHEMA_VERSION, proxy=PROXY, snapshot=scheduler.snapshot(1.0))
    assert report.snapshot.pools[0].tickets


async def test_lines_go_on_as_long_as_somebody_reads(serving, path):
    server = await serving()
    reader, writer = await asyncio.open_unix_connection(path, limit=10_000_000)
    async with asyncio.timeout(120):
        lines = [await reader.readline() for _ in range(3)]
    assert all(line.startswith(b'{"version":1,') and line.endswith(b"}\n") for line in lines)
    writer.close()
    async with asyncio.timeout(120):
        while server._readers:
            await asyncio.sleep(0.01)


def test_reports_that_take_long_to_make_come_rarer():
    assert pause_s(1, 0.01) == 1
    assert pause_s(1, 0.1) == pytest.approx(2)


async def test_a_reader_that_does_not_read_misses_lines_and_is_cut_off(serving, path, scheduler):
    written = []

    def report():
        written.append(1)
        return Report(version=SCHEMA_VERSION, proxy=PROXY, snapshot=scheduler.snapshot(1.0))

    server = await serving(every_s=0.0005, report=report)
    with socket.socket(socket.AF_UNIX) as lazy:
        lazy.connect(str(path))
        async with asyncio.timeout(120):
            while not server._readers:
                await asyncio.sleep(0)
            while server._readers:
                await asyncio.sleep(0.005)
                assert all(reader.unsent_bytes < 1_000_000 for reader in server._readers)
    assert MAX_MISSED > 1
    assert await read(path), "others are served as before"


async def test_only_so_many_may_read_at_once(serving, path):
    server = await serving()
    readers = [socket.socket(socket.AF_UNIX) for _ in range(MAX_READERS + 5)]
    for reader in readers:
        reader.connect(str(path))
    async with asyncio.timeout(120):
        while len(server._readers) < MAX_READERS:
            await asyncio.sleep(0.01)
    readers[-1].settimeout(120)
    assert await asyncio.to_thread(_ended, readers[-1])
    assert len(server._readers) == MAX_READERS
    for reader in readers:
        reader.close()


def _ended(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


async def send(path, command, **more):
    return await asyncio.to_thread(send_command, path, command, **{"timeout_s": 120} | more)


class Conversation:
    """A reader that also asks."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def ask(self, *lines):
        for line in lines:
            self.writer.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")

    async def answer(self):
        """The next answer, reports left out."""
        async with asyncio.timeout(120):
            while True:
                line = json.loads(await self.reader.readline())
                if "said" in line:
                    return line

    async def is_over(self):
        async with asyncio.timeout(120):
            try:
                while await self.reader.read(100_000):
                    pass
            except ConnectionError:
                pass
        return True


@pytest.fixture
async def converse(path):
    writers = []

    async def connect():
        reader, writer = await asyncio.open_unix_connection(path, limit=10_000_000)
        writers.append(writer)
        return Conversation(reader, writer)

    yield connect
    for writer in writers:
        writer.close()


async def test_a_command_is_carried_out_and_answered(serving, path, scheduler):
    await serving()
    said = await send(path, Pause())
    assert said.done
    assert "paused" in said.text
    assert (await read(path)).snapshot.pools[0].paused
    assert (await send(path, Resume())).done
    assert not scheduler.snapshot(1.0).pools[0].paused


async def test_a_command_that_changes_nothing_says_why(serving, path):
    await serving()
    assert await send(path, Resume()) == CommandReply(
        done=False, text="nothing of * is paused, and no account of it is refused"
    )
    said = await send(path, SetLimit(limit=0))
    assert not said.done
    assert "pause it instead" in said.text


async def test_reports_go_on_between_the_answers(serving, converse):
    await serving()
    talk = await converse()
    talk.ask({"id": "a", "command": {"type": "pause"}}, {"id": 2, "command": {"type": "resume"}})
    assert [(await talk.answer())["id"] for _ in range(2)] == ["a", 2]
    async with asyncio.timeout(120):
        assert b'"snapshot"' in await talk.reader.readline()


async def test_who_wants_no_reports_gets_answers_only(serving, converse):
    server = await serving()
    talk = await converse()
    talk.ask({"id": 1, "reports": False})
    assert (await talk.answer())["said"]["done"]
    assert not server._readers
    talk.ask({"id": 2, "command": {"type": "pause"}})
    async with asyncio.timeout(120):
        assert (await talk.reader.readline()).startswith(b'{"id":2,')
    server.close()
    assert await talk.is_over()


REFUSED = [
    (b"GET / HTTP/1.1\r", None, "not understood"),
    (b"\xff\xfe", None, "not understood"),
    (b"[]", None, "not understood"),
    (b'{"command": {"type": "pause"}}', None, "missing required field `id`"),
    (b'{"id": 1, "comand": {"type": "pause"}}', None, "comand"),
    (b'{"id": 1, "command": {"type": "stop"}}', 1, "'stop'"),
    (b'{"id": 1, "command": {"type": "pause", "pol": "x"}}', 1, "`pol`"),
    (b'{"id": 1, "command": {"type": "limit", "limit": "4"}}', 1, "$.limit"),
    (
        b'{"id": 1, "command": {"type": "priority", "agent": "a", "priority": "urgent"}}',
        1,
        "critical, high, normal",
    ),
    (b'{"id": 1, "command": {"type": "cancel", "ticket_id": "nobody"}}', 1, "'nobody'"),
]


async def test_what_cannot_be_done_is_said_and_the_reader_goes_on(serving, converse):
    await serving()
    talk = await converse()
    for line, answered, says in REFUSED:
        talk.ask(line, {"id": 9, "command": {"type": "pause"}})
        said = await talk.answer()
        assert (said["id"], said["said"]["done"]) == (answered, False), line
        assert says in said["said"]["text"]
        assert "\n" not in said["said"]["text"]
        assert (await talk.answer())["id"] == 9


async def test_a_priority_is_a_name_or_a_number(serving, converse, scheduler, path):
    await serving()
    talk = await converse()
    for priority in ("high", "HIGH", 1):
        talk.ask({"id": 1, "command": {"type": "priority", "agent": "s*", "priority": priority}})
        assert (await talk.answer())["said"]["done"]
        assert [view.priority for view in scheduler.snapshot(1.0).priorities] == [Priority.HIGH]
        assert (await send(path, SetPriority("s*", None))).done
        assert scheduler.snapshot(1.0).priorities == ()


async def test_more_commands_than_a_person_has_cut_their_reader_off(serving, path, converse, monkeypatch):
    asked = []

    def command(one):
        asked.append(one)
        return CommandReply(done=True, text="done")

    await serving(command=command)
    talk = await converse()
    now = asyncio.get_running_loop().time()
    with monkeypatch.context() as one_second:
        one_second.setattr(asyncio.get_running_loop(), "time", lambda: now)
        talk.ask(*[{"id": number, "command": {"type": "pause"}} for number in range(10 * MAX_COMMANDS)])
        assert await talk.is_over()
    assert len(asked) == MAX_COMMANDS
    assert (await send(path, Pause())).done, "others are served as before"


async def test_a_line_without_end_cuts_its_reader_off(serving, converse):
    await serving()
    talk = await converse()
    talk.writer.write(b"x" * (MAX_COMMAND_BYTES + 2))
    assert await talk.is_over()


async def test_an_exception_of_ours_is_an_answer(serving, path, caplog):
    def fail(_):
        raise RuntimeError("broken")

    await serving(command=fail)
    said = await send(path, Pause())
    assert not said.done
    assert "broken" in said.text
    assert "a command failed" in caplog.text


def test_where_no_proxy_is_a_command_is_not_said(path):
    with pytest.raises(CommandUnanswered, match="no proxy is there"):
        send_command(path, Pause())


def test_nobody_there_is_none(path):
    assert read_report(path) is None
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert read_report(path) is None


ODD_SERVERS = [
    (send, b'{"version":1}\n' * 10, CommandUnanswered, "takes no commands"),
    (send, b'{"version":1}\n', CommandUnanswered, "no answer"),
    (send, b'{"id":1}\n', CommandUnanswered, "no proxy of"),
    (read, b'{"version":99}\n', UnreadableReport, "version 99"),
    (read, b'{"version":1,"proxy":{}}\n', UnreadableReport, "no report of a proxy"),
    (read, b"HTTP/1.1 400\n", UnreadableReport, "no report of a proxy"),
    (read, b"", UnreadableReport, "nothing answers"),
]


async def test_a_server_that_is_no_proxy_of_this_kind_is_told_in_one_line(path):
    for ask, lines, failure, says in ODD_SERVERS:
        writers = []

        async def answer(_reader, writer, lines=lines, writers=writers):
            writers.append(writer)
            writer.write(lines)
            await writer.drain()

        server = await asyncio.start_unix_server(answer, path)
        command = (Pause(),) if ask is send else ()
        with pytest.raises(failure, match=says) as caught:
            await ask(path, *command, timeout_s=0.3 if says in ("no answer", "nothing answers") else 120)
        writers[0].close()
        server.close()
        path.unlink(missing_ok=True)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_each_port_has_its_socket_in_the_runtime_folder(monkeypatch, path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path.parent))
    assert control.control_socket(9090) == path.parent / "hivemind" / "9090.sock"
    assert (path.parent / "hivemind").is_dir()
