"""A file that only grows, written off the event loop: record after record, each whole or not at all.

Only the owner may read the file, from the first byte on. A full disk costs a log line, and the records of that time. A
proxy that dies leaves all written records, and at most a torn record at the end.
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
"""Most bytes of waiting records; further records are dropped."""

_BREATH_BYTES = 64 * 1024


def breathe() -> None:
    """Let the event loop run while a record is made: otherwise each turn waits 5 ms, as Python's threads do."""
    time.sleep(0)  # noqa: TID251 - no time passes


def breathe_after(size_bytes: int) -> None:
    """Call `breathe` after work on many bytes; for small bodies the call would cost as much as the work."""
    if size_bytes >= _BREATH_BYTES:
        breathe()


class AppendFile:
    """An open file. Call `append` on the event loop; a separate thread makes and writes the records."""

    def __init__(self, path: Path, *, whole_bytes: Callable[[int], int]) -> None:
        """Open or create the file. `whole_bytes`: offset of the end of the last whole record, from the descriptor.

        Raises OSError, and the exceptions of `whole_bytes`.
        """
        self.path = path
        self.written = 0
        """Number of records."""
        self.missed = 0
        """Records that could not be written, or for which the memory was full."""
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        """Guards the three numbers above."""
        self._troubled = False
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            path.chmod(0o600)  # the file may have existed with another mode
            size = os.fstat(self._file).st_size
            whole = whole_bytes(self._file) if size else 0
            if whole < size:
                logger.warning("hivemind: %s: the last %d bytes were torn, and are cut off", path, size - whole)
                os.ftruncate(self._file, whole)
        except BaseException:
            os.close(self._file)
            raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="append-file")

    def append(self, record: Callable[[], bytes], size: int) -> None:
        """Write a record soon. `record` makes the record in the thread; `size`: memory held until then."""
        with self._lock:
            fits = self._waiting_bytes + size <= MAX_WAITING_BYTES
            self._waiting_bytes += size if fits else 0
        if fits:
            self._thread.submit(self._append, record, size)
        else:
            self._miss("the disk is too slow")

    async def close(self) -> None:
        """Write the waiting records, then close the file."""
        await asyncio.to_thread(self._thread.shutdown)
        os.close(self._file)

    def _append(self, record: Callable[[], bytes], size: int) -> None:
        size_before = os.fstat(self._file).st_size
        try:
            self._write(record())
        except OSError as error:
            os.ftruncate(self._file, size_before)  # a torn record would hide all later records
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
