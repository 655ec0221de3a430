"""Bodies in the file: each is compressed against the body of the version before it, which serves as a dictionary.

Agents send the whole conversation with each request, so two bodies hardly differ. Every 25th body is complete: that
bounds the time to read a body, and the loss where a body is damaged. Each function works on an open connection.
"""

import sqlite3
from collections.abc import Iterator

import zstandard

from hivemind_addon.plugins.contexts.schema import COMPLETE, DELTA

_LEVEL = 3
"""Levels 1 and 2 find too little of a body of 500 KB: 12 and 2.5 times the bytes; level 5 takes twice the time for 7 %
less (2026-11)."""
_MOST_TABLE_LOG = 20
"""The level's own 17 forgets most of a dictionary of 1.5 MB."""
_COMPLETE_EACH = 25
_MOST_BYTES = 64 * 1024 * 1024


def read(connection: sqlite3.Connection, context: int, number: int) -> bytes | None:
    """The body of a version; None: this body is damaged, or a body that it is built on."""
    at, text = 0, None
    for at, text in read_all(connection, context, _beginning(connection, context, number), number):  # noqa: B007
        pass
    return text if at == number else None


def read_all(
    connection: sqlite3.Connection, context: int, first: int = 0, last: int = 1 << 62
) -> Iterator[tuple[int, bytes | None]]:
    """Versions' numbers and bodies in their order, as `read` answers them. `first`: its body is no delta."""
    text: bytes | None = None
    for number, kind, data in connection.execute(
        "SELECT number, kind, data FROM body WHERE context = ? AND number BETWEEN ? AND ? ORDER BY number",
        (context, first, last),
    ):
        try:
            if kind == COMPLETE or text is not None:
                text = decompress(data, text if kind == DELTA else None)
        except zstandard.ZstdError:
            text = None
        yield number, text


def write(connection: sqlite3.Connection, context: int, number: int, text: bytes, before: bytes | None) -> None:
    """`before`: the body before this one; None: there is none, or it is damaged."""
    if number - _beginning(connection, context, number - 1) >= _COMPLETE_EACH:
        before = None
    connection.execute(
        "INSERT OR REPLACE INTO body (context, number, kind, data) VALUES (?, ?, ?, ?)",
        (context, number, COMPLETE if before is None else DELTA, compress(text, before)),
    )


def delete_unneeded(connection: sqlite3.Connection, context: int) -> None:
    """Delete the bodies of deleted versions that no version is built on."""
    connection.execute(
        "DELETE FROM body WHERE context = :context AND NOT EXISTS (SELECT 1 FROM version WHERE context = :context"
        " AND number >= body.number AND number < coalesce((SELECT min(later.number) FROM body AS later"
        " WHERE later.context = :context AND later.number > body.number AND later.kind != :delta), 1 << 62))",
        {"context": context, "delta": DELTA},
    )


def compress(data: bytes, before: bytes | None = None) -> bytes:
    """`before`: the dictionary, of which `decompress` needs the same bytes."""
    together = len(before or b"") + len(data)
    # The window holds both, else a dictionary is forgotten on the way; the tables hold the places of both.
    window_log = max(zstandard.WINDOWLOG_MIN, together.bit_length())
    table_log = min(_MOST_TABLE_LOG, window_log - 2)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=window_log, hash_log=table_log, chain_log=table_log, write_checksum=True
    )
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=_dictionary(before)).compress(data)


def decompress(data: bytes, before: bytes | None = None) -> bytes:
    """Raises zstandard.ZstdError."""
    return zstandard.ZstdDecompressor(dict_data=_dictionary(before)).decompress(data, max_output_size=_MOST_BYTES)


def _beginning(connection: sqlite3.Connection, context: int, number: int) -> int:
    """The newest version up to this version whose body is complete."""
    (found,) = connection.execute(
        "SELECT max(number) FROM body WHERE context = ? AND number <= ? AND kind = ?", (context, number, COMPLETE)
    ).fetchone()
    return found or 0


def _dictionary(data: bytes | None) -> zstandard.ZstdCompressionDict | None:
    return zstandard.ZstdCompressionDict(data, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if data else None
