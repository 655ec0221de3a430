"""A version of a context in the file: written, and read. Each function works on an open connection."""

import sqlite3
from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from hivemind_addon.formats.base.json_values import decoder, packed_decoder
from hivemind_addon.formats.wire.dialect import dialect_named
from hivemind_addon.formats.wire.request import read_request, without_cache_marks
from hivemind_addon.plugins.contexts import bodies
from hivemind_addon.plugins.contexts.bodies import compress, decompress
from hivemind_addon.plugins.contexts.values import Context, ContextHead, UnknownContext

HEAD = decoder(ContextHead)


class _Rest(Struct):
    """The part of a version besides head and body."""

    method: str
    url: str
    headers: Mapping[str, str]


_REST = packed_decoder(_Rest)


def write_version(connection: sqlite3.Connection, context: Context) -> ContextHead:
    """In a transaction: write a new version, or complete the newest version."""
    head, body = context.head, bytes(context.body)
    rest = _Rest(context.method, context.url, context.headers)
    row = connection.execute("SELECT id, newest FROM context WHERE name = ?", (head.id,)).fetchone()
    before = known = None
    if row is not None:
        row_id, number = row
        before, known = newest_head(connection, row_id), bodies.read(connection, row_id, number)
        is_same = bool(head.request_hash) and head.request_hash == before.request_hash
        if is_same or (known == body and _rest_of(connection, row_id, number) == rest):
            return _again(connection, row_id, before, context)
        if head.arrived_wall < before.arrived_wall:
            # It was slower than a later one, whose messages hold its answer.
            _put_head(connection, row_id, replace(before, spent=before.spent + head.spent))
            return before
        if before.answer_bytes and known is not None and _has_grown(known, context):
            _forget_answer(connection, row_id, before)  # it is among the messages now
        head = replace(head, spent=head.spent + before.spent)
    head = replace(head, version=(before.version if before else 0) + 1, answer_bytes=len(context.answer))
    (row_id,) = connection.execute(
        "INSERT INTO context (name, agent, newest, kept, written)"
        " VALUES (?, ?, ?, ?, (SELECT coalesce(max(written), 0) + 1 FROM context)) ON CONFLICT (name)"
        " DO UPDATE SET newest = excluded.newest, kept = excluded.kept, written = excluded.written RETURNING id",
        (head.id, head.agent, head.version, head.kept_wall),
    ).fetchone()
    answer = compress(context.answer) if context.answer else None
    connection.execute(
        "INSERT INTO version (context, number, kept, head, rest, answer, answer_id) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            row_id,
            head.version,
            head.kept_wall,
            _json(head),
            compress(msgspec.msgpack.encode(rest)),
            answer,
            context.answer_id,
        ),
    )
    bodies.write(connection, row_id, head.version, body, known)
    return head


def _has_grown(before: bytes, context: Context) -> bool:
    """Whether a context has all messages of a body, and more."""
    earlier, now = (_messages(body, context.head.dialect) for body in (before, bytes(context.body)))
    return len(now) > len(earlier) and now[: len(earlier)] == earlier


def _messages(body: bytes, dialect: str) -> list[bytes]:
    """Without the marks of a prompt cache, which agents move on from request to request."""
    return [
        b"".join(without_cache_marks(bytes(raw))[0]) for raw in read_request(body, dialect_named(dialect).plan).messages
    ]


def _again(connection: sqlite3.Connection, row_id: int, before: ContextHead, context: Context) -> ContextHead:
    """The newest version is of the same request: the reason may be new, and so may the answer.

    Spending since then is counted where anything else is new.
    """
    has_news = context.answer != b"" and not before.answer_bytes
    if not has_news and before.reason == context.head.reason:
        return before
    head = replace(before, reason=context.head.reason, spent=before.spent + context.head.spent)
    if has_news:
        head = replace(head, tokens=context.head.tokens, answer_bytes=len(context.answer))
        connection.execute(
            "UPDATE version SET answer = ?, answer_id = ? WHERE context = ? AND number = ?",
            (compress(context.answer), context.answer_id, row_id, head.version),
        )
    _put_head(connection, row_id, head)
    return head


def _forget_answer(connection: sqlite3.Connection, row_id: int, head: ContextHead) -> None:
    """Unless a later request may name the answer."""
    forgotten = connection.execute(
        "UPDATE version SET answer = NULL WHERE context = ? AND number = ? AND answer_id = ''", (row_id, head.version)
    ).rowcount
    if forgotten:
        _put_head(connection, row_id, replace(head, answer_bytes=0))


def read_version(connection: sqlite3.Connection, row_id: int, number: int | None, asked: str) -> Context:
    """The newest version (None), or that version; `asked`: a person's name for the context. Raises UnknownContext."""
    row = connection.execute(
        "SELECT version.head, answer, answer_id, number FROM version JOIN context ON context.id = context"
        " WHERE context = ? AND number = coalesce(?, newest)",
        (row_id, number),
    ).fetchone()
    if row is None:
        (kept,) = connection.execute(
            "SELECT group_concat(number, ', ') FROM (SELECT number FROM version WHERE context = ? ORDER BY number)",
            (row_id,),
        ).fetchone()
        raise UnknownContext(f"{asked} has no version {number}; there are {kept}")
    head, answer, answer_id, number = row
    rest, body = _rest_of(connection, row_id, number), bodies.read(connection, row_id, number)
    if body is None:
        raise UnknownContext(
            f"version {number} of {asked} is damaged, or a version that it is built on;"
            f" `hivemind context list {asked}` shows the others"
        )
    return Context(
        head=HEAD(head),
        method=rest.method,
        url=rest.url,
        headers=rest.headers,
        body=Raw(body),
        answer=decompress(answer) if answer else b"",
        answer_id=answer_id,
    )


def _rest_of(connection: sqlite3.Connection, row_id: int, number: int) -> _Rest:
    (rest,) = connection.execute(
        "SELECT rest FROM version WHERE context = ? AND number = ?", (row_id, number)
    ).fetchone()
    return _REST(decompress(rest))


def newest_head(connection: sqlite3.Connection, row_id: int) -> ContextHead:
    """Of a context that has a version."""
    (head,) = connection.execute(
        "SELECT head FROM version JOIN context ON context.id = context WHERE context = ? AND number = newest",
        (row_id,),
    ).fetchone()
    return HEAD(head)


def _put_head(connection: sqlite3.Connection, row_id: int, head: ContextHead) -> None:
    connection.execute(
        "UPDATE version SET head = ? WHERE context = ? AND number = ?",
        (_json(head), row_id, head.version),
    )


def _json(head: ContextHead) -> str:
    return msgspec.json.encode(head).decode()
