"""Which process serves a port, and which use it: two locked files beside the control socket.

`PORT.lock` is held by the one supervisor of the port; `PORT.users` is shared by all who use a proxy that
ends with its last user, and taken alone by its supervisor when nobody does any more. `PORT.runner` is held by the one
that runs the tasks which are submitted there.
"""

import os

from hivemind_addon.system.file_lock import take_lock
from hivemind_addon.system.folders import runtime_folder


def supervise(port: int) -> int | None:
    """Be the supervisor of a port as long as the descriptor is open; None: another process is."""
    return take_lock(runtime_folder() / f"{port}.lock")


def is_supervised(port: int) -> bool:
    """Whether a supervisor runs, be its proxy up already or not yet."""
    descriptor = supervise(port)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def use(port: int) -> int:
    """Use the port's proxy as long as the descriptor is open; waits while the last one is ending."""
    descriptor = take_lock(runtime_folder() / f"{port}.users", shared=True, wait_s=None)
    assert descriptor is not None, "it waits until it has the lock"
    return descriptor


def wait_until_unused(port: int) -> int:
    """Wait until nobody uses the port's proxy. Nobody can begin to while the descriptor is open."""
    descriptor = take_lock(runtime_folder() / f"{port}.users", wait_s=None)
    assert descriptor is not None, "it waits until it has the lock"
    return descriptor


def run_tasks(port: int) -> int | None:
    """Run what is submitted on a port, as long as the descriptor is open; None: another process does."""
    return take_lock(runtime_folder() / f"{port}.runner")
