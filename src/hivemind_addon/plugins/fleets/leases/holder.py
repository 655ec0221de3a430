"""The process that a lease ends with: whether it lives, told from a later one with its id.

Linux says it in /proc; macOS by `ps`. Elsewhere nothing is known, and a lease ends by its time only. psutil would say
it, too, but not since when a process runs by a clock that nobody can set: after a correction of the wall clock a living
holder would look like another process, and its lock would be given away.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePath

from msgspec import Struct

from hivemind_addon.plugins.fleets.leases.model import Holder

_PROC = Path("/proc")
_PS_S = 5.0
_MOST_ANCESTORS = 64


class ProcessFacts(Struct, frozen=True):
    """One that lives."""

    pid: int
    parent: int
    """Its id; 0: none that can be seen."""
    started: str
    """As the system counts; two processes with one id differ in it."""
    words: tuple[str, ...]
    """Its command line."""


class ProcessUnknown(Exception):
    """The system does not tell, so the process may live."""


def look(pid: int) -> ProcessFacts | None:
    """The process; None: there is none, or it has ended and its parent has not asked how. Raises ProcessUnknown."""
    if _reads_proc():
        return _from_proc(pid)
    if sys.platform == "darwin":
        return _from_ps(pid)
    raise ProcessUnknown(f"{sys.platform} does not tell")


def ancestors(pid: int) -> Iterator[ProcessFacts]:
    """The process, who started it, and so on, as far as it can be seen."""
    for _ in range(_MOST_ANCESTORS):
        try:
            found = look(pid)
        except ProcessUnknown:
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
        with suppress(ProcessUnknown):
            return _output_of("sysctl", "-n", "kern.bootsessionuuid")
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


def _from_proc(pid: int) -> ProcessFacts | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        _insist_it_is_gone(pid)
        return None
    except OSError as error:
        raise ProcessUnknown(str(error)) from error
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
    return ProcessFacts(pid=pid, parent=parent, started=started, words=tuple(words[:-1]))


def _insist_it_is_gone(pid: int) -> None:
    """Raises ProcessUnknown where there is one nevertheless: a system may hide others' processes."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return
    except OSError as error:
        raise ProcessUnknown(str(error)) from error
    # It has ended and was replaced between the two looks, or it is hidden.
    raise ProcessUnknown(f"process {pid} is hidden")


def _from_ps(pid: int) -> ProcessFacts | None:
    line = _output_of("ps", "-o", "ppid=,stat=,lstart=,args=", "-p", str(pid)).split(maxsplit=7)
    if len(line) < 7:
        return None
    parent, state, started, words = line[0], line[1], " ".join(line[2:7]), line[7:]
    if state.startswith("Z"):
        return None
    return ProcessFacts(pid=pid, parent=int(parent), started=started, words=tuple(" ".join(words).split()))


def _output_of(*command: str) -> str:
    """Raises ProcessUnknown where there is no such command."""
    import subprocess  # noqa: PLC0415 - Linux needs none

    try:
        done = subprocess.run(  # noqa: S603 - the system's own, with words of ours
            command, capture_output=True, text=True, timeout=_PS_S, check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProcessUnknown(str(error)) from error
    return done.stdout.strip()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "ash", "busybox"}
_STARTERS = {"uv", "uvx", "pipx", "npx", "env", "sudo", "timeout", "nohup", "time", "nice"}
"""They wait for the one command that they start, and end with it."""
_APART = "/"


def holder_of(agent: str, pid: int) -> Holder:
    """A process as the one that a lease ends with. ProcessLookupError: there is none; pid 0 watches none."""
    if pid == 0:
        return Holder(agent=agent, pid=0, started="")
    try:
        found = look(pid)
    except ProcessUnknown:
        return Holder(agent=agent, pid=0, started="")
    if found is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return Holder(agent=agent, pid=pid, started=_APART.join((found.started, boot(), namespace())))


def is_alive(holder: Holder) -> bool:
    """Whether its process lives. True where that cannot be told: then only its time ends a lease."""
    if holder.pid == 0:
        return True
    started, its_boot, its_namespace = holder.started.split(_APART)
    if its_boot != boot():
        return False
    if its_namespace != namespace():
        return True
    try:
        found = look(holder.pid)
    except ProcessUnknown:
        return True
    return found is not None and found.started == started


def may_live(holder: Holder) -> bool:
    """The same among many machines: of a process of another one nothing is known."""
    _, _, its_place = holder.started.partition(_APART)
    its_boot = its_place.partition(_APART)[0]
    return not its_boot or its_boot != boot() or is_alive(holder)


def caller() -> int:
    """The process that this command is run for: what called it, but not a shell that ends with this one command.

    Agents, `make` and ssh run each command in a shell of its own (`sh -c …`), a script runs `$(…)` in a copy of
    itself: a lease of these would be over before anybody could use it.
    """
    line = list(ancestors(os.getppid()))
    for found, above in pairwise([*line, None]):
        if found and not _passes(found, above):
            return found.pid
    return os.getppid()


def _passes(found: ProcessFacts, above: ProcessFacts | None) -> bool:
    if above is None or not found.words:
        return False
    name = PurePath(found.words[0]).name.lstrip("-")
    if name in _STARTERS:
        return True
    return name in _SHELLS and (_runs_one_command(found.words[1:]) or found.words == above.words)


def _runs_one_command(words: Sequence[str]) -> bool:
    """Whether a shell's words say `-c`, alone or among others (`-lc`), before anything that is no option."""
    for word in words:
        if not word.startswith(("-", "+")):
            return False
        if not word.startswith("--") and "c" in word:
            return True
    return False
