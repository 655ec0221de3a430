"""The socket that a runner is asked on: who may open it (its owner only) submits, waits and cancels."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from hivemind_addon.api.words import failing
from hivemind_addon.tools.tasks.model import NotTaken
from hivemind_addon.tools.tasks.request import MAX_LINE_BYTES, Question, RunnerAnswer

_MAX_ASKING = 512
"""Connections at once; each task that waits has one."""


class Door:
    """Serves one socket on the running event loop, from `open` to `close`."""

    def __init__(
        self, path: Path, *, answer: Callable[[Question], Awaitable[RunnerAnswer]], left: Callable[[], None]
    ) -> None:
        """`answer` is cancelled when whoever asked is gone. It may raise NotTaken. `left` hears when one has gone."""
        self.path = path
        self.asking = 0
        """Connections that are open."""
        self._answer = answer
        self._left = left
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Door {self.path}, {self.asking} asking>"

    async def open(self) -> None:
        """Listen. A socket that a dead process has left at the path is replaced. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            self.path.unlink(missing_ok=True)
            # The mask, and not a later chmod: nobody else can open it, not even for a moment.
            mask = os.umask(0o177)
            try:
                listener.bind(os.fspath(self.path))
            finally:
                os.umask(mask)
            # A crowd that comes while we are busy waits at the door: the usual backlog refuses all beyond a hundred.
            self._server = await asyncio.start_unix_server(
                self._serve, sock=listener, limit=MAX_LINE_BYTES, backlog=_MAX_ASKING
            )
        except BaseException:
            listener.close()
            raise

    async def close(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            self._server.close()
        self.path.unlink(missing_ok=True)
        for one in self._serving:
            one.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.asking += 1
        try:
            answer = await self._asked(reader)
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass  # whoever asked is gone, or we are
        finally:
            self.asking -= 1
            self._left()
            self._serving.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _asked(self, reader: asyncio.StreamReader) -> RunnerAnswer:
        try:
            question: Question = msgspec.json.decode(await reader.readline(), type=Question)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            return RunnerAnswer(refused=f"not understood: {failing(error)}")
        if self.asking > _MAX_ASKING:
            return RunnerAnswer(refused=f"{_MAX_ASKING} ask already; wait for several tasks at once instead")
        answering = asyncio.ensure_future(self._answer(question))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ConnectionResetError
            return answering.result()
        except NotTaken as error:
            return RunnerAnswer(refused=str(error))
        finally:
            for one in (answering, gone):
                one.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)
