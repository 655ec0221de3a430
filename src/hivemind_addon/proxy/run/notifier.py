"""Calls for help: runs a command of the user, or sends messages (`alerts.py`).

A command reads each notice as JSON from standard input. The command runs without a shell, at most `AT_ONCE` at a time,
each for at most `TIMEOUT_S`. A command never makes the proxy wait, ends with the proxy, and each failure is a line in
the log.
"""

import asyncio
import logging
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import json

from hivemind_addon.kernel.values.events import Event
from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.record.notice import Notice, Notices
from hivemind_addon.proxy.system.clock import Clock

logger = logging.getLogger("hivemind")

AT_ONCE = 4
MOST_WAITING = 20
"""Most notices that wait; further notices are only logged."""
TIMEOUT_S = 30.0
_LAST_WORD_S = 2.0
"""Time that calls get when the proxy ends."""
_LONGEST_TIMER_S = 15.0
"""A timer stands still while the machine sleeps, so a distant timer is checked in between."""


class Way(Protocol):
    """A way to make calls; two ways that do the same are equal."""

    at_once: int
    """Calls that may run at a time."""
    takes: int
    """Most notices in a call."""
    gather_s: float
    """Time that a notice waits for others, to share a call."""
    rest_s: float
    """Time from the beginning of a call to the beginning of the next call."""

    async def call(self, notices: Sequence[Notice]) -> Sequence[str]:
        """Make a call, in bounded time; returns lines for the log."""


class Command:
    """Runs a program for each notice."""

    at_once = AT_ONCE
    takes = 1
    gather_s = 0.0
    rest_s = 0.0

    def __init__(self, words: Sequence[str]) -> None:
        """`words`: program and arguments."""
        self.words = tuple(words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Command) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def __repr__(self) -> str:
        return f"<Command {self.words[0]}>"

    async def call(self, notices: Sequence[Notice]) -> Sequence[str]:
        """Run the program; returns the failure as a line for the log."""
        (notice,) = notices
        what = await self._run(json.encode(notice) + b"\n")
        return [f"the call for help failed: {self.words[0]}: {what}"] if what else []

    async def _run(self, said: bytes) -> str:
        try:
            process = await self._start(said)
        except OSError as error:
            return failing(error)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await process.wait()
        except TimeoutError:
            return f"was ended after {TIMEOUT_S:.0f} s"
        finally:
            if process.returncode is None:
                _end(process)
                await process.wait()
        return f"exit status {status}" if status else ""

    async def _start(self, said: bytes) -> Process:
        # A pipe that holds the whole notice (pipes hold at least 4 KB) needs no task to feed the pipe.
        reading, writing = os.pipe()
        try:
            try:
                os.write(writing, said)
            finally:
                os.close(writing)
            return await asyncio.create_subprocess_exec(
                *self.words, stdin=reading, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
            )
        finally:
            os.close(reading)


class Notifier:
    """An observer, to be called on the event loop; ends with `close`."""

    hears = Notices.hears

    def __init__(self, way: Way, *, clock: Clock) -> None:
        self.way = way
        self._clock = clock
        self._notices = Notices()
        self._waiting: deque[Notice] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._calls_from = float("-inf")
        """The earliest instant for the next call."""
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Notifier {self.way!r}, {len(self._calls)} run, {len(self._waiting)} wait>"

    def __call__(self, event: Event) -> None:
        """Receive an event."""
        if self._notices(event):
            self.tick()

    def tick(self) -> None:
        """Make the calls that are due, and arm the timer for the next. A test that moved the clock calls this, too."""
        now = self._clock.monotonic()
        for notice in self._notices.due(now, self._clock.wall()):
            if len(self._waiting) >= max(MOST_WAITING, self.way.takes):
                logger.warning("hivemind: too many calls for help wait; not called: %s", notice.text)
                continue
            if not self._waiting:
                self._calls_from = max(self._calls_from, now + self.way.gather_s)
            self._waiting.append(notice)
        self._start_calls()
        self._arm()

    async def close(self) -> None:
        """Stop all calls except for gathered notices; running calls get two seconds, then they are ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.way.gather_s:
            self._calls_from = float("-inf")
            self._start_calls()
        self._waiting.clear()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_LAST_WORD_S)
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)

    def _arm(self) -> None:
        instants = [self._notices.next_wakeup()]
        if self._waiting and len(self._calls) < self.way.at_once:
            instants.append(self._calls_from)
        wakeup_at = min((instant for instant in instants if instant is not None), default=None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wakeup_at is not None:
            delay_s = min(max(0.0, wakeup_at - self._clock.monotonic()), _LONGEST_TIMER_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.tick()

    def _start_calls(self) -> None:
        now = self._clock.monotonic()
        while self._waiting and len(self._calls) < self.way.at_once and self._calls_from <= now:
            notices = [self._waiting.popleft() for _ in range(min(self.way.takes, len(self._waiting)))]
            self._calls_from = now + self.way.rest_s
            call = asyncio.get_running_loop().create_task(self._call(notices))
            self._calls.add(call)
            call.add_done_callback(self._called)

    def _called(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if self._waiting:
            self._start_calls()
            self._arm()

    async def _call(self, notices: Sequence[Notice]) -> None:
        for line in await self.way.call(notices):
            logger.warning("hivemind: %s", line)


def _end(process: Process) -> None:
    """Kill the command, and all processes that the command started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
