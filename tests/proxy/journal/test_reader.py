import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hivemind_addon.proxy.journal.schema import APPLICATION_ID, VERSION
from hivemind_addon.proxy.journal.tables import TicketRow
from hivemind_addon.tools.history.filters import RequestFilter
from hivemind_addon.tools.history.history import requests
from hivemind_addon.tools.history.reader import JournalReader, NoJournal
from tests.proxy.journal.book import Book, journal_with


def ids(path: Path) -> list[str]:
    with JournalReader(path) as journal:
        return [ticket.id for ticket in journal.records(TicketRow, "ticket", "ORDER BY id")]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return journal_with(tmp_path / "journal.db", lambda book: (book.run(), book.ticket("a1")))


def why_not(path: Path) -> str:
    with pytest.raises(NoJournal) as caught:
        JournalReader(path)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text
    return text


def test_it_reads_while_somebody_writes_and_keeps_to_one_instant(tmp_path):
    with closing(Book(tmp_path / "journal.db")) as book:
        book.run()
        book.ticket("a1")
        with JournalReader(book.path) as journal:
            assert len(requests(journal, RequestFilter(), 10)) == 1
            book.ticket("a2")
            assert len(requests(journal, RequestFilter(), 10)) == 1
        assert ids(book.path) == ["a1", "a2"]


def test_it_reads_what_a_killed_writer_has_left(tmp_path):
    """The last rows are only in the -wal file, which nobody has taken over."""
    path = tmp_path / "journal.db"
    code = f"""
import os
from pathlib import Path
from tests.proxy.journal.book import Book
book = Book(Path({str(path)!r}))
book.run()
book.ticket("a1")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[3])
    assert path.with_name("journal.db-wal").stat().st_size > 0
    assert ids(path) == ["a1"]


@pytest.mark.parametrize("step", ["VACUUM", f"PRAGMA application_id = {APPLICATION_ID}"])
@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_one_that_is_just_being_made_is_empty(tmp_path, step, mode):
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as maker:
        maker.execute(step)
        maker.execute(f"PRAGMA journal_mode = {mode}")
        assert why_not(path) == f"{path} is empty: nothing has been written yet"


def test_a_copy_elsewhere_is_read(journal, tmp_path):
    copy = tmp_path / "elsewhere? 50%" / "copy.db"
    copy.parent.mkdir()
    shutil.copy(journal, copy)
    assert ids(copy) == ["a1"]


def test_a_copy_in_a_folder_that_cannot_be_written_is_read(journal, tmp_path):
    """SQLite can make no index of the log there; nothing is in that log."""
    # Root may write everywhere, unless it gives that up.
    powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    if powerless and not shutil.which("setpriv"):
        pytest.skip("root, and no setpriv")
    code = f"""
from pathlib import Path
from hivemind_addon.tools.history.reader import JournalReader
with JournalReader(Path({str(journal)!r})) as journal:
    print(journal.tuples("SELECT id FROM ticket"))
"""
    journal.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        command = [*powerless, sys.executable, "-c", code]
        shown = subprocess.run(command, check=False, capture_output=True, text=True)
    finally:
        tmp_path.chmod(0o700)
    assert shown.stdout == "[('a1',)]\n", shown.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["journal.db"]


def test_nothing_is_written_to_it(journal):
    before = journal.read_bytes()
    with JournalReader(journal) as reader, pytest.raises(NoJournal, match="readonly"):
        reader.tuples("DELETE FROM ticket")
    assert journal.read_bytes() == before


def test_what_is_no_text_is_looked_for_as_it_was_written(journal):
    with JournalReader(journal) as reader:
        assert reader.tuples("SELECT ?", ("\udcff",)) == [("?",)]


def test_no_journal_yet(tmp_path):
    assert "hivemind run" in why_not(tmp_path / "journal.db")


@pytest.mark.parametrize("content", [b"Call me Ishmael. " * 100, b"SQLite"])
def test_another_file(tmp_path, content):
    path = tmp_path / "novel.txt"
    path.write_bytes(content)
    assert "no journal of hivemind" in why_not(path)


def test_an_empty_file_and_a_folder(tmp_path):
    path = tmp_path / "journal.db"
    path.touch()
    assert "empty" in why_not(path)
    path.unlink()
    path.mkdir()
    assert "Is a directory" in why_not(path)


def test_another_database(tmp_path):
    path = tmp_path / "history.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE moz_places (url TEXT)")
    assert "no journal of hivemind" in why_not(path)


@pytest.mark.parametrize(("version", "words"), [(VERSION + 1, "newer"), (VERSION - 1, "older")])
def test_another_version(journal, version, words):
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    assert words in why_not(journal)


@pytest.mark.parametrize("damage", ["cut", "overwritten", "no tables"])
def test_a_damaged_journal(journal, damage):
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = journal.read_bytes()
    match damage:
        case "cut":
            journal.write_bytes(whole[: len(whole) // 3])
        case "overwritten":
            journal.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
        case "no tables":
            journal.unlink()
            with closing(sqlite3.connect(journal)) as connection:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
    with pytest.raises(NoJournal, match=r"journal\.db is damaged"), JournalReader(journal) as reader:
        reader.records(TicketRow, "ticket")


def test_a_row_of_another_kind_is_damage(journal):
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("UPDATE ticket SET arrived = 'yesterday'")
        connection.commit()
    with JournalReader(journal) as reader, pytest.raises(NoJournal, match="damaged"):
        reader.records(TicketRow, "ticket")


def test_whether_its_proxy_is_there(journal):
    """A copy has no lock beside it: of that nobody knows."""
    with JournalReader(journal) as reader:
        assert not reader.is_orphaned
    with journal.with_name("journal.db.lock").open("w") as lock:
        with JournalReader(journal) as reader:
            assert reader.is_orphaned
        fcntl.flock(lock, fcntl.LOCK_EX)
        with JournalReader(journal) as reader:
            assert not reader.is_orphaned
