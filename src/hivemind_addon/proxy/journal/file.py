"""Opens the journal's file: finds, locks and checks the file, and migrates the schema. For the writing thread only.

    no file, or an empty one      a new journal
    a journal                     migrated if older
    a journal of a newer version  not touched
    a damaged journal             moved aside; a new one begins
    anything else                 not touched

The writer holds a lock of the kernel on FILE.lock, which ends with the process, however the process ends.
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
"""How long to wait for the lock of another proxy, which may be ending."""
BUSY_S = 1.0
"""How long to wait for another connection's transaction."""


class JournalTakenError(FileUnusable):
    """Another proxy writes this file until that proxy ends."""


def default_journal() -> Path:
    """`journal.db` in the user's state folder."""
    return state_folder() / "journal.db"


class JournalFile:
    """An open journal with a single writer."""

    def __init__(
        self, path: Path, *, wall: float, migrations: tuple[str, ...] = MIGRATIONS, told: Callable[[str], None]
    ) -> None:
        """Open or create the file. Passes a line about a damaged file that was moved aside to the callback.

        Raises FileUnusable, or OSError and sqlite3.Error for conditions that may pass.
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

    def is_there(self) -> bool:
        """Whether the path still names the open file."""
        try:
            return os.path.samestat(self.path.stat(), self._identity)
        except OSError:
            return False

    def write(self, statements: Iterable[tuple[str, tuple[object, ...]]]) -> None:
        """Execute all statements or none. Raises sqlite3.Error."""
        with transaction(self.connection):
            for sql, values in statements:
                self.connection.execute(sql, values)

    def name_holder(self, text: str) -> None:
        """Store a description of this proxy, which other proxies show as the holder of the file."""
        with suppress(OSError):
            name_holder(self._lock, text)

    def close(self) -> None:
        """Leave everything in a single file, and release the file."""
        with suppress(sqlite3.Error):
            self.connection.close()
        os.close(self._lock)

    def leave_damaged(self, error: Exception, wall: float) -> str:
        """Close the file and move the file aside. Returns a line about the move. Raises OSError."""
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
