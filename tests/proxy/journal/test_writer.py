import sqlite3

import pytest

from hivemind_addon.kernel.values.events import GuardTripped
from hivemind_addon.proxy.journal import file as file_module
from hivemind_addon.proxy.journal.tables import WaitRow
from hivemind_addon.proxy.journal.writer import SEEN_S, TAKEN_S, Writer
from tests.proxy.journal.samples import asked, booked, column, held, life, settled, started, submitted


class House:
    """A writer, and what it told."""

    def __init__(self, clock):
        self.clock = clock
        self.warnings, self.unsaved, self.inherited = [], [], []
        self.writer = Writer(
            clock=clock, warn=self.warnings.append, unsaved=self.unsaved.append, inherited=self.inherited.append
        )

    def take(self, *events):
        for event in events:
            self.writer.rows.take(event, event.at + self.clock.wall() - self.clock.monotonic())

    def write(self, path, *events, kept=None):
        self.take(*events)
        return self.writer.ready(path) and self.writer.write(kept or {})

    def full(self, is_full=True):
        """A disk that is full: SQLite's own word for it."""
        pages = 1 if is_full else 10**6
        self.writer._file.connection.execute(f"PRAGMA max_page_count = {pages}")


@pytest.fixture
def house(clock):
    house = House(clock)
    yield house
    house.writer.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine" / "journal.db"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(file_module, "LOCK_S", 0.0)
    monkeypatch.setattr(file_module, "BUSY_S", 0.0)


def damage(path):
    """Overwrite all but the first page."""
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))


def test_everything_is_in_the_file(house, path):
    trip = GuardTripped(at=1, ticket_id="t1", where="hook", error="E")
    assert house.write(path, *life(), booked(), trip, kept={"learned": "{}"})
    for table in ("run", "ticket", "attempt", "wait", "happening", "budget", "kept"):
        assert len(asked(path, f"SELECT * FROM {table}")) == 1, table
    house.writer.close()
    assert asked(path, "SELECT ended FROM run")[0]["ended"] == house.clock.wall()
    assert (house.warnings, house.unsaved) == ([], [])


def test_what_has_not_changed_is_not_written_but_that_it_lives_is(house, path, clock):
    assert house.write(path, kept={"learned": "{}"})
    clock.advance(SEEN_S - 1)
    assert house.write(path, kept={"learned": "{}"})
    assert asked(path, "SELECT seen FROM run")[0]["seen"] == clock.wall() - SEEN_S + 1
    clock.advance(1)
    assert house.write(path)
    assert asked(path, "SELECT seen FROM run")[0]["seen"] == clock.wall()


def test_a_full_disk_is_told_once_and_all_is_written_when_it_has_room_again(house, path):
    assert house.write(path)
    house.full()
    words = {"learned": "x" * 20_000}
    for number in range(3):
        assert not house.write(path, *life(f"t{number}"), kept=words)
    assert len(house.unsaved) == 1
    assert "full" in house.unsaved[0]
    house.full(False)
    assert house.write(path, kept=words)
    assert house.unsaved[1:] == [""]
    assert column(path, "ticket", "id", "id") == ["t0", "t1", "t2"]
    assert len(asked(path, "SELECT * FROM run")) == 1, "it is the same run"


def test_a_file_that_somebody_else_has_locked_is_written_later(house, path):
    assert house.write(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert not house.write(path, *life())
    other.execute("COMMIT")
    other.close()
    assert house.write(path)
    assert column(path, "ticket", "id", "id") == ["t1"]
    assert "locked" in house.unsaved[0]


def test_a_file_that_was_taken_away_is_made_anew_with_what_has_not_ended(house, path):
    assert house.write(path, *life("over"), submitted("open"), started("open"), booked(), kept={"learned": "{}"})
    for one in path.parent.iterdir():
        one.unlink()
    assert house.write(path, settled("open"), kept={"learned": "{}"})
    assert column(path, "ticket", "id", "id") == ["open"]
    assert column(path, "attempt", "outcome", "ticket") == ["success"]
    assert column(path, "budget", "spent_tokens", "name") == [70]
    assert column(path, "kept", "name", "name") == ["learned"]
    assert "taken away" in house.warnings[0]


def test_a_journal_that_is_damaged_meanwhile_is_moved_aside_and_nothing_open_is_lost(house, path):
    assert house.write(path, submitted("open"), booked())
    house.writer._file.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    house.writer._file.connection.execute("PRAGMA cache_size = 0")
    damage(path)
    for number in range(9):
        if house.write(path, *life(f"t{number}"), kept={"learned": f"{number}"}) and number > 3:
            break
    assert len(house.warnings) == 1
    assert "damaged" in house.warnings[0]
    assert len(list(path.parent.glob("journal.db.damaged-*[0-9]"))) == 1
    assert {"open", "t0"} <= set(column(path, "ticket", "id", "id"))
    assert column(path, "budget", "spent_tokens", "name") == [70]
    assert column(path, "kept", "name", "name") == ["learned"]
    assert house.unsaved == []


def test_a_journal_that_was_damaged_before_the_start_gives_what_it_still_has(house, path, clock):
    assert house.write(path, *life(), booked(), kept={"learned": '{"a": 1}'})
    house.writer.close()
    connection = sqlite3.connect(path)
    root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ticket_open'").fetchone()[0]
    connection.close()
    content = bytearray(path.read_bytes())
    content[(root - 1) * 4096 : root * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    later = House(clock)
    assert later.write(path)
    assert "damaged" in later.warnings[0]
    assert dict(later.inherited[0].kept) == {"learned": '{"a": 1}'}
    assert [one.spent.tokens for one in later.inherited[0].standings(clock.wall())] == [100]
    assert column(path, "budget", "spent_tokens", "name") == [100]
    later.writer.close()


def test_a_second_one_on_the_file_writes_nothing_and_is_told_once(house, path, clock):
    assert house.write(path)
    house.writer.listens("the one at port 8080, process 5")
    second = House(clock)
    for _ in range(3):
        assert not second.write(path, *life())
    assert second.writer.refused == path
    (line,) = second.warnings
    assert "port 8080, process 5" in line
    assert (second.unsaved, second.inherited) == ([], [None])
    assert second.write(path.with_name("other.db"))


def test_a_file_that_another_proxy_has_is_looked_at_again_and_is_ours_when_that_one_ends(house, path, clock):
    assert house.write(path, booked(), kept={"orders": '"a pause"'})
    second = House(clock)
    assert not second.write(path)
    house.writer.close()
    assert not second.write(path), "not before its time"
    clock.advance(TAKEN_S)
    assert second.write(path, *life("mine"))
    assert column(path, "ticket", "id", "id") == ["mine"]
    taken, free = second.warnings
    assert "waits until that one ends" in taken
    assert "this one's from now on" in free
    _, inherited = second.inherited
    assert inherited.kept == {}, "orders were the other's"
    assert [one.spent.tokens for one in inherited.standings(clock.wall())] == [100]
    second.writer.close()


def test_a_file_that_is_no_journal_is_not_looked_at_again(house, path, clock):
    path.parent.mkdir()
    path.write_bytes(b"no database at all, and longer than a header" * 5)
    for _ in range(3):
        assert not house.write(path)
        clock.advance(10 * TAKEN_S)
    assert len(house.warnings) == 1


def test_what_cannot_be_opened_now_is_tried_again(house, tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "journal.db"
    assert not house.write(path, *life())
    assert not house.write(path)
    assert (len(house.unsaved), house.inherited) == (1, [None, None])
    (tmp_path / "file").unlink()
    assert house.write(path)
    assert house.unsaved[1:] == [""]
    assert column(path, "ticket", "id", "id") == ["t1"]
    assert house.inherited[-1] is not None


def test_what_is_spent_is_read_from_a_file_that_cannot_be_written(house, path, clock, monkeypatch):
    assert house.write(path, booked(), kept={"orders": "{}"})
    house.writer.close()

    def read_only(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hivemind_addon.proxy.journal.writer.JournalFile", read_only)
    later = House(clock)
    assert not later.write(path)
    assert "Permission denied" in later.unsaved[0]
    assert [one.spent.tokens for one in later.inherited[0].standings(clock.wall())] == [100]
    monkeypatch.undo()
    assert later.write(path)
    assert len(later.inherited) == 1, "it is counted in once"
    later.writer.close()


def test_another_file_may_be_named_while_requests_run(house, path):
    other = path.with_name("other.db")
    assert house.write(path, submitted("open"))
    assert house.write(other, held("open"))
    assert asked(path, 'SELECT "end", reason FROM ticket') == [
        {"end": "lost", "reason": "the journal is another file now"}
    ]
    assert asked(other, 'SELECT "end" FROM ticket') == [{"end": ""}]


def test_a_row_that_sqlite_does_not_take_keeps_no_other_from_the_file(house, path, caplog):
    assert house.write(path)
    house.writer.rows._waits.append(WaitRow("t1", None, "order", 1))
    assert house.write(path, *life(), kept={"learned": "{}"})
    assert column(path, "ticket", "id", "id") == ["t1"]
    assert len(asked(path, "SELECT * FROM wait")) == 1
    assert column(path, "kept", "name", "name") == ["learned"]
    assert "cannot take WaitRow" in caplog.text
