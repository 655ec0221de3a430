import re
import sqlite3

import pytest

from hivemind_addon.proxy.journal import retention
from hivemind_addon.proxy.journal.file import JournalFile
from hivemind_addon.proxy.journal.retention import JournalKeep, Trimmer, parse_journal_keep
from hivemind_addon.proxy.journal.rows import Rows
from hivemind_addon.proxy.journal.runs import begin
from hivemind_addon.proxy.system.database import used_bytes
from tests.proxy.journal.samples import booked, ended, held, settled, started, submitted

DAY_S = 86_400.0
WALL = 1.7e9


def test_what_to_keep_is_said_in_days_and_bytes():
    cases = (
        ("30 days, 512 MB", JournalKeep()),
        ("7 days", JournalKeep(days=7)),
        ("1 day", JournalKeep(days=1)),
        ("2GB", JournalKeep(size_bytes=2_000_000_000)),
        ("1 gb,90 Days", JournalKeep(90, 1_000_000_000)),
    )
    assert [(text, keep) for text, keep in cases if parse_journal_keep(text) != keep] == []


def test_what_is_neither_is_refused():
    for text in ("", "off", "0 days", "7", "1 day, 2 days", "900000 days", "5 KB", "1 MB 2 days"):
        with pytest.raises(ValueError, match=re.escape(text.split(",")[-1].strip()) if text else "^$"):
            parse_journal_keep(text)


@pytest.fixture
def file(tmp_path):
    file = JournalFile(tmp_path / "journal.db", wall=WALL, told=print)
    begin(file.connection, pid=1, version="1", wall=WALL, goes_on=True)
    yield file
    file.close()


def fill(file, days, each=1, words="x"):
    """Requests of so many days ago; `each` per day."""
    rows = Rows()
    rows.begin(1)
    for day in days:
        for number in range(each):
            name = f"{day}-{number}"
            for event in (submitted(name, agent=words), held(name), started(name), settled(name), ended(name)):
                rows.take(event, WALL - day * DAY_S)
            rows.happened("GuardTripped", words, WALL - day * DAY_S)
    file.write(rows.batches())


def trim(file, keep, wall=WALL):
    trimmer = Trimmer()
    steps = 1
    while trimmer.step(file.connection, keep, wall):
        steps += 1
        assert steps < 2000
    return steps


def counts(file):
    return {
        table: file.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("ticket", "attempt", "wait", "happening")
    }


def test_what_is_too_old_goes_with_all_that_belongs_to_it(file):
    fill(file, range(40))
    trim(file, JournalKeep(days=30))
    assert set(counts(file).values()) == {30}


def test_it_goes_in_small_steps(file, monkeypatch):
    monkeypatch.setattr(retention, "MOST_PER_STEP", 5)
    fill(file, range(40))
    assert trim(file, JournalKeep(days=10)) >= 6
    assert set(counts(file).values()) == {10}


def test_what_has_not_ended_stays(file):
    rows = Rows()
    rows.begin(1)
    rows.take(submitted("open"), WALL - 99 * DAY_S)
    file.write(rows.batches())
    fill(file, [98])
    trim(file, JournalKeep())
    assert file.connection.execute("SELECT id FROM ticket").fetchall() == [("open",)]


def test_a_journal_that_is_too_large_loses_its_oldest_and_gives_the_disk_its_room_back(file, monkeypatch):
    monkeypatch.setattr(retention, "MOST_PER_STEP", 50)
    fill(file, range(20), each=100, words="word " * 50)
    file.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before, size = used_bytes(file.connection), file.path.stat().st_size
    trim(file, JournalKeep(size_bytes=before // 2))
    assert before * 0.4 < used_bytes(file.connection) <= before // 2
    file.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert file.path.stat().st_size < size * 0.6
    left = [day for (day,) in file.connection.execute("SELECT CAST(id AS INTEGER) FROM ticket")]
    assert max(left) < 19
    assert left.count(0) == 100
    assert trim(file, JournalKeep(size_bytes=before // 2)) == 1, "small enough is left alone"


def test_what_accounts_have_spent_stays_and_runs_of_which_nothing_is_left_go(file):
    rows = Rows()
    rows.begin(1)
    rows.take(booked(), WALL)
    file.write(rows.batches())
    for number in range(3):
        begin(file.connection, pid=1, version="1", wall=WALL + number, goes_on=True)
    trim(file, JournalKeep(days=1), wall=WALL + 5 * DAY_S)
    assert [run for (run,) in file.connection.execute("SELECT id FROM run")] == [1, 4]
    assert file.connection.execute("SELECT count(*) FROM budget").fetchone() == (1,)


def test_attempts_of_requests_that_were_never_written_go_too(file):
    rows = Rows()
    rows.take(settled("unknown"), WALL - 40 * DAY_S)
    file.write(rows.batches())
    trim(file, JournalKeep())
    assert counts(file)["attempt"] == 0


def test_a_step_that_fails_leaves_everything(file):
    fill(file, [50])
    file.connection.execute("CREATE TRIGGER no BEFORE DELETE ON ticket BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(sqlite3.IntegrityError):
        Trimmer().step(file.connection, JournalKeep(), WALL)
    assert set(counts(file).values()) == {1}
