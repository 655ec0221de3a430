"""Whom a lease ends with: a process, told from a later one with its id."""

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath

from hivemind_addon.tools.lease.model import Holder
from hivemind_addon.tools.lease.process import Process, Unknown, ancestors, boot, look, namespace

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
    except Unknown:
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
    except Unknown:
        return True
    return found is not None and found.started == started


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


def _passes(found: Process, above: Process | None) -> bool:
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
