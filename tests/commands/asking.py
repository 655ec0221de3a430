"""A journal to ask by command line, and how it is asked."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from hivemind_addon.system.clock import SystemClock
from hivemind_addon.tools.cli import main
from tests.journal.book import NOON, POOL, journal_with

COMMANDS = ["", "agents", "retries", "incidents", "incident", "budgets", "limits", "runs"]


def fill(book):
    book.run(seen=NOON + 500, ended=NOON + 500)
    book.run(2, began=NOON + 600, seen=NOON + 7200)
    book.ticket("3f9c01ab2e", task="nightly-1", idempotency_key="key-1", waited_s=11.0, attempts=2)
    book.attempt(
        "3f9c01ab2e", 1, NOON + 1, "overloaded", took_s=1, retry_at=NOON + 12, retry_reason="529 overloaded_error"
    )
    book.attempt("3f9c01ab2e", 2, NOON + 12)
    book.ticket("3f9c77ab2e", task="nightly-1", idempotency_key="key-1", arrived=NOON + 20, attempts=1)
    book.attempt("3f9c77ab2e", 1, NOON + 21)
    book.ticket("b000000000", agent="bob", arrived=NOON + 30, end="refused", reason="budget spent")
    book.breaker("open", NOON + 2)
    book.breaker("closed", NOON + 12, "200", before="half-open")
    book.add(
        "budget",
        scope="agent",
        name="bob",
        per="day",
        run=1,
        limit_tokens=None,
        limit_micro_usd=5_000_000,
        began=NOON,
        spent_tokens=700,
        spent_micro_usd=5_100_000,
        reserved_tokens=0,
        reserved_micro_usd=0,
        added_tokens=0,
        added_micro_usd=0,
    )
    book.happening("BudgetSpent", NOON + 29, "agent bob has spent its budget", pool="")
    book.add("limit", run=1, at=NOON, pool=POOL, meter="requests", kind="bucket", limit=50, window_s=60, dimension="x")


@pytest.fixture(name="journal")
def journal_fixture(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(SystemClock, "wall", lambda _: NOON + 3600)
    folder = tmp_path / "hivemind_addon"
    folder.mkdir()
    return journal_with(folder / "journal.db", fill)


def run(*arguments, width=80):
    return CliRunner().invoke(main, ["history", *map(str, arguments)], env={"COLUMNS": str(width)})


def said(*arguments, width=80) -> str:
    result = run(*arguments, width=width)
    assert result.exit_code == 0, result.output
    return result.output
