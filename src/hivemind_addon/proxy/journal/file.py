"""The journal's file: found, locked, checked, brought to this version's schema. Of the writing thread only.

    no file, or an empty one      a new journal
    a journal                     migrated where it is older
    a journal of a newer version  not touched
    a damaged journal             moved aside; a new one begins
    anything else                 not touched

Whoever writes it holds a lock of the kernel's on FILE.lock, which ends with its process, however that ends.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.journal.schema import APPLICATION_ID, MIGRATIONS
from hivemind_addon.proxy.system.database import FileKind, FileUnusable, is_damage, move_aside, open_kind, transaction
from hivemind_addon.proxy.system.file_lock import holder_of, name_holder, take_lock
from hivemind_addon.proxy.system.folders import state_folder

LOCK_S = 1.0
"""How long a lock may be another's: of a proxy that is just ending."""
BUSY_S = 1.0
"""How long somebody else's transaction is waited for."""


class JournalTakenError(FileUnusable):
    """Another proxy writes this file, until it ends."""


def default_journal() -> Path:
    """`journal.db` in the user's state folder."""
    return state_folder() / "journal.db"


class JournalFile:
    """An open journal that nobody else writes."""

    def __init__(
        self, path: Path, *, wall: float, migrations: tuple[str, ...] = MIGRATIONS, told: Callable[[str], None]
    ) -> None:
        """Open it, or make it. `told` hears, in a line, when a damaged one was moved aside.

        Raises FileUnusable, or OSError and sqlite3.Error for what may get better.
        """
        self.path = Path(os.path.realpath(path))
        self._make_folder()
        self._lock = self._locked()
        try:
            try:
                self.connection = self._opened(migrations)
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                told(self._move_aside(error, wall))
                self.connection = self._opened(migrations)
            self._identity = self.path.stat()
        except BaseException:
            os.close(self._lock)
            raise

    def __repr__(self) -> str:
        return f"<JournalFile {self.path}>"

    def is_there(self) -> bool:
        """Whether what is open still is what the path names."""
        try:
            return os.path.samestat(self.path.stat(), self._identity)
        except OSError:
            return False

    def write(self, statements: Iterable[tuple[str, tuple[object, ...]]]) -> None:
        """All of them or none. Raises sqlite3.Error."""
        with transaction(self.connection):
            for sql, values in statements:
                self.connection.execute(sql, values)

    def name_holder(self, text: str) -> None:
        """What another proxy is told about who has the file."""
        with suppress(OSError):
            name_holder(self._lock, text)

    def close(self) -> None:
        """Leave everything in the one file, and let go of it."""
        with suppress(sqlite3.Error):
            self.connection.close()
        os.close(self._lock)

    def leave_damaged(self, error: Exception, wall: float) -> str:
        """Close it, and move it aside; what was done, in a line. Raises OSError."""
        with suppress(sqlite3.Error):
            self.connection.close()
        try:
            return self._move_aside(error, wall)
        finally:
            os.close(self._lock)

    def _make_folder(self) -> None:
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder == Path(os.path.realpath(state_folder())):
            folder.chmod(0o700)

    def _locked(self) -> int:
        name = self.path.with_name(f"{self.path.name}.lock")
        lock = take_lock(name, wait_s=LOCK_S)
        if lock is not None:
            return lock
        raise JournalTakenError(
            f"{self.path} is written by another proxy ({holder_of(name) or 'unknown'}), so what happens in this one "
            "waits until that one ends; give it a file of its own with hivemind_journal=FILE"
        )

    def _opened(self, migrations: tuple[str, ...]) -> sqlite3.Connection:
        kind = FileKind("journal", "name another file in hivemind_journal", APPLICATION_ID, migrations)
        return open_kind(self.path, kind, patience_s=BUSY_S)

    def _move_aside(self, error: Exception, wall: float) -> str:
        aside = move_aside(self.path, wall)
        return f"the journal was damaged ({failing(error)}): it is {aside} now, and a new one begins"
