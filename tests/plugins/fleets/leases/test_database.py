import math
import os
import sqlite3
import stat
import subprocess
import sys

import pytest

from hivemind_addon.plugins.fleets.leases import database
from hivemind_addon.plugins.fleets.leases.database import LeaseFile
from hivemind_addon.plugins.fleets.leases.model import LeaseError
from hivemind_addon.proxy.system.file_lock import take_lock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "leases.db"


def tokens(file):
    with file.using() as connection:
        return connection.execute("select token from state").fetchone()[0]


def test_it_is_made_private(path):
    file = LeaseFile(path)
    assert tokens(file) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()} == {0o600}


def test_a_file_that_is_no_database_is_named_with_the_cure(path):
    path.parent.mkdir()
    path.write_text("no database, but long enough to be taken for one" * 100)
    with pytest.raises(LeaseError, match=r"leases\.db cannot be used .*remove it"):
        tokens(LeaseFile(path))


def test_a_damaged_file_is_named_with_the_cure(path):
    with LeaseFile(path).writing() as connection:
        connection.execute("drop table state")
    with pytest.raises(LeaseError, match=r"leases\.db"):
        tokens(LeaseFile(path))


def test_a_newer_hivemind_keeps_its_file(path):
    with LeaseFile(path).writing() as connection:
        connection.execute("pragma user_version = 9")
    with pytest.raises(LeaseError, match="newer hivemind"):
        tokens(LeaseFile(path))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LeaseError, match=r"file/state|file"):
        tokens(LeaseFile(tmp_path / "file" / "state" / "leases.db"))


def test_a_full_disk_is_said_and_nothing_is_half_written(path):
    file = LeaseFile(path)
    with file.using() as connection:
        pages = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(LeaseError, match="full"), file.writing() as connection:
        connection.executemany("insert into held values (hex(zeroblob(?)), 'x')", [(10,), (100_000,)])
    assert tokens(file) == 0


class Elsewhere:
    """Another process that has the file, and lets go of it after some pauses."""

    def __init__(self, path, pauses):
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("begin exclusive")
        self.paused_s, self.left = 0, pauses

    def pause(self, seconds):
        self.paused_s += seconds
        self.left -= 1
        if self.left == 0:
            self.end()

    def end(self):
        self._database.execute("commit")
        self._database.close()


def test_who_writes_is_waited_for(path):
    tokens(LeaseFile(path))
    elsewhere = Elsewhere(path, 7)
    with LeaseFile(path, pause=elsewhere.pause).writing():
        assert elsewhere.left == 0


def test_those_who_find_a_new_file_at_once_wait_for_the_one_who_makes_it(path):
    path.parent.mkdir()
    elsewhere = Elsewhere(path, 7)
    assert tokens(LeaseFile(path, pause=elsewhere.pause)) == 0
    assert elsewhere.left == 0


def test_who_writes_for_too_long_is_told_from_a_broken_file(path):
    tokens(LeaseFile(path))
    elsewhere = Elsewhere(path, math.inf)
    with pytest.raises(LeaseError, match="was locked for 10 s"), LeaseFile(path, pause=elsewhere.pause).writing():
        pass
    assert elsewhere.paused_s == pytest.approx(10)
    elsewhere.end()


def test_a_file_that_was_removed_is_made_anew(path):
    file = LeaseFile(path)
    with file.writing() as connection:
        connection.execute("update state set token = 7")
    path.unlink()
    assert tokens(file) == 0
    file.close()
    assert tokens(file) == 0


def test_a_file_that_was_removed_is_made_anew_though_another_process_has_it_open(path):
    with subprocess.Popen(
        [sys.executable, "-c", _HAS_IT_OPEN, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "7\n"
        path.unlink()
        file = LeaseFile(path)
        with file.writing() as connection:
            connection.execute("update state set token = 8")
        assert tokens(file) == 8
        assert other.communicate("and now?\n", timeout=60)[0] == "8\n"
    assert tokens(file) == tokens(LeaseFile(path)) == 8


_HAS_IT_OPEN = """
import sys
from pathlib import Path
from hivemind_addon.plugins.fleets.leases import database
from hivemind_addon.plugins.fleets.leases.database import LeaseFile
file = LeaseFile(Path(sys.argv[1]))
with file.writing() as connection:
    connection.execute("update state set token = 7")
for _ in range(2):
    with file.using() as connection:
        print(connection.execute("select token from state").fetchone()[0], flush=True)
    sys.stdin.readline()
"""


def test_a_file_that_another_process_makes_is_waited_for(path, monkeypatch):
    path.parent.mkdir()
    monkeypatch.setattr(database, "_BUSY_S", 0.0)
    lock = take_lock(path.with_name("leases.db.lock"))
    with pytest.raises(LeaseError, match=r"leases\.db was being made for 0 s by another process"):
        tokens(LeaseFile(path))
    assert not path.exists()
    os.close(lock)
    assert tokens(LeaseFile(path)) == 0
