"""Old and surplus contexts are deleted, a little at a time, so that nobody waits long for the file.

Each function works on an open connection, inside of a transaction.
"""

import math
import sqlite3

from hivemind_addon.plugins.contexts import bodies
from hivemind_addon.plugins.contexts.values import ContextHead, KeepRule
from hivemind_addon.proxy.system.database import used_bytes

_RESULTS_PER_STEP = 500
_ROOM = 0.95
"""A file that is too large is brought below this share of the bound."""


class Garbage:
    """Deletes from a file by a rule."""

    def __init__(self, rule: KeepRule) -> None:
        self._rule = rule
        self._is_shrinking = False
        """The file was too large, and is not yet small enough."""

    def delete_slice(self, connection: sqlite3.Connection, now_wall: float) -> bool:
        """Delete a little that is too old, or too much. False: there is nothing to delete."""
        used, too_old = used_bytes(connection), now_wall - self._rule.age_s
        self._is_shrinking = used > self._rule.size_bytes * (_ROOM if self._is_shrinking else 1)
        return (
            _delete_results(connection, too_old)
            or self._delete_context(connection, too_old)
            or _delete_version(connection, math.inf if self._is_shrinking else too_old)
            or (self._is_shrinking and _delete_results(connection, now_wall))
        )

    def _delete_context(self, connection: sqlite3.Connection, too_old: float) -> bool:
        """Delete a context that is too old, or too many; never the context written last, whatever a clock says."""
        row = connection.execute(
            "SELECT id FROM context WHERE (kept < :too_old OR :any) AND written < (SELECT max(written) FROM context)"
            " ORDER BY kept >= :too_old, written LIMIT 1",
            {"too_old": too_old, "any": self._is_shrinking},
        ).fetchone()
        if row is not None:
            remove(connection, row[0])
        return row is not None


def remove(connection: sqlite3.Connection, row_id: int) -> None:
    """Delete a context with all versions."""
    for column, table in (("context", "body"), ("context", "version"), ("id", "context")):
        connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (row_id,))  # noqa: S608 - names of ours


def thin(connection: sqlite3.Connection, newest: ContextHead, most: int) -> None:
    """Delete a version of a context that has too many: the first and the newest stay."""
    if newest.version <= most:
        return
    rows = connection.execute(
        "SELECT context, number FROM version JOIN context ON context.id = context WHERE name = ? ORDER BY number",
        (newest.id,),
    ).fetchall()
    if len(rows) > max(2, most):
        _delete(connection, *rows[1])


def _delete_version(connection: sqlite3.Connection, before: float) -> bool:
    """Delete the oldest version that is older; never a context's newest."""
    row = connection.execute(
        "SELECT context, number FROM version JOIN context ON context.id = context"
        " WHERE version.kept < ? AND number < newest ORDER BY version.kept LIMIT 1",
        (before,),
    ).fetchone()
    if row is not None:
        _delete(connection, *row)
    return row is not None


def _delete(connection: sqlite3.Connection, row_id: int, number: int) -> None:
    connection.execute("DELETE FROM version WHERE context = ? AND number = ?", (row_id, number))
    bodies.delete_unneeded(connection, row_id)


def _delete_results(connection: sqlite3.Connection, before: float) -> bool:
    """Some of the oldest that were taken out."""
    return bool(
        connection.execute(
            "DELETE FROM taken_out WHERE id IN (SELECT id FROM taken_out WHERE kept < ? ORDER BY kept LIMIT ?)",
            (before, _RESULTS_PER_STEP),
        ).rowcount
    )
