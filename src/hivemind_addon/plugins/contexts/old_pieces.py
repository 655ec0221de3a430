"""Bodies in pieces, as all were until 2026-11: read, and converted in slices.

This file may be deleted one release after the first that has it: a file that was written to by then has no pieces any
more, and contexts are deleted after 30 days in any case. A migration then drops the tables `use`, `piece` and
`pack`.
"""

import sqlite3
from collections.abc import Callable

import msgspec
import zstandard
from msgspec import Struct

_MOST_ITEMS = 1 << 20
_DELETED_AT_ONCE = 50
_VERSION_2 = """
    CREATE TEMP VIEW body AS SELECT context, number, 2 AS kind, x'' AS data FROM main.version;
    CREATE TEMP VIEW context AS SELECT * FROM main.context WHERE name != '';
"""
_VERSION_1 = """
    CREATE TEMP VIEW pack AS SELECT NULL AS id, NULL AS pieces, NULL AS data WHERE false;
    CREATE TEMP VIEW piece AS SELECT *, NULL AS pack, 0 AS at FROM main.piece;
    CREATE TEMP VIEW use AS SELECT *, 1 AS count FROM main.use;
"""
READ_AS_NEWEST = {1: _VERSION_1 + _VERSION_2, 2: _VERSION_2}
"""By version: makes an older file look like a new file, for readers, who cannot write."""


class _PieceRun(Struct, array_like=True):
    """Pieces that follow each other: their places are `slot * _MOST_ITEMS + index`."""

    slot: int
    count: int
    between: bytes | None
    """Between each two of them; None: that differs, and is in `betweens`."""
    betweens: list[bytes]


class _Frame(Struct, array_like=True):
    """Joins pieces: the n-th literal, the n-th run, the next literal …; there is a literal more than there are runs."""

    literals: list[bytes]
    runs: list[_PieceRun]
    marks: list[tuple[int, int, bytes]]
    """Text that was cut out: of the piece at a place, behind so many bytes of the piece."""


class _Rest(Struct):
    frame: _Frame


def read(connection: sqlite3.Connection, context: int, number: int) -> bytes:
    """The body of a version. Raises zstandard.ZstdError."""
    (rest,) = connection.execute(
        "SELECT rest FROM version WHERE context = ? AND number = ?", (context, number)
    ).fetchone()
    rows = connection.execute(
        "SELECT use.place + piece.id - use.piece, data, pack, at, size FROM use"
        " CROSS JOIN piece ON piece.id BETWEEN use.piece AND use.piece + use.count - 1"
        " WHERE context = ? AND since <= ? AND (until IS NULL OR until >= ?)",
        (context, number, number),
    )
    pieces: dict[int, bytes] = {}
    last, packed = None, b""
    for place, data, pack, at, size in rows:
        if pack is not None and pack != last:
            found = connection.execute("SELECT data FROM pack WHERE id = ?", (pack,)).fetchone()
            last, packed = pack, _plain(found[0] if found else b"")
        pieces[place] = _plain(data) if pack is None else packed[at : at + size]
    try:
        return _joined(msgspec.msgpack.decode(_plain(rest), type=_Rest).frame, pieces)
    except (KeyError, msgspec.MsgspecError) as error:
        raise zstandard.ZstdError("a piece is lost") from error


def has_pieces(connection: sqlite3.Connection) -> bool:
    """Whether the conversion has not ended yet."""
    return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'piece'").fetchone() is not None


def convert_slice(connection: sqlite3.Connection, convert: Callable[[sqlite3.Connection, int, int], None]) -> bool:
    """In a transaction: convert a version's body, or delete some pieces. False: there are none any more.

    A body reads the same before and after, and pieces are deleted last: a process that dies in between loses nothing.
    """
    if not has_pieces(connection):
        return False
    row = connection.execute(
        "SELECT context, number FROM body WHERE kind = 2 ORDER BY context, number LIMIT 1"
    ).fetchone()
    if row is not None:
        convert(connection, *row)
        return True
    for table in ("pack", "piece"):
        some = f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} LIMIT {_DELETED_AT_ONCE})"  # noqa: S608
        if connection.execute(some).rowcount:
            return True
    connection.execute("DROP INDEX body_in_pieces")
    for table in ("use", "piece", "pack"):
        connection.execute(f"DROP TABLE {table}")
    return True


def _joined(frame: _Frame, pieces: dict[int, bytes]) -> bytes:
    for place, offset, mark in reversed(frame.marks):  # from the end, so that the offsets before it stay
        pieces[place] = pieces[place][:offset] + mark + pieces[place][offset:]
    parts = []
    for literal, run in zip(frame.literals, frame.runs, strict=False):
        parts.append(literal)
        for index in range(run.count):
            if index:
                parts.append(run.betweens[index - 1] if run.between is None else run.between)
            parts.append(pieces[run.slot * _MOST_ITEMS + index])
    return b"".join((*parts, frame.literals[-1]))


def _plain(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 26)
