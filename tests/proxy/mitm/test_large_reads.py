import asyncio
import inspect
import random
from types import SimpleNamespace

import pytest
from mitmproxy.proxy.server import ConnectionHandler, ConnectionIO

from hivemind_addon.proxy.mitm.large_reads import MOST_READ_BYTES, hold_reading, read_at_once


class Transport:
    """As a stream's, without a network."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.max_size = 1000
        self.is_reading = True

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
    """A transport, and asyncio's own reader behind it."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport = Transport(protocol)
    reader.set_transport(transport)
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    return SimpleNamespace(transport=transport, theirs=protocol, io=ConnectionIO(reader=reader, writer=writer))


def begun(coroutine):
    return asyncio.Task(coroutine, loop=asyncio.get_running_loop(), eager_start=True)


def taken(stream):
    connection = object()
    read_at_once(SimpleNamespace(transports={connection: stream.io}), connection)
    return stream.io.reader


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
    reading = begun(reader.read(65535))
    stream.transport.protocol.data_received(b"small")
    assert await reading == b"small"
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
    connection = object()
    handler = SimpleNamespace(transports={connection: stream.io})
    read_at_once(handler, connection)
    stream.transport.protocol.data_received(b"more")
    for _ in range(2):
        hold_reading(handler, connection, held=True)
    reading = asyncio.ensure_future(handler.transports[connection].reader.read(65535))
    hold_reading(handler, connection, held=False)
    done, _ = await asyncio.wait([reading], timeout=0)
    assert not done
    hold_reading(handler, connection, held=False)
    assert await reading == b"more"


def test_a_connection_that_has_no_such_reader_is_left_alone():
    io, connection = ConnectionIO(reader=object()), object()
    theirs = io.reader
    for handler in (None, SimpleNamespace(transports={}), SimpleNamespace(transports={connection: io})):
        read_at_once(handler, connection)
    assert io.reader is theirs


def test_mitmproxy_reads_as_this_file_believes():
    source = inspect.getsource(ConnectionHandler)
    assert source.count(".reader") == 1
    assert "reader = self.transports[connection].reader" in source
    assert source.count("reader.read(") == 1
