"""The control socket: clients that may open the socket read the scheduler's state, once a second, and send commands.

A Unix socket with mode 0600 per port; systems without Unix sockets (Windows) have no control socket. A reader gets a
line of JSON at once and then every second (less often when ten thousand requests wait and a line takes long to make).
The line is a `Report`, whose `version` grows when a field changes the meaning or disappears. A reader that is too slow
misses lines and is finally disconnected; such a reader never makes the proxy wait or grow.

A reader sends commands (`values/command.py`), a line of JSON each, and gets an answer to each in a line:

    {"id": 1, "command": {"type": "limit", "limit": 4, "pool": "api.anthropic.com"}}
    {"id": 1, "said": {"done": true, "text": "…"}}

`id` is a number or a string that the reader chooses. A report has no `said`, an answer has only `id` and `said`.
`"reports": false` in a command stops the reports (the first may be sent already). A line that cannot be understood gets
an answer with `done` false, and with `"id": null` if the id is unreadable, too. A line of more than 64 KiB, or more
than a hundred lines within a second, end the connection.
"""

import os
from pathlib import Path

import msgspec

from hivemind_addon.formats.base import json_values
from hivemind_addon.kernel.values.snapshot import SCHEMA_VERSION
from hivemind_addon.proxy.api.command import Command, CommandReply
from hivemind_addon.proxy.api.report import Report
from hivemind_addon.proxy.system.folders import runtime_folder
from hivemind_addon.proxy.system.json_socket import ask, is_answered


class UnreadableReport(Exception):
    """The server speaks another version, or is no proxy; the message is a line."""


class CommandUnanswered(Exception):
    """A command got no answer; the message is a line with the reason."""


def control_socket(port: int) -> Path:
    """The path for the proxy on a port. Raises FolderNotPrivate, OSError."""
    return runtime_folder() / f"{port}.sock"


def serving_ports() -> list[int]:
    """Ports of this user's running proxies, if their control socket is in the usual place."""
    named = (path.stem for path in runtime_folder().glob("*.sock"))
    return sorted(int(name) for name in named if name.isdecimal() and is_answered(control_socket(int(name))))


def read_report(path: Path, *, timeout_s: float = 5.0) -> Report | None:
    """The present state of the proxy at a socket; None: no proxy is there. Raises UnreadableReport."""
    try:
        line = ask(path, timeout_s=timeout_s)
    except TimeoutError as error:
        raise UnreadableReport(f"{path}: nothing answers within {timeout_s:g} s") from error
    except OSError:
        return None
    return None if line is None else decode_report(line, os.fspath(path))


def decode_report(line: bytes, source: str) -> Report:
    """Decode the line of a report; `source` names the origin for people. Raises UnreadableReport."""
    try:
        version = json_values.decode(line, _Versioned).version
        if version != SCHEMA_VERSION:
            raise UnreadableReport(
                f"{source}: the proxy speaks version {version}, this command version {SCHEMA_VERSION}; "
                "restart the older of the two"
            )
        return json_values.decode(line, Report)
    except msgspec.MsgspecError as error:
        raise UnreadableReport(f"{source}: this is no report of a proxy ({error})") from error


def send_command(path: Path, command: Command, *, timeout_s: float = 5.0) -> CommandReply:
    """Let the proxy at a socket carry out a command. Raises CommandUnanswered without an answer."""
    asked = command_line(1, command, reports=False)
    try:
        line = ask(path, asked, timeout_s=timeout_s, begins=_ANSWER, within=_MOST_REPORTS_BEFORE)
        if line is not None:
            return json_values.decode(line, CommandAnswer).said
    except TimeoutError as error:
        raise CommandUnanswered(f"{path}: no answer within {timeout_s:g} s") from error
    except msgspec.MsgspecError as error:
        raise CommandUnanswered(f"{path}: what answers is no proxy of this kind ({error})") from error
    except OSError as error:
        raise CommandUnanswered(f"{path}: no proxy is there") from error
    raise CommandUnanswered(f"{path}: the proxy takes no commands; it is an older one, or it is going down")


def command_line(command_id: int, command: Command, *, reports: bool = True) -> bytes:
    """The line for a command; `reports`: whether the reader wants reports afterwards."""
    return msgspec.json.encode({"id": command_id, "reports": reports, "command": command}) + b"\n"


_ANSWER = b'{"id":'
_MOST_REPORTS_BEFORE = 4
"""Reports that a proxy may have sent before the answer; an older proxy sends only reports."""


class _Versioned(msgspec.Struct):
    version: int


class CommandAnswer(msgspec.Struct):
    """The answer to a command."""

    id: int | str | None
    said: CommandReply
