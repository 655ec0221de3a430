"""The event log: every event as a line of JSON, in a file or on standard output, written by a thread of its own.

A disk that is slow, full or gone never makes the proxy wait or grow: what does not fit into a bounded buffer is
dropped, counted, and told in both logs. A file that was moved away (logrotate) is made anew; no signal is needed.
"""

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hivemind_addon.kernel.values.events import Event
from hivemind_addon.proxy.api.event_text import dropped_line, event_line
from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.record.news import Repeats
from hivemind_addon.proxy.system.clock import Clock

logger = logging.getLogger("hivemind")

KEPT = 20_000
"""Events that wait for the disk; some minutes of a busy fleet."""
_GATHER_S = 0.2
"""How long the first of many lines waits for the others, to be written at once."""
_AGAIN_S = 5.0
"""From a write that failed to the next one."""
_BATCH = 2_000
_NEWLINE = ord("\n")
FLUSH_S = 2.0
"""How long a stopping proxy waits for the disk."""
STDOUT = 1


class _NotWritten(Exception):
    """A write failed after so many whole lines; the text says why."""

    def __init__(self, why: str, lines: int) -> None:
        super().__init__(why)
        self.lines = lines


class EventLog:
    """An observer, to be called on the event loop from which it was made; ends with `close`."""

    def __init__(self, path: Path | None, *, clock: Clock) -> None:
        """`path`: where lines are appended; None: standard output."""
        self.path = path
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Event, float]] = deque()
        """With their epoch seconds. Both ends are safe to use from two threads."""
        self._dropped = 0
        """Since the last line that was written. Counted by the loop and taken back by the thread, under `_counting`."""
        self._counting = threading.Lock()
        self._awake = threading.Event()
        self._closing = threading.Event()
        self._closed = asyncio.Event()
        self._failure = ""
        """The thread's: why the last write failed; empty: it did not."""
        self._is_torn = False
        """The thread's: the file ends within a line."""
        self._repeats: Repeats[str] = Repeats()
        """The thread's: a disk that is always too slow is not told each time."""
        self._file = -1
        self._thread = threading.Thread(target=self._run, name="hivemind-event-log", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<EventLog {self._place}, {len(self._waiting)} lines wait>"

    @property
    def _place(self) -> str:
        return str(self.path or "standard output")

    def __call__(self, event: Event) -> None:
        """Take one event; never waits."""
        if len(self._waiting) >= KEPT:
            self._drop(1)
            return
        self._waiting.append((event, self._clock.wall() - self._clock.monotonic() + event.at))
        if not self._awake.is_set():
            self._awake.set()

    async def close(self) -> None:
        """Take no more; what waits is written if the disk takes it within two seconds."""
        self._closing.set()
        self._awake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._closed.wait()

    def _drop(self, lines: int) -> None:
        with self._counting:
            self._dropped += lines

    # The thread's ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            if not self._failure:
                self._awake.wait()
            self._closing.wait(_AGAIN_S if self._failure else _GATHER_S)
            self._awake.clear()
            self._write()
        self._write()  # what came since, or was not taken
        if self._waiting:
            self._warn(f"the event log ends without its last {len(self._waiting)} lines: {self._failure}")
        self._close_file()
        self._tell(self._closed.set)

    def _write(self) -> None:
        """Write all that waits, as far as the disk takes it; what it does not take goes on waiting."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH))]
            with self._counting:
                dropped, self._dropped = self._dropped, 0
            lines = [dropped_line(dropped, batch[0][1])] if dropped else []
            lines += [event_line(event, wall) for event, wall in batch]
            try:
                self._append(b"".join(lines))
            except _NotWritten as failure:
                self._waiting.extendleft(reversed(batch[max(0, failure.lines - bool(dropped)) :]))
                if dropped and not failure.lines:
                    self._drop(dropped)
                self._close_file()
                if not self._failure:
                    self._warn(f"the event log cannot be written: {failure}")
                self._failure = str(failure)
                return
            if self._failure:
                self._failure = ""
                self._warn("the event log is written again")
            now = self._clock.monotonic()
            self._repeats.over(now)
            if dropped and self._repeats.lets("lost", now):
                self._warn(f"the event log has lost {dropped} lines: {self._place} was not written fast enough")

    def _append(self, data: bytes) -> None:
        """All of it, or _NotWritten."""
        written = 0
        try:
            self._open_file()
            if self._is_torn:
                os.write(self._file, b"\n")
                self._is_torn = False
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            self._is_torn = self._is_torn or (written > 0 and data[written - 1] != _NEWLINE)
            raise _NotWritten(failing(error), data[:written].count(b"\n")) from error

    def _open_file(self) -> None:
        if self.path is None:
            self._file = STDOUT
            return
        if self._file >= 0:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file), self.path.stat()):
                    return
            self._close_file()
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _close_file(self) -> None:
        if self._file > STDOUT:
            with suppress(OSError):
                os.close(self._file)
        self._file = -1

    def _warn(self, line: str) -> None:
        self._tell(lambda: logger.warning("hivemind: %s", line))

    def _tell(self, what: Callable[[], None]) -> None:
        """Do it on the loop, if that still runs."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what)
