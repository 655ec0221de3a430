"""A journal to ask, made by the schema alone: so that what is asked does not depend on who writes it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from hivemind_addon.proxy.journal.schema import APPLICATION_ID, MIGRATIONS, VERSION

NOON = 1_767_268_800.0
"""2026-01-01 12:00 UTC."""
POOL = "api.anthropic.com/key-1/opus"


class Book:
    """A journal that is written row by row; columns that are not named have plain values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = OFF")
        for migration in MIGRATIONS:
            self.connection.executescript(migration)
        self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self.connection.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        self.connection.close()

    def add(self, table: str, **values) -> None:
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        self.connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', tuple(values.values()))

    def run(self, number=1, began=NOON - 3600, seen=None, ended=None, pid=4711, version="0.1.0", port=0) -> None:
        self.add(
            "run",
            id=number,
            began=began,
            seen=seen or ended or NOON + 3600,
            ended=ended,
            pid=pid,
            version=version,
            port=port,
        )

    def ticket(self, name, agent="ann", arrived=NOON, end="delivered", pool=POOL, run=1, **values) -> str:
        host, account, _ = pool.split("/")
        plain = {
            "task": "",
            "idempotency_key": "",
            "group": "",
            "session": f"{agent}-1",
            "parent_session": "",
            "lineage": f"{agent}-1",
            "model": "claude-opus-4-8",
            "kind": "turn",
            "priority": "normal",
            "streamed": 1,
            "ended": arrived + 10 if end else None,
            "admitted": arrived + 1,
        }
        self.add(
            "ticket",
            id=name,
            run=run,
            agent=agent,
            arrived=arrived,
            end=end,
            pool=pool,
            host=host,
            account=account,
            **plain | values,
        )
        return name

    def attempt(self, ticket, attempt=1, began=NOON + 1, outcome="success", took_s=9.0, **values) -> None:
        plain = {
            "ended": began + took_s if outcome else None,
            "waited_s": 1.0,
            "in_flight": 1,
            "expected_tokens": 2000,
            "expected_micro_usd": 20_000,
        }
        if outcome == "success":
            plain |= {
                "reason": "200",
                "status": 200,
                "input_tokens": 1000,
                "cache_read_tokens": 400,
                "cache_write_tokens": 0,
                "output_tokens": 100,
                "reported": 1,
                "tokens": 1500,
                "micro_usd": 30_000,
            }
        self.add("attempt", ticket=ticket, attempt=attempt, began=began, outcome=outcome, **plain | values)

    def wait(self, ticket, began=NOON, reason="rate limit", position=1) -> None:
        self.add("wait", ticket=ticket, began=began, reason=reason, position=position)

    def happening(self, event, at=NOON, text="", pool=POOL, ticket="", run=1, **fields) -> None:
        self.add(
            "happening",
            run=run,
            at=at,
            event=event,
            pool=pool,
            ticket=ticket,
            text=text or event,
            fields=json.dumps({"event": event, "at": at, **fields}),
        )

    def breaker(self, state, at, reason="529 overloaded_error", before="closed", run=1) -> None:
        text = f"{POOL}: breaker {state} ({reason})"
        self.happening("BreakerChanged", at, text, state=state, reason=reason, before=before, run=run)


def journal_with(path: Path, fill) -> Path:
    """A journal that is complete and closed."""
    with closing(Book(path)) as book:
        book.connection.execute("BEGIN")
        fill(book)
        book.connection.execute("COMMIT")
    return path
