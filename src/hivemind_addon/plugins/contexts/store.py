"""Conversations in one file: every version of what was sent, compressed against the version before it.

The APIs that agents use are stateless: a request carries the whole conversation. Kept requests are the versions of a
*context*, counted from 1. The agent and the session name the owner of a context, and the thread names the
conversation: a session may have several, such as those of a script's workers that share a name.

    contexts/contexts.db     SQLite; only the owner may read the file and the folder

Several processes may share the file. Each change is one short transaction, so a process that dies loses nothing that
was there.
"""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
import zstandard
from msgspec import Raw

from hivemind_addon.formats.base.patterns import glob_matches
from hivemind_addon.plugins.contexts.bodies import compress, decompress
from hivemind_addon.plugins.contexts.garbage import Garbage, remove, thin
from hivemind_addon.plugins.contexts.schema import KIND
from hivemind_addon.plugins.contexts.search import hits
from hivemind_addon.plugins.contexts.values import Context, ContextHead, KeepRule, NotKept, TakenResult, UnknownContext
from hivemind_addon.plugins.contexts.versions import HEAD, newest_head, read_version, write_version
from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.system.database import (
    give_back,
    is_damage,
    move_aside,
    open_kind,
    open_to_read,
    primary_code,
    transaction,
)
from hivemind_addon.proxy.system.file_lock import take_lock
from hivemind_addon.proxy.system.folders import make_private

__all__ = ["Context", "ContextHead", "ContextStore", "KeepRule", "NotKept", "TakenResult", "UnknownContext"]

FOLDER_NAME = "contexts"
FILE_NAME = "contexts.db"
BUSY_S = 2.0
"""How long somebody else's transaction is waited for."""
_OPENING_S = 5.0
_PAGES_PER_STEP = 2_000
"""Free pages that a step gives back to the disk."""
_KEEPS_FILE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
"""Errors that do not speak against the open file; after any other error the file is opened anew."""


class ContextStore:
    """The contexts of a folder.

    Only one thread may `keep`, `trim` and `remove`; any thread may read. The methods block: call them off the event
    loop. A refusal of the disk or of another process is an OSError.
    """

    def __init__(
        self, folder: Path, *, retention: KeepRule | None = None, told: Callable[[str], None] = lambda _: None
    ) -> None:
        """The folder is made when something is kept. The callback gets a line when a damaged file was set aside."""
        self.folder = folder
        self.path = folder / FILE_NAME
        self._rule = retention or KeepRule()
        self._garbage = Garbage(self._rule)
        self._told = told
        self._connection: sqlite3.Connection | None = None
        self._identity: os.stat_result | None = None
        """Of the open file."""

    # Writing ---------------------------------------------------------------------------------------------------------

    def keep(self, context: Context, *, durable: bool = False) -> ContextHead:
        """Write a new version of a context; answers under which head it is kept.

        A newest version of the same request stays, and gets the answer if it had none; a newest version of a later
        request stays as it is. `durable`: the version even survives a machine that fails. Raises OSError,
        FolderNotPrivate and FileUnusable.
        """
        (head,) = self.keep_all([context], durable=durable)
        return head

    def keep_all(self, contexts: Sequence[Context], *, durable: bool = False) -> list[ContextHead]:
        """The same for several, in one transaction: all of them or none."""
        if not contexts:
            return []
        return self._written(contexts[0].head.kept_wall, lambda: self._keep(contexts, durable=durable))

    def keep_results(self, results: Sequence[TakenResult]) -> None:
        """Write results that were taken out of a request; results that are there already count as new again.

        Raises OSError, FolderNotPrivate and FileUnusable.
        """
        rows = [
            (one.id, one.kept_wall, one.agent, one.session, one.call_id, len(one.value), compress(bytes(one.value)))
            for one in results
        ]
        if rows:
            self._written(results[0].kept_wall, lambda: self._keep_rows(rows))

    def trim(self, now_wall: float) -> bool:
        """Delete a little that is too old or too much; False: there is nothing more to delete now.

        Raises OSError, FolderNotPrivate and FileUnusable.
        """
        with self._troubles():
            connection = self._opened()
            with transaction(connection):
                is_busy = self._garbage.delete_slice(connection, now_wall)
            return is_busy or give_back(connection, _PAGES_PER_STEP)

    def remove(self, context_id: str) -> ContextHead:
        """Remove a context with all its versions; answers the newest head. `trim` gives the room back.

        By an id, or an id's unambiguous beginning. Raises UnknownContext, OSError, FolderNotPrivate and FileUnusable.
        """
        with self._reading() as reading:
            found = _found(reading, context_id, self.folder)
            head = newest_head(reading, found)
        with self._troubles():
            connection = self._opened()
            with transaction(connection):
                remove(connection, found)
        return head

    def close(self) -> None:
        """Let go of the file; later calls open the file again."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    # Reading ---------------------------------------------------------------------------------------------------------

    def heads(self) -> list[ContextHead]:
        """The newest version's of each context, the newest first. Raises OSError."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT version.head FROM context JOIN version ON version.context = context.id"
                " AND version.number = context.newest"
            ).fetchall()
        heads = [HEAD(head) for (head,) in rows]
        return sorted(heads, key=lambda head: (head.kept_wall, head.id), reverse=True)

    def versions(self, context_id: str) -> list[ContextHead]:
        """The versions that are kept, the first version first. Raises UnknownContext and OSError."""
        with self._reading() as connection:
            found = _found(connection, context_id, self.folder)
            rows = connection.execute("SELECT head FROM version WHERE context = ? ORDER BY number", (found,))
            return [HEAD(head) for (head,) in rows]

    def read(self, context_id: str, version: int | None = None) -> Context:
        """By an id, or the beginning of only one; the newest version, or that one. Raises UnknownContext, OSError."""
        with self._reading() as connection:
            return read_version(connection, _found(connection, context_id, self.folder), version, context_id)

    def answered_as(self, answer_id: str) -> Context | None:
        """The version whose answer the provider calls so; None: none that is kept. Raises OSError."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT context, number FROM version WHERE answer_id = ? AND answer_id != '' ORDER BY kept DESC",
                (answer_id,),
            ).fetchone()
            return None if row is None else read_version(connection, row[0], row[1], answer_id)

    def search(self, text: str, agent: str = "*") -> Iterator[tuple[ContextHead, int, str]]:
        """Where a text was said, in whatever case: head, the message's index, and some words around it.

        The newest contexts first, each message once, with the newest version that has the message. An answer that is
        in no request yet has the index behind the last message. `agent`: a glob. Raises OSError.
        """
        with self._reading() as connection:
            contexts = connection.execute("SELECT id, agent, newest FROM context ORDER BY kept DESC").fetchall()
            for context, whose, newest in contexts:
                if glob_matches(agent, whose):
                    yield from hits(connection, context, newest, text)

    def result(self, result_id: str) -> TakenResult:
        """A result that was taken out, by an id, or an id's unambiguous beginning. Raises UnknownContext, OSError."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT id, kept, agent, session, call, data FROM taken_out WHERE substr(id, 1, ?) = ? ORDER BY id",
                (len(result_id), result_id),
            ).fetchmany(5)
            rows = [row for row in rows if row[0] == result_id] or rows
            if len(rows) > 1:
                raise UnknownContext(f"{result_id!r} may be {' or '.join(row[0] for row in rows)}; say more of it")
            if not rows:
                raise UnknownContext(f"nothing that was taken out is called {result_id!r} in {self.folder}")
            name, kept, agent, session, call, data = rows[0]
            return TakenResult(name, kept, agent, session, call, Raw(decompress(data)))

    # The file --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that cannot write; where there is no file, to an empty database."""
        try:
            if self.path.is_file():
                connection = open_to_read(self.path, patience_s=BUSY_S, though_unlogged=True)
            else:
                connection = sqlite3.connect(":memory:", isolation_level=None)
            with closing(connection):
                if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'context'").fetchone()[0]:
                    connection.close()
                    connection = sqlite3.connect(":memory:", isolation_level=None)
                    connection.executescript("".join(KIND.migrations))
                yield connection
        except sqlite3.Error as error:
            raise self._as_os_error(error) from error
        except (zstandard.ZstdError, msgspec.MsgspecError) as error:
            raise OSError(errno.EIO, f"{self.path} is damaged ({failing(error)})") from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and not self._is_there():
            self.close()
        if self._connection is None:
            make_private(self.folder, cure=KIND.cure)
            with self._alone():
                self._connection = open_kind(self.path, KIND, patience_s=BUSY_S)
                self._identity = self.path.stat()
        return self._connection

    def _is_there(self) -> bool:
        """Whether the path still names the open file."""
        try:
            return self._identity is not None and os.path.samestat(self.path.stat(), self._identity)
        except OSError:
            return False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else opens the file for the first time, or sets the file aside."""
        lock = take_lock(self.path.with_name(f"{FILE_NAME}.lock"), wait_s=_OPENING_S)
        if lock is None:
            raise OSError(errno.EBUSY, f"{self.path.name} is being opened by another process")
        try:
            yield
        finally:
            os.close(lock)

    def _set_aside(self, error: Exception, wall: float) -> None:
        was_open = self._identity
        self.close()
        with self._alone():
            if was_open is None or os.path.samestat(self.path.stat(), was_open):  # else another process has done it
                aside = move_aside(self.path, wall)
                self._told(f"{self.path} was damaged ({failing(error)}): it is {aside} now, and a new one begins")
        self._identity = None

    @contextmanager
    def _troubles(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if primary_code(error) not in _KEEPS_FILE:
                self.close()
            raise self._as_os_error(error) from error

    def _written[T](self, now_wall: float, write: Callable[[], T]) -> T:
        """The result of writing; where the file is damaged, into a new file. Raises OSError."""
        with self._troubles():
            try:
                return write()
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._set_aside(error, now_wall)
                return write()

    def _as_os_error(self, error: sqlite3.Error) -> OSError:
        if primary_code(error) == sqlite3.SQLITE_FULL:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if is_damage(error):
            return OSError(errno.EIO, f"{self.path} is damaged ({error}); the proxy sets it aside when it writes next")
        return OSError(errno.EIO, f"{self.path}: {error}")

    def _keep_rows(self, rows: Sequence[tuple[object, ...]]) -> None:
        connection = self._opened()
        with transaction(connection):
            connection.executemany(
                "INSERT INTO taken_out VALUES (?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET kept = excluded.kept",
                rows,
            )

    def _keep(self, contexts: Sequence[Context], *, durable: bool) -> list[ContextHead]:
        connection = self._opened()
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        with transaction(connection):
            heads = [write_version(connection, context) for context in contexts]
            for head in heads:
                thin(connection, head, self._rule.versions)
        return heads


def _found(connection: sqlite3.Connection, beginning: str, folder: Path) -> int:
    """The context of an id, or of an id's beginning. Raises UnknownContext."""
    rows = dict(connection.execute("SELECT name, id FROM context ORDER BY name").fetchall())
    found = [name for name in rows if name == beginning] or [name for name in rows if name.startswith(beginning)]
    if len(found) == 1 and beginning:
        return int(rows[found[0]])
    if len(found) > 1:
        raise UnknownContext(f"{beginning!r} may be {' or '.join(found[:5])}; say more of it")
    where = f"in {folder}; `hivemind context list` shows them"
    raise UnknownContext(f"no context {beginning!r} {where}" if rows else f"no contexts {where}")
