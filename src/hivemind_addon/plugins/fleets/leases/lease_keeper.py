"""Keep a lease for as long as a process lives: renewed in time, released at its end, and its loss told.

The lease's holder is that process itself. So whatever happens to the keeper, a lease is never free while its holder
works in the belief to have it, but after its time; and never taken for longer than its holder lives, but for moments.
"""

import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from hivemind_addon.plugins.fleets.leases.holder import is_alive
from hivemind_addon.plugins.fleets.leases.model import Holder, Lease, LeaseError, LeaseOver, LeaseStore
from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.system.clock import Clock

_LOOK_EVERY_S = 0.1
_LOOK_AGAIN_S = 1.0
_TRY_AGAIN_S = 1.0
_LAST_OF_THREE = 2


class WatchedProcess:
    """One by its id, from now on; to be made while it surely lives."""

    def __init__(self, holder: Holder, *, pause: Callable[[float], bool]) -> None:
        self._holder = holder
        self._pause = pause
        # Linux has a handle that no later process of the same id gets.
        self.handle = -1
        if sys.platform == "linux":
            with suppress(OSError):  # an old kernel, or a sandbox that forbids it
                self.handle = os.pidfd_open(holder.pid)

    def keep_apart(self) -> None:
        """See that the handle is not where stdin, stdout and stderr belong: they may be closed."""
        if 0 <= self.handle <= _LAST_OF_THREE:
            low, self.handle = self.handle, fcntl.fcntl(self.handle, fcntl.F_DUPFD_CLOEXEC, _LAST_OF_THREE + 1)
            os.close(low)

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended, at the latest after so long."""
        if self.handle >= 0:
            line = select.poll()
            line.register(self.handle, select.POLLIN)
            return bool(line.poll(max(0.0, seconds) * 1000))
        while is_alive(self._holder) and seconds > 0:
            self._pause(min(seconds, _LOOK_EVERY_S))
            seconds -= _LOOK_EVERY_S
        return not is_alive(self._holder)

    def terminate(self) -> None:
        """Ask it to end."""
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "linux" and self.handle >= 0:
                signal.pidfd_send_signal(self.handle, signal.SIGTERM)
            elif is_alive(self._holder):
                os.kill(self._holder.pid, signal.SIGTERM)


def keep(
    store: LeaseStore,
    lease: Lease,
    process: WatchedProcess,
    *,
    ttl_s: float,
    clock: Clock,
    lost: Callable[[str], None],
) -> None:
    """Until the process has ended or the lease is lost; then `lost` is called with a line for people. Blocks."""
    ends_at = store.instant(clock) + lease.left_s
    wait_s = ttl_s / 3
    while not _ends_within(wait_s, process, store, clock):
        now = store.instant(clock)
        try:
            ends_at = now + store.renew(lease.id, ttl_s, now).left_s
            wait_s = ttl_s / 3
        except LeaseOver as error:
            if not process.ends_within(0):
                lost(str(error))
            return
        except LeaseError as error:
            # The store cannot be used now, and the time still counts for us. Another try must not outlast it.
            left_s = ends_at - store.instant(clock)
            if left_s <= store.patience_s:
                if not process.ends_within(left_s):
                    lost(str(error))
                    return
                break
            wait_s = min(_TRY_AGAIN_S, left_s - store.patience_s)
    with suppress(LeaseError):
        store.release(lease.id, store.instant(clock))


def _ends_within(seconds: float, process: WatchedProcess, store: LeaseStore, clock: Clock) -> bool:
    """Whether it has ended, at the latest after so long by the store's time."""
    if not store.patience_s:
        return process.ends_within(seconds)
    # The machine may sleep meanwhile, while leases of an engine go on ending.
    until = store.instant(clock) + seconds
    while (left_s := until - store.instant(clock)) > 0:
        if process.ends_within(min(left_s, _LOOK_AGAIN_S)):
            return True
    return process.ends_within(0)


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
