"""What the system knows of a process: whether it lives, since when, who started it, with which words.

Linux says it in /proc; macOS by `ps`. Elsewhere nothing is known, and a lease ends by its time only.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")
_PS_S = 5.0
_MOST_ANCESTORS = 64


class Process(Struct, frozen=True):
    """One that lives."""

    pid: int
    parent: int
    """Its id; 0: none that can be seen."""
    started: str
    """As the system counts; two processes with one id differ in it."""
    words: tuple[str, ...]
    """Its command line."""


class Unknown(Exception):
    """The system does not tell, so the process may live."""


def look(pid: int) -> Process | None:
    """The process; None: there is none, or it has ended and its parent has not asked how. Raises Unknown."""
    if _reads_proc():
        return _from_proc(pid)
    if sys.platform == "darwin":
        return _from_ps(pid)
    raise Unknown(f"{sys.platform} does not tell")


def ancestors(pid: int) -> Iterator[Process]:
    """The process, who started it, and so on, as far as it can be seen."""
    for _ in range(_MOST_ANCESTORS):
        try:
            found = look(pid)
        except Unknown:
            return
        if found is None:
            return
        yield found
        if found.parent < 1:
            return
        pid = found.parent


@cache
def boot() -> str:
    """Which start of the machine it is; empty where it has no name."""
    if sys.platform == "linux":
        return _text(_PROC / "sys/kernel/random/boot_id")
    if sys.platform == "darwin":
        with suppress(Unknown):
            return _said("sysctl", "-n", "kern.bootsessionuuid")
    return ""


@cache
def namespace() -> str:
    """What process ids count in: two containers on one machine have the same boot, but not the same ids."""
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


@cache
def _reads_proc() -> bool:
    return (_PROC / "self/stat").exists()


def _from_proc(pid: int) -> Process | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        _insist_it_is_gone(pid)
        return None
    except OSError as error:
        raise Unknown(str(error)) from error
    # A name may hold spaces and brackets: what counts comes after the last of them (proc_pid_stat(5)).
    fields = stat.rpartition(")")[2].split()
    state, parent, threads, started = fields[0], int(fields[1]), int(fields[17]), fields[19]
    # A first thread that has ended looks like a zombie as long as others run.
    if state in {"X", "x"} or (state == "Z" and threads <= 1):
        return None
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = [""]
    return Process(pid=pid, parent=parent, started=started, words=tuple(words[:-1]))


def _insist_it_is_gone(pid: int) -> None:
    """Raises Unknown where there is one nevertheless: a system may hide others' processes."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return
    except OSError as error:
        raise Unknown(str(error)) from error
    # It has ended and was replaced between the two looks, or it is hidden.
    raise Unknown(f"process {pid} is hidden")


def _from_ps(pid: int) -> Process | None:
    line = _said("ps", "-o", "ppid=,stat=,lstart=,args=", "-p", str(pid)).split(maxsplit=7)
    if len(line) < 7:
        return None
    parent, state, started, words = line[0], line[1], " ".join(line[2:7]), line[7:]
    if state.startswith("Z"):
        return None
    return Process(pid=pid, parent=int(parent), started=started, words=tuple(" ".join(words).split()))


def _said(*command: str) -> str:
    """Raises Unknown where there is no such command."""
    try:
        done = subprocess.run(  # noqa: S603 - the system's own, with words of ours
            command, capture_output=True, text=True, timeout=_PS_S, check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unknown(str(error)) from error
    return done.stdout.strip()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""
