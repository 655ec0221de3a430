"""Serves the control socket of a proxy; `proxy/api/control.py` says what is spoken there, and reads it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

import msgspec

from hivemind_addon.formats.base import json_values
from hivemind_addon.proxy.api.command import BadCommand, Command, CommandReply, read_command
from hivemind_addon.proxy.api.control import CommandAnswer
from hivemind_addon.proxy.api.report_source import LEAST_SHARE, ReportSource
from hivemind_addon.proxy.system.line_server import LineConnection, LineServer

logger = logging.getLogger("hivemind")

EVERY_S = 1.0
MAX_READERS = 32
MAX_MISSED = 30
"""Lines that a reader may miss, one after the other, before it is cut off."""
MAX_COMMANDS = 100
"""Of one reader, within a second."""
MAX_COMMAND_BYTES = 64 * 1024


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What a reader sends."""

    id: int | str
    command: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    reports: bool = True


def pause_s(every_s: float, took_s: float) -> float:
    """How long after a report that took so long to make the next one is due."""
    return max(every_s, LEAST_SHARE * took_s)


class ControlServer:
    """Serves one socket on the running event loop, from `start` to `close`."""

    def __init__(
        self,
        path: Path,
        *,
        reports: ReportSource,
        command: Callable[[Command], CommandReply | Awaitable[CommandReply]],
        every_s: float = EVERY_S,
    ) -> None:
        """`command` carries one out: at once, or so that its reply is to be waited for."""
        self.path = path
        self._reports = reports
        self._command = command
        self._every_s = every_s
        self._encoder = msgspec.json.Encoder()
        self._server = LineServer(
            path,
            heard=self._heard,
            joined=self._joined,
            left=self._left,
            max_line_bytes=MAX_COMMAND_BYTES,
            max_lines_per_s=MAX_COMMANDS,
        )
        self._readers: dict[LineConnection, int] = {}
        """Connections that get reports → lines that each has missed in a row."""
        self._timer: asyncio.TimerHandle | None = None
        self._telling: set[asyncio.Task[None]] = set()
        """While a line is made, or a reply is waited for."""
        self._is_failing = False
        """The last report could not be made; that is in the log once."""

    async def start(self) -> None:
        """Listen. Raises SocketTaken, OSError."""
        await self._server.start()

    def close(self) -> None:
        """End it: readers are cut off, the socket's file goes if it is still ours."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._telling:
            task.cancel()
        self._server.close()

    def _joined(self, reader: LineConnection) -> None:
        """A line as soon as it is made."""
        if len(self._server.connections) > MAX_READERS:
            reader.cut_off()
            return
        self._readers[reader] = 0
        self._tell([reader], max_age_s=0.0)
        self._arm()

    def _left(self, reader: LineConnection) -> None:
        self._readers.pop(reader, None)

    def _heard(self, reader: LineConnection, line: bytes) -> None:
        if line.strip():
            answer = self._answer(reader, line)
            if isinstance(answer, CommandAnswer):
                self._send(reader, answer)
            else:
                self._begin(self._send_later(reader, *answer))

    def _send(self, reader: LineConnection, answer: CommandAnswer) -> None:
        reader.send(self._encoder.encode(answer) + b"\n")

    async def _send_later(
        self, reader: LineConnection, asked_id: int | str | None, reply: Awaitable[CommandReply]
    ) -> None:
        try:
            said = await reply
        except Exception as error:  # the guard at the edge: clients must get an answer
            logger.exception("hivemind: a command failed")
            said = _failed(error)
        self._send(reader, CommandAnswer(id=asked_id, said=said))

    def _answer(
        self, reader: LineConnection, line: bytes
    ) -> CommandAnswer | tuple[int | str | None, Awaitable[CommandReply]]:
        """Carry out what a reader asks in one line; its id and the reply to come, where that has to be waited for."""
        asked_id: int | str | None = None
        try:
            asked = json_values.decode(line, _Asked)
            asked_id = asked.id
            if not asked.reports:
                self._readers.pop(reader, None)
            if asked.command is msgspec.UNSET:
                said = CommandReply(done=True, text="no command")
            else:
                reply = self._command(read_command(json_values.decode(asked.command)))
                if not isinstance(reply, CommandReply):
                    return asked_id, reply
                said = reply
        except BadCommand as error:
            said = CommandReply(done=False, text=str(error))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            said = CommandReply(done=False, text=f"not understood: {error}")
        except Exception as error:  # as above
            logger.exception("hivemind: a command failed")
            said = _failed(error)
        return CommandAnswer(id=asked_id, said=said)

    def _arm(self) -> None:
        if self._timer is None and self._readers:
            delay_s = pause_s(self._every_s, self._reports.took_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        due = []
        for reader, missed in tuple(self._readers.items()):
            if not reader.unsent_bytes:
                due.append(reader)
                self._readers[reader] = 0
            elif missed < MAX_MISSED:
                self._readers[reader] = missed + 1
            else:
                reader.cut_off()
        if due:
            self._tell(due, max_age_s=self._every_s / 2)
        self._arm()

    def _tell(self, readers: list[LineConnection], *, max_age_s: float) -> None:
        self._begin(self._send_line(readers, max_age_s))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _send_line(self, readers: list[LineConnection], max_age_s: float) -> None:
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop: who has come with a command may want no reports
        if self._readers.keys().isdisjoint(readers):
            return
        try:
            line = await self._reports.make(max_age_s=max_age_s)
        except Exception:
            if not self._is_failing:
                logger.exception("hivemind: a report could not be made")
            self._is_failing = True
            return
        self._is_failing = False
        for reader in readers:
            if reader in self._readers:
                reader.send(line)


def _failed(error: Exception) -> CommandReply:
    return CommandReply(done=False, text=f"hivemind_addon failed: {error!r}")
