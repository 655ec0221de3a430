import sqlite3

import pytest

from hivemind_addon.proxy.journal.schema import MIGRATIONS
from hivemind_addon.proxy.journal.tables import (
    AttemptRow,
    BudgetRow,
    HappeningRow,
    LimitRow,
    TicketRow,
    WaitRow,
    statements,
)
from hivemind_addon.proxy.system.database import migrate


@pytest.fixture
def connection():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, MIGRATIONS)
    return connection


def test_a_rows_fields_are_its_tables_columns(connection):
    for kind, table in (
        (TicketRow, "ticket"),
        (AttemptRow, "attempt"),
        (WaitRow, "wait"),
        (HappeningRow, "happening"),
        (LimitRow, "limit"),
        (BudgetRow, "budget"),
    ):
        columns = [name for _, name, *_ in connection.execute(f'PRAGMA table_info("{table}")')]
        fields = kind.__struct_fields__
        assert list(fields) == [name for name in columns if name != "id" or name in fields], kind


def test_any_number_of_rows_is_written_once_with_few_statements(connection):
    for count in (0, 1, 7, 8, 40, 100):
        rows = [AttemptRow("t", number, 1.0, tokens=number) for number in range(count)]
        written = statements(rows)
        for sql, values in written:
            connection.execute(sql, values)
        assert connection.execute("SELECT count(*), coalesce(sum(tokens), 0) FROM attempt").fetchone() == (
            count,
            count * (count - 1) // 2,
        )
        assert len(written) <= count // 32 + 3 + 7, count


def test_a_row_that_is_written_again_takes_the_place_of_the_first(connection):
    for row in (AttemptRow("t", 1, 1.0), AttemptRow("t", 1, 1.0, outcome="success", tokens=5)):
        for sql, values in statements([row]):
            connection.execute(sql, values)
    assert connection.execute("SELECT outcome, tokens FROM attempt").fetchall() == [("success", 5)]
