"""Who serves a port and who uses it: two locked files beside the control socket.

The kernel lets go of a lock when its holder ends, however it ends: no stale files, no process ids that mean somebody
else by now. `PORT.lock` is held by the one supervisor of the port; `PORT.users` is shared by all who use a proxy that
ends with its last user, and taken alone by its supervisor when nobody does any more.
"""

import fcntl
import os

from hivemind_addon.runtime.folders import runtime_folder


def supervise(port: int) -> int | None:
    """Be the supervisor of a port as long as the descriptor is open; None: somebody else is."""
    return _lock(f"{port}.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)


def use(port: int) -> int:
    """Use the port's proxy as long as the descriptor is open; waits while the last one is ending."""
    descriptor = _lock(f"{port}.users", fcntl.LOCK_SH)
    assert descriptor is not None, "it waits until it has the lock"
    return descriptor


def wait_until_unused(port: int) -> int:
    """Wait until nobody uses the port's proxy. Nobody can begin to while the descriptor is open."""
    descriptor = _lock(f"{port}.users", fcntl.LOCK_EX)
    assert descriptor is not None, "it waits until it has the lock"
    return descriptor


def _lock(name: str, how: int) -> int | None:
    descriptor = os.open(runtime_folder() / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
