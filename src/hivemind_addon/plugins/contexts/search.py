"""Texts looked for in conversations."""

import re
import sqlite3
from collections.abc import Iterator

from hivemind_addon.formats.base.json_values import read_value
from hivemind_addon.formats.wire.request import read_request
from hivemind_addon.formats.wire.transcript import answer_of, dialect_named
from hivemind_addon.plugins.contexts.bodies import decompress, read_all
from hivemind_addon.plugins.contexts.values import ContextHead
from hivemind_addon.plugins.contexts.versions import HEAD

_EXCERPT_CHARS = 80
"""On each side of the text that was found."""
_AS_IN_JSON = re.compile(r"[ !#-.0-\[\]-~]+")
"""Characters that a text and JSON write alike."""


def hits(connection: sqlite3.Connection, row_id: int, newest: int, text: str) -> Iterator[tuple[ContextHead, int, str]]:
    """In a context: see `ContextStore.search`. `newest`: the newest version's number."""
    text = text.lower()
    raw_text = text.encode() if _AS_IN_JSON.fullmatch(text) else b""
    found: dict[tuple[int, str], ContextHead] = {}
    read: dict[bytes, str] = {}
    heads = dict(connection.execute("SELECT number, head FROM version WHERE context = ?", (row_id,)))
    for number, body in read_all(connection, row_id):
        if number not in heads or body is None or raw_text not in body.lower():
            continue
        head = HEAD(heads[number])
        for at, message in enumerate(map(bytes, read_request(body, dialect_named(head.dialect).plan).messages)):
            if message not in read:
                read[message] = _excerpt(read_value(message), text) if raw_text in message.lower() else ""
            if read[message]:
                found[at, read[message]] = head
    row = connection.execute(
        "SELECT head, answer FROM version WHERE context = ? AND number = ? AND answer IS NOT NULL", (row_id, newest)
    ).fetchone()
    if row is not None:
        head = HEAD(row[0])
        words = [part.text for part in answer_of(dialect_named(head.dialect), decompress(row[1])).parts]
        if excerpt := _excerpt(words, text):
            found[head.messages, excerpt] = head
    for (at, excerpt), head in sorted(found.items(), key=lambda hit: (hit[0][0], hit[1].version)):
        yield head, at, excerpt


def _excerpt(value: object, text: str) -> str:
    """The first words around a lower-case text in any text of a value; empty: no text has the words."""
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
