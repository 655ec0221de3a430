"""Texts looked for in what was said."""

import re
import sqlite3
from collections.abc import Iterator

from hivemind_addon.formats.base.json_values import read_value
from hivemind_addon.formats.wire.transcript import answer_of, dialect_named
from hivemind_addon.plugins.contexts.body_pieces import MESSAGES, MOST_ITEMS
from hivemind_addon.plugins.contexts.compressed_pieces import USED_PIECES, PieceReader
from hivemind_addon.plugins.contexts.values import ContextHead
from hivemind_addon.plugins.contexts.versions import HEAD, plain

_EXCERPT_CHARS = 80
"""On each side of what was looked for."""
_AS_IN_JSON = re.compile(r"[ !#-.0-\[\]-~]+")
"""What a text and its JSON write alike."""


def hits(connection: sqlite3.Connection, row_id: int, newest: int, text: str) -> Iterator[tuple[ContextHead, int, str]]:
    """In one context: see `ContextStore.search`. `newest`: its newest version's number."""
    rows = connection.execute(
        f"{USED_PIECES} AND use.place < ? AND (use.place + use.count > ?) ORDER BY place, since",
        (row_id, (MESSAGES + 1) * MOST_ITEMS, MESSAGES * MOST_ITEMS),
    ).fetchall()
    # A message may be used from one version on, and from a later one on again.
    last = {(place, piece): until for place, *_, until, piece in rows}
    reader = PieceReader(connection)
    raw_text = text.lower().encode() if _AS_IN_JSON.fullmatch(text) else b""
    for place, *where, _, piece in rows:
        if (place, piece) not in last:
            continue
        until = last.pop((place, piece))
        said = reader.read(*where)
        if raw_text in said.lower() and (excerpt := _excerpt(read_value(said), text.lower())):
            yield _head_at(connection, row_id, newest if until is None else until), place % MOST_ITEMS, excerpt
    row = connection.execute(
        "SELECT head, answer FROM version WHERE context = ? AND number = ? AND answer IS NOT NULL", (row_id, newest)
    ).fetchone()
    if row is not None:
        head = HEAD.decode(row[0])
        words = [part.text for part in answer_of(dialect_named(head.dialect), plain(row[1])).parts]
        if excerpt := _excerpt(words, text.lower()):
            yield head, head.messages, excerpt


def _head_at(connection: sqlite3.Connection, row_id: int, number: int) -> ContextHead:
    """The newest version's that is not newer."""
    (head,) = connection.execute(
        "SELECT head FROM version WHERE context = ? AND number <= ? ORDER BY number DESC LIMIT 1", (row_id, number)
    ).fetchone()
    return HEAD.decode(head)


def _excerpt(value: object, text: str) -> str:
    """The first words around a lower-case text in any text of a value; empty: it is in none."""
    for said in _texts(value):
        at = said.lower().find(text)
        if at >= 0:
            begin, end = max(0, at - _EXCERPT_CHARS), at + len(text) + _EXCERPT_CHARS
            words = " ".join(said[begin:end].split())
            return f"{'…' if begin else ''}{words}{'…' if end < len(said) else ''}"
    return ""


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from _texts(inner)
        case list():
            for inner in value:
                yield from _texts(inner)
