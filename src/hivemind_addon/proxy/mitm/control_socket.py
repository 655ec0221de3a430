"""The control socket of this proxy: where others read what goes on, and tell it what to do."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import msgspec
from mitmproxy import ctx, exceptions

from hivemind_addon.api.command import Command, Record, Said, SetConfig, ShowConfig, asker
from hivemind_addon.api.control import ControlServer, control_socket
from hivemind_addon.api.events import PersonActed
from hivemind_addon.proxy.mitm.config import option_views, set_option
from hivemind_addon.proxy.mitm.listeners import listens
from hivemind_addon.proxy.mitm.report import make_report
from hivemind_addon.system.folders import FolderNotPrivate

if TYPE_CHECKING:
    from hivemind_addon.proxy.mitm.intake import Intake

logger = logging.getLogger("hivemind")


class ControlSocket:
    """Open where its option says; the proxy serves without it, too."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._server: ControlServer | None = None
        self._opening: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ControlSocket {self._server!r}>"

    def open_soon(self, after: asyncio.Future[None] | None = None) -> None:
        """Open it, anew where it is open; its usual name is the port's, which may be known only `after`."""
        self._opening = asyncio.ensure_future(self.open(after))

    async def open(self, after: asyncio.Future[None] | None = None) -> None:
        """As `open_soon`; returns when it is open, or cannot be."""
        if after is not None:
            await asyncio.wait([after])
        self.close()
        addresses = listens()
        if addresses:
            self._intake.files.listens_at(addresses[0][1])
        chosen = self._intake.settings.control
        if chosen is False or not addresses or not hasattr(socket, "AF_UNIX"):
            return
        try:
            server = ControlServer(
                control_socket(addresses[0][1]) if chosen is True else chosen,
                report=lambda: make_report(self._intake, addresses),
                command=self._do,
            )
            await server.start()
        except (FolderNotPrivate, OSError) as error:
            logger.warning("hivemind: no control socket, so `hivemind status` sees nothing: %s", error)
        else:
            self._server = server

    def close(self) -> None:
        """Nobody is heard any more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _do(self, command: Command) -> Said:
        """What a person tells us."""
        match command:
            case Record():
                return self._record(command)
            case ShowConfig():
                views = option_views()
                return Said(done=True, text=f"{len(views)} options", value=msgspec.to_builtins(views))
            case SetConfig():
                return self._configure(command)
            case _:
                return self._intake.driver.command(command)

    def _configure(self, command: SetConfig) -> Said:
        said = set_option(command.name, command.value)
        if said.value is not None:
            self._tell(f"{said.text} ({asker(command.by)})", by=command.by)
        return said

    def _tell(self, text: str, *, by: str = "") -> None:
        driver = self._intake.driver
        driver.note(PersonActed(at=driver.clock.monotonic(), text=text, by=by))

    def _record(self, command: Record) -> Said:
        """Recording is an option: mitmweb shows what is set here, and sets it, too."""
        files = self._intake.files
        before = files.recorder
        try:
            ctx.options.update(hivemind_capture=command.file or "", hivemind_capture_content=command.content)
        except exceptions.OptionsError as error:
            return Said(done=False, text=str(error))
        if files.recorder is before:
            return Said(done=False, text=f"{before.path} is recorded already" if before else "nothing was recorded")
        text = f"recording into {command.file}" if command.file else "recording no more"
        self._tell(text)
        return Said(done=True, text=text)
