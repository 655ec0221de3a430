"""The files that the proxy writes: the journal, captures, contexts. Each is wherever its option says now."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from hivemind_addon.plugins.contexts.keeper import ConversationKeeper
from hivemind_addon.plugins.contexts.store import ContextStore
from hivemind_addon.proxy.gate.settings import BadOption
from hivemind_addon.proxy.journal.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from hivemind_addon.plugins.captures.recorder import Recorder
    from hivemind_addon.plugins.contexts.policy import KeepPolicy
    from hivemind_addon.proxy.gate.settings import Settings
    from hivemind_addon.proxy.run.driver import Driver

logger = logging.getLogger("hivemind")


class Files:
    """Opens and closes them. On the event loop."""

    def __init__(self, driver: Driver) -> None:
        self.recorder: Recorder | None = None
        """Who writes a capture; None: nobody."""
        self.keeper: ConversationKeeper | None = None
        """Who keeps conversations; None: nobody."""
        self._driver = driver
        self.journal: Journal | None = None
        """What remembers everything; None: nothing does."""
        self._closing: set[asyncio.Future[None]] = set()
        """Of what an option ended."""
        self._has_restored = False
        self._port: int | None = None
        self._contexts: Path | None = None

    def follow(self, settings: Settings) -> None:
        """Write to wherever the options say. Raises BadOption."""
        self._remember(settings)
        self._keep_conversations(settings.contexts, settings.keep_policy)
        self._record(settings)

    async def close(self) -> None:
        """Write what is left."""
        if self.recorder is not None:
            recorder, self.recorder = self.recorder, None
            self._end(recorder.stop())
        if self.keeper is not None:  # before the journal: it tells what it has written
            keeper, self.keeper = self.keeper, None
            await keeper.close()
        self._forget()
        if self._closing:
            await asyncio.wait(self._closing)

    def listens_at(self, port: int) -> None:
        """The proxy's port, by which others know whose the journal is."""
        self._port = port
        if self.journal is not None:
            self.journal.is_at(port)

    def _remember(self, settings: Settings) -> None:
        """Take over what earlier runs have left, once; from then on write."""
        path, driver = settings.journal, self._driver
        if path is None:
            self._forget()
        elif self.journal is not None:
            self.journal.follow(path, settings.journal_keep)
        else:
            self.journal = Journal(
                path,
                keep=settings.journal_keep,
                keeper=driver,
                clock=driver.clock,
                note=driver.note,
                port=settings.port,
                fresh=settings.fresh,
            )
            if self._port is not None:
                self.journal.is_at(self._port)
            driver.listen(self.journal)  # it hears of what goes on
            if not self._has_restored:
                self._has_restored = True
                self.journal.restore()

    def _forget(self) -> None:
        """Write no journal any more."""
        if self.journal is not None:
            journal, self.journal = self.journal, None
            self._driver.unlisten(journal)
            self._end(journal.close())

    def _end(self, closing: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _keep_conversations(self, folder: Path | None, policy: KeepPolicy | None) -> None:
        if folder == self._contexts:
            if self.keeper is not None:
                self.keeper.follow(policy)
            return
        old, self._contexts = self.keeper, folder
        self.keeper = None
        if folder is not None:
            store = ContextStore(folder, told=lambda line: logger.warning("hivemind: %s", line))
            self.keeper = ConversationKeeper(store, self._driver, policy)
        if old is not None:
            self._end(old.close())

    def _record(self, settings: Settings) -> None:
        old = self.recorder
        if old is not None and (old.path, old.content) == (settings.capture, settings.capture_content):
            return
        self.recorder = None
        if old is not None:
            self._end(old.stop())
        if settings.capture is not None:
            # Few record, and it is a tenth of all that the addon loads.
            from hivemind_addon.plugins.captures.model import NotACapture  # noqa: PLC0415 - as above
            from hivemind_addon.plugins.captures.recorder import Recorder  # noqa: PLC0415 - as above

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
