"""What `hivemind setup --write` has put into which file, so that it takes out exactly that."""

from pathlib import Path

import msgspec
from msgspec import Struct

from hivemind_addon.runtime.folders import state_folder
from hivemind_addon.runtime.whole_file import write_whole
from hivemind_addon.setup.model import Entry, SetupTrouble


class Written(Struct, frozen=True):
    """In one file."""

    entries: tuple[Entry, ...] = ()
    made: tuple[tuple[str, ...], ...] = ()
    """Objects that were made to hold them."""
    created: bool = False
    """The file itself, too."""


class Ledger:
    """All files, by their real paths."""

    def __init__(self, path: Path | None = None) -> None:
        """Read when it is first asked."""
        self._path = path or state_folder() / "setup.json"

    def of(self, file: Path) -> Written:
        """Raises SetupTrouble: the ledger cannot be read."""
        return self._read().get(str(file), Written())

    def note(self, file: Path, written: Written) -> None:
        """Kept before the next change is made. Raises OSError, SetupTrouble."""
        known = self._read()
        known.pop(str(file), None)
        if written.entries:
            known[str(file)] = written
        write_whole(self._path, msgspec.json.format(msgspec.json.encode(known)))

    def _read(self) -> dict[str, Written]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Written])
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SetupTrouble(f"{self._path}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise SetupTrouble(
                f"{self._path} is damaged; remove it (then --remove no longer knows what was put in)"
            ) from error
