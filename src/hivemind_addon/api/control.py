"""The control socket: clients that may open it read the scheduler's state, once a second, and command it.

A Unix socket, 0600, one for each port; where the system has none (Windows), there is no control socket. A reader gets
one line of JSON at once and one every second from then on (fewer where ten thousand requests wait and a line takes long
to make): a `Report`, whose `version` grows when a field changes its meaning or goes. A reader that does not keep up
misses lines and is cut off in the end; it never makes the proxy wait or grow.

What it sends are commands (`api/command.py`), one line of JSON each, and each is answered in one line of its own:

    {"id": 1, "command": {"type": "limit", "limit": 4, "pool": "api.anthropic.com"}}
    {"id": 1, "said": {"done": true, "text": "…"}}

`id` is a number or a string of the reader's choice. Reports have no `said`, answers nothing else: so they are told
apart. With `"reports": false` beside it no report follows any more (the first has gone out by then). What cannot be
understood is answered with `done` false, and with `"id": null` where that cannot be read either; a line of more than
64 KiB, or more than a hundred within a second, end the connection.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hivemind_addon.api.command import BadCommand, Command, CommandReply, read_command
from hivemind_addon.api.report import Report
from hivemind_addon.api.snapshot import SCHEMA_VERSION
from hivemind_addon.system.folders import runtime_folder
from hivemind_addon.system.json_socket import LineConnection, LineServer, ask, is_answered

logger = logging.getLogger("hivemind")

EVERY_S = 1.0
MOST_SHARE = 0.05
"""Of the event loop's time, at most, goes into reports."""
MAX_READERS = 32
MAX_MISSED = 30
"""Lines that a reader may miss, one after the other, before it is cut off."""
MAX_COMMANDS = 100
"""Of one reader, within a second."""
MAX_COMMAND_BYTES = 64 * 1024


class UnreadableReport(Exception):
    """What answers speaks another version, or no version at all; one line."""


class CommandUnanswered(Exception):
    """A command got no answer; one line that says why."""


def control_socket(port: int) -> Path:
    """The path for the proxy on a port. Raises FolderNotPrivate, OSError."""
    return runtime_folder() / f"{port}.sock"


def serving_ports() -> list[int]:
    """Ports of this user's proxies that run now, as far as they keep their control socket in its usual place."""
    named = (path.stem for path in runtime_folder().glob("*.sock"))
    return sorted(int(name) for name in named if name.isdecimal() and is_answered(control_socket(int(name))))


def read_report(path: Path, *, timeout_s: float = 5.0) -> Report | None:
    """The present state of the proxy at a socket; None: there is none. Raises UnreadableReport."""
    try:
        line = ask(path, timeout_s=timeout_s)
    except TimeoutError as error:
        raise UnreadableReport(f"{path}: nothing answers within {timeout_s:g} s") from error
    except OSError:
        return None
    return None if line is None else decode_report(line, os.fspath(path))


def decode_report(line: bytes, source: str) -> Report:
    """A report's line; `source` is where it comes from, for people. Raises UnreadableReport."""
    try:
        version = msgspec.json.decode(line, type=_Versioned).version
        if version != SCHEMA_VERSION:
            raise UnreadableReport(
                f"{source}: the proxy speaks version {version}, this command version {SCHEMA_VERSION}; "
                "restart the older of the two"
            )
        return msgspec.json.decode(line, type=Report)
    except msgspec.MsgspecError as error:
        raise UnreadableReport(f"{source}: this is no report of a proxy ({error})") from error


def send_command(path: Path, command: Command, *, timeout_s: float = 5.0) -> CommandReply:
    """Have the proxy at a socket carry out a command. Raises CommandUnanswered where none answers."""
    asked = command_line(1, command, reports=False)
    try:
        line = ask(path, asked, timeout_s=timeout_s, begins=_ANSWER, within=_MOST_REPORTS_BEFORE)
        if line is not None:
            return msgspec.json.decode(line, type=CommandAnswer).said
    except TimeoutError as error:
        raise CommandUnanswered(f"{path}: no answer within {timeout_s:g} s") from error
    except msgspec.MsgspecError as error:
        raise CommandUnanswered(f"{path}: what answers is no proxy of this kind ({error})") from error
    except OSError as error:
        raise CommandUnanswered(f"{path}: no proxy is there") from error
    raise CommandUnanswered(f"{path}: the proxy takes no commands; it is an older one, or it is going down")


def command_line(command_id: int, command: Command, *, reports: bool = True) -> bytes:
    """What a reader sends to have a command carried out; `reports`: whether it goes on to read them."""
    return msgspec.json.encode({"id": command_id, "reports": reports, "command": command}) + b"\n"


_ANSWER = b'{"id":'
_MOST_REPORTS_BEFORE = 4
"""Reports that a proxy may have sent before its answer; an older one sends nothing else."""


@dataclass(frozen=True, slots=True)
class _Versioned:
    version: int


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What a reader sends."""

    id: int | str
    command: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    reports: bool = True


class CommandAnswer(msgspec.Struct):
    """What it gets for it."""

    id: int | str | None
    said: CommandReply


def pause_s(every_s: float, took_s: float) -> float:
    """How long after a report that took so long to make the next one is due."""
    return max(every_s, took_s / MOST_SHARE)


class ControlServer:
    """Serves one socket on the running event loop, from `start` to `close`."""

    def __init__(
        self,
        path: Path,
        *,
        report: Callable[[], Report],
        command: Callable[[Command], CommandReply],
        every_s: float = EVERY_S,
    ) -> None:
        self.path = path
        self._report = report
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
        self._took_s = 0.0
        """To make the last line."""

    def __repr__(self) -> str:
        return f"<ControlServer {self.path}, {len(self._readers)} readers>"

    async def start(self) -> None:
        """Listen. Raises SocketTaken, OSError."""
        await self._server.start()

    def close(self) -> None:
        """End it: readers are cut off, the socket's file goes if it is still ours."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._server.close()

    def _joined(self, reader: LineConnection) -> None:
        """A line at once."""
        if len(self._server.connections) > MAX_READERS:
            reader.cut_off()
            return
        self._readers[reader] = 0
        reader.send(self._line())
        self._arm()

    def _left(self, reader: LineConnection) -> None:
        self._readers.pop(reader, None)

    def _heard(self, reader: LineConnection, line: bytes) -> None:
        if line.strip():
            reader.send(self._encoder.encode(self._answer(reader, line)) + b"\n")

    def _answer(self, reader: LineConnection, line: bytes) -> CommandAnswer:
        """Carry out what a reader asks in one line."""
        asked_id: int | str | None = None
        try:
            asked = msgspec.json.decode(line, type=_Asked)
            asked_id = asked.id
            if not asked.reports:
                self._readers.pop(reader, None)
            if asked.command is msgspec.UNSET:
                said = CommandReply(done=True, text="no command")
            else:
                said = self._command(read_command(msgspec.json.decode(asked.command)))
        except BadCommand as error:
            said = CommandReply(done=False, text=str(error))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            said = CommandReply(done=False, text=f"not understood: {error}")
        except Exception as error:  # the guard at the edge: clients must get an answer
            logger.exception("hivemind: a command failed")
            said = CommandReply(done=False, text=f"hivemind_addon failed: {error!r}")
        return CommandAnswer(id=asked_id, said=said)

    def _arm(self) -> None:
        if self._timer is None and self._readers:
            delay_s = pause_s(self._every_s, self._took_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        line: bytes | None = None
        for reader, missed in tuple(self._readers.items()):
            if not reader.unsent_bytes:
                line = self._line() if line is None else line
                reader.send(line)
                self._readers[reader] = 0
            elif missed < MAX_MISSED:
                self._readers[reader] = missed + 1
            else:
                reader.cut_off()
        self._arm()

    def _line(self) -> bytes:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        line = self._encoder.encode(self._report()) + b"\n"
        self._took_s = loop.time() - began_at
        return line
