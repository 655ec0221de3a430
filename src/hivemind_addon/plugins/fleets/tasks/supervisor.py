"""Keeps one task, as its parent: the task ends with its runner however that ends, and nothing that it started stays.

    runner ──stdin (a pipe)──▶ supervisor ──▶ the task, in a process group of its own ──▶ whatever it starts

The pipe's end (the runner closes it, or is gone, by kill -9, too) is the word to end the task: politely first. When
the task is over, so is all that it started: on Linux orphans become this process's children, even those that made
sessions of their own, and are found by that. Should the supervisor itself be killed, the kernel kills the task.

The exit status is the task's, as shells have it (128 and the signal's number). A script of its own that knows the
standard library only: there is one beside every task, and it has to start at once. Its first word is the descriptor of
a lock, which is held until it ends and not given to the task; -1: none.
"""

import ctypes
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

GRACE_S = 5.0
"""Between asking a task to end and killing it."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
_ROUNDS = 200
"""Of looking for what is left; a fork bomb may win."""
_ROUND_S = 0.02
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IS_LINUX = sys.platform.startswith("linux")
_HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DEFAULT = (*_HELD_BACK, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGALRM)


def main(lock: int, command: list[str]) -> int:
    """Run it and keep it until it is over."""
    if lock >= 0:
        os.set_inheritable(lock, False)
    if _IS_LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for name in (signal.SIGCHLD, signal.SIGALRM):
        signal.signal(name, lambda *_: None)
    # What ends us is the pipe. Held back and not ignored: one that comes for the task before it is ready waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, supervisor)
    with suppress(OSError):  # both do it, since either may be first
        os.setpgid(child, child)
    status = _watch(child, reading)
    _end_rest(child)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become(command: list[str], supervisor: int) -> None:
    try:
        os.setpgid(0, 0)
        if _IS_LINUX:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for name in _DEFAULT:
            signal.signal(name, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
        os.execvp(command[0], command)  # noqa: S606 - what the user asked for
    except FileNotFoundError:
        os.write(2, f"hivemind: there is no command {command[0]!r} on the PATH\n".encode(errors="replace"))
        os._exit(NOT_FOUND)
    except OSError as error:
        os.write(2, f"hivemind: {command[0]}: {error.strerror}\n".encode(errors="replace"))
        os._exit(NOT_EXECUTABLE)


def _watch(child: int, woken: int) -> int:
    """Until the task is over; its status."""
    sources = [0, woken]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if 0 in ready and not os.read(0, 1):
            sources = [woken]
            _signal(child, signal.SIGTERM)
            # An alarm, and not a wait: each orphan that ends would begin the wait anew.
            signal.setitimer(signal.ITIMER_REAL, GRACE_S, GRACE_S)
        if woken in ready and signal.SIGALRM in os.read(woken, 4096):
            _signal(child, signal.SIGKILL)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == child:
                return status
            if pid == 0:
                break


def _end_rest(child: int) -> None:
    """Kill what the task has left behind, until nothing is."""
    for _ in range(_ROUNDS):
        _signal(child, signal.SIGKILL)
        left = _descendants(os.getpid())
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        select.select([], [], [], _ROUND_S)


def _descendants(root: int) -> list[int]:
    """Living processes below one; none where the system does not say."""
    if not _IS_LINUX:
        return []
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                state, parent, *_ = facts(entry)
                if state not in "ZX":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def facts(process: Path) -> list[str]:
    """What Linux says of a process in /proc: its state, parent, group, session and so on. Raises OSError."""
    # Behind the name, which may hold anything.
    return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _signal(group: int, name: int) -> None:
    with suppress(OSError):
        os.killpg(group, name)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
