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
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from hivemind_addon.api.words import failing
from hivemind_addon.proxy.journal.schema import APPLICATION_ID, MIGRATIONS
from hivemind_addon.system.database import DAMAGED, MAGIC, open_private, primary_code, transaction
from hivemind_addon.system.file_lock import holder_of, name_holder, take_lock
from hivemind_addon.system.folders import state_folder

LOCK_S = 1.0
"""How long a lock may be another's: of a proxy that is just ending."""
BUSY_S = 1.0
"""How long somebody else's transaction is waited for."""
_HEADER_BYTES = 100
_SIDES = ("-wal", "-shm", "-journal")


class JournalUnusableError(Exception):
    """There is no writing this file, and no use in trying again; one line that names it and the cure."""


class JournalTakenError(JournalUnusableError):
    """Another proxy writes this file, until it ends."""


def default_journal() -> Path:
    """`journal.db` in the user's state folder."""
    return state_folder() / "journal.db"


def is_damage(error: BaseException) -> bool:
    """Whether an exception says that the file's content is broken."""
    return isinstance(error, sqlite3.DatabaseError) and primary_code(error) in DAMAGED


class JournalFile:
    """An open journal that nobody else writes."""

    def __init__(
        self, path: Path, *, wall: float, migrations: tuple[str, ...] = MIGRATIONS, told: Callable[[str], None]
    ) -> None:
        """Open it, or make it. `told` hears, in a line, when a damaged one was moved aside.

        Raises JournalUnusableError, or OSError and sqlite3.Error for what may get better.
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
        if folder == Path(os.path.realpath(state_folder())) and sys.platform != "win32":
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
        self._check_header()
        connection = open_private(self.path, patience_s=BUSY_S)
        try:
            if self._is_new(connection, len(migrations)):
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before anything else is in it
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA journal_size_limit = 16000000")
            migrate(connection, migrations)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_header(self) -> None:
        """Raises JournalUnusableError for what is no database; a damaged one of ours is SQLite's to find out."""
        if self.path.is_dir():
            raise JournalUnusableError(f"{self.path} is a folder, no journal; name another file in hivemind_journal")
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
            if header and not header.startswith(MAGIC[: len(header)]):
                raise self._foreign()

    def _is_ours(self) -> bool:
        """By what is left of its header."""
        with self.path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        return len(header) < _HEADER_BYTES or int.from_bytes(header[68:72]) == APPLICATION_ID

    def _is_new(self, connection: sqlite3.Connection, newest: int) -> bool:
        """Whether nothing is in it yet. Raises JournalUnusableError."""
        try:
            (kind,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (things,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError as error:
            if is_damage(error) and not self._is_ours():
                raise self._foreign() from error
            raise
        if kind != APPLICATION_ID and (kind, version, things) != (0, 0, 0):
            raise self._foreign()
        if version > newest:
            raise JournalUnusableError(
                f"{self.path} was written by a newer hivemind_addon (journal version {version}, this one knows "
                f"{newest}) and is not touched; update, or name another file in hivemind_journal"
            )
        return bool(kind != APPLICATION_ID)

    def _foreign(self) -> JournalUnusableError:
        return JournalUnusableError(
            f"{self.path} is no journal of ours and is not touched; name another file in hivemind_journal"
        )

    def _move_aside(self, error: Exception, wall: float) -> str:
        stamp = datetime.fromtimestamp(wall, UTC).strftime("%Y%m%d-%H%M%S")
        aside = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        for side in _SIDES:
            with suppress(FileNotFoundError):
                Path(f"{self.path}{side}").replace(f"{aside}{side}")
        self.path.replace(aside)
        return f"the journal was damaged ({failing(error)}): it is {aside} now, and a new one begins"


def migrate(connection: sqlite3.Connection, migrations: tuple[str, ...]) -> None:
    """Bring a journal to the newest schema, a version at a time: each wholly or not at all."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number, script in enumerate(migrations[version:], start=version + 1):
        try:
            connection.executescript(f"BEGIN IMMEDIATE;\n{script}\n;\nPRAGMA user_version = {number};\nCOMMIT;")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
