"""One file of a user's, before and after: worked out first, then written in one step beside a backup.

What was put into which file is noted in a ledger, so that `hivemind setup --remove` takes out exactly that.
"""

import difflib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base import json_values
from hivemind_addon.proxy.system.file_lock import take_lock
from hivemind_addon.proxy.system.folders import state_folder
from hivemind_addon.proxy.system.whole_file import write_whole
from hivemind_addon.tools.setup import merge as merging
from hivemind_addon.tools.setup.model import (
    FileEntry,
    FileFormat,
    FilePlan,
    HasComments,
    MergedText,
    SetupTrouble,
    Value,
)

_BUSY_S = 10.0


class OwnEntries(Struct, frozen=True):
    """In one file."""

    entries: tuple[FileEntry, ...] = ()
    made: tuple[tuple[str, ...], ...] = ()
    """Objects that were made to hold them."""
    created: bool = False
    """The file itself, too."""

    def and_then(self, other: "OwnEntries") -> "OwnEntries":
        """What may be in the file while it becomes another."""
        entries = (*self.entries, *(one for one in other.entries if one not in self.entries))
        return OwnEntries(entries, tuple(dict.fromkeys((*self.made, *other.made))), self.created or other.created)


class Ledger:
    """All files, by their real paths."""

    def __init__(self, path: Path | None = None) -> None:
        """Read when it is first asked."""
        self._path = path or state_folder() / "setup.json"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For the time of a note: others write their files and notes before or after. Raises SetupTrouble, OSError."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = take_lock(self._path.with_name(f"{self._path.name}.lock"), wait_s=_BUSY_S)
        if lock is None:
            raise SetupTrouble("another `hivemind setup` is writing for long; run this again when it has ended")
        try:
            yield
        finally:
            os.close(lock)

    def of(self, file: Path) -> OwnEntries:
        """Raises SetupTrouble: the ledger cannot be read."""
        return self._read().get(str(file), OwnEntries())

    def note(self, file: Path, written: OwnEntries) -> None:
        """Kept before the next change is made, within `alone`. Raises OSError, SetupTrouble."""
        known = self._read()
        known.pop(str(file), None)
        if written.entries:
            known[str(file)] = written
        write_whole(self._path, msgspec.json.format(msgspec.json.encode(known)))

    def _read(self) -> dict[str, OwnEntries]:
        try:
            return json_values.decode(self._path.read_bytes(), dict[str, OwnEntries])
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SetupTrouble(f"{self._path}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise SetupTrouble(
                f"{self._path} is damaged; remove it (then --remove no longer knows what was put in)"
            ) from error


_MAX_BYTES = 64 * 1024 * 1024


class FileChange(Struct, frozen=True):
    """What would become of a file."""

    named: Path
    """As the tool knows it."""
    real: Path
    """Where it lies: a link stays a link."""
    before: bytes | None
    """None: there is none."""
    after: bytes | None
    written: OwnEntries
    kept: tuple[tuple[FileEntry, Value], ...]

    @property
    def is_nothing(self) -> bool:
        """Whether the file stays as it is."""
        return self.before == self.after

    def diff(self) -> str:
        """Unified, and only with lines that change: what else is in a file may be a secret."""
        before, after = ((content or b"").decode().splitlines(keepends=True) for content in (self.before, self.after))
        lines = difflib.unified_diff(before, after, str(self.named), str(self.named), n=0)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def addition(plan: FilePlan, ledger: Ledger) -> FileChange:
    """Raises SetupTrouble, HasComments, OSError."""
    real, before, text = _read(plan.path)
    known = ledger.of(real)
    merged = _named(plan.path, plan.format, text, plan.entries, known)
    after = merged.text.encode() if merged.put or before is not None else None
    after = before if merged.text == text else after
    written = OwnEntries(merged.put, merged.made, created=known.created or before is None)
    return FileChange(plan.path, real, before, after, written, merged.kept)


def removal(plan: FilePlan, ledger: Ledger) -> FileChange:
    """Raises SetupTrouble, HasComments, OSError."""
    real, before, text = _read(plan.path)
    known = ledger.of(real)
    if before is None or not known.entries:
        return FileChange(plan.path, real, before, before, OwnEntries(), ())
    try:
        merged = merging.remove(text, plan.format, known.entries, known.made)
    except SetupTrouble as error:
        raise type(error)(f"{plan.path} {error}") from error
    gone = known.created and merging.is_empty(merged.text, plan.format)
    after = None if gone else merged.text.encode()
    return FileChange(plan.path, real, before, after, OwnEntries(), merged.kept)


def apply(change: FileChange, ledger: Ledger, *, now: datetime) -> Path | None:
    """The backup's path, if there was something to keep. Raises SetupTrouble, OSError."""
    with ledger.alone():
        return _apply(change, ledger, now)


def _apply(change: FileChange, ledger: Ledger, now: datetime) -> Path | None:
    current = change.real.read_bytes() if change.real.exists() else None
    if current != change.before:
        raise SetupTrouble(f"{change.named} was changed meanwhile; run this again")
    backup = None
    mode = 0o600
    if change.before is not None and change.after is not None:
        mode = stat.S_IMODE(change.real.stat().st_mode)
        if not mode & stat.S_IWUSR:
            raise SetupTrouble(f"{change.named} is read-only; allow it to be written, or change it by hand as shown")
        backup = _free(change.real.with_name(f"{change.real.name}.hivemind-backup-{now:%Y%m%d-%H%M%S}"))
        _write(backup, change.before, mode)
    # Noted before and after: whatever ends us on the way, what the file has of ours is known.
    ledger.note(change.real, ledger.of(change.real).and_then(change.written))
    if change.after is not None:
        _write(change.real, change.after, mode)
    else:
        change.real.unlink(missing_ok=True)
    ledger.note(change.real, change.written)
    return backup


def snippet(format_: FileFormat, entries: Sequence[FileEntry]) -> str:
    """Entries as a file that holds nothing else."""
    return merging.merge("", format_, entries).text


def _named(path: Path, form: FileFormat, text: str, entries: Sequence[FileEntry], known: OwnEntries) -> MergedText:
    try:
        return merging.merge(text, form, entries, ours=known.entries, made=known.made)
    except HasComments as error:
        raise HasComments(f"{path} {error}:\n{snippet(form, entries)}") from error
    except SetupTrouble as error:
        raise SetupTrouble(f"{path} {error}") from error


def _read(path: Path) -> tuple[Path, bytes | None, str]:
    """Raises SetupTrouble, OSError."""
    real = path.resolve()
    if not real.exists():
        return real, None, ""
    if not real.is_file() or real.stat().st_size > _MAX_BYTES:
        raise SetupTrouble(f"{path} is no file of settings")
    content = real.read_bytes()
    try:
        return real, content, content.decode()
    except UnicodeDecodeError as error:
        raise SetupTrouble(f"{path} is no text ({error.reason}); mend it first") from error


def _write(file: Path, content: bytes, mode: int) -> None:
    """Raises OSError, which names the file, not what is beside it for a moment."""
    try:
        write_whole(file, content, mode=mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error


def _free(path: Path) -> Path:
    tried, number = path, 1
    while tried.exists():
        tried, number = path.with_name(f"{path.name}-{number}"), number + 1
    return tried
