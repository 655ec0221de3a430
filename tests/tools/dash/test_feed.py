"""The feed, over real Unix sockets: what it hears, what it says, and that it outlives the proxy."""

import asyncio
import json
import tempfile
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec
import pytest

from hivemind_addon.kernel.values.command import Cancel, Pause
from hivemind_addon.proxy.api.command import CommandReply
from hivemind_addon.tools.dash import feed as feeds
from hivemind_addon.tools.dash.feed import Feed, ProxyGone
from tests.tools.dash.samples import pool, report

LINE = msgspec.json.encode(report(pool())) + b"\n"


@pytest.fixture
def path():
    """A short one: pytest's own folders are too deep for a socket."""
    with tempfile.TemporaryDirectory(prefix="hm") as folder:
        yield Path(folder) / "8080.sock"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A proxy is looked for all the time, and waited for patiently where it is there."""
    monkeypatch.setattr(feeds, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(feeds, "SILENT_S", 120.0)
    monkeypatch.setattr(feeds, "ANSWER_S", 120.0)


class Proxy:
    """What answers at a control socket: one report, and whatever a test makes it say."""

    def __init__(self, path, line=LINE):
        self.path, self.line = path, line
        self.asked = asyncio.Queue()
        self.writers = []

    async def __aenter__(self):
        self.server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.cut()
        self.path.unlink(missing_ok=True)

    def cut(self):
        while self.writers:
            self.writers.pop().transport.abort()

    async def _serve(self, reader, writer):
        self.writers.append(writer)
        writer.write(self.line)
        with suppress(ConnectionError):
            while line := await reader.readline():
                self.asked.put_nowait(json.loads(line))

    def say(self, value):
        self.writers[-1].write(json.dumps(value).encode() + b"\n")

    def report(self):
        self.writers[-1].write(self.line)


@pytest.fixture
async def news(path):
    """A feed, and its news one by one."""
    feed = Feed(path)
    async with asyncio.timeout(120), aclosing(feed.news()) as stream:
        yield feed, stream
        feed.close()


async def test_reports_come_as_they_are_told(path, news):
    _, stream = news
    async with Proxy(path) as proxy:
        assert await anext(stream) == report(pool())
        proxy.report()
        assert await anext(stream) == report(pool())


async def test_a_proxy_that_is_not_there_yet_is_waited_for(path, news):
    _, stream = news
    assert await anext(stream) == ProxyGone("proxy gone, waiting for it to come back")
    async with Proxy(path):
        while isinstance(await anext(stream), ProxyGone):
            pass


async def test_a_restart_is_survived(path, news):
    _, stream = news
    async with Proxy(path):
        await anext(stream)
    assert isinstance(await anext(stream), ProxyGone)
    async with Proxy(path):
        while isinstance(await anext(stream), ProxyGone):
            pass


async def test_a_connection_that_is_cut_is_made_anew(path, news):
    _, stream = news
    async with Proxy(path) as proxy:
        await anext(stream)
        proxy.cut()
        assert isinstance(await anext(stream), ProxyGone)
        assert await anext(stream) == report(pool())


@pytest.mark.parametrize(
    ("line", "says"),
    [(b'{"version":99}\n', "speaks version 99"), (b"HTTP/1.1 400\n", "no report of a proxy"), (b"[]\n", "no report")],
)
async def test_what_cannot_be_understood_is_said(path, news, line, says):
    _, stream = news
    async with Proxy(path, line):
        told = await anext(stream)
        assert isinstance(told, ProxyGone)
        assert says in told.reason
        assert "\n" not in told.reason


async def test_a_proxy_that_falls_silent_is_asked_anew(path, news, monkeypatch):
    _, stream = news
    async with Proxy(path):
        await anext(stream)
        with monkeypatch.context() as soon:
            soon.setattr(feeds, "SILENT_S", 0.02)
            assert "said nothing" in (await anext(stream)).reason
        assert await anext(stream) == report(pool())


async def test_commands_go_out_and_each_gets_its_own_answer(path, news):
    feed, stream = news
    async with Proxy(path) as proxy:
        await anext(stream)
        asked = [asyncio.ensure_future(feed.send(command)) for command in (Pause("a"), Cancel("t"))]
        first, second = await proxy.asked.get(), await proxy.asked.get()
        assert first["command"] == {"type": "pause", "pool": "a"}
        proxy.say({"id": second["id"], "said": {"done": False, "text": "unknown"}})
        proxy.say({"id": 99, "said": {"done": True, "text": "nobody asked"}})
        proxy.say({"id": first["id"], "said": {"done": True, "text": "paused"}})
        proxy.report()
        assert await anext(stream) == report(pool()), "answers are no news"
        assert await asyncio.gather(*asked) == [CommandReply(True, "paused"), CommandReply(False, "unknown")]


async def test_a_command_to_a_proxy_that_is_gone_does_nothing(path, news):
    feed, stream = news
    assert await feed.send(Pause()) == CommandReply(False, "the proxy is gone: nothing was done")
    async with Proxy(path) as proxy:
        while isinstance(await anext(stream), ProxyGone):
            pass
        asked = asyncio.ensure_future(feed.send(Pause()))
        await proxy.asked.get()
        proxy.cut()
        await anext(stream)
        await anext(stream)
        assert await asked == CommandReply(False, "the proxy went before it answered")


async def test_a_proxy_that_takes_no_commands_is_told_apart(path, news, monkeypatch):
    monkeypatch.setattr(feeds, "ANSWER_S", 0.02)
    feed, stream = news
    async with Proxy(path):
        await anext(stream)
        said = await feed.send(Pause())
    assert not said.done
    assert "older one" in said.text


async def test_it_ends_when_it_is_closed(path):
    feed = Feed(path)
    heard = [one async for one in closing(feed)]
    assert len(heard) == 1


async def closing(feed):
    async for one in feed.news():
        feed.close()
        yield one
