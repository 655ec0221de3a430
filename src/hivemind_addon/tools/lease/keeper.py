"""The process that keeps a lease for another one, which has started it and may become any command afterwards."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from hivemind_addon.api.words import failing
from hivemind_addon.tools.lease.keeping import WatchedProcess


def start_keeper(process: WatchedProcess, work: Callable[[], None]) -> None:
    """Do the work in a process of its own, which is nobody's child, hears no terminal and holds none of our files.

    Only its stderr is ours, for what has to be said. Call it while this process has one thread.
    """
    process.keep_apart()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if not os.fork():
            _detach(process.handle)
            _finish(work)
    finally:
        os._exit(0)


def _detach(handle: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    highest = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, handle if handle > 2 else highest)
    os.closerange(max(3, handle + 1), highest)


def _finish(work: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:  # noqa: BLE001 - the edge of a process: there is nobody above it
        with suppress(OSError):
            os.write(2, f"hivemind: keeping the lease has failed: {failing(error)}\n".encode(errors="replace"))
    os._exit(status)
