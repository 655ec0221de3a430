"""The control socket: whoever may open it reads what the scheduler's state is, once a second, and commands it.

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
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hivemind_addon.api.command import BadCommand, Command, Said, read_command
from hivemind_addon.api.report import Report
from hivemind_addon.api.snapshot import SCHEMA_VERSION
from hivemind_addon.system.folders import runtime_folder

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
MAX_LINE_BYTES = 256 * 1024 * 1024


class SocketTaken(Exception):
    """A living process serves the path already; the text is one line that says so."""


class UnreadableReport(Exception):
    """What answers speaks another version, or no version at all; one line."""


class NotSaid(Exception):
    """A command got no answer; one line that says why."""


def control_socket(port: int) -> Path:
    """The path for the proxy on a port. Raises FolderNotPrivate, OSError."""
    return runtime_folder() / f"{port}.sock"


def serving_ports() -> list[int]:
    """Ports of this user's proxies that run now, as far as they keep their control socket in its usual place."""
    named = (path.stem for path in runtime_folder().glob("*.sock"))
    return sorted(int(name) for name in named if name.isdecimal() and is_answered(control_socket(int(name))))


def is_answered(path: Path, *, patience_s: float = 0.3) -> bool:
    """Whether somebody listens at a socket."""
    if not hasattr(socket, "AF_UNIX"):
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience_s)
        try:
            connection.connect(os.fspath(path))
        except OSError:
            return False
    return True


def read_report(path: Path, *, timeout_s: float = 5.0) -> Report | None:
    """The present state of the proxy at a socket; None: there is none. Raises UnreadableReport."""
    line = bytearray()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(os.fspath(path))
            while not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                chunk = connection.recv(1024 * 1024)
                if not chunk:
                    return None  # it is going down
                line += chunk.partition(b"\n")[0] + (b"\n" if b"\n" in chunk else b"")
        except TimeoutError as error:
            raise UnreadableReport(f"{path}: nothing answers within {timeout_s:g} s") from error
        except OSError:
            return None
    return decode_report(line, os.fspath(path))


def decode_report(line: bytes | bytearray, source: str) -> Report:
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


def send_command(path: Path, command: Command, *, timeout_s: float = 5.0) -> Said:
    """Have the proxy at a socket carry out a command. Raises NotSaid: there is none, or it does not answer."""
    asked = command_line(1, command, reports=False)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(os.fspath(path))
            connection.sendall(asked)
            with connection.makefile("rb") as lines:
                for line, _ in zip(lines, range(_MOST_REPORTS_BEFORE), strict=False):
                    if line.startswith(_ANSWER):
                        return msgspec.json.decode(line, type=CommandAnswer).said
        except TimeoutError as error:
            raise NotSaid(f"{path}: no answer within {timeout_s:g} s") from error
        except msgspec.MsgspecError as error:
            raise NotSaid(f"{path}: what answers is no proxy of this kind ({error})") from error
        except OSError as error:
            raise NotSaid(f"{path}: no proxy is there") from error
    raise NotSaid(f"{path}: the proxy takes no commands; it is an older one, or it is going down")


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
    said: Said


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
        command: Callable[[Command], Said],
        every_s: float = EVERY_S,
    ) -> None:
        self.path = path
        self._report = report
        self._command = command
        self._every_s = every_s
        self._encoder = msgspec.json.Encoder()
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._readers: dict[asyncio.WriteTransport, int] = {}
        """Reader → lines that it has missed in a row."""
        self._silent: set[asyncio.WriteTransport] = set()
        """Those that want no reports."""
        self._timer: asyncio.TimerHandle | None = None
        self._took_s = 0.0
        """To make the last line."""

    def __repr__(self) -> str:
        return f"<ControlServer {self.path}, {len(self._readers)} readers>"

    async def start(self) -> None:
        """Listen. Raises SocketTaken, OSError."""
        _clear_stale(self.path)
        listener = socket.socket(socket.AF_UNIX)
        try:
            # The mask, and not a later chmod: nobody else can open it, not even for a moment.
            mask = os.umask(0o177)
            try:
                listener.bind(os.fspath(self.path))
            finally:
                os.umask(mask)
            self._inode = self.path.stat().st_ino
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: _Reader(self), sock=listener)
        except BaseException:
            listener.close()
            raise

    def close(self) -> None:
        """End it: readers are cut off, the socket's file goes if it is still ours."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._server is not None:
            self._server.close()
            self._server = None
        for reader in (*self._readers, *self._silent):
            reader.abort()
        self._readers.clear()
        self._silent.clear()
        try:
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        except OSError:
            logger.debug("hivemind: %s was gone already", self.path)

    def joined(self, reader: asyncio.WriteTransport) -> None:
        """Somebody reads: a line at once."""
        if len(self._readers) + len(self._silent) >= MAX_READERS:
            reader.abort()
            return
        self._readers[reader] = 0
        reader.write(self._line())
        self._arm()

    def left(self, reader: asyncio.WriteTransport) -> None:
        """Somebody reads no more."""
        self._readers.pop(reader, None)
        self._silent.discard(reader)

    def answer(self, line: bytes, reader: asyncio.WriteTransport) -> bytes:
        """Carry out what a reader asks in one line; the line for it."""
        asked_id: int | str | None = None
        try:
            asked = msgspec.json.decode(line, type=_Asked)
            asked_id = asked.id
            if not asked.reports:
                self._readers.pop(reader, None)
                self._silent.add(reader)
            if asked.command is msgspec.UNSET:
                said = Said(done=True, text="no command")
            else:
                said = self._command(read_command(msgspec.json.decode(asked.command)))
        except BadCommand as error:
            said = Said(done=False, text=str(error))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            said = Said(done=False, text=f"not understood: {error}")
        except Exception as error:  # the guard at the edge: whoever asks must get an answer
            logger.exception("hivemind: a command failed")
            said = Said(done=False, text=f"hivemind_addon failed: {error!r}")
        return self._encoder.encode(CommandAnswer(id=asked_id, said=said)) + b"\n"

    def _arm(self) -> None:
        if self._timer is None and self._readers:
            delay_s = pause_s(self._every_s, self._took_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        line: bytes | None = None
        for reader, missed in tuple(self._readers.items()):
            if not reader.get_write_buffer_size():
                line = self._line() if line is None else line
                reader.write(line)
                self._readers[reader] = 0
            elif missed < MAX_MISSED:
                self._readers[reader] = missed + 1
            else:
                self._readers.pop(reader)
                reader.abort()
        self._arm()

    def _line(self) -> bytes:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        line = self._encoder.encode(self._report()) + b"\n"
        self._took_s = loop.time() - began_at
        return line


class _Reader(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: ControlServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._begun = bytearray()
        """Of the next line."""
        self._second = 0.0
        """When the running second began."""
        self._asked = 0
        """In it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.joined(transport)

    def data_received(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = bytes(self._begun) + line
            self._begun.clear()
            if whole.strip() and not self._take(whole):
                return
        self._begun += rest
        if len(self._begun) > MAX_COMMAND_BYTES:
            self._cut_off()

    def _take(self, line: bytes) -> bool:
        """Answer one line. False: this reader is cut off."""
        assert self._transport is not None
        now = asyncio.get_running_loop().time()
        if now - self._second >= 1:
            self._second, self._asked = now, 0
        self._asked += 1
        if self._asked > MAX_COMMANDS or len(line) > MAX_COMMAND_BYTES or self._transport.is_closing():
            self._cut_off()
            return False
        self._transport.write(self._server.answer(line, self._transport))
        return True

    def _cut_off(self) -> None:
        assert self._transport is not None
        self._server.left(self._transport)
        self._transport.abort()

    def pause_writing(self) -> None:
        """It reads no answers: it is not heard until it does."""
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        assert self._transport is not None
        self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._transport is not None:
            self._server.left(self._transport)


def _clear_stale(path: Path) -> None:
    """Remove the socket of a process that is dead. Raises SocketTaken for one that lives, or that is no socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketTaken(f"{path} is there and is no socket; name another path")
    with socket.socket(socket.AF_UNIX) as attempt:
        attempt.settimeout(1)
        try:
            attempt.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # it is there, and busy
    raise SocketTaken(f"{path} belongs to another running proxy")
