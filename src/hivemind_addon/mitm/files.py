"""The files that the proxy writes: what was learned, and captures. Each is wherever its option says now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hivemind_addon.capture.model import NotACapture
from hivemind_addon.mitm.options import BadOption
from hivemind_addon.mitm.recorder import Recorder
from hivemind_addon.runtime.state_file import StateFile

if TYPE_CHECKING:
    from pathlib import Path

    from hivemind_addon.mitm.options import Settings
    from hivemind_addon.runtime.driver import Driver


class Files:
    """Opens and closes them. On the event loop."""

    def __init__(self, driver: Driver) -> None:
        self.recorder: Recorder | None = None
        """Who writes a capture; None: nobody."""
        self._driver = driver
        self._state: StateFile | None = None
        self._closing: asyncio.Task[None] | None = None
        """Of a capture that was ended."""

    def __repr__(self) -> str:
        return f"<Files {self._state!r}, {self.recorder!r}>"

    def follow(self, settings: Settings) -> None:
        """Write to wherever the options say. Raises BadOption."""
        self._keep_state(settings.state_file)
        self._record(settings)

    async def close(self) -> None:
        """Write what is left."""
        if self._state is not None:
            self._state.stop()
            await self._state.save()
        if self.recorder is not None:
            recorder, self.recorder = self.recorder, None
            await recorder.stop()
        if self._closing is not None:
            await asyncio.wait([self._closing])

    def _keep_state(self, path: Path | None) -> None:
        """Restore once; from then on save."""
        old = self._state
        if old is not None:
            if old.path == path:
                return
            old.stop()
        self._state = None
        if path is not None:
            self._state = StateFile(path, keeper=self._driver, clock=self._driver.clock, note=self._driver.note)
            if old is None:
                self._state.load()
            self._state.start()

    def _record(self, settings: Settings) -> None:
        old = self.recorder
        if old is not None and (old.path, old.content) == (settings.capture, settings.capture_content):
            return
        self.recorder = None
        if old is not None:
            self._closing = asyncio.ensure_future(old.stop())
        if settings.capture is not None:
            try:
                self.recorder = Recorder(
                    settings.capture,
                    content=settings.capture_content,
                    driver=self._driver,
                    profiles=settings.profiles,
                )
            except (OSError, NotACapture) as error:
                why = error.strerror if isinstance(error, OSError) else error
                raise BadOption(f"hivemind_capture: {settings.capture}: {why}") from error
