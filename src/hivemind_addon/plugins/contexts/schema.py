"""The tables of contexts. Instants are epoch seconds; a migration is never changed once it was released.

Pieces, packs and their uses are of older files, until these are converted (`old_pieces.py`). A new file has them empty.
"""

from hivemind_addon.proxy.system.database import FileKind

_MIGRATIONS: tuple[str, ...] = (
    """
    -- One conversation. `name` is its id, empty once it was removed and waits to be deleted in slices; `newest` is its
    -- newest version's number, `written` counts what is kept, so that it orders conversations whatever a clock says.
    CREATE TABLE context (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL, agent TEXT NOT NULL, newest INTEGER NOT NULL,
        kept REAL NOT NULL, written INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX context_by_name ON context (name) WHERE name != '';
    CREATE INDEX context_gone ON context (id) WHERE name = '';
    CREATE INDEX context_by_writing ON context (written);
    CREATE INDEX context_by_time ON context (kept);
    -- One instant of it. `head` is JSON, `rest` (method, URL, headers, frame) and `answer` are compressed; `answer_id`
    -- is what the provider calls the answer, where a later request may name it.
    CREATE TABLE version (
        context INTEGER NOT NULL REFERENCES context, number INTEGER NOT NULL, kept REAL NOT NULL,
        head TEXT NOT NULL, rest BLOB NOT NULL, answer BLOB, answer_id TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (context, number)
    );
    CREATE INDEX version_by_time ON version (kept);
    CREATE INDEX version_by_answer ON version (answer_id) WHERE answer_id != '';
    -- What is stored once, compressed; `size` is what it is without.
    CREATE TABLE piece (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, size INTEGER NOT NULL, data BLOB NOT NULL);
    -- Which piece stands at a place, from one version to another; `until` is empty as long as it does.
    CREATE TABLE use (
        context INTEGER NOT NULL REFERENCES context, place INTEGER NOT NULL, since INTEGER NOT NULL,
        until INTEGER, piece INTEGER NOT NULL REFERENCES piece,
        PRIMARY KEY (context, place, since)
    ) WITHOUT ROWID;
    CREATE INDEX use_by_piece ON use (piece);
    CREATE INDEX use_over ON use (context, until) WHERE until IS NOT NULL;
    -- What a compaction took out of requests: `data` is a tool's result, compressed JSON; `size` what it is without.
    CREATE TABLE taken_out (
        id TEXT PRIMARY KEY, kept REAL NOT NULL, agent TEXT NOT NULL, session TEXT NOT NULL, call TEXT NOT NULL,
        size INTEGER NOT NULL, data BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX taken_out_by_time ON taken_out (kept);
    """,
    """
    -- Pieces that were new together are compressed together, as a pack: `id` is its first piece's, and those of its
    -- other `pieces` follow. `at`: where in it a piece begins. A piece of before has its `data` itself, and no pack.
    CREATE TABLE pack (id INTEGER PRIMARY KEY, pieces INTEGER NOT NULL, data BLOB NOT NULL);
    ALTER TABLE piece ADD COLUMN pack INTEGER REFERENCES pack;
    ALTER TABLE piece ADD COLUMN at INTEGER NOT NULL DEFAULT 0;
    -- So many pieces of one pack, one after the other: their places follow, and so do their ids.
    ALTER TABLE use ADD COLUMN count INTEGER NOT NULL DEFAULT 1;
    """,
    """
    -- A version's body, compressed. `kind`: see below.
    CREATE TABLE body (
        context INTEGER NOT NULL REFERENCES context, number INTEGER NOT NULL, kind INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (context, number)
    );
    CREATE INDEX body_in_pieces ON body (context, number) WHERE kind = 2;
    INSERT INTO body SELECT context, number, 2, x'' FROM version;
    -- A context that is removed is deleted at once.
    DELETE FROM context WHERE name = '';
    DROP INDEX context_gone;
    DROP INDEX context_by_name;
    CREATE UNIQUE INDEX context_by_name ON context (name);
    """,
)
COMPLETE, DELTA, IN_PIECES = range(3)
"""Kinds of bodies: compressed by itself; against the body before it; in pieces (`old_pieces.py`)."""

KIND = FileKind(
    name="file of contexts",
    cure="name another place for the proxy's files (hivemind_journal)",
    application_id=0x48495643,  # `HIVC`
    migrations=_MIGRATIONS,
)
