import sqlite3
import stat
import subprocess
import sys

import pytest

from hivemind_addon.proxy.journal import file as module
from hivemind_addon.proxy.journal.file import JournalFile, default_journal
from hivemind_addon.proxy.journal.schema import APPLICATION_ID, MIGRATIONS, VERSION
from hivemind_addon.proxy.system.database import FileUnusable, migrate
from tests.proxy.journal.samples import asked

WALL = 1_700_000_000.0
SECOND = "-- How it felt.\nALTER TABLE ticket ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine" / "journal.db"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "LOCK_S", 0.05)
    monkeypatch.setattr(module, "BUSY_S", 0.05)


def opened(path, told=None, **changes):
    return JournalFile(path, wall=WALL, told=(told if told is not None else []).append, **changes)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_one_is_its_owners_alone_and_known_as_a_journal(path):
    file = opened(path)
    file.write([("INSERT INTO kept VALUES ('a', 1, '{}')", ())])
    assert {one.name: mode(one) for one in path.parent.iterdir()} == {
        "journal.db": 0o600,
        "journal.db-wal": 0o600,
        "journal.db-shm": 0o600,
        "journal.db.lock": 0o600,
    }
    assert mode(path.parent) == 0o700
    file.close()
    assert {one.name for one in path.parent.iterdir()} == {"journal.db", "journal.db.lock"}, "all of it in one file"
    assert asked(path, "PRAGMA application_id") == [{"application_id": APPLICATION_ID}]
    assert asked(path, "PRAGMA user_version") == [{"user_version": VERSION}]
    assert asked(path, "PRAGMA auto_vacuum") == [{"auto_vacuum": 2}]


def test_one_that_others_could_read_is_closed_to_them(path):
    opened(path).close()
    path.chmod(0o644)
    file = opened(path)
    assert mode(path) == 0o600
    file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of Linux")
def test_it_lies_in_the_users_own_folder_which_becomes_private(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_journal() == tmp_path / "hivemind_addon" / "journal.db"
    default_journal().parent.mkdir(mode=0o755)
    opened(default_journal()).close()
    assert mode(default_journal().parent) == 0o700


def test_only_one_writes_it_and_the_other_hears_who(path):
    first = opened(path)
    first.name_holder("the one at port 8080, process 77")
    with pytest.raises(FileUnusable, match=r"journal\.db is written by another proxy \(the one at port 8080"):
        opened(path)
    first.close()
    opened(path).close()


HOLDER = """
import sys
from pathlib import Path
from hivemind_addon.proxy.journal.file import JournalFile
file = JournalFile(Path(sys.argv[1]), wall=0.0, told=print)
file.name_holder("the other one")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_ends_with_its_process(path):
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FileUnusable, match="the other one"):
            opened(path)
        holder.kill()
    opened(path).close()


@pytest.mark.parametrize("content", [b"my notes\n" * 100, b"SQLite format 2\0", b"x", b"\0" * 4096])
def test_what_is_no_database_is_not_touched(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(FileUnusable, match="no journal of ours and is not touched"):
        opened(path)
    assert path.read_bytes() == content
    assert {one.name for one in path.parent.iterdir()} == {"journal.db", "journal.db.lock"}


@pytest.mark.parametrize("broken", [False, True])
def test_somebody_elses_database_is_not_touched(path, broken):
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipe (name)")
    connection.close()
    content = path.read_bytes()
    if broken:
        content = content[:100] + b"\xff" * (len(content) - 100)
        path.write_bytes(content)
    with pytest.raises(FileUnusable, match="no journal of ours"):
        opened(path)
    assert path.read_bytes() == content


def test_an_empty_file_and_an_empty_database_become_a_journal(path):
    path.parent.mkdir()
    path.touch()
    opened(path).close()
    path.unlink()
    sqlite3.connect(path).execute("VACUUM").connection.close()
    opened(path).close()
    assert asked(path, "SELECT * FROM ticket") == []


def test_a_folder_is_no_journal(path):
    path.mkdir(parents=True)
    with pytest.raises(FileUnusable, match="is a folder"):
        opened(path)


def test_a_newer_one_is_not_touched(path):
    opened(path, migrations=(*MIGRATIONS, SECOND)).close()
    before = path.read_bytes()
    with pytest.raises(FileUnusable, match=f"journal version {VERSION + 1}, this one knows {VERSION}"):
        opened(path)
    assert path.read_bytes() == before


def test_an_older_one_becomes_a_newer_one_and_keeps_what_it_has(path):
    file = opened(path)
    row = "INSERT INTO kept VALUES ('a', 1, '{}')"
    file.write([(row, ()), ("INSERT INTO run VALUES (1, 2, 3, NULL, 4, 'x', 8080, 1)", ())])
    file.close()
    opened(path, migrations=(*MIGRATIONS, SECOND)).close()
    assert asked(path, "PRAGMA user_version") == [{"user_version": VERSION + 1}]
    assert asked(path, "SELECT name FROM kept") == [{"name": "a"}]
    assert "mood" in {column["name"] for column in asked(path, "PRAGMA table_info(ticket)")}


def test_a_migration_that_fails_leaves_the_journal_as_it_was(path):
    opened(path).close()
    with pytest.raises(sqlite3.OperationalError):
        opened(path, migrations=(*MIGRATIONS, "CREATE TABLE half (a); CREATE TABLE run (a)"))
    assert asked(path, "PRAGMA user_version") == [{"user_version": VERSION}]
    assert asked(path, "SELECT name FROM sqlite_master WHERE name = 'half'") == []
    opened(path).close()


def test_a_migration_is_not_run_twice():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for _ in range(2):
        migrate(connection, MIGRATIONS)
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_a_damaged_one_is_moved_aside_and_a_new_one_begins(path):
    opened(path).close()
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xff" * 3996
    path.write_bytes(content)
    told = []
    opened(path, told).close()
    (aside,) = path.parent.glob("journal.db.damaged-*")
    assert aside.name == "journal.db.damaged-20231114-221320"
    assert aside.read_bytes() == content
    (line,) = told
    assert str(aside) in line
    assert asked(path, "SELECT * FROM ticket") == []


def test_one_that_was_cut_within_its_header_is_moved_aside(path):
    opened(path).close()
    path.write_bytes(path.read_bytes()[:50])
    told = []
    opened(path, told).close()
    assert len(told) == 1


def test_what_is_written_is_written_wholly_or_not_at_all(path):
    file = opened(path)
    row = "INSERT INTO kept VALUES ('a', 1, '{}')"
    with pytest.raises(sqlite3.IntegrityError):
        file.write([(row, ()), (row, ())])
    file.write([(row, ())])
    file.close()
    assert len(asked(path, "SELECT * FROM kept")) == 1


def test_it_knows_when_it_was_taken_away(path):
    file = opened(path)
    assert file.is_there()
    path.rename(path.with_name("else.db"))
    assert not file.is_there()
    path.touch()
    assert not file.is_there()
    file.close()
