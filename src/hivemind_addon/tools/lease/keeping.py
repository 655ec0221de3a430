"""Keep a lease for as long as a process lives: renewed in time, released at its end, and its loss told.

The lease's holder is that process itself. So whatever happens to who keeps it, a lease is never free while its holder
works in the belief to have it, but after its time; and never taken for longer than its holder lives, but for moments.
"""

import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from hivemind_addon.system.clock import Clock
from hivemind_addon.tools.lease.holder import is_alive
from hivemind_addon.tools.lease.model import Holder, Lease, LeaseError, LeaseOver, LeaseStore

_LOOK_EVERY_S = 0.1
_TRY_AGAIN_S = 1.0
_LAST_OF_THREE = 2


class Watched(Protocol):
    """A process that somebody waits for."""

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended, at the latest after so long."""

    def terminate(self) -> None:
        """Ask it to end."""


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
    process: Watched,
    *,
    ttl_s: float,
    clock: Clock,
    lost: Callable[[str], None],
) -> None:
    """Until the process has ended or the lease is lost; then `lost` is called with a line for people. Blocks."""
    ends_at = clock.monotonic() + lease.left_s
    wait_s = ttl_s / 3
    while not process.ends_within(wait_s):
        now = clock.monotonic()
        try:
            ends_at = now + store.renew(lease.id, ttl_s, now).left_s
            wait_s = ttl_s / 3
        except LeaseOver as error:
            if not process.ends_within(0):
                lost(str(error))
            return
        except LeaseError as error:
            # The file cannot be used now, and the time still counts for us.
            if now >= ends_at:
                lost(str(error))
                return
            wait_s = min(_TRY_AGAIN_S, ends_at - now)
    with suppress(LeaseError):
        store.release(lease.id, clock.monotonic())
