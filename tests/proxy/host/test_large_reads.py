import asyncio
import inspect
import random
import socket
from types import SimpleNamespace

import pytest
from mitmproxy.proxy.server import ConnectionHandler, ConnectionIO

from hivemind_addon.proxy.host.large_reads import MOST_READ_BYTES, hold_reading, read_at_once


class Transport:
    """As a stream's, without a network."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.max_size = 1000
        self.is_reading = True
        self.options = {}

    def get_extra_info(self, name, default=None):
        return SimpleNamespace(setsockopt=self.set_option) if name == "socket" else default

    def set_option(self, _level, option, value):
        self.options[option] = value

    def get_protocol(self):
        return self.protocol

    def set_protocol(self, protocol):
        self.protocol = protocol

    def is_closing(self):
        return False

    def close(self):
        pass

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True


@pytest.fixture
async def stream():
    return make_stream()


def make_stream():
    """A transport, and asyncio's own reader behind it."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport = Transport(protocol)
    reader.set_transport(transport)
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    return SimpleNamespace(transport=transport, theirs=protocol, io=ConnectionIO(reader=reader, writer=writer))


def begun(coroutine):
    return asyncio.Task(coroutine, loop=asyncio.get_running_loop(), eager_start=True)


class Handler:
    """As mitmproxy's, as far as it reads: what its layers get is in `seen`."""

    def __init__(self, **ios):
        self.transports = {self.named(name): io for name, io in ios.items()}
        self.client = self.named("client")
        self.seen = []
        self.lock = asyncio.Lock()
        self.drained = asyncio.Event()
        self.drained.set()

    @staticmethod
    def named(name):
        return name

    async def server_event(self, event):
        async with self.lock:
            self.seen.append(event.data)

    async def drain_writers(self):
        await self.drained.wait()


def taken(stream):
    read_at_once(Handler(client=stream.io), "client")
    return stream.io.reader


async def test_the_system_finds_a_dead_peer_in_two_to_three_minutes(stream):
    taken(stream)
    options = stream.transport.options
    assert options.pop(socket.SO_KEEPALIVE) == 1
    idle_s, every_s, probes = options.values()
    assert 120 <= idle_s + every_s * probes <= 180


async def test_what_has_come_is_read_at_once(stream):
    sent = random.Random(1).randbytes(200_000)
    stream.theirs.data_received(sent[:70_000])  # before it was ours
    reader = taken(stream)
    stream.transport.protocol.data_received(sent[70_000:130_000])
    stream.transport.protocol.data_received(sent[130_000:])
    assert not reader.at_eof()
    pieces = [await reader.read(65535), await reader.read(65535)]
    assert b"".join(pieces) == sent
    assert len(pieces[-1]) <= 1024  # which mitmproxy keeps
    stream.transport.protocol.data_received(b"small")
    assert await reader.read(65535) == b"small"
    stream.transport.protocol.data_received(b"last")
    stream.transport.protocol.eof_received()
    assert [await reader.read(65535), await reader.read(65535)] == [b"last", b""]
    assert reader.at_eof()


async def test_a_connection_that_was_at_its_end_before_is(stream):
    stream.theirs.data_received(b"all")
    stream.theirs.eof_received()
    reader = taken(stream)
    assert [await reader.read(65535), await reader.read(65535)] == [b"all", b""]


async def test_a_connection_that_breaks_tells_why_at_once(stream):
    reader = taken(stream)
    reading = begun(reader.read(65535))
    stream.transport.protocol.connection_lost(ConnectionResetError("gone"))
    for read in (reading, reader.read(65535)):
        with pytest.raises(ConnectionResetError):
            await read


async def test_who_sends_faster_than_is_read_waits(stream):
    reader = taken(stream)
    sent = 0
    while stream.transport.is_reading:
        stream.transport.protocol.data_received(bytes(100_000))
        sent += 100_000
    assert sent == 600_000
    assert len(await reader.read(65535)) + len(await reader.read(65535)) == sent
    assert stream.transport.is_reading


async def test_much_is_asked_for_where_much_comes(stream):
    taken(stream)
    stream.transport.protocol.data_received(bytes(999))
    assert stream.transport.max_size == 1000
    stream.transport.protocol.data_received(bytes(1000))
    assert stream.transport.max_size == MOST_READ_BYTES


async def test_who_writes_waits_for_the_transport(stream):
    taken(stream)
    stream.transport.protocol.pause_writing()
    draining = begun(stream.io.writer.drain())
    assert not draining.done()
    stream.transport.protocol.resume_writing()
    await draining


async def test_nothing_is_read_until_all_requests_of_a_connection_go_on(stream):
    handler = Handler(client=stream.io)
    read_at_once(handler, "client")
    stream.transport.protocol.data_received(b"more")
    for _ in range(2):
        hold_reading(handler, "client", held=True)
    reading = asyncio.ensure_future(stream.io.reader.read(65535))
    hold_reading(handler, "client", held=False)
    done, _ = await asyncio.wait([reading], timeout=0)
    assert not done
    hold_reading(handler, "client", held=False)
    assert await reading == b"more"
    assert handler.seen == []


# What mitmproxy waits for goes to its layers at once


async def reading(handler, name):
    """mitmproxy's task for a connection."""
    try:
        while data := await handler.transports[name].reader.read(65535):
            await handler.server_event(SimpleNamespace(data=data))
            await handler.drain_writers()
    except OSError:
        handler.seen.append("broken")
    handler.seen.append("end")


async def turns():
    for _ in range(5):
        turned = asyncio.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        await turned.wait()


@pytest.fixture
async def pair():
    """A handler that reads what comes from a client and a server."""
    streams = SimpleNamespace(client=make_stream(), server=make_stream())
    handler = Handler(client=streams.client.io, server=streams.server.io)
    for name in ("client", "server"):
        read_at_once(handler, name)
    tasks = [begun(reading(handler, name)) for name in ("client", "server")]
    yield SimpleNamespace(handler=handler, seen=handler.seen, client=streams.client, server=streams.server, tasks=tasks)
    for task in tasks:
        task.cancel()


async def test_what_is_waited_for_is_given_at_once(pair):
    for piece in (b"1", b"2"):
        pair.client.transport.protocol.data_received(piece)
    pair.server.transport.protocol.data_received(b"3")
    assert pair.seen == [b"1", b"2", b"3"]
    large = bytes(100_000)
    pair.client.transport.protocol.data_received(large)
    assert pair.seen.pop() == large
    pair.client.transport.protocol.eof_received()
    await turns()
    assert pair.seen == [b"1", b"2", b"3", "end"]
    pair.server.transport.protocol.connection_lost(ConnectionResetError())
    await turns()
    assert pair.seen[4:] == ["broken", "end"]


async def test_what_comes_while_others_take_no_more_waits_in_order(pair):
    pair.server.transport.protocol.pause_writing()
    pair.handler.drained.clear()
    for piece in (b"1", b"2"):
        pair.client.transport.protocol.data_received(piece)
    await turns()
    assert pair.seen == []
    pair.server.transport.protocol.resume_writing()
    pair.client.transport.protocol.data_received(b"3")  # behind those that wait
    pair.handler.drained.set()
    await turns()
    assert pair.seen == [b"123"]
    pair.client.transport.protocol.data_received(b"4")
    assert pair.seen == [b"123", b"4"]
    pair.server.transport.protocol.pause_writing()
    pair.server.transport.protocol.connection_lost(None)
    pair.client.transport.protocol.data_received(b"5")
    assert b"5" in pair.seen


async def test_what_is_held_waits_with_what_comes_later(pair):
    hold_reading(pair.handler, "client", held=True)
    pair.client.transport.protocol.data_received(b"1")
    await turns()
    pair.client.transport.protocol.data_received(b"2")
    await turns()
    assert pair.seen == [b"1"]  # which was waited for already
    hold_reading(pair.handler, "client", held=False)
    await turns()
    assert pair.seen == [b"1", b"2"]


async def test_a_piece_waits_for_the_events_before_it(pair):
    await pair.handler.lock.acquire()
    for piece in (b"1", b"2"):
        pair.client.transport.protocol.data_received(piece)
    assert pair.seen == []
    pair.handler.lock.release()
    pair.client.transport.protocol.data_received(b"3")  # the lock is free, yet has those who wait for it
    assert pair.seen == []


async def test_a_connection_that_is_given_up_gets_nothing(pair):
    pair.tasks[0].cancel()
    pair.client.transport.protocol.data_received(b"late")
    await turns()
    assert pair.seen == []


async def test_of_a_client_that_does_not_tell_what_it_takes_all_waits(stream):
    handler = Handler(client=ConnectionIO(reader=object(), writer=object()), server=stream.io)
    read_at_once(handler, "server")
    task = begun(reading(handler, "server"))
    handler.drained.clear()
    stream.transport.protocol.data_received(b"1")
    await turns()
    assert handler.seen == []
    handler.drained.set()
    await turns()
    assert handler.seen == [b"1"]
    task.cancel()


def test_a_connection_that_has_no_such_reader_is_left_alone():
    io, connection = ConnectionIO(reader=object()), object()
    theirs = io.reader
    for handler in (None, SimpleNamespace(transports={}), SimpleNamespace(transports={connection: io}, client=None)):
        read_at_once(handler, connection)
    assert io.reader is theirs


def test_mitmproxy_reads_as_this_file_believes():
    source = inspect.getsource(ConnectionHandler)
    assert source.count(".reader") == 1
    assert "reader = self.transports[connection].reader" in source
    assert source.count("reader.read(") == 1
    handling, draining = "await self.server_event(events.DataReceived(connection, data))", "await self.drain_writers()"
    assert source.count("events.DataReceived(") == source.count(draining) == 1
    assert source.index("reader.read(") < source.index(handling) < source.index(draining)
    assert "async with self._server_event_lock:" in inspect.getsource(ConnectionHandler.server_event)
