"""One version of a context in its file: written, and put together again. Each function works on an open connection."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import batched
from typing import NamedTuple

import msgspec
import zstandard
from msgspec import Raw, Struct
from msgspec.structs import replace

from hivemind_addon.api.spend import Spend
from hivemind_addon.proxy.context.pieces import MESSAGES, MOST_ITEMS, Frame, SplitBody, join, split
from hivemind_addon.proxy.context.taking import conversation_in
from hivemind_addon.proxy.context.values import Context, ContextHead, UnknownContext
from hivemind_addon.proxy.runtime.append_file import breathe_after
from hivemind_addon.proxy.wire.transcript import dialect_named

HEAD = msgspec.json.Decoder(ContextHead)
_LEVEL = 1
"""Level 3 takes a third longer for a tenth less (600 KB of code, 2026-11)."""
_PACK_BYTES = 1024 * 1024
_PACK_PIECES = 1000
_MOST_BYTES = 64 * 1024 * 1024
_ASKED_AT_ONCE = 500
USED_PIECES = (
    "SELECT use.place + piece.id - use.piece AS place, data, pack, at, size, use.until, piece.id"
    " FROM use CROSS JOIN piece ON piece.id BETWEEN use.piece AND use.piece + use.count - 1 WHERE use.context = ?"
)
"""Columns for `PieceReader`, and more, of all that a context uses or has used."""


class _Rest(Struct):
    """What a version has besides its head and its pieces."""

    method: str
    url: str
    headers: Mapping[str, str]
    frame: Frame


_REST = msgspec.msgpack.Decoder(_Rest)


class NewVersion(NamedTuple):
    """A context that is ready to be written."""

    context: Context
    parts: SplitBody
    hashes: Mapping[int, bytes]
    """Of the pieces, by place."""


_Piece = tuple[int, int | None]
"""Its id and its pack's."""
_Standing = tuple[bytes, int]
"""A piece of the newest version: its hash, and the place of the first of its row."""


def new_version(context: Context) -> NewVersion:
    """Take it apart: all that can be done without the file."""
    parts = context.parts or split(bytes(context.body), conversation_in(dialect_named(context.head.dialect)))
    hashes = {place: blake2b(data, digest_size=16).digest() for place, data in parts.pieces.items()}
    breathe_after(len(context.body))
    return NewVersion(context, parts, hashes)


def write_version(connection: sqlite3.Connection, new: NewVersion, compressor: zstandard.ZstdCompressor) -> ContextHead:
    """In a transaction: a new version, or what the newest one lacks."""
    context, parts, hashes = new
    head = context.head
    row = connection.execute(
        "SELECT id, newest FROM context WHERE name = ? AND name != ''",  # the latter is the index's own condition
        (head.id,),
    ).fetchone()
    before = newest_head(connection, row[0]) if row is not None else None
    standing = _standing(connection, row[0]) if row is not None else {}
    rest = compressor.compress(msgspec.msgpack.encode(_Rest(context.method, context.url, context.headers, parts.frame)))
    answer = compressor.compress(context.answer) if context.answer else None
    if before is not None and _is_same(connection, row[0], before, context, rest, hashes, standing):
        return _again(connection, row[0], before, context, answer)
    if before is not None and head.arrived_wall < before.arrived_wall:
        # It was slower than a later one, whose messages hold its answer.
        _put_head(connection, row[0], replace(before, spent=before.spent + head.spent))
        return before
    head = replace(
        head,
        version=(row[1] if row else 0) + 1,
        spent=head.spent + (before.spent if before else Spend()),
        answer_bytes=len(context.answer),
    )
    written = "(SELECT coalesce(max(written), 0) + 1 FROM context)"
    if row is None:
        row_id = connection.execute(
            f"INSERT INTO context (name, agent, newest, kept, written) VALUES (?, ?, ?, ?, {written})",  # noqa: S608
            (head.id, head.agent, head.version, head.kept_wall),
        ).lastrowid
        assert row_id is not None
    else:
        row_id = row[0]
        connection.execute(
            f"UPDATE context SET newest = ?, kept = ?, written = {written} WHERE id = ?",  # noqa: S608
            (head.version, head.kept_wall, row_id),
        )
    over = [place for place, (hash_, _) in standing.items() if hashes.get(place) != hash_]
    broken = {standing[place][1] for place in over}
    if broken:
        connection.executemany(
            "UPDATE use SET until = ? WHERE context = ? AND place = ? AND until IS NULL",
            [(head.version - 1, row_id, run) for run in broken],
        )
    places = [place for place in hashes if place not in standing or standing[place][1] in broken]
    _use(connection, row_id, head.version, new, places, compressor)
    if before is not None and before.answer_bytes and head.messages > before.messages and not _of_messages(over):
        _forget_answer(connection, row_id, before)  # it is among the messages now
    connection.execute(
        "INSERT INTO version (context, number, kept, head, rest, answer, answer_id) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (row_id, head.version, head.kept_wall, _json(head), rest, answer, context.answer_id),
    )
    return head


def _use(
    connection: sqlite3.Connection,
    row_id: int,
    version: int,
    new: NewVersion,
    places: Sequence[int],
    compressor: zstandard.ZstdCompressor,
) -> None:
    """From this version on these places have its pieces."""
    pieces = _found_pieces(connection, [new.hashes[place] for place in places])
    missing: tuple[dict[bytes, bytes], dict[bytes, bytes]] = ({}, {})  # of messages, and of all else
    for place in places:
        if (hash_ := new.hashes[place]) not in pieces:
            missing[not _of_messages((place,))][hash_] = new.parts.pieces[place]
    for some in missing:
        for pack in _packs(some):
            pieces |= _write_pack(connection, pack, compressor)
    connection.executemany(
        "INSERT INTO use (context, place, since, piece, count) VALUES (?, ?, ?, ?, ?)",
        [(row_id, place, version, piece, count) for place, piece, count in _runs(places, new.hashes, pieces)],
    )


def _runs(
    places: Iterable[int], hashes: Mapping[int, bytes], pieces: Mapping[bytes, _Piece]
) -> Iterator[tuple[int, int, int]]:
    """First place, first piece and number of those that follow each other in one pack."""
    begin, count, first = 0, 0, 0
    pack: int | None = None
    for place in sorted(places):
        piece = pieces[hashes[place]]
        if count and pack is not None and piece == (first + count, pack) and place == begin + count:
            count += 1
            continue
        if count:
            yield begin, first, count
        begin, count, (first, pack) = place, 1, piece
    if count:
        yield begin, first, count


def _packs(pieces: Mapping[bytes, bytes]) -> Iterator[dict[bytes, bytes]]:
    """Neither too large nor too many."""
    pack: dict[bytes, bytes] = {}
    size = 0
    for hash_, data in pieces.items():
        if pack and (size + len(data) > _PACK_BYTES or len(pack) >= _PACK_PIECES):
            yield pack
            pack, size = {}, 0
        pack[hash_] = data
        size += len(data)
    if pack:
        yield pack


def _write_pack(
    connection: sqlite3.Connection, pieces: Mapping[bytes, bytes], compressor: zstandard.ZstdCompressor
) -> dict[bytes, _Piece]:
    """Pieces that are not in the file."""
    data = compressor.compress(b"".join(pieces.values()))
    (pack,) = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM piece").fetchone()
    rows, at = [], 0
    for id_, (hash_, piece) in enumerate(pieces.items(), pack):
        rows.append((id_, hash_, len(piece), pack, at))
        at += len(piece)
    connection.execute("INSERT INTO pack (id, pieces, data) VALUES (?, ?, ?)", (pack, len(rows), data))
    connection.executemany("INSERT INTO piece (id, hash, size, data, pack, at) VALUES (?, ?, ?, x'', ?, ?)", rows)
    return {hash_: (id_, pack) for id_, hash_, *_ in rows}


def _is_same(
    connection: sqlite3.Connection,
    row_id: int,
    before: ContextHead,
    context: Context,
    rest: bytes,
    hashes: Mapping[int, bytes],
    standing: Mapping[int, _Standing],
) -> bool:
    """Whether the newest version is of the same request."""
    if context.head.request_hash and context.head.request_hash == before.request_hash:
        return True
    if {place: hash_ for place, (hash_, _) in standing.items()} != hashes:
        return False
    (known,) = connection.execute(
        "SELECT rest FROM version WHERE context = ? AND number = ?", (row_id, before.version)
    ).fetchone()
    return bool(known == rest)


def _again(
    connection: sqlite3.Connection, row_id: int, before: ContextHead, context: Context, answer: bytes | None
) -> ContextHead:
    """The newest version is of the same request: it may have been kept for another reason, and without its answer.

    What was spent since then is counted where anything else is news.
    """
    has_news = answer is not None and not before.answer_bytes
    if not has_news and before.reason == context.head.reason:
        return before
    head = replace(before, reason=context.head.reason, spent=before.spent + context.head.spent)
    if has_news:
        head = replace(head, tokens=context.head.tokens, answer_bytes=len(context.answer))
        connection.execute(
            "UPDATE version SET answer = ?, answer_id = ? WHERE context = ? AND number = ?",
            (answer, context.answer_id, row_id, head.version),
        )
    _put_head(connection, row_id, head)
    return head


def _forget_answer(connection: sqlite3.Connection, row_id: int, head: ContextHead) -> None:
    """Unless a later request may name it."""
    forgotten = connection.execute(
        "UPDATE version SET answer = NULL WHERE context = ? AND number = ? AND answer_id = ''", (row_id, head.version)
    ).rowcount
    if forgotten:
        _put_head(connection, row_id, replace(head, answer_bytes=0))


def new_compressor() -> zstandard.ZstdCompressor:
    """For one thread: to make one is dear."""
    return zstandard.ZstdCompressor(level=_LEVEL)


def read_version(connection: sqlite3.Connection, row_id: int, number: int | None, asked: str) -> Context:
    """The newest version (None), or that one; `asked`: what a person calls the context. Raises UnknownContext."""
    row = connection.execute(
        "SELECT version.head, rest, answer, answer_id, number FROM version JOIN context ON context.id = context"
        " WHERE context = ? AND number = coalesce(?, newest)",
        (row_id, number),
    ).fetchone()
    if row is None:
        (kept,) = connection.execute(
            "SELECT group_concat(number, ', ') FROM (SELECT number FROM version WHERE context = ? ORDER BY number)",
            (row_id,),
        ).fetchone()
        raise UnknownContext(f"{asked} has no version {number}; there are {kept}")
    head, rest, answer, answer_id, number = row
    told = _REST.decode(plain(rest))
    pieces = connection.execute(
        f"{USED_PIECES} AND since <= ? AND (until IS NULL OR until >= ?)", (row_id, number, number)
    )
    reader = PieceReader(connection)
    try:
        body = join(told.frame, {place: reader.read(*where) for place, *where, _, _ in pieces})
    except KeyError as error:
        raise UnknownContext(f"{asked} is damaged: a part of it is lost") from error
    return Context(
        head=HEAD.decode(head),
        method=told.method,
        url=told.url,
        headers=told.headers,
        body=Raw(body),
        answer=plain(answer) if answer else b"",
        answer_id=answer_id,
    )


class PieceReader:
    """Reads pieces; a pack once, as long as those of no other one come in between."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._decompressor = zstandard.ZstdDecompressor()
        self._pack: int | None = None
        self._data = b""

    def read(self, data: bytes, pack: int | None, at: int, size: int) -> bytes:
        """One, from its row. Raises KeyError where its pack is lost, and zstandard.ZstdError."""
        if pack is None:
            return self._decompressor.decompress(data)
        if pack != self._pack:
            row = self._connection.execute("SELECT data FROM pack WHERE id = ?", (pack,)).fetchone()
            if row is None:
                raise KeyError(pack)
            self._pack, self._data = pack, self._decompressor.decompress(row[0])
        return self._data[at : at + size]


def _standing(connection: sqlite3.Connection, row_id: int) -> dict[int, _Standing]:
    """The newest version's pieces, by place."""
    rows = connection.execute(
        "SELECT use.place, use.place + piece.id - use.piece, hash FROM use CROSS JOIN piece"
        " ON piece.id BETWEEN use.piece AND use.piece + use.count - 1 WHERE context = ? AND until IS NULL",
        (row_id,),
    )
    return {place: (hash_, run) for run, place, hash_ in rows}


def _found_pieces(connection: sqlite3.Connection, hashes: Iterable[bytes]) -> dict[bytes, _Piece]:
    """Those that are in the file, by hash. Asked for many at a time: each question lets the event loop go first."""
    found: dict[bytes, _Piece] = {}
    for asked in batched(dict.fromkeys(hashes), _ASKED_AT_ONCE):
        places = ", ".join("?" * len(asked))
        rows = connection.execute(f"SELECT hash, id, pack FROM piece WHERE hash IN ({places})", asked)  # noqa: S608 - marks only
        found.update({hash_: (id_, pack) for hash_, id_, pack in rows})
    return found


def newest_head(connection: sqlite3.Connection, row_id: int) -> ContextHead:
    """Of a context that has a version."""
    (head,) = connection.execute(
        "SELECT head FROM version JOIN context ON context.id = context WHERE context = ? AND number = newest",
        (row_id,),
    ).fetchone()
    return HEAD.decode(head)


def _put_head(connection: sqlite3.Connection, row_id: int, head: ContextHead) -> None:
    connection.execute(
        "UPDATE version SET head = ? WHERE context = ? AND number = ?",
        (_json(head), row_id, head.version),
    )


def _json(head: ContextHead) -> str:
    return msgspec.json.encode(head).decode()


def _of_messages(places: Iterable[int]) -> bool:
    """Whether any of them is a message's."""
    return any(place // MOST_ITEMS == MESSAGES for place in places)


def plain(data: bytes) -> bytes:
    """What was compressed. Raises zstandard.ZstdError."""
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=_MOST_BYTES)
