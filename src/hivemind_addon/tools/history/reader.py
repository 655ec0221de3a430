"""Reads a journal: while a proxy writes, after the proxy has died, and as a copy elsewhere. The file stays unchanged.

Everything that a reader reads is of a single instant, the first query's; the proxy goes on writing meanwhile.
"""

# ruff: noqa: S608 - names and conditions are of our own, and every value is bound

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from hivemind_addon.proxy.api.command import OptionView, ShowConfig
from hivemind_addon.proxy.api.control import CommandUnanswered, control_socket, send_command
from hivemind_addon.proxy.journal.file import default_journal
from hivemind_addon.proxy.journal.schema import APPLICATION_ID, VERSION
from hivemind_addon.proxy.system.database import DAMAGED, MAGIC, open_to_read, primary_code
from hivemind_addon.proxy.system.file_lock import is_free
from hivemind_addon.tools.history.views import views

_PATIENCE_S = 5.0
"""The longest wait for a file that the proxy is recovering or closing."""
_DAMAGED = DAMAGED | {sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR}
"""Primary result codes; an error in our own SQL means that a table is missing."""
_OPTION = "hivemind_journal"
_NO_FILE = ("", "off")
_PROXY_PATIENCE_S = 2.0
Value = str | int | float | None


class NoJournal(Exception):
    """A journal cannot be read; the text is a line with the file and the cure."""


def journal_of(port: int) -> Path:
    """The journal of the proxy on a port; the usual file if no proxy answers or the proxy keeps no journal.

    Raises FolderNotPrivate, OSError.
    """
    try:
        said = send_command(control_socket(port), ShowConfig(), timeout_s=_PROXY_PATIENCE_S)
    except CommandUnanswered:
        return default_journal()
    options = msgspec.convert(said.value or (), tuple[OptionView, ...])
    chosen = next((str(one.value) for one in options if one.name == _OPTION), "")
    return default_journal() if chosen in _NO_FILE else Path(chosen).expanduser()


class JournalReader:
    """A connection that only reads; ends with `close`."""

    def __init__(self, path: Path) -> None:
        """Raises NoJournal."""
        self.path = path
        self.is_orphaned = is_free(path.with_name(f"{path.name}.lock"))
        """Whether the proxy has gone. Unknown for a copy: then the proxy counts as there."""
        self._connection = _connect(path)
        try:
            self._check()
            self.live_run = self._newest_run()
            """The run that may go on; 0: none does."""
            for view in views(self.live_run):
                self._connection.execute(view)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<JournalReader {self.path}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Read no more."""
        with suppress(sqlite3.Error):
            self._connection.close()

    def tuples(self, sql: str, values: Sequence[Value] = ()) -> list[tuple[Value, ...]]:
        """The rows of a query. Raises NoJournal."""
        with self._readable(), closing(self._connection.execute(sql, _bound(values))) as cursor:
            return [tuple(row) for row in cursor]

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[dict[str, Value]]:
        """The rows of a query, as column → value. Raises NoJournal."""
        with self._readable(), closing(self._connection.execute(sql, _bound(values))) as cursor:
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def records[R: Struct](self, kind: type[R], table: str, rest: str = "", values: Sequence[Value] = ()) -> list[R]:
        """The rows of a table or view as values; `rest` follows FROM. Raises NoJournal."""
        columns = ", ".join(f'{table}."{name}"' for name in kind.__struct_fields__)
        return self.answers(kind, f"SELECT {columns} FROM {table} {rest}", values)

    def answers[R: Struct](self, kind: type[R], sql: str, values: Sequence[Value] = ()) -> list[R]:
        """The rows of a query as values; the columns are the fields, in any order. Raises NoJournal."""
        with self._readable():
            return [msgspec.convert(row, kind, strict=False) for row in self.rows(sql, values)]

    def _check(self) -> None:
        """Raise NoJournal unless the file is a journal of this version."""
        with self._readable():
            self._connection.execute("BEGIN")
        application, version = (self.tuples(f"PRAGMA {name}")[0][0] for name in ("application_id", "user_version"))
        if version == 0 and self.tuples("SELECT count(*) FROM sqlite_schema") == [(0,)]:
            raise _empty(self.path)  # a proxy is just making it, or has died of it
        if application != APPLICATION_ID:
            raise NoJournal(f"{self.path} is no journal of hivemind")
        if not isinstance(version, int) or version > VERSION:
            raise NoJournal(f"{self.path} was written by a newer hivemind (journal version {version}): update this one")
        if version < VERSION:
            raise NoJournal(
                f"{self.path} was written by an older hivemind (journal version {version}): "
                "the next proxy that starts brings it up to date"
            )

    def _newest_run(self) -> int:
        ((newest,),) = self.tuples("SELECT max(id) FROM run")
        return newest if isinstance(newest, int) and not self.is_orphaned else 0

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _unreadable(self.path, error) from error
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            raise NoJournal(f"{self.path} is damaged ({error}); a proxy that starts moves it aside") from error


def _bound(values: Sequence[Value]) -> list[Value]:
    """Values as the journal has them: bytes of a command line that are no text became question marks."""
    return [value.encode(errors="replace").decode() if isinstance(value, str) else value for value in values]


def _connect(path: Path) -> sqlite3.Connection:
    _look_at(path)
    try:
        return open_to_read(path, patience_s=_PATIENCE_S)
    except sqlite3.Error as error:
        raise _unreadable(path, error) from error


def _look_at(path: Path) -> None:
    """Raise NoJournal with a plain text for problems that SQLite words poorly."""
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    except FileNotFoundError as error:
        raise NoJournal(
            f"there is no journal at {path} yet: `hivemind run` begins one; another file is named with --journal"
        ) from error
    except OSError as error:
        raise NoJournal(f"{path}: {error.strerror}") from error
    if not head:
        raise _empty(path)
    if head != MAGIC:
        raise NoJournal(f"{path} is no journal of hivemind")


def _empty(path: Path) -> NoJournal:
    return NoJournal(f"{path} is empty: nothing has been written yet")


def _unreadable(path: Path, error: sqlite3.Error) -> NoJournal:
    if (primary_code(error) or sqlite3.SQLITE_ERROR) in _DAMAGED:
        return NoJournal(f"{path} is damaged ({error}); a proxy that starts moves it aside and begins a new one")
    return NoJournal(f"{path} cannot be read: {error}")
