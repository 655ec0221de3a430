"""What the commands of `hivemind context` share: how a context is named, and where contexts are."""

import os
from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from hivemind_addon.plugins.contexts.reading.bundle import BadBundle
from hivemind_addon.plugins.contexts.reading.export import CannotExport
from hivemind_addon.plugins.contexts.store import FOLDER_NAME, ContextStore, UnknownContext
from hivemind_addon.proxy.system.database import FileUnusable
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.tools.commands.options import in_one_line, port_option
from hivemind_addon.tools.history.reader import journal_of


class ContextRef(Struct, frozen=True):
    """What is typed for a context."""

    id: str
    """Or its unambiguous beginning."""
    version: int | None = None
    """None: the newest."""

    def __str__(self) -> str:
        return self.id if self.version is None else f"{self.id}@{self.version}"


class ContextRefType(click.ParamType[ContextRef]):
    """An argument that names a context, or a version of one."""

    name = "ID[@N]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ContextRef:
        """Tells click what is wrong."""
        if isinstance(value, ContextRef):
            return value
        context_id, at, version = str(value).partition("@")
        if at and not (version.isascii() and version.isdecimal() and int(version)):
            self.fail(f"{value!r} names no version: ID@3 is the third one, ID alone the newest", param, ctx)
        return ContextRef(context_id, int(version) if at else None)


_folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where contexts are; default: beside your proxy's journal.",
)
ref_argument = click.argument("ref", metavar="ID[@N]", type=ContextRefType())
project_option = click.option(
    "--cwd",
    "project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The project's folder, in which the agent is to go on; default: this one.",
)


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Give it the contexts that are meant, and the port if it takes that; what cannot be is one line."""
    takes_port = "port" in signature(command).parameters

    @_folder_option
    @port_option
    @wraps(command)
    def called(*, folder: Path | None, port: int, **values: Any) -> None:
        with in_one_line(BadBundle, CannotExport, FileUnusable, FolderNotPrivate, UnknownContext):
            if folder is not None and not folder.is_dir():
                raise click.ClickException(f"{str(folder)!r} is no folder; without --folder it is {usual_folder(port)}")
            values |= {"port": port} if takes_port else {}
            command(store=ContextStore(folder or usual_folder(port)), **values)

    return called


def write_new(file: Path, content: bytes) -> None:
    """A new file, for its owner alone."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise click.ClickException(f"{file} is there already; name a new file") from error
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
    except OSError as error:
        file.unlink(missing_ok=True)  # half a session would be resumed as a whole one
        raise click.ClickException(f"{file}: {error.strerror}") from error


def usual_folder(port: int) -> Path:
    """Where the contexts of the proxy on a port are. Raises FolderNotPrivate, OSError."""
    return journal_of(port).parent / FOLDER_NAME
