BEGIN TRANSACTION;
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
INSERT INTO "attempt" VALUES('t1',1,1767268802.0,1767268807.0,2.0,4,'success','200',200,0,100,0,0,9,1,120,30,109,27,NULL,'');
CREATE TABLE budget (
        scope TEXT NOT NULL, name TEXT NOT NULL, per TEXT NOT NULL, run INTEGER NOT NULL REFERENCES run,
        limit_tokens INTEGER, limit_micro_usd INTEGER, began REAL NOT NULL,
        spent_tokens INTEGER NOT NULL, spent_micro_usd INTEGER NOT NULL,
        reserved_tokens INTEGER NOT NULL, reserved_micro_usd INTEGER NOT NULL,
        added_tokens INTEGER NOT NULL, added_micro_usd INTEGER NOT NULL,
        PRIMARY KEY (scope, name, per)
    ) WITHOUT ROWID;
CREATE TABLE happening (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES run, at REAL NOT NULL, event TEXT NOT NULL,
        pool TEXT NOT NULL, ticket TEXT NOT NULL, text TEXT NOT NULL, fields TEXT NOT NULL
    );
INSERT INTO "happening" VALUES(1,1,1767268810.0,'WallHit','api.anthropic.com/org-1/sonnet','','api.anthropic.com/org-1/sonnet: the account is refused for 10 min (429 weekly limit); everybody is told, nothing is sent until then or a restart','{"v":1,"wall":1767268810.000,"event":"WallHit","at":1010.0,"pool":{"host":"api.anthropic.com","account":"org-1","model_group":"sonnet"},"until":1610.0,"reason":"429 weekly limit"}');
INSERT INTO "happening" VALUES(2,1,1767269420.0,'WallOpened','api.anthropic.com/org-1/sonnet','','api.anthropic.com/org-1/sonnet: the account is served again','{"v":1,"wall":1767269420.000,"event":"WallOpened","at":1620.0,"pool":{"host":"api.anthropic.com","account":"org-1","model_group":"sonnet"}}');
INSERT INTO "happening" VALUES(3,1,1767269500.0,'ClockJumped','','','the clock went 1 h 0 min on: the machine slept, or its clock was set','{"v":1,"wall":1767269500.000,"event":"ClockJumped","at":1700.0,"delta_s":3600.0}');
CREATE TABLE kept (name TEXT PRIMARY KEY, at REAL NOT NULL, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE "limit" (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES run, at REAL NOT NULL, pool TEXT NOT NULL,
        meter TEXT NOT NULL, kind TEXT NOT NULL, "limit" REAL NOT NULL, window_s REAL, dimension TEXT NOT NULL
    );
CREATE TABLE run (
        id INTEGER PRIMARY KEY, began REAL NOT NULL, seen REAL NOT NULL, ended REAL,
        pid INTEGER NOT NULL, version TEXT NOT NULL
    );
INSERT INTO "run" VALUES(1,1767268800.0,1767269600.0,1767269600.0,7,'0.1.0');
CREATE TABLE ticket (
        id TEXT PRIMARY KEY, run INTEGER NOT NULL REFERENCES run, task TEXT NOT NULL, idempotency_key TEXT NOT NULL,
        agent TEXT NOT NULL, "group" TEXT NOT NULL, session TEXT NOT NULL, parent_session TEXT NOT NULL,
        lineage TEXT NOT NULL, pool TEXT NOT NULL, host TEXT NOT NULL, account TEXT NOT NULL, model TEXT NOT NULL,
        kind TEXT NOT NULL, priority TEXT NOT NULL, streamed INTEGER NOT NULL,
        arrived REAL NOT NULL, admitted REAL, ended REAL,
        "end" TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '', attempts INTEGER NOT NULL DEFAULT 0,
        ambiguous_resends INTEGER NOT NULL DEFAULT 0, waited_s REAL NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
INSERT INTO "ticket" VALUES('t1',1,'','','agent-1','','s1','','s1','api.anthropic.com/org-1/sonnet','api.anthropic.com','org-1','claude-sonnet-4-5','turn','normal',0,1767268800.0,1767268802.0,1767268808.0,'delivered','done',1,0,2.0);
CREATE TABLE wait (
        ticket TEXT NOT NULL, began REAL NOT NULL, reason TEXT NOT NULL, position INTEGER NOT NULL,
        PRIMARY KEY (ticket, began)
    ) WITHOUT ROWID;
INSERT INTO "wait" VALUES('t1',1767268800.0,'concurrency limit',3);
CREATE INDEX ticket_by_agent ON ticket (agent, arrived);
CREATE INDEX ticket_by_task ON ticket (task, arrived) WHERE task != '';
CREATE INDEX ticket_by_key ON ticket (idempotency_key) WHERE idempotency_key != '';
CREATE INDEX ticket_by_arrival ON ticket (arrived);
CREATE INDEX ticket_open ON ticket (run) WHERE "end" = '';
CREATE INDEX attempt_by_begin ON attempt (began);
CREATE INDEX attempt_open ON attempt (ticket) WHERE outcome = '';
CREATE INDEX happening_by_time ON happening (at);
CREATE INDEX happening_by_ticket ON happening (ticket) WHERE ticket != '';
CREATE INDEX limit_by_time ON "limit" (at);
COMMIT;
PRAGMA application_id = 1212765765;
PRAGMA user_version = 1;
