import asyncio
import inspect
import random
from types import SimpleNamespace

from mitmproxy.proxy.server import ConnectionHandler, ConnectionIO

from hivemind_addon.proxy.mitm.large_reads import hold_reading, read_at_once


async def test_what_has_come_is_read_at_once():
    reader, connection = asyncio.StreamReader(), object()
    io = ConnectionIO(reader=reader)
    read_at_once(SimpleNamespace(transports={connection: io}), connection)
    sent = random.Random(1).randbytes(200_000)
    reader.feed_data(sent)
    assert not io.reader.at_eof()
    pieces = [await io.reader.read(65535), await io.reader.read(65535)]
    assert b"".join(pieces) == sent
    assert len(pieces[-1]) <= 1024  # which mitmproxy keeps
    reader.feed_data(b"small")
    reader.feed_eof()
    assert [await io.reader.read(65535), await io.reader.read(65535)] == [b"small", b""]
    assert io.reader.at_eof()


async def test_nothing_is_read_until_all_requests_of_a_connection_go_on():
    reader, connection = asyncio.StreamReader(), object()
    handler = SimpleNamespace(transports={connection: ConnectionIO(reader=reader)})
    read_at_once(handler, connection)
    reader.feed_data(b"more")
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
