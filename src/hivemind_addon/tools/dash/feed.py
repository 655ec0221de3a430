"""A running proxy, read for as long as it takes: one report a second, and word when it is gone and while it is.

Commands go out by the same connection. A proxy that dies is looked for until it, or its successor, is back.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base import json_values
from hivemind_addon.proxy.api.command import Command, CommandReply
from hivemind_addon.proxy.api.control import CommandAnswer, UnreadableReport, command_line, decode_report
from hivemind_addon.proxy.api.report import Report
from hivemind_addon.proxy.system.json_socket import MAX_LINE_BYTES

LOOK_EVERY_S = 0.5
"""How often a proxy that is gone is looked for."""
SILENT_S = 10.0
"""A proxy that says nothing for so long is as good as gone; it is asked anew."""
ANSWER_S = 5.0


class ProxyGone(Struct, frozen=True):
    """There is no proxy now; in one line, why."""

    reason: str


class Feed:
    """One reader of one control socket, on the running event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: asyncio.StreamWriter | None = None
        """None: there is no connection."""
        self._ids = itertools.count(1)
        self._asked: dict[int | str | None, asyncio.Future[CommandReply]] = {}
        self._closed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Feed of {self._path}, {'connected' if self._writer else 'gone'}>"

    async def news(self) -> AsyncIterator[Report | ProxyGone]:
        """Reports as they come; while there is no proxy, Gone now and then. Ends with `close` only."""
        while not self._closed.is_set():
            try:
                reader, self._writer = await asyncio.open_unix_connection(self._path, limit=MAX_LINE_BYTES)
            except OSError:
                yield ProxyGone("proxy gone, waiting for it to come back")
            else:
                try:
                    async for one in self._read(reader):
                        yield one
                finally:
                    self._hang_up()
            await self._rest()

    async def send(self, command: Command) -> CommandReply:
        """Ask for something; what became of it. A proxy that is gone, or says nothing, has done nothing."""
        if self._writer is None:
            return CommandReply(done=False, text="the proxy is gone: nothing was done")
        number = next(self._ids)
        answer: asyncio.Future[CommandReply] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._writer.write(command_line(number, command))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            return CommandReply(
                done=False, text="the proxy does not answer: it may be an older one, that takes no commands"
            )
        finally:
            self._asked.pop(number, None)

    def close(self) -> None:
        """End `news`."""
        self._closed.set()
        self._hang_up()

    async def _read(self, reader: asyncio.StreamReader) -> AsyncIterator[Report | ProxyGone]:
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    line = await reader.readline()
            except TimeoutError:
                yield ProxyGone(f"the proxy has said nothing for {SILENT_S:g} s")
                return
            except (OSError, ValueError):  # cut, or a line without end
                line = b""
            if not line.endswith(b"\n"):
                yield ProxyGone("proxy gone, waiting for it to come back")
                return
            one = self._understood(line)
            if one is not None:
                yield one
            if isinstance(one, ProxyGone):
                return

    def _understood(self, line: bytes) -> Report | ProxyGone | None:
        """A report; None: an answer, which is its asker's."""
        try:
            answer = json_values.decode(line, CommandAnswer)
        except msgspec.MsgspecError:
            try:
                return decode_report(line, os.fspath(self._path))
            except UnreadableReport as error:
                return ProxyGone(str(error))
        asked = self._asked.get(answer.id)
        if asked is not None and not asked.done():
            asked.set_result(answer.said)
        return None

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result(CommandReply(done=False, text="the proxy went before it answered"))

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._closed.wait()
        except TimeoutError:
            return
