"""A file that only grows, written off the event loop: a record after the other, each whole or not at all.

Only its owner may read it, from its first byte on. A disk that is full costs one log line, and the records of that
time; a proxy that dies leaves all that was written, and at most one torn record at the end.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hivemind_addon.proxy.record.news import NOTICE

logger = logging.getLogger("hivemind")

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Of records that are not written yet; what comes above it is not kept."""

_BREATH_BYTES = 64 * 1024


def breathe() -> None:
    """Let the event loop run while a record is made: else each of its turns waits 5 ms, as Python's threads do."""
    time.sleep(0)  # noqa: TID251 - no time passes


def breathe_after(size_bytes: int) -> None:
    """The same where so much was worked on that it took its time: to breathe costs as much as a small body."""
    if size_bytes >= _BREATH_BYTES:
        breathe()


class AppendFile:
    """One open file. `append` on the event loop; records are made and written in a thread of its own."""

    def __init__(self, path: Path, *, whole_bytes: Callable[[int], int]) -> None:
        """Open it, or make it. `whole_bytes`: of an open file (its descriptor), up to the end of its last whole record.

        Raises OSError, and what `whole_bytes` raises.
        """
        self.path = path
        self.written = 0
        """Records."""
        self.missed = 0
        """Records that could not be written, or for which there was no room in memory."""
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        """Of the three numbers above."""
        self._troubled = False
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            path.chmod(0o600)  # it may have been there with another mode
            size = os.fstat(self._file).st_size
            whole = whole_bytes(self._file) if size else 0
            if whole < size:
                logger.warning("hivemind: %s: the last %d bytes were torn, and are cut off", path, size - whole)
                os.ftruncate(self._file, whole)
        except BaseException:
            os.close(self._file)
            raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="append-file")

    def __repr__(self) -> str:
        return f"<AppendFile {self.path}, {self.written} records, {self.missed} missed>"

    def append(self, record: Callable[[], bytes], size: int) -> None:
        """Write a record soon. `record` makes it, in the thread; `size`: what it holds in memory until then."""
        with self._lock:
            fits = self._waiting_bytes + size <= MAX_WAITING_BYTES
            self._waiting_bytes += size if fits else 0
        if fits:
            self._thread.submit(self._append, record, size)
        else:
            self._miss("the disk is too slow")

    async def close(self) -> None:
        """Write what waits, then close it."""
        await asyncio.to_thread(self._thread.shutdown)
        os.close(self._file)

    def _append(self, record: Callable[[], bytes], size: int) -> None:
        size_before = os.fstat(self._file).st_size
        try:
            self._write(record())
        except OSError as error:
            os.ftruncate(self._file, size_before)  # a torn record would hide all that follow
            self._miss(error.strerror or str(error))
        except Exception:
            logger.exception("hivemind: %s: a record could not be made", self.path)
        else:
            with self._lock:
                self.written += 1
            if self._troubled:
                self._troubled = False
                logger.log(NOTICE, "hivemind: %s is written again; %d records are missing", self.path, self.missed)
        finally:
            with self._lock:
                self._waiting_bytes -= size

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]

    def _miss(self, why: str) -> None:
        with self._lock:
            self.missed += 1
        if not self._troubled:
            self._troubled = True
            logger.warning("hivemind: cannot write %s: %s; what ends meanwhile is missing in it", self.path, why)
