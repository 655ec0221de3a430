"""The journal's tables, and how an older file becomes a newer one. Instants are epoch seconds, amounts whole numbers.

`PRAGMA user_version` is the schema's version, `PRAGMA application_id` says that the file is a journal. A migration is
never changed once it was released: the next one is added below it.
"""

APPLICATION_ID = 0x48495645
"""`HIVE`."""

_UNRELEASED = ("", "", "")
"""Versions 1 to 3 were never released, and are not read."""
MIGRATIONS: tuple[str, ...] = (
    *_UNRELEASED,
    """
    -- One start of the proxy. `ended` is empty while it runs, and of one that died; `port`: where it listened, and
    -- `listened`: whether it ever did (one that was killed while it started has not).
    CREATE TABLE run (
        id INTEGER PRIMARY KEY, began REAL NOT NULL, seen REAL NOT NULL, ended REAL,
        pid INTEGER NOT NULL, version TEXT NOT NULL,
        port INTEGER NOT NULL DEFAULT 0, listened INTEGER NOT NULL DEFAULT 1
    );
    -- One request, from submit to its end. `end` is empty while it has not ended, and `lost` where its proxy died;
    -- `unpriced`: whether its model has no price.
    CREATE TABLE ticket (
        id TEXT PRIMARY KEY, run INTEGER NOT NULL REFERENCES run, task TEXT NOT NULL, idempotency_key TEXT NOT NULL,
        agent TEXT NOT NULL, "group" TEXT NOT NULL, session TEXT NOT NULL, parent_session TEXT NOT NULL,
        lineage TEXT NOT NULL, pool TEXT NOT NULL, host TEXT NOT NULL, account TEXT NOT NULL, model TEXT NOT NULL,
        kind TEXT NOT NULL, priority TEXT NOT NULL, streamed INTEGER NOT NULL,
        arrived REAL NOT NULL, admitted REAL, ended REAL,
        "end" TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '', attempts INTEGER NOT NULL DEFAULT 0,
        ambiguous_resends INTEGER NOT NULL DEFAULT 0, waited_s REAL NOT NULL DEFAULT 0,
        unpriced INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
    CREATE INDEX ticket_by_agent ON ticket (agent, arrived);
    CREATE INDEX ticket_by_task ON ticket (task, arrived) WHERE task != '';
    CREATE INDEX ticket_by_key ON ticket (idempotency_key) WHERE idempotency_key != '';
    CREATE INDEX ticket_by_arrival ON ticket (arrived);
    CREATE INDEX ticket_open ON ticket (run) WHERE "end" = '';
    -- One try upstream. `outcome` is empty while it runs, and `lost` where its proxy died: it may have been billed.
    CREATE TABLE attempt (
        ticket TEXT NOT NULL, attempt INTEGER NOT NULL, began REAL NOT NULL, ended REAL,
        waited_s REAL NOT NULL, in_flight INTEGER NOT NULL,
        outcome TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '', status INTEGER,
        ambiguous INTEGER NOT NULL DEFAULT 0,
        input_tokens INTEGER, cache_read_tokens INTEGER, cache_write_tokens INTEGER, output_tokens INTEGER,
        reported INTEGER,
        expected_tokens INTEGER NOT NULL, expected_micro_usd INTEGER NOT NULL,
        tokens INTEGER NOT NULL DEFAULT 0, micro_usd INTEGER NOT NULL DEFAULT 0,
        retry_at REAL, retry_reason TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (ticket, attempt)
    ) WITHOUT ROWID;
    CREATE INDEX attempt_by_begin ON attempt (began);
    CREATE INDEX attempt_open ON attempt (ticket) WHERE outcome = '';
    -- Why and from when on a ticket waited; one row a wait.
    CREATE TABLE wait (
        ticket TEXT NOT NULL, began REAL NOT NULL, reason TEXT NOT NULL, position INTEGER NOT NULL,
        PRIMARY KEY (ticket, began)
    ) WITHOUT ROWID;
    -- What happened beside the routine of tickets: breakers, account blocks, pauses, merges, oddities, guard trips,
    -- persons' commands. `event` is the event's name, `fields` all of its fields as in the event log, `text` a line for
    -- people.
    CREATE TABLE happening (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES run, at REAL NOT NULL, event TEXT NOT NULL,
        pool TEXT NOT NULL, ticket TEXT NOT NULL, text TEXT NOT NULL, fields TEXT NOT NULL
    );
    CREATE INDEX happening_by_time ON happening (at);
    CREATE INDEX happening_by_ticket ON happening (ticket) WHERE ticket != '';
    -- Each change of a limit that was learned.
    CREATE TABLE "limit" (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES run, at REAL NOT NULL, pool TEXT NOT NULL,
        meter TEXT NOT NULL, kind TEXT NOT NULL, "limit" REAL NOT NULL, window_s REAL, dimension TEXT NOT NULL
    );
    CREATE INDEX limit_by_time ON "limit" (at);
    -- How each account stands now: the last `BudgetBooked` of each. A budget per run belongs to the port of its runs;
    -- those of other periods (port 0) are one set for all ports. Budgets in money do not count unpriced tokens.
    CREATE TABLE budget (
        scope TEXT NOT NULL, name TEXT NOT NULL, per TEXT NOT NULL, port INTEGER NOT NULL DEFAULT 0,
        run INTEGER NOT NULL REFERENCES run, limit_tokens INTEGER, limit_micro_usd INTEGER, began REAL NOT NULL,
        spent_tokens INTEGER NOT NULL, spent_micro_usd INTEGER NOT NULL,
        reserved_tokens INTEGER NOT NULL, reserved_micro_usd INTEGER NOT NULL,
        added_tokens INTEGER NOT NULL, added_micro_usd INTEGER NOT NULL,
        limit_calls INTEGER, spent_calls INTEGER NOT NULL DEFAULT 0,
        reserved_calls INTEGER NOT NULL DEFAULT 0, added_calls INTEGER NOT NULL DEFAULT 0,
        spent_unpriced_tokens INTEGER NOT NULL DEFAULT 0, reserved_unpriced_tokens INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (scope, name, per, port)
    ) WITHOUT ROWID;
    -- What outlives a run and is no row: what the scheduler exports (`learned`, `orders`), as JSON.
    CREATE TABLE kept (name TEXT PRIMARY KEY, at REAL NOT NULL, value TEXT NOT NULL) WITHOUT ROWID;
    """,
)
"""The n-th leads from version n to version n + 1."""

VERSION = len(MIGRATIONS)
