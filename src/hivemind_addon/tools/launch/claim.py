"""Which process serves a port, and which use it: two locked files beside the control socket.

`PORT.lock` is held by the one supervisor of the port; `PORT.users` is shared by all who use a proxy that
ends with its last user, and taken alone by its supervisor when nobody does any more. `PORT.runner` is held by the one
that runs the tasks which are submitted there.
"""

import os
from pathlib import Path

from hivemind_addon.proxy.system.file_lock import holder_of, is_free, name_holder, take_lock
from hivemind_addon.proxy.system.folders import runtime_folder


def supervise(port: int) -> int | None:
    """Be the supervisor of a port as long as the descriptor is open; None: another process is."""
    descriptor = take_lock(_supervisors(port))
    if descriptor is not None:
        name_holder(descriptor, str(os.getpid()))
    return descriptor


def is_supervised(port: int) -> bool:
    """Whether a supervisor runs, be its proxy up already or not yet."""
    descriptor = take_lock(_supervisors(port))
    if descriptor is None:
        return True
    name_holder(descriptor, "")  # what stands there is of one that is no more
    os.close(descriptor)
    return False


def supervisor_of(port: int) -> int | None:
    """The process id of a port's supervisor; None: there is none."""
    if is_free(_supervisors(port)):
        return None
    said = holder_of(_supervisors(port))
    return int(said) if said.isdecimal() else None


def is_used(port: int) -> bool:
    """Whether a command that `hivemind exec` started uses the port's proxy."""
    descriptor = take_lock(_users(port))
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def use(port: int) -> int:
    """Use the port's proxy as long as the descriptor is open; waits while the last one is ending."""
    descriptor = take_lock(_users(port), shared=True, wait_s=None)
    assert descriptor is not None, "it waits until it has the lock"
    return descriptor


def wait_until_unused(port: int) -> int:
    """Wait until nobody uses the port's proxy. Nobody can begin to while the descriptor is open."""
    descriptor = take_lock(_users(port), wait_s=None)
    assert descriptor is not None, "it waits until it has the lock"
    return descriptor


def run_tasks(port: int) -> int | None:
    """Run what is submitted on a port, as long as the descriptor is open; None: another process does."""
    return take_lock(runtime_folder() / f"{port}.runner")


def _supervisors(port: int) -> Path:
    return runtime_folder() / f"{port}.lock"


def _users(port: int) -> Path:
    return runtime_folder() / f"{port}.users"
