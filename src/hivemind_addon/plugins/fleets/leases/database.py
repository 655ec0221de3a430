"""The file that leases are in: opened at need, private, and one transaction at a time among all processes."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock

from hivemind_addon.plugins.fleets.leases.model import LeaseError
from hivemind_addon.proxy.system.database import open_private, primary_code, transaction
from hivemind_addon.proxy.system.file_lock import take_lock

VERSION = 1
_BUSY_S = 10.0
_PACE_S = 0.005
_sleep = Event().wait  # nobody sets it
_SCHEMA = """
create table state(one integer primary key check (one = 1), token integer not null, turn integer not null);
insert into state values (1, 0, 0);
create table lease(
  id text primary key, agent text not null, pid integer not null, started text not null, capacity integer not null,
  value text not null, token integer not null, ttl_s real not null, expires_at real not null, boot text not null);
create table held(name text not null, lease text not null references lease(id) on delete cascade,
  primary key (name, lease)) without rowid;
create index held_by_lease on held(lease);
create table waiter(
  place integer primary key autoincrement, secret text not null unique, agent text not null, pid integer not null,
  started text not null, capacity integer not null, asked_at real not null, boot text not null);
create table wanted(name text not null, place integer not null references waiter(place) on delete cascade,
  primary key (name, place)) without rowid;
create index wanted_by_place on wanted(place);
"""


class LeaseFile:
    """One SQLite file and this process's connection to it. For any thread; close it before a fork."""

    def __init__(self, path: Path, *, pause: Callable[[float], object] = _sleep) -> None:
        """It is made at the first use; only its owner may read it. `pause(seconds)` is called while another writes."""
        self.path = path
        self._pause = pause
        self._lock = Lock()
        self._database: sqlite3.Connection | None = None
        self._opened: tuple[int, int] = (0, 0)
        """What the connection has open, by device and number."""

    @contextmanager
    def using(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread. What goes wrong with the file is a LeaseError that names it."""
        with self._lock:
            try:
                yield self._connection()
            except (sqlite3.Error, OSError) as error:
                self._close()
                raise LeaseError(self._trouble(error)) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The same in one transaction, alone among all processes."""
        with self.using() as database, self.in_turn(database):
            yield database

    def in_turn(self, database: sqlite3.Connection) -> AbstractContextManager[None]:
        """All of it or nothing; nobody else writes meanwhile, and all that wait for it have the same chance."""
        return transaction(database, lambda one: self._insist(one, "begin immediate"))

    def close(self) -> None:
        """Let go of the file; it is opened again at the next use."""
        with self._lock:
            self._close()

    def _connection(self) -> sqlite3.Connection:
        if self._database is not None:
            with suppress(OSError):
                found = self.path.stat()
                if (found.st_dev, found.st_ino) == self._opened:
                    return self._database
            self._close()  # the file was removed: its leases bind nobody any more
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._is_missing():
            self._make()
        database = open_private(self.path, patience_s=_BUSY_S)  # threads take turns by our lock
        try:
            found = self.path.stat()
            self._prepare(database)
        except BaseException:
            database.close()
            raise
        self._database, self._opened = database, (found.st_dev, found.st_ino)
        return database

    def _is_missing(self) -> bool:
        try:
            return not self.path.stat().st_size
        except FileNotFoundError:
            return True

    def _make(self) -> None:
        """Make the file, alone among all processes. Raises LeaseError, sqlite3.Error, OSError."""
        lock = take_lock(self.path.with_name(f"{self.path.name}.lock"), wait_s=_BUSY_S)
        if lock is None:
            raise LeaseError(f"{self.path} was being made for {_BUSY_S:.0f} s by another process")
        try:
            if self._is_missing():
                # Of a file that was removed while others had it open: they do not fit the new one.
                for side in ("-wal", "-shm"):
                    self.path.with_name(f"{self.path.name}{side}").unlink(missing_ok=True)
                with closing(open_private(self.path, patience_s=_BUSY_S)) as database:
                    self._prepare(database)
        finally:
            os.close(lock)

    def _prepare(self, database: sqlite3.Connection) -> None:
        """Raises LeaseError, sqlite3.Error."""
        database.execute("pragma foreign_keys = on")
        self._insist(database, "pragma journal_mode = wal")
        # A token that was given must not be given again after a loss of power.
        database.execute("pragma synchronous = full")
        if _version(database) == VERSION:
            return
        with self.in_turn(database):
            version = _version(database)
            if version > VERSION:
                raise LeaseError(
                    f"{self.path} is of a newer hivemind (version {version}, not {VERSION}); update this one"
                )
            if version < VERSION:
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute(f"pragma user_version = {VERSION}")

    def _insist(self, database: sqlite3.Connection, statement: str) -> None:
        """Say it again while another process is in the way. Raises sqlite3.Error."""
        # SQLite looks ever more seldom the longer it has waited, so that in a crowd those who came last are served
        # first and some never; and it does not wait at all where two would wait for each other, as those do who find
        # a new file at once. We look at one pace.
        database.execute("pragma busy_timeout = 0")
        try:
            left_s = _BUSY_S
            while True:
                try:
                    database.execute(statement)
                except sqlite3.OperationalError as error:
                    if primary_code(error) != sqlite3.SQLITE_BUSY or left_s <= 0:
                        raise
                else:
                    return
                self._pause(_PACE_S)
                left_s -= _PACE_S
        finally:
            database.execute(f"pragma busy_timeout = {round(_BUSY_S * 1000)}")

    def _close(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None

    def _trouble(self, error: sqlite3.Error | OSError) -> str:
        if isinstance(error, OSError):
            return f"{error.filename or self.path}: {error.strerror or error}"
        if "locked" in str(error):
            return f"{self.path} was locked for {_BUSY_S:.0f} s by another process"
        if isinstance(error, sqlite3.OperationalError):
            return f"{self.path}: {error}"
        return f"{self.path} cannot be used ({error}); remove it, and all leases are free"


@contextmanager
def reading(database: sqlite3.Connection) -> Iterator[None]:
    """All of it as it is at one instant; nobody is kept from writing."""
    database.execute("begin")
    try:
        yield
    finally:
        database.execute("commit")


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("pragma user_version").fetchone()[0])
