"""What takes events out of this process: the event log, calls for help, traces. Each is an observer of the driver's."""

import asyncio
from pathlib import Path
from typing import Protocol

from hivemind_addon.kernel.values.events import Event
from hivemind_addon.proxy.run.driver import Driver
from hivemind_addon.proxy.run.event_log import EventLog
from hivemind_addon.proxy.run.notifier import Notifier, Way


class Sink(Protocol):
    """An observer with an end."""

    def __call__(self, event: Event) -> None:
        """Take one event; never waits."""

    async def close(self) -> None:
        """Take no more; a bounded time for what is still to be written."""


class Sinks:
    """Those of one driver; lives as long as it."""

    def __init__(self, driver: Driver, *, traces: Sink | None = None) -> None:
        """`traces` is the environment's to choose, and so there from the start; the others are options'."""
        self._driver = driver
        self._log: EventLog | None = None
        self._notifier: Notifier | None = None
        self._traces = traces
        self._closing: set[asyncio.Task[None]] = set()
        """Of sinks that an option replaced."""
        if traces is not None:
            driver.listen(traces)

    def follow(self, *, log: Path | bool, notify: Way | None) -> None:
        """As the options say from now on. `log`: a file, True for standard output, False for none.

        To be called on the event loop; a sink that is as it should be goes on.
        """
        path = log if isinstance(log, Path) else None
        if log is False or (self._log is not None and self._log.path != path):
            self._retire(self._log)
            self._log = None
        if log is not False and self._log is None:
            self._log = EventLog(path, clock=self._driver.clock)
            self._driver.listen(self._log)
        if self._notifier is not None and self._notifier.way != notify:
            self._retire(self._notifier)
            self._notifier = None
        if notify is not None and self._notifier is None:
            self._notifier = Notifier(notify, clock=self._driver.clock)
            self._driver.listen(self._notifier)

    async def close(self) -> None:
        """All at once: what is still to be written has a few seconds."""
        for sink in (self._log, self._notifier, self._traces):
            self._retire(sink)
        self._log = self._notifier = self._traces = None
        if self._closing:
            await asyncio.wait(self._closing)

    def _retire(self, sink: Sink | None) -> None:
        if sink is not None:
            self._driver.unlisten(sink)
            task = asyncio.get_running_loop().create_task(sink.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
