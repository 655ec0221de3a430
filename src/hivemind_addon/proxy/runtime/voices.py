"""Who tells others what goes on: the event log, calls for help, traces. Each hears events as the driver's observer."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hivemind_addon.api.events import Event
from hivemind_addon.proxy.runtime.driver import Driver
from hivemind_addon.proxy.runtime.event_log import EventLog
from hivemind_addon.proxy.runtime.notifier import Notifier


class Voice(Protocol):
    """An observer with an end."""

    def __call__(self, event: Event) -> None:
        """Hear of one event; never waits."""

    async def close(self) -> None:
        """Hear no more; a bounded time for what is still to be said."""


class Voices:
    """The voices of one driver; lives as long as it."""

    def __init__(self, driver: Driver, *, traces: Voice | None = None) -> None:
        """`traces` is the environment's to choose, and so there from the start; the others are options'."""
        self._driver = driver
        self._log: EventLog | None = None
        self._notifier: Notifier | None = None
        self._traces = traces
        self._closing: set[asyncio.Task[None]] = set()
        """Of voices that an option replaced."""
        if traces is not None:
            driver.listen(traces)

    def __repr__(self) -> str:
        return f"<Voices {[voice for voice in (self._log, self._notifier, self._traces) if voice]}>"

    def speak(self, *, log: Path | bool, notify: Sequence[str]) -> None:
        """As the options say from now on. `log`: a file, True for standard output, False for none; `notify`: a command.

        To be called on the event loop; a voice that is as it should be goes on.
        """
        path = log if isinstance(log, Path) else None
        if log is False or (self._log is not None and self._log.path != path):
            self._retire(self._log)
            self._log = None
        if log is not False and self._log is None:
            self._log = EventLog(path, clock=self._driver.clock)
            self._driver.listen(self._log)
        if self._notifier is not None and self._notifier.command != tuple(notify):
            self._retire(self._notifier)
            self._notifier = None
        if notify and self._notifier is None:
            self._notifier = Notifier(notify, clock=self._driver.clock)
            self._driver.listen(self._notifier)

    async def close(self) -> None:
        """All at once: what is still to be said has a few seconds."""
        for voice in (self._log, self._notifier, self._traces):
            self._retire(voice)
        self._log = self._notifier = self._traces = None
        if self._closing:
            await asyncio.wait(self._closing)

    def _retire(self, voice: Voice | None) -> None:
        if voice is not None:
            self._driver.unlisten(voice)
            task = asyncio.get_running_loop().create_task(voice.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
