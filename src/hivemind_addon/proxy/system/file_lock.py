"""Locks among processes: the kernel locks a file, and releases the lock when the holder ends, in any way.

No lock is stale, and no process id can mean another process by now. The file stays; the text inside is the holder's.
"""

import fcntl
import os
from pathlib import Path
from threading import Event

_LOOK_EVERY_S = 0.05


def take_lock(path: Path, *, shared: bool = False, wait_s: float | None = 0.0) -> int | None:
    """The lock, held while the descriptor is open; None: another process held the lock for all of `wait_s`.

    `shared`: others may share the lock. `wait_s` None: wait without end. A missing file is made, for this user alone.
    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if _lock(descriptor, shared=shared, wait_s=wait_s):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def is_free(path: Path) -> bool:
    """Whether nobody holds a lock whose file is there. Nothing is written; False, too, where that cannot be known."""
    try:
        with path.open("rb") as file:
            # Shared, and for an instant: processes that want it at the same time look again.
            return _try(file.fileno(), shared=True)
    except OSError:
        return False


def name_holder(descriptor: int, text: str) -> None:
    """Write the holder's name into the file. Raises OSError."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, text.encode())


def holder_of(path: Path) -> str:
    """The text that the holder wrote; empty: nothing that can be read."""
    try:
        with path.open("rb") as file:
            return file.read(200).decode(errors="replace").strip()
    except OSError:
        return ""


def _lock(descriptor: int, *, shared: bool, wait_s: float | None) -> bool:
    if wait_s is None:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        return True
    pauses, looks = Event(), 0
    while not _try(descriptor, shared=shared):
        if looks * _LOOK_EVERY_S >= wait_s:
            return False
        looks += 1
        pauses.wait(_LOOK_EVERY_S)
    return True


def _try(descriptor: int, *, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
