"""The tables of contexts. Instants are epoch seconds; a migration is never changed once it was released."""

from hivemind_addon.proxy.system.database import FileKind

_TABLES = """
    -- One conversation. `name` is its id, `newest` its newest version's number; `written` counts what is kept, so that
    -- it orders conversations whatever a clock says.
    CREATE TABLE context (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, agent TEXT NOT NULL, newest INTEGER NOT NULL,
        kept REAL NOT NULL, written INTEGER NOT NULL
    );
    CREATE INDEX context_by_writing ON context (written);
    CREATE INDEX context_by_time ON context (kept);
    -- One instant of it. `head` is JSON, `rest` (method, URL, headers) and `answer` are compressed; `answer_id` is what
    -- the provider calls the answer, where a later request may name it.
    CREATE TABLE version (
        context INTEGER NOT NULL REFERENCES context, number INTEGER NOT NULL, kept REAL NOT NULL,
        head TEXT NOT NULL, rest BLOB NOT NULL, answer BLOB, answer_id TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (context, number)
    );
    CREATE INDEX version_by_time ON version (kept);
    CREATE INDEX version_by_answer ON version (answer_id) WHERE answer_id != '';
    -- A version's body, compressed. `kind`: see below.
    CREATE TABLE body (
        context INTEGER NOT NULL REFERENCES context, number INTEGER NOT NULL, kind INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (context, number)
    );
    -- What a compaction took out of requests: `data` is a tool's result, compressed JSON; `size` what it is without.
    CREATE TABLE taken_out (
        id TEXT PRIMARY KEY, kept REAL NOT NULL, agent TEXT NOT NULL, session TEXT NOT NULL, call TEXT NOT NULL,
        size INTEGER NOT NULL, data BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX taken_out_by_time ON taken_out (kept);
"""
COMPLETE, DELTA = range(2)
"""Kinds of bodies: compressed by itself; against the body before it."""

KIND = FileKind(
    name="file of contexts",
    cure="name another place for the proxy's files (hivemind_journal)",
    application_id=0x48495643,  # `HIVC`
    migrations=("", "", _TABLES),  # versions 1 and 2 were never released, and are not read
)
