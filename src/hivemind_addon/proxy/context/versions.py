"""One version of a context in its file: written, and put together again. Each function works on an open connection."""

import sqlite3
from collections.abc import Iterable, Mapping
from itertools import batched

import msgspec
import zstandard
from msgspec import Raw, Struct
from msgspec.structs import replace

from hivemind_addon.api.spend import Spend
from hivemind_addon.proxy.context.pieces import MESSAGES, MOST_ITEMS, Frame, SplitBody, join
from hivemind_addon.proxy.context.values import Context, ContextHead, UnknownContext
from hivemind_addon.proxy.runtime.append_file import breathe

HEAD = msgspec.json.Decoder(ContextHead)
_LEVEL = 3
_BREATH_BYTES = 64 * 1024
_MOST_BYTES = 64 * 1024 * 1024
_ASKED_AT_ONCE = 500


class _Rest(Struct):
    """What a version has besides its head and its pieces."""

    method: str
    url: str
    headers: Mapping[str, str]
    frame: Frame


_REST = msgspec.msgpack.Decoder(_Rest)


def rest_of(context: Context, frame: Frame) -> bytes:
    """What a version has besides its head and its pieces, compressed."""
    return small(msgspec.msgpack.encode(_Rest(context.method, context.url, context.headers, frame)))


def make_pieces(connection: sqlite3.Connection, parts: SplitBody, hashes: Mapping[int, bytes]) -> dict[bytes, bytes]:
    """The compressed pieces that are not in the file, by hash: made while nobody waits for the file."""
    known = _piece_ids(connection, hashes.values())
    made: dict[bytes, bytes] = {}
    compressor = zstandard.ZstdCompressor(level=_LEVEL)  # for all of them: to make one is dear
    unbroken_bytes = 0
    for place, hash_ in hashes.items():
        if hash_ not in known and hash_ not in made:
            made[hash_] = compressor.compress(parts.pieces[place])
            unbroken_bytes += len(parts.pieces[place])
            if unbroken_bytes > _BREATH_BYTES:
                unbroken_bytes = 0
                breathe()
    return made


def write_version(
    connection: sqlite3.Connection,
    context: Context,
    parts: SplitBody,
    hashes: Mapping[int, bytes],
    rest: bytes,
    made: Mapping[bytes, bytes],
) -> ContextHead:
    """In a transaction: a new version, or what the newest one lacks. `hashes` and `parts` of its body, by place.

    `rest` is of `rest_of`, `made` of `make_pieces`.
    """
    head = context.head
    row = connection.execute(
        "SELECT id, newest FROM context WHERE name = ? AND name != ''",  # the latter is the index's own condition
        (head.id,),
    ).fetchone()
    before = newest_head(connection, row[0]) if row is not None else None
    standing = _standing(connection, row[0]) if row is not None else {}
    if before is not None and _is_same(connection, row[0], before, context, rest, hashes, standing):
        return _again(connection, row[0], before, context)
    if before is not None and head.arrived_wall < before.arrived_wall:
        # It was slower than a later one, whose messages hold its answer.
        _put_head(connection, row[0], replace(before, spent=before.spent + head.spent))
        return before
    (written,) = connection.execute("SELECT coalesce(max(written), 0) + 1 FROM context").fetchone()
    head = replace(
        head,
        version=(row[1] if row else 0) + 1,
        spent=head.spent + (before.spent if before else Spend()),
        answer_bytes=len(context.answer),
    )
    if row is None:
        connection.execute(
            "INSERT INTO context (name, agent, newest, kept, written) VALUES (?, ?, ?, ?, ?)",
            (head.id, head.agent, head.version, head.kept_wall, written),
        )
        (row_id,) = connection.execute("SELECT last_insert_rowid()").fetchone()
    else:
        row_id = row[0]
        connection.execute(
            "UPDATE context SET newest = ?, kept = ?, written = ? WHERE id = ?",
            (head.version, head.kept_wall, written, row_id),
        )
    over = [place for place, (_, hash_) in standing.items() if hashes.get(place) != hash_]
    connection.executemany(
        "UPDATE use SET until = ? WHERE context = ? AND place = ? AND until IS NULL",
        [(head.version - 1, row_id, place) for place in over],
    )
    new = {place: hash_ for place, hash_ in hashes.items() if place not in standing or standing[place][1] != hash_}
    pieces = _write_pieces(connection, {hash_: parts.pieces[place] for place, hash_ in new.items()}, made)
    connection.executemany(
        "INSERT INTO use (context, place, since, piece) VALUES (?, ?, ?, ?)",
        [(row_id, place, head.version, pieces[hash_]) for place, hash_ in new.items()],
    )
    if before is not None and before.answer_bytes and head.messages > before.messages and not _of_messages(over):
        _forget_answer(connection, row_id, before)  # it is among the messages now
    connection.execute(
        "INSERT INTO version (context, number, kept, head, rest) VALUES (?, ?, ?, ?, ?)",
        (row_id, head.version, head.kept_wall, msgspec.json.encode(head).decode(), rest),
    )
    _put_answer(connection, row_id, head, context.answer, context.answer_id)
    return head


def _is_same(
    connection: sqlite3.Connection,
    row_id: int,
    before: ContextHead,
    context: Context,
    rest: bytes,
    hashes: Mapping[int, bytes],
    standing: Mapping[int, tuple[int, bytes]],
) -> bool:
    """Whether the newest version is of the same request."""
    if context.head.request_hash and context.head.request_hash == before.request_hash:
        return True
    if {place: hash_ for place, (_, hash_) in standing.items()} != hashes:
        return False
    (known,) = connection.execute(
        "SELECT rest FROM version WHERE context = ? AND number = ?", (row_id, before.version)
    ).fetchone()
    return bool(known == rest)


def _again(connection: sqlite3.Connection, row_id: int, before: ContextHead, context: Context) -> ContextHead:
    """The newest version is of the same request: it may have been kept for another reason, and without its answer.

    What was spent since then is counted where anything else is news.
    """
    has_news = bool(context.answer) and not before.answer_bytes
    if not has_news and before.reason == context.head.reason:
        return before
    head = replace(before, reason=context.head.reason, spent=before.spent + context.head.spent)
    if has_news:
        head = replace(head, tokens=context.head.tokens)
        return _put_answer(connection, row_id, head, context.answer, context.answer_id)
    _put_head(connection, row_id, head)
    return head


def _put_answer(
    connection: sqlite3.Connection, row_id: int, head: ContextHead, answer: bytes, answer_id: str
) -> ContextHead:
    head = replace(head, answer_bytes=len(answer))
    connection.execute(
        "UPDATE version SET answer = ?, answer_id = ? WHERE context = ? AND number = ?",
        (small(answer) if answer else None, answer_id, row_id, head.version),
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


def _write_pieces(
    connection: sqlite3.Connection, pieces: Mapping[bytes, bytes], made: Mapping[bytes, bytes]
) -> dict[bytes, int]:
    """Those that are not in the file; answers the ids of all, by hash."""
    known = _piece_ids(connection, pieces)
    missing = [hash_ for hash_ in pieces if hash_ not in known]
    connection.executemany(
        "INSERT INTO piece (hash, size, data) VALUES (?, ?, ?)",
        [(hash_, len(pieces[hash_]), made.get(hash_) or small(pieces[hash_])) for hash_ in missing],
    )
    return known | _piece_ids(connection, missing)


def small(data: bytes) -> bytes:
    """Compressed."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(data)


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
        "SELECT place, data FROM use JOIN piece ON piece.id = piece"
        " WHERE context = ? AND since <= ? AND (until IS NULL OR until >= ?)",
        (row_id, number, number),
    )
    try:
        decompressor = zstandard.ZstdDecompressor()
        body = join(told.frame, {place: decompressor.decompress(data) for place, data in pieces})
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


def _standing(connection: sqlite3.Connection, row_id: int) -> dict[int, tuple[int, bytes]]:
    """The newest version's pieces: id and hash, by place."""
    rows = connection.execute(
        "SELECT place, piece.id, hash FROM use JOIN piece ON piece.id = piece WHERE context = ? AND until IS NULL",
        (row_id,),
    )
    return {place: (piece, hash_) for place, piece, hash_ in rows}


def _piece_ids(connection: sqlite3.Connection, hashes: Iterable[bytes]) -> dict[bytes, int]:
    """Of those that are in the file, by hash. Asked for many at a time: each question lets the event loop go first."""
    found: dict[bytes, int] = {}
    for asked in batched(dict.fromkeys(hashes), _ASKED_AT_ONCE):
        places = ", ".join("?" * len(asked))
        found.update(connection.execute(f"SELECT hash, id FROM piece WHERE hash IN ({places})", asked).fetchall())  # noqa: S608 - marks only
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
        (msgspec.json.encode(head).decode(), row_id, head.version),
    )


def _of_messages(places: Iterable[int]) -> bool:
    """Whether any of them is a message's."""
    return any(place // MOST_ITEMS == MESSAGES for place in places)


def plain(data: bytes) -> bytes:
    """What was compressed. Raises zstandard.ZstdError."""
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=_MOST_BYTES)
