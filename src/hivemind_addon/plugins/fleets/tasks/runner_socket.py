"""The control socket of a runner: what clients ask there, and what they are answered.

One line of JSON each way, one question a connection. Clients that may open it (its owner only) submit, wait and cancel.
A `WaitForTasks` is answered when all its tasks are over; a client that closes the connection before waits no more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base import json_values
from hivemind_addon.plugins.fleets.tasks.model import NotTaken, TaskSpec, TaskView
from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.system.line_server import LineConnection, LineServer

MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_SPECS = 10_000
"""Of one submission."""
_MAX_ASKING = 512
"""Connections at once; each task that waits has one."""


class SubmitTasks(Struct, frozen=True, tag="submit", forbid_unknown_fields=True):
    """Run these, too. They may depend on one another, by name, and on tasks that are there already."""

    specs: tuple[TaskSpec, ...]
    parent: str = ""
    """The id of the task that asks; empty: none does."""
    environment: Mapping[str, str] | None = None
    """Of the client, for the tasks to run in; it is never written down. None: the runner's own."""


class WaitForTasks(Struct, frozen=True, tag="wait", forbid_unknown_fields=True):
    """Answer when these are over."""

    ids: tuple[str, ...]
    waiter: str = ""
    """The id of the task that asks: it lends its place meanwhile."""


class CancelTask(Struct, frozen=True, tag="cancel", forbid_unknown_fields=True):
    """End a task, and what it submitted."""

    id: str


Question = SubmitTasks | WaitForTasks | CancelTask


class RunnerAnswer(Struct, frozen=True, omit_defaults=True):
    """To any of them."""

    refused: str = ""
    """Why nothing was done, in one line; empty: it was."""
    ids: tuple[str, ...] = ()
    """Of what was submitted, in its order."""
    tasks: tuple[TaskView, ...] = ()
    """What was waited for."""
    text: str = ""
    """What was done, for people."""


class RunnerSocket:
    """Serves one socket on the running event loop, from `open` to `close`."""

    def __init__(
        self, path: Path, *, answer: Callable[[Question], Awaitable[RunnerAnswer]], left: Callable[[], None]
    ) -> None:
        """`answer` is cancelled when its client has gone. It may raise NotTaken. `left`: a client has gone."""
        self.path = path
        self._answer = answer
        self._left = left
        # A crowd that comes while we are busy waits: the usual backlog refuses all beyond a hundred.
        self._server = LineServer(
            path, heard=self._heard, left=self._gone, max_line_bytes=MAX_LINE_BYTES, backlog=_MAX_ASKING
        )
        self._answering: dict[LineConnection, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<RunnerSocket {self.path}, {self.asking} asking>"

    @property
    def asking(self) -> int:
        """Connections that are open."""
        return len(self._server.connections)

    async def open(self) -> None:
        """Listen. Raises SocketTaken, OSError."""
        await self._server.start()

    async def close(self) -> None:
        """Answer nobody any more."""
        answering = tuple(self._answering.values())
        self._server.close()  # which cancels them
        await asyncio.gather(*answering, return_exceptions=True)

    def _heard(self, connection: LineConnection, line: bytes) -> None:
        if connection in self._answering:
            connection.cut_off()
        else:
            self._answering[connection] = asyncio.ensure_future(self._serve(connection, line))

    def _gone(self, connection: LineConnection) -> None:
        if answering := self._answering.pop(connection, None):
            answering.cancel()
        self._left()

    async def _serve(self, connection: LineConnection, line: bytes) -> None:
        try:
            connection.send(msgspec.json.encode(await self._answer_to(line)) + b"\n")
        finally:
            connection.end()

    async def _answer_to(self, line: bytes) -> RunnerAnswer:
        if self.asking > _MAX_ASKING:
            return RunnerAnswer(refused=f"{_MAX_ASKING} ask already; wait for several tasks at once instead")
        try:
            question: Question = json_values.decode(line, Question)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return RunnerAnswer(refused=f"not understood: {failing(error)}")
        try:
            return await self._answer(question)
        except NotTaken as error:
            return RunnerAnswer(refused=str(error))
