"""How much of the past a journal keeps: so many days and so many bytes, the oldest tickets go first, in small steps."""

import re
import sqlite3
from dataclasses import dataclass

from hivemind_addon.proxy.system.database import give_back, transaction, used_bytes

MOST_PER_STEP = 500
"""Tickets, or other rows, that one step deletes."""
_PAGES_PER_STEP = 2_000
"""Free pages that one step gives back to the disk."""
_ROOM = 0.95
"""A journal that is too large is brought below this share of its bound."""
_DAY_S = 86_400.0
_PART = re.compile(r"(\d+)\s*(days?|[MG]B)", re.IGNORECASE)
_FACTORS = {"mb": 1_000_000, "gb": 1_000_000_000}
_LEAST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class JournalKeep:
    """What may stay."""

    days: int = 30
    size_bytes: int = 512_000_000


def parse_journal_keep(text: str) -> JournalKeep:
    """`30 days, 512 MB`, or one of the two: the other is as by itself. ValueError: it is none of these."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or not int(match[1]):
            raise ValueError(part)
        factor = _FACTORS.get(match[2].lower())
        name = "days" if factor is None else "size_bytes"
        if name in found:
            raise ValueError(part)
        found[name] = int(match[1]) * (factor or 1)
    if found.get("size_bytes", _LEAST_BYTES) < _LEAST_BYTES or found.get("days", 0) > 36_500:
        raise ValueError(text)
    return JournalKeep(**found)


class Trimmer:
    """Deletes step by step, so that what is to be written never waits long."""

    def __init__(self) -> None:
        self._is_shrinking = False
        """It was too large, and is not yet small enough."""

    def step(self, connection: sqlite3.Connection, keep: JournalKeep, wall: float) -> bool:
        """One small transaction. False: there is nothing left to do. Raises sqlite3.Error."""
        used = used_bytes(connection)
        self._is_shrinking = used > keep.size_bytes * (_ROOM if self._is_shrinking else 1)
        before = wall - keep.days * _DAY_S
        with transaction(connection):
            deleted = _delete(connection, before)
            if not deleted and self._is_shrinking:
                deleted = _delete(connection, wall + _DAY_S)
        if deleted:
            return True
        return give_back(connection, _PAGES_PER_STEP)


def _delete(connection: sqlite3.Connection, before: float) -> int:
    """The oldest rows of before that instant, of all tables up to the same one; how many. What has not ended stays."""
    aged = (("ticket", "arrived", "AND \"end\" != ''"), ("happening", "at", ""), ("limit", "at", ""))
    until = before
    for table, column, but in aged:
        nth = connection.execute(
            f'SELECT "{column}" FROM "{table}" WHERE "{column}" < ? {but} ORDER BY "{column}" LIMIT 1 OFFSET ?',  # noqa: S608
            (until, MOST_PER_STEP - 1),
        ).fetchone()
        until = until if nth is None else nth[0]
    old = connection.execute("SELECT id FROM ticket WHERE arrived <= ? AND \"end\" != ''", (until,)).fetchall()
    for table in ("wait", "attempt"):
        connection.executemany(f"DELETE FROM {table} WHERE ticket = ?", old)  # noqa: S608 - names of ours
    deleted = 0
    for table, column, but in aged:
        sql = f'DELETE FROM "{table}" WHERE "{column}" <= ? {but}'  # noqa: S608 - names of ours
        deleted += connection.execute(sql, (until,)).rowcount
    if not deleted:
        # Attempts of tickets that were never written, and runs of which nothing is left; the last one stays.
        connection.execute(
            "DELETE FROM attempt WHERE began < ? AND NOT EXISTS (SELECT 1 FROM ticket WHERE id = attempt.ticket)",
            (before,),
        )
        connection.execute(
            "DELETE FROM run WHERE seen < ? AND id < (SELECT max(id) FROM run) AND id NOT IN (SELECT run FROM budget)",
            (before,),
        )
    return deleted
