"""One version of a context in its file: written, and put together again. Each function works on an open connection."""

import sqlite3
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec
import zstandard
from msgspec import Raw, Struct
from msgspec.structs import replace

from hivemind_addon.formats.wire.transcript import dialect_named
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.plugins.contexts.body_pieces import Frame, join, split
from hivemind_addon.plugins.contexts.compressed_pieces import USED_PIECES, PieceReader, PieceWriter, is_message
from hivemind_addon.plugins.contexts.from_request import conversation_in
from hivemind_addon.plugins.contexts.values import Context, ContextHead, UnknownContext

HEAD = msgspec.json.Decoder(ContextHead)
_MOST_BYTES = 64 * 1024 * 1024


class _Rest(Struct):
    """What a version has besides its head and its pieces."""

    method: str
    url: str
    headers: Mapping[str, str]
    frame: Frame


_REST = msgspec.msgpack.Decoder(_Rest)


def in_parts(context: Context) -> Context:
    """Taken apart, where that was not done yet: what can be done without the file."""
    if context.parts is not None:
        return context
    return replace(context, parts=split(bytes(context.body), conversation_in(dialect_named(context.head.dialect))))


def write_version(connection: sqlite3.Connection, context: Context, writer: PieceWriter) -> ContextHead:
    """In a transaction: a new version, or what the newest one lacks."""
    parts = context.parts
    assert parts is not None, "in parts first"
    hashes = parts.hashes
    head = context.head
    row = connection.execute(
        "SELECT id, newest FROM context WHERE name = ? AND name != ''",  # the latter is the index's own condition
        (head.id,),
    ).fetchone()
    before = newest_head(connection, row[0]) if row is not None else None
    standing = _standing(connection, row[0]) if row is not None else {}
    rest = writer.compressor.compress(
        msgspec.msgpack.encode(_Rest(context.method, context.url, context.headers, parts.frame))
    )
    answer = writer.compressor.compress(context.answer) if context.answer else None
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
    over = {place for place, _ in standing.items() - hashes.items()}
    places = {place for place, _ in hashes.items() - standing.items()}
    if over:
        places |= _end_runs(connection, row_id, over, head.version - 1) & hashes.keys()
    connection.executemany(
        "INSERT INTO use (context, place, since, piece, count) VALUES (?, ?, ?, ?, ?)",
        [(row_id, place, head.version, piece, count) for place, piece, count in writer.write(parts, sorted(places))],
    )
    has_grown = before is not None and head.messages > before.messages and not any(map(is_message, over))
    if before is not None and before.answer_bytes and has_grown:
        _forget_answer(connection, row_id, before)  # it is among the messages now
    connection.execute(
        "INSERT INTO version (context, number, kept, head, rest, answer, answer_id) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (row_id, head.version, head.kept_wall, _json(head), rest, answer, context.answer_id),
    )
    return head


def _is_same(
    connection: sqlite3.Connection,
    row_id: int,
    before: ContextHead,
    context: Context,
    rest: bytes,
    hashes: Mapping[int, bytes],
    standing: Mapping[int, bytes],
) -> bool:
    """Whether the newest version is of the same request."""
    if context.head.request_hash and context.head.request_hash == before.request_hash:
        return True
    if standing != hashes:
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


def _standing(connection: sqlite3.Connection, row_id: int) -> dict[int, bytes]:
    """The hashes of the newest version's pieces, by place."""
    return dict(
        connection.execute(
            "SELECT use.place + piece.id - use.piece, hash FROM use CROSS JOIN piece"
            " ON piece.id BETWEEN use.piece AND use.piece + use.count - 1 WHERE context = ? AND until IS NULL",
            (row_id,),
        )
    )


def _end_runs(connection: sqlite3.Connection, row_id: int, over: AbstractSet[int], until: int) -> set[int]:
    """What stands at some places is over with this version, and so are the rows of these; answers all their places."""
    rows = connection.execute("SELECT place, count FROM use WHERE context = ? AND until IS NULL", (row_id,)).fetchall()
    runs = [run for place, count in rows if over & (run := set(range(place, place + count)))]
    connection.executemany(
        "UPDATE use SET until = ? WHERE context = ? AND place = ? AND until IS NULL",
        [(until, row_id, min(run)) for run in runs],
    )
    return set().union(*runs)


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


def plain(data: bytes) -> bytes:
    """What was compressed. Raises zstandard.ZstdError."""
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=_MOST_BYTES)
