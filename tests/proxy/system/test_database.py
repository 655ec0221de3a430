import sqlite3
import stat
from contextlib import closing

import pytest

from hivemind_addon.proxy.system.database import DAMAGED, open_private, open_to_read, primary_code, transaction
from tests.cases import each


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.db"


@pytest.fixture
def connection(path):
    with closing(open_private(path, patience_s=0)) as opened:
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("CREATE TABLE kept (name)")
        yield opened


def names(connection):
    return [name for (name,) in connection.execute("SELECT name FROM kept")]


def test_nobody_else_may_read_it_or_what_lies_beside_it(path):
    for name in ("file.db", "file.db-wal"):
        path.with_name(name).touch()
        path.with_name(name).chmod(0o666)
    with closing(open_private(path, patience_s=0)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE kept (name)")
        assert {stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()} == {0o600}


def test_what_fails_is_undone_and_the_connection_goes_on(connection):
    statements = ("INSERT INTO kept VALUES ('a')", "INSERT INTO nowhere VALUES ('a')")
    with pytest.raises(sqlite3.OperationalError), transaction(connection):
        list(map(connection.execute, statements))
    with transaction(connection):
        connection.execute("INSERT INTO kept VALUES ('b')")
    assert names(connection) == ["b"]


def test_nobody_else_writes_meanwhile(path, connection):
    with (
        closing(open_private(path, patience_s=0)) as other,
        transaction(connection),
        pytest.raises(sqlite3.OperationalError) as caught,
        transaction(other),
    ):
        pass
    assert primary_code(caught.value) == sqlite3.SQLITE_BUSY


def test_who_reads_cannot_write(path, connection):
    connection.execute("INSERT INTO kept VALUES ('a')")
    with closing(open_to_read(path, patience_s=0)) as reading:
        assert names(reading) == ["a"]
        with pytest.raises(sqlite3.OperationalError):
            reading.execute("DELETE FROM kept")


def test_a_log_that_cannot_be_read_counts_or_is_given_up_at_will(path, connection):
    connection.execute("INSERT INTO kept VALUES ('a')")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    copy.with_name("copy.db-wal").mkdir()
    (copy.with_name("copy.db-wal") / "row").touch()
    with pytest.raises(sqlite3.OperationalError):
        open_to_read(copy, patience_s=0)
    with closing(open_to_read(copy, patience_s=0, though_unlogged=True)) as reading:
        assert names(reading) == ["a"]


@each("though_unlogged", [False, True])
def test_what_is_damaged_is_said_to_be(path, though_unlogged):
    path.write_bytes(b"no database, but long enough to be taken for one" * 100)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        open_to_read(path, patience_s=0, though_unlogged=though_unlogged)
    assert primary_code(caught.value) in DAMAGED


def test_an_error_of_ours_has_no_code():
    assert primary_code(ValueError()) == 0
