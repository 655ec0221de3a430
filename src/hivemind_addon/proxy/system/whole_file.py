"""A file that is written whole or not at all: until then readers have the file before."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_whole(file: Path, *parts: bytes, mode: int = 0o600) -> None:
    """Replace a file in a single step, on the disk; for the owner alone unless `mode` says more. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # 0600 from its first byte
    try:
        with os.fdopen(handle, "wb") as out:
            for part in parts:
                out.write(part)
            out.flush()
            os.fsync(out.fileno())
        Path(name).chmod(mode)
        Path(name).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    """Let the new name survive a power cut, too, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
