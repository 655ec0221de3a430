"""What `hivemind setup --write` has put into which file, so that it takes out exactly that."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from hivemind_addon.system.file_lock import take_lock
from hivemind_addon.system.folders import state_folder
from hivemind_addon.system.whole_file import write_whole
from hivemind_addon.tools.setup.model import FileEntry, SetupTrouble

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
        """For whoever notes: others write their files and their notes before or after. Raises SetupTrouble, OSError."""
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
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, OwnEntries])
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SetupTrouble(f"{self._path}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise SetupTrouble(
                f"{self._path} is damaged; remove it (then --remove no longer knows what was put in)"
            ) from error
