"""Calls for help: runs a command of the person's own for each notice, with the notice as JSON on its standard input.

It is run without a shell, at most `AT_ONCE` at a time, each for at most `TIMEOUT_S`; it never makes the proxy wait,
ends with it, and whatever goes wrong with it is one line in the log.
"""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from msgspec import json

from hivemind_addon.api.events import Event
from hivemind_addon.api.words import failing
from hivemind_addon.proxy.observe.notice import Notice, Notices
from hivemind_addon.system.clock import Clock

logger = logging.getLogger("hivemind")

AT_ONCE = 4
MOST_WAITING = 20
"""Notices that wait for their turn; what comes then is only in the log."""
TIMEOUT_S = 30.0
_LAST_WORD_S = 2.0
"""How long calls may go on when the proxy ends."""
_LONGEST_TIMER_S = 15.0
"""A timer stands still while the machine sleeps, so a far one is looked at in between."""


class Notifier:
    """An observer, to be called on the event loop; ends with `close`."""

    hears = Notices.hears

    def __init__(self, command: Sequence[str], *, clock: Clock) -> None:
        """`command`: program and arguments."""
        self.command = tuple(command)
        self._clock = clock
        self._notices = Notices()
        self._waiting: deque[Notice] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Notifier {self.command[0]}, {len(self._calls)} run, {len(self._waiting)} wait>"

    def __call__(self, event: Event) -> None:
        """Hear of one event."""
        if self._notices(event):
            self.tick()

    def tick(self) -> None:
        """Call for what is due, and arm the timer for what will be. A test that has moved its clock does it, too."""
        for notice in self._notices.due(self._clock.monotonic(), self._clock.wall()):
            if len(self._waiting) >= MOST_WAITING:
                logger.warning("hivemind: too many calls for help wait; not called: %s", notice.text)
                continue
            self._waiting.append(notice)
        self._start_calls()
        self._arm()

    async def close(self) -> None:
        """Call no more; what runs has two seconds, then it is ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_LAST_WORD_S)
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)

    def _arm(self) -> None:
        wakeup_at = self._notices.next_wakeup()
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
        while self._waiting and len(self._calls) < AT_ONCE:
            call = asyncio.get_running_loop().create_task(self._call(self._waiting.popleft()))
            self._calls.add(call)
            call.add_done_callback(self._called)

    def _called(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._start_calls()

    async def _call(self, notice: Notice) -> None:
        try:
            process = await self._start(json.encode(notice) + b"\n")
        except (OSError, NotImplementedError) as error:  # the latter: an event loop that cannot, on Windows
            self._complain(failing(error))
            return
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await process.wait()
        except TimeoutError:
            self._complain(f"was ended after {TIMEOUT_S:.0f} s")
        else:
            if status:
                self._complain(f"exit status {status}")
        finally:
            if process.returncode is None:
                _end(process)
                await process.wait()

    async def _start(self, said: bytes) -> Process:
        # A pipe that holds all of it (pipes hold 4 KB at the least) needs nobody to feed it.
        reading, writing = os.pipe()
        try:
            try:
                os.write(writing, said)
            finally:
                os.close(writing)
            return await asyncio.create_subprocess_exec(
                *self.command, stdin=reading, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
            )
        finally:
            os.close(reading)

    def _complain(self, what: str) -> None:
        logger.warning("hivemind: the call for help failed: %s: %s", self.command[0], what)


def _end(process: Process) -> None:
    """The command, and what it has started."""
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
