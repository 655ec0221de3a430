"""What goes again, a little at a time, so that nobody waits long for the file.

Each function works on an open connection, inside of a transaction.
"""

import sqlite3
from collections.abc import Sequence

from hivemind_addon.plugins.contexts.values import ContextHead, KeepRule
from hivemind_addon.proxy.system.database import used_bytes

ROWS_PER_STEP = 500
_ROOM = 0.95
"""A file that is too large is brought below this share of its bound."""


class Garbage:
    """What of a file is to be deleted by a rule."""

    def __init__(self, rule: KeepRule) -> None:
        self._rule = rule
        self._is_shrinking = False
        """The file was too large, and is not yet small enough."""

    def delete_slice(self, connection: sqlite3.Connection, now_wall: float) -> bool:
        """A little of what was removed, else remove something. False: there is nothing to delete."""
        used, too_old = used_bytes(connection), now_wall - self._rule.age_s
        self._is_shrinking = used > self._rule.size_bytes * (_ROOM if self._is_shrinking else 1)
        gone = connection.execute("SELECT id FROM context WHERE name = '' LIMIT 1").fetchone()
        if gone is not None:
            _delete_some(connection, gone[0])
            return True
        if _delete_results(connection, too_old):
            return True
        old = self._old_context(connection, too_old)
        if old is not None:
            remove(connection, old)
            return True
        version = self._old_version(connection, too_old)
        if version is not None:
            delete_version(connection, *version)
            return True
        return self._is_shrinking and _delete_results(connection, now_wall)

    def _old_context(self, connection: sqlite3.Connection, too_old: float) -> int | None:
        """One that is too old, or one too many; never the one that was written last, whatever a clock says."""
        row = connection.execute(
            "SELECT id FROM context WHERE name != '' AND kept < ? AND written < (SELECT max(written) FROM context)"
            " LIMIT 1",
            (too_old,),
        ).fetchone()
        if row is None and self._is_shrinking:
            row = connection.execute(
                "SELECT id FROM context WHERE name != '' AND written < (SELECT max(written) FROM context)"
                " ORDER BY written LIMIT 1"
            ).fetchone()
        return None if row is None else row[0]

    def _old_version(self, connection: sqlite3.Connection, too_old: float) -> tuple[int, int] | None:
        """One that is too old, or too much of the one context that is left; never the newest."""
        older = (
            "SELECT context, number FROM version JOIN context ON context.id = context"
            " WHERE version.kept < ? AND number < newest ORDER BY version.kept LIMIT 1"
        )
        row = connection.execute(older, (too_old,)).fetchone()
        if row is None and self._is_shrinking:
            row = connection.execute(older, (float("inf"),)).fetchone()
        return None if row is None else (row[0], row[1])


def remove(connection: sqlite3.Connection, row_id: int) -> None:
    """Nobody sees it any more; what it had is deleted in slices."""
    connection.execute("DELETE FROM version WHERE context = ?", (row_id,))
    connection.execute("UPDATE context SET name = '' WHERE id = ?", (row_id,))


def thin(connection: sqlite3.Connection, newest: ContextHead, most: int) -> None:
    """One more version of a context may be one too many: the first and the newest stay."""
    if newest.version <= most:
        return
    rows = connection.execute(
        "SELECT context, number FROM version JOIN context ON context.id = context"
        " WHERE name = ? AND name != '' ORDER BY number",
        (newest.id,),
    ).fetchall()
    if len(rows) > max(2, most):
        delete_version(connection, *rows[1])


def delete_version(connection: sqlite3.Connection, row_id: int, number: int) -> None:
    """And what only it had. It is not the newest one."""
    connection.execute("DELETE FROM version WHERE context = ? AND number = ?", (row_id, number))
    unused = connection.execute(
        "SELECT place, since, piece FROM use WHERE context = ? AND until IS NOT NULL AND NOT EXISTS (SELECT 1 FROM"
        " version WHERE version.context = use.context AND number BETWEEN since AND until)",
        (row_id,),
    ).fetchall()
    _delete_uses(connection, row_id, unused)


def _delete_some(connection: sqlite3.Connection, row_id: int) -> None:
    """Of a context that was removed."""
    rows = connection.execute(
        "SELECT place, since, piece, count FROM use WHERE context = ? LIMIT ?", (row_id, ROWS_PER_STEP)
    )
    some, pieces = [], 0
    for place, since, piece, count in rows.fetchall():
        if pieces >= ROWS_PER_STEP:
            break
        some.append((place, since, piece))
        pieces += count
    _delete_uses(connection, row_id, some)
    if pieces < ROWS_PER_STEP:
        connection.execute("DELETE FROM context WHERE id = ?", (row_id,))


def _delete_uses(connection: sqlite3.Connection, row_id: int, rows: Sequence[tuple[int, int, int]]) -> None:
    """And the pieces that nothing uses any more."""
    connection.executemany(
        "DELETE FROM use WHERE context = ? AND place = ? AND since = ?",
        [(row_id, place, since) for place, since, _ in rows],
    )
    for piece in {piece for _, _, piece in rows}:
        _delete_pack(connection, piece)


def _delete_pack(connection: sqlite3.Connection, piece: int) -> None:
    """The pack of a piece, or a piece that has none, unless anything uses any of it."""
    row = connection.execute(
        "SELECT piece.id, pack.id, pack.pieces FROM piece LEFT JOIN pack ON pack.id = pack WHERE piece.id = ?", (piece,)
    ).fetchone()
    if row is None:
        return  # with another run of the same pack
    alone, pack, pieces = row
    first, last = (alone, alone) if pack is None else (pack, pack + pieces - 1)
    if connection.execute("SELECT 1 FROM use WHERE piece BETWEEN ? AND ? LIMIT 1", (first, last)).fetchone():
        return
    connection.execute("DELETE FROM piece WHERE id BETWEEN ? AND ?", (first, last))
    connection.execute("DELETE FROM pack WHERE id = ?", (first,))


def _delete_results(connection: sqlite3.Connection, before: float) -> bool:
    """Some of the oldest that were taken out."""
    return bool(
        connection.execute(
            "DELETE FROM taken_out WHERE id IN (SELECT id FROM taken_out WHERE kept < ? ORDER BY kept LIMIT ?)",
            (before, ROWS_PER_STEP),
        ).rowcount
    )
