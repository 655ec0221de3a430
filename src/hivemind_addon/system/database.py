"""SQLite files of a user's own: opened so that nobody else reads them, written all or nothing, and read untouched."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MAGIC = b"SQLite format 3\0"
"""How each of these files begins (sqlite.org/fileformat.html)."""
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
"""Primary codes of a file whose content is broken."""
_SIDES = ("", "-wal", "-shm", "-journal")


def primary_code(error: BaseException) -> int:
    """What SQLite says is wrong, without the details in the higher bytes; 0: it says nothing."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def open_private(path: Path, *, patience_s: float) -> sqlite3.Connection:
    """A connection to a file that is made at need; only its owner may read it. Raises OSError, sqlite3.Error.

    For any thread, if they take turns; transactions are said, not begun by themselves. `patience_s`: how long somebody
    else's is waited for.
    """
    # Private from its first byte on; SQLite gives the files beside it the same mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600))
    for side in _SIDES:
        with suppress(FileNotFoundError):
            beside = Path(f"{path}{side}")
            if beside.stat().st_mode & 0o077:
                beside.chmod(0o600)
    return sqlite3.connect(path, timeout=patience_s, isolation_level=None, check_same_thread=False)


def open_to_read(path: Path, *, patience_s: float, though_unlogged: bool = False) -> sqlite3.Connection:
    """A connection that cannot write, for a folder that cannot be written either. Raises sqlite3.Error.

    `though_unlogged`: even where the newest rows are in a log that cannot be read; else that is an error.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        return _looked_at(address, patience_s)
    except sqlite3.Error as error:
        # Where not even the index of its log can be made (a read-only disk) and nothing is in that log, the file is all
        # there is.
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
    """All of it or nothing. Raises sqlite3.Error."""
    begin(connection)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk has rolled it back already
            connection.execute("ROLLBACK")
        raise
