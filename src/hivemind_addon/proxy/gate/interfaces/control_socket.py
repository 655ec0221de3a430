"""The control socket of this proxy: programs read reports and send commands.

Commands also show and set options: ours only, as mitmproxy's belong to the person who started the proxy. Options are
shown without secrets and set as `--set` does at the start. A bad value gets the same error line and is not used.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
import shlex
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from mitmproxy import ctx, exceptions

from hivemind_addon.formats.wire.proxy_user import clean
from hivemind_addon.kernel.values.events import PersonActed
from hivemind_addon.proxy.api.command import (
    AskMembers,
    Command,
    CommandReply,
    OpenPage,
    OptionView,
    PageKey,
    Record,
    SetConfig,
    ShowConfig,
)
from hivemind_addon.proxy.api.config_file import ALERTS_VARIABLE, PREFIX
from hivemind_addon.proxy.api.control import control_socket
from hivemind_addon.proxy.api.control_server import ControlServer
from hivemind_addon.proxy.api.replies import asker
from hivemind_addon.proxy.gate.addresses import listens
from hivemind_addon.proxy.gate.listeners import page_address
from hivemind_addon.proxy.gate.options import cluster_url
from hivemind_addon.proxy.page.sessions import KEY_LASTS_S, PageSessions
from hivemind_addon.proxy.run.option_table import OPTIONS, Option
from hivemind_addon.proxy.system.engine_url import parse_engine_url
from hivemind_addon.proxy.system.folders import FolderNotPrivate

if TYPE_CHECKING:
    from hivemind_addon.proxy.api.report_source import ReportSource
    from hivemind_addon.proxy.gate.settings import LiveSettings
    from hivemind_addon.proxy.gate.written_files import Files
    from hivemind_addon.proxy.run.driven import ClusterMembership
    from hivemind_addon.proxy.run.driver import Driver

logger = logging.getLogger("hivemind")

_MASK = "…"
_NO_PATHS = ("", "off", "-")
_NAME_CHARS = 60
_TRUTH = {"true": True, "false": False}


class ControlSocket:
    """Opens the socket that the option names; the proxy also works without a socket."""

    def __init__(
        self,
        *,
        settings: LiveSettings,
        files: Files,
        driver: Driver,
        reports: ReportSource,
        sessions: PageSessions,
        membership: ClusterMembership | None = None,
    ) -> None:
        """`membership`: set in a cluster, whose coordinator carries out the scheduler's commands."""
        self._sessions = sessions
        self._membership = membership
        self._settings = settings
        self._files = files
        self._driver = driver
        self._reports = reports
        self._server: ControlServer | None = None
        self._opening: asyncio.Task[None] | None = None

    def open_soon(self, after: asyncio.Future[None] | None = None) -> None:
        """Open or reopen the socket soon. The usual name contains the port, which may be known only `after`."""
        self._opening = asyncio.ensure_future(self.open(after))

    async def open(self, after: asyncio.Future[None] | None = None) -> None:
        """As `open_soon`; returns when the socket is open, or cannot be opened."""
        if after is not None:
            await asyncio.wait([after])
        self.close()
        addresses = listens()
        if addresses:
            self._files.listens_at(addresses[0][1])
        chosen = self._settings.current.control
        if chosen is False or not addresses:
            return
        try:
            server = ControlServer(
                control_socket(addresses[0][1]) if chosen is True else chosen,
                reports=self._reports,
                command=self.carry_out,
            )
            await server.start()
        except (FolderNotPrivate, OSError) as error:
            logger.warning("hivemind: no control socket, so `hivemind status` sees nothing: %s", error)
        else:
            self._server = server

    def close(self) -> None:
        """Close the socket, if open."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def carry_out(self, command: Command) -> CommandReply | Awaitable[CommandReply]:
        """Carry out a person's command, from the socket or from the page."""
        match command:
            case Record():
                return self._record(command)
            case ShowConfig():
                views = option_views()
                return CommandReply(done=True, text=f"{len(views)} options", value=msgspec.to_builtins(views))
            case SetConfig():
                return self._configure(command)
            case OpenPage(user):
                return self._open_page(user)
            case AskMembers(question):
                if self._membership is None:
                    return CommandReply(done=False, text="this proxy is in no cluster: leave --all out")
                return self._membership.ask_members(question)
            case _ if self._membership is not None and not self._membership.decides_here:
                return self._membership.command(command)
            case _:
                return self._driver.command(command)

    def _open_page(self, user: str) -> CommandReply:
        """A key for a page of this machine, for every user who may open this socket."""
        try:
            address = page_address()
        except ValueError as error:
            return CommandReply(done=False, text=str(error))
        name = clean(user)[:_NAME_CHARS]
        key = self._sessions.make_key(name, self._driver.clock.monotonic())
        self._tell(f"the page may steer, for {name or 'a person'} who asked here", by="")
        value = msgspec.to_builtins(PageKey(f"{address}#key={key}", KEY_LASTS_S))
        return CommandReply(done=True, text=f"a key to the page at {address}, good for {KEY_LASTS_S:g} s", value=value)

    def _configure(self, command: SetConfig) -> CommandReply:
        said = set_option(command.name, command.value)
        if said.value is not None:
            self._tell(f"{said.text} ({asker(command.by)})", by=command.by)
        return said

    def _tell(self, text: str, *, by: str = "") -> None:
        self._driver.note(PersonActed(at=self._driver.clock.monotonic(), text=text, by=by))

    def _record(self, command: Record) -> CommandReply:
        """Set the option for recording: mitmweb shows and sets the same option."""
        before = self._files.recorder
        try:
            ctx.options.update(hivemind_capture=command.file or "", hivemind_capture_content=command.content)
        except exceptions.OptionsError as error:
            return CommandReply(done=False, text=str(error))
        if self._files.recorder is before:
            return CommandReply(
                done=False, text=f"{before.path} is recorded already" if before else "nothing was recorded"
            )
        text = f"recording into {command.file}" if command.file else "recording no more"
        self._tell(text)
        return CommandReply(done=True, text=text)


def option_views() -> list[OptionView]:
    """All options of ours with their present values."""
    return [
        OptionView(
            name=option.name,
            value=_shown(option, _present(option)),
            default=option.default,
            help=option.help,
            settable=option.settable,
            guarded=option.is_guarded,
        )
        for option in OPTIONS
    ]


def set_option(name: str, text: str) -> CommandReply:
    """Set an option of ours, named with or without the prefix. The reply has the new value, or the reason against."""
    option = _named(name)
    if option is None:
        return CommandReply(done=False, text=f"{name}: no such option; {_nearest(name)}")
    if not option.settable:
        return CommandReply(
            done=False, text=f"{option.name} cannot be changed while the proxy runs; give it at the start"
        )
    try:
        value = _value(option, text)
        before = getattr(ctx.options, option.name)
        if _same(before, value):
            return CommandReply(done=True, text=f"{option.name} is {_words(option, value)} already")
        ctx.options.update(**{option.name: value})
    except ValueError as error:
        return CommandReply(done=False, text=f"{option.name}: {error}")
    except exceptions.OptionsError as error:
        return CommandReply(done=False, text=str(error))
    return CommandReply(done=True, text=f"{option.name} is now {_words(option, value)}", value=_shown(option, value))


def _named(name: str) -> Option | None:
    full = name if name.startswith(PREFIX) else PREFIX + name
    return next((option for option in OPTIONS if option.name == full), None)


def _nearest(name: str) -> str:
    known = [option.name.removeprefix(PREFIX) for option in OPTIONS]
    close = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
    return f"did you mean {PREFIX}{close[0]}?" if close else "`hivemind config` lists them"


def _value(option: Option, text: str) -> bool | str | list[str]:
    """Raises ValueError with the problem in a line."""
    if option.type is bool:
        if text.lower() not in _TRUTH:
            raise ValueError(f"{text!r} is neither true nor false")
        return _TRUTH[text.lower()]
    if option.type is str:
        if option.is_path and text not in _NO_PATHS and not Path(text).expanduser().is_absolute():
            raise ValueError(f"{text!r} is relative, and the proxy is in {Path.cwd()}; give the whole path")
        return text
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} cannot be split into words ({error}); close its quotes") from error


def _same(before: object, value: object) -> bool:
    if isinstance(before, Sequence) and isinstance(value, list):
        return list(before) == value
    return before == value


def _present(option: Option) -> object:
    """The value in force: the option's, or the substitute for an empty option."""
    if option.name == "hivemind_cluster" and (url := cluster_url(ctx.options)):
        return parse_engine_url(url, os.environ).shown
    if option.name == "hivemind_notify" and not ctx.options.hivemind_notify and os.environ.get(ALERTS_VARIABLE):
        return f"${ALERTS_VARIABLE}"
    return getattr(ctx.options, option.name)


def _shown(option: Option, value: object) -> object:
    if option.may_hold_secrets and isinstance(value, str) and value.strip():
        program, *rest = value.split(maxsplit=1)
        return f"{program} {_MASK}" if rest else program
    return value if isinstance(value, bool | str) or not isinstance(value, Sequence) else list(value)


def _words(option: Option, value: object) -> str:
    match _shown(option, value):
        case bool() as truth:
            return str(truth).lower()
        case list() as words:
            return shlex.join(words) or "empty"
        case shown:
            return str(shown) or "empty"
