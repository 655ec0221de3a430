"""A user's SQLite files: private to the user, written in transactions, and read without changes."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

MAGIC = b"SQLite format 3\0"
"""The first bytes of each SQLite file (sqlite.org/fileformat.html)."""
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
"""Primary codes of a file with broken content."""
_SIDES = ("", "-wal", "-shm", "-journal")
_HEADER_BYTES = 100


class FileUnusable(Exception):
    """A file cannot be written, and a retry is useless; a line that names the file and the cure."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """The purpose of a file, and the migrations of the tables."""

    name: str
    """`journal`."""
    cure: str
    """The cure if the file is of another kind: `name another file in hivemind_journal`."""
    application_id: int
    """Marks this kind in the header of the file."""
    migrations: tuple[str, ...]
    """The n-th script leads from version n to version n + 1."""


def is_damage(error: BaseException) -> bool:
    """Whether an exception says that a file's content is broken."""
    return isinstance(error, sqlite3.DatabaseError) and primary_code(error) in DAMAGED


def primary_code(error: BaseException) -> int:
    """SQLite's error code, without the details in the higher bytes; 0: no code."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def open_private(path: Path, *, patience_s: float) -> sqlite3.Connection:
    """A connection to a file that only the owner may read; creates the file at need. Raises OSError, sqlite3.Error.

    Threads may share the connection if they take turns. The caller begins transactions. `patience_s`: how long to wait
    for another connection's transaction.
    """
    # Private from the first byte on; SQLite gives the files beside it the same mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for side in _SIDES:
        with suppress(FileNotFoundError):
            beside = Path(f"{path}{side}")
            if beside.stat().st_mode & 0o077:
                beside.chmod(0o600)
    return sqlite3.connect(path, timeout=patience_s, isolation_level=None, check_same_thread=False)


def open_kind(path: Path, kind: FileKind, *, patience_s: float) -> sqlite3.Connection:
    """A connection to a file of a kind, migrated to the newest version of the tables; see `open_private`.

    Raises FileUnusable, and touches nothing, if the file is no database, of another kind or of a newer version. Raises
    sqlite3.DatabaseError if the file is damaged.
    """
    _check_header(path, kind)
    connection = open_private(path, patience_s=patience_s)
    try:
        if _is_new(connection, path, kind):
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the file has any content
            connection.execute(f"PRAGMA application_id = {kind.application_id}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 16000000")
        migrate(connection, kind.migrations)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_header(path: Path, kind: FileKind) -> None:
    """Raises FileUnusable for a file that is no database; SQLite itself detects damage in our files."""
    if path.is_dir():
        raise FileUnusable(f"{path} is a folder, no {kind.name}; {kind.cure}")
    with suppress(FileNotFoundError), path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        if header and not header.startswith(MAGIC[: len(header)]):
            raise _foreign(path, kind)


def _is_ours(path: Path, kind: FileKind) -> bool:
    """Whether the file is of this kind, by the rest of the header."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    return len(header) < _HEADER_BYTES or int.from_bytes(header[68:72]) == kind.application_id


def _is_new(connection: sqlite3.Connection, path: Path, kind: FileKind) -> bool:
    """Whether the file is still empty. Raises FileUnusable."""
    newest = len(kind.migrations)
    try:
        (found,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (things,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        if is_damage(error) and not _is_ours(path, kind):
            raise _foreign(path, kind) from error
        raise
    if found != kind.application_id and (found, version, things) != (0, 0, 0):
        raise _foreign(path, kind)
    if 0 < version <= newest and not kind.migrations[version - 1]:
        raise FileUnusable(f"{path} is of {kind.name} version {version}, which was never released; {kind.cure}")
    if version > newest:
        raise FileUnusable(
            f"{path} was written by a newer hivemind_addon ({kind.name} version {version}, this one knows "
            f"{newest}) and is not touched; update, or {kind.cure}"
        )
    return bool(found != kind.application_id)


def _foreign(path: Path, kind: FileKind) -> FileUnusable:
    return FileUnusable(f"{path} is no {kind.name} of ours and is not touched; {kind.cure}")


def migrate(connection: sqlite3.Connection, migrations: tuple[str, ...]) -> None:
    """Bring a file to the newest schema, a version at a time: each wholly or not at all."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number, script in enumerate(migrations[version:], start=version + 1):
        try:
            connection.executescript(f"BEGIN IMMEDIATE;\n{script}\n;\nPRAGMA user_version = {number};\nCOMMIT;")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise


def move_aside(path: Path, wall: float) -> Path:
    """Give a damaged file, with the files beside it, another name. Returns the new path. Raises OSError."""
    stamp = datetime.fromtimestamp(wall, UTC).strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for side in _SIDES[1:]:
        with suppress(FileNotFoundError):
            Path(f"{path}{side}").replace(f"{aside}{side}")
    path.replace(aside)
    return aside


def used_bytes(connection: sqlite3.Connection) -> int:
    """Size of a file without the free pages."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int((pages - free) * size)


def give_back(connection: sqlite3.Connection, pages: int) -> bool:
    """Give so many free pages back to the disk. False: there are none left."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    if not free:
        return False
    connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
    (left,) = connection.execute("PRAGMA freelist_count").fetchone()
    return bool(0 < left < free)


def open_to_read(path: Path, *, patience_s: float, though_unlogged: bool = False) -> sqlite3.Connection:
    """A connection that cannot write, for a folder that cannot be written either. Raises sqlite3.Error.

    `though_unlogged`: open the file even if the newest rows are in an unreadable log, instead of raising.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        return _looked_at(address, patience_s)
    except sqlite3.Error as error:
        # If not even the log's index can be made (a read-only disk) and the log is empty, the file is complete.
        log = path.with_name(f"{path.name}-wal")
        has_rest = log.exists() and log.stat().st_size > 0
        if primary_code(error) in DAMAGED or (has_rest and not though_unlogged):
            raise
    return _looked_at(f"{address}&immutable=1", patience_s)


def _looked_at(address: str, patience_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, timeout=patience_s, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def begin_alone(connection: sqlite3.Connection) -> None:
    """Begin a transaction; nobody else writes until it ends."""
    connection.execute("BEGIN IMMEDIATE")


@contextmanager
def transaction(
    connection: sqlite3.Connection, begin: Callable[[sqlite3.Connection], None] = begin_alone
) -> Iterator[None]:
    """Commit the whole block or nothing. Raises sqlite3.Error."""
    begin(connection)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk has rolled it back already
            connection.execute("ROLLBACK")
        raise
