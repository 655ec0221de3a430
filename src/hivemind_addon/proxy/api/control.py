"""The control socket: clients that may open it read the scheduler's state, once a second, and command it.

A Unix socket, 0600, one for each port; where the system has none (Windows), there is no control socket. A reader gets
one line of JSON at once and one every second from then on (fewer where ten thousand requests wait and a line takes long
to make): a `Report`, whose `version` grows when a field changes its meaning or goes. A reader that does not keep up
misses lines and is cut off in the end; it never makes the proxy wait or grow.

What it sends are commands (`values/command.py`), one line of JSON each, and each is answered in one line of its own:

    {"id": 1, "command": {"type": "limit", "limit": 4, "pool": "api.anthropic.com"}}
    {"id": 1, "said": {"done": true, "text": "…"}}

`id` is a number or a string of the reader's choice. Reports have no `said`, answers nothing else: so they are told
apart. With `"reports": false` beside it no report follows any more (the first may have gone out by then). What cannot
be understood is answered with `done` false, and with `"id": null` where that cannot be read either; a line of more than
64 KiB, or more than a hundred within a second, end the connection.
"""

import os
from pathlib import Path

import msgspec

from hivemind_addon.kernel.values.command import Command, CommandReply
from hivemind_addon.kernel.values.snapshot import SCHEMA_VERSION
from hivemind_addon.proxy.api.report import Report
from hivemind_addon.proxy.system.folders import runtime_folder
from hivemind_addon.proxy.system.json_socket import ask, is_answered


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


class _Versioned(msgspec.Struct):
    version: int


class CommandAnswer(msgspec.Struct):
    """What it gets for it."""

    id: int | str | None
    said: CommandReply
