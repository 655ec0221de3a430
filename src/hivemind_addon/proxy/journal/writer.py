"""Writes the journal, in the thread that it belongs to: opens the file, and again when something befell it.

full, locked, read-only, gone   told once; everything waits, and is written when that is over
damaged                         moved aside; a new one begins with what has not ended and what is inherited
another proxy's                 told once; tried again now and then, and what that one has spent is counted in
newer, no journal               told once; nothing is written until the option names another file
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from hivemind_addon import __version__
from hivemind_addon.kernel.values.spend import AccountState, Budget, Period, Scope, Spend
from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.journal import runs
from hivemind_addon.proxy.journal.file import BUSY_S, JournalFile, JournalTakenError
from hivemind_addon.proxy.journal.retention import JournalKeep, Trimmer
from hivemind_addon.proxy.journal.rows import Rows
from hivemind_addon.proxy.journal.runs import Inherited
from hivemind_addon.proxy.journal.spent_before import spent_before
from hivemind_addon.proxy.journal.tables import statements
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.proxy.system.database import FileUnusable, is_damage, open_to_read

logger = logging.getLogger("hivemind")

SEEN_S = 60.0
"""A run that writes nothing else says this often that it is alive."""
TAKEN_S = 30.0
"""How often it is looked whether another proxy has ended that writes the file."""
_KEEPS_FILE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
"""What does not speak against the open file; after anything else it is opened anew."""


class Writer:
    """One thread's. `ready`, then `rows.take` and `write`; `close` at the end."""

    def __init__(
        self,
        *,
        clock: Clock,
        warn: Callable[[str], None],
        unsaved: Callable[[str], None],
        inherited: Callable[[Inherited | None], None],
        port: int = 0,
        fresh: bool = False,
    ) -> None:
        """`port`: whose orders and budgets per run are taken over, `fresh`: or nobody's. `warn` hears lines for people.

        `unsaved`: why nothing can be written, then an empty text when it can; `inherited`: once what earlier runs have
        left, None as long as that is not known.
        """
        self.rows = Rows(port)
        self.failure = ""
        """Why nothing can be written now; it may get better."""
        self.refused: Path | None = None
        """A path that is not tried again, or not soon."""
        self._again_at: float | None = None
        """When it is; None: never."""
        self.holder = f"process {os.getpid()}"
        """What another proxy is told about us."""
        self._clock = clock
        self._warn = warn
        self._unsaved = unsaved
        self._inherited = inherited
        self._port = port
        self._fresh = fresh
        self._has_inherited = False
        self._file: JournalFile | None = None
        self._asked: Path | None = None
        """What the open file was called when it was opened."""
        self._run: tuple[int, float] | None = None
        """Its id and beginning."""
        self._kept: dict[str, str] = {}
        """What the file has of it."""
        self._seen_at = -SEEN_S
        self._listens = False
        self._trimmer = Trimmer()
        self._has_skipped = False

    def ready(self, path: Path) -> bool:
        """Have the file open. False: it cannot be, now (`failure`) or at all (`refused`)."""
        if self._file is not None:
            if self._asked != path:
                self.close("the journal is another file now")
            elif not self._file.is_there():
                self._warn(f"the journal {path} was taken away; a new one begins")
                self._leave()
            else:
                return True
        if self.refused != path:
            self.refused = None
        elif self._again_at is None or self._clock.monotonic() < self._again_at:
            return False
        return self._open(path)

    @property
    def rest_s(self) -> float:
        """How long nothing need be done where nothing happens."""
        return SEEN_S if self.refused is None else TAKEN_S

    @property
    def waits_for_another(self) -> bool:
        """Whether the path that was refused is another proxy's, and may be ours when that one has ended."""
        return self.refused is not None and self._again_at is not None

    def write(self, kept: Mapping[str, str]) -> bool:
        """Everything that has changed; `kept`: what the scheduler exports, by name. False: it is to be tried again."""
        assert self._file is not None, "ready first"
        assert self._run is not None, "a run began as it was opened"
        wall, now = self._clock.wall(), self._clock.monotonic()
        changed = {name: value for name, value in kept.items() if self._kept.get(name) != value}
        if not (changed or len(self.rows) or now - self._seen_at >= SEEN_S):
            return True
        others = [
            runs.seen(self._run[0], wall, listens=self._listens),
            *(runs.keep(name, value, wall) for name, value in changed.items()),
        ]
        try:
            self._file.write([*self.rows.batches(), *others])
        except (sqlite3.Error, OverflowError, ValueError) as error:
            if not _is_a_rows(error):
                return self._failed(error)
            try:
                self._write_each()
                self._file.write(others)
            except sqlite3.Error as second:
                return self._failed(second)
        self.rows.written()
        self._kept.update(changed)
        self._seen_at = now
        self._well()
        return True

    def spent_before(self) -> list[AccountState]:
        """What holders of new accounts had spent in their periods before; to be called when all of it is written."""
        assert self._file is not None, "ready first"
        opened, self.rows.opened = self.rows.opened, []
        wall, standings = self._clock.wall(), []
        for row, since in opened:
            budget = Budget(Scope(row.scope), row.name, Period(row.per))
            try:
                before = spent_before(self._file.connection, budget, since=since, until=row.began, port=row.port)
            except sqlite3.Error as error:
                self._warn(f"what {budget.holder} has spent before is not known: {failing(error)}")
                continue
            if before is not None and before.spent != Spend():
                standings.append(AccountState(budget, max(0.0, wall - before.began), before.spent, Spend()))
        return standings

    def trim(self, keep: JournalKeep) -> bool:
        """Delete a little of what is too old or too much. False: there is no more to delete now."""
        assert self._file is not None, "ready first"
        try:
            return self._trimmer.step(self._file.connection, keep, self._clock.wall())
        except sqlite3.Error as error:
            return self._failed(error)

    def listens(self, text: str) -> None:
        """The proxy does from now on; `text`: what another one is told about us."""
        self.holder = text
        self._listens = True
        self._seen_at = -SEEN_S  # to be written with the next word
        if self._file is not None:
            self._file.name_holder(text)

    def close(self, why: str = "its proxy ended") -> None:
        """The run is over, and what has not ended with it."""
        if self._file is not None and self._run is not None:
            with suppress(sqlite3.Error):
                self._file.write(runs.end(self._run[0], self._clock.wall(), why))
        self._run = None
        self._leave()

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # Opening ---------------------------------------------------------------------------------------------------------

    def _open(self, path: Path) -> bool:
        was_taken = self.refused == path
        try:
            self._begin(path, is_late=was_taken)
        except FileUnusable as error:
            is_taken = isinstance(error, JournalTakenError)
            self.failure = ""
            if not (was_taken and is_taken):
                self._warn(str(error))
                self._inherit(None)
            self.refused = path
            self._again_at = self._clock.monotonic() + TAKEN_S if is_taken else None
            return False
        except (OSError, sqlite3.Error) as error:
            self._leave()
            if not self._has_inherited:
                self._inherit(self._read_only(path))
            return self._failed(error)
        self.refused = None
        if was_taken:
            self._warn(f"the other proxy has ended: the journal {path} is this one's from now on")
        return True

    def _begin(self, path: Path, *, is_late: bool) -> None:
        """Open it and begin a run in it, or go on with ours. `is_late`: another proxy has written it until now."""
        wall = self._clock.wall()
        self._file = file = JournalFile(path, wall=wall, told=self._warn)
        self._asked = path
        file.name_holder(self.holder)
        inherited = runs.inherit(file.connection, wall, port=self._port, fresh=self._fresh)
        try:
            self._run_in(file, inherited, wall)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self._file = None
            self._warn(file.leave_damaged(error, wall))
            self._file = file = JournalFile(path, wall=wall, told=self._warn)
            file.name_holder(self.holder)
            self._run_in(file, inherited, wall)
        self._kept.clear()
        # Orders were given to the other proxy; to obey its pause in the middle of a run would surprise everybody.
        self._inherit(replace(inherited, kept={}) if is_late else inherited)

    def _run_in(self, file: JournalFile, inherited: Inherited, wall: float) -> None:
        if self._run is not None and runs.has(file.connection, *self._run):
            return
        run = runs.begin(
            file.connection,
            pid=os.getpid(),
            version=__version__,
            wall=wall,
            goes_on=inherited.run_goes_on,
            port=self._port,
        )
        if self._fresh:
            file.write(runs.forget_orders(self._port))
        self._run = run, wall
        self.rows.begin(run, inherited.budgets)

    def _read_only(self, path: Path) -> Inherited | None:
        """What earlier runs have left in a file that cannot be written: a restart forgives nothing."""
        if not path.is_file():
            return None
        try:
            with closing(open_to_read(path, patience_s=BUSY_S, though_unlogged=True)) as connection:
                return runs.inherit(connection, self._clock.wall(), port=self._port, fresh=self._fresh)
        except (OSError, sqlite3.Error):
            return None

    def _inherit(self, inherited: Inherited | None) -> None:
        if not self._has_inherited:
            self._has_inherited = inherited is not None
            self._inherited(inherited)

    # Failures --------------------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> bool:
        """Always False."""
        if is_damage(error) and self._file is not None:
            return self._damaged(error)
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _KEEPS_FILE:
            self._leave()
        if not self.failure:
            self._unsaved(failing(error))
        self.failure = failing(error)
        return False

    def _damaged(self, error: Exception) -> bool:
        file, self._file = self._file, None
        assert file is not None, "an open file is damaged"
        with suppress(sqlite3.Error):
            self.rows.begin(0, runs.inherit(file.connection, self._clock.wall(), port=self._port).budgets)
        self._run = None
        try:
            self._warn(file.leave_damaged(error, self._clock.wall()))
        except OSError as second:
            return self._failed(second)
        return False

    def _well(self) -> None:
        if self.failure:
            self.failure = ""
            self._unsaved("")

    def _write_each(self) -> None:
        """One row of many is none that SQLite takes: it is left out. A defect of ours, told once."""
        assert self._file is not None, "ready first"
        for row in self.rows.each():
            try:
                self._file.write(statements([row]))
            except (sqlite3.Error, OverflowError, ValueError) as error:
                if not _is_a_rows(error):
                    raise
                if not self._has_skipped:
                    self._has_skipped = True
                    logger.exception("hivemind: the journal cannot take %r", row)


def _is_a_rows(error: Exception) -> bool:
    """Whether a row is to blame, not the file."""
    return not isinstance(error, sqlite3.Error) or isinstance(
        error, (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError)
    )
