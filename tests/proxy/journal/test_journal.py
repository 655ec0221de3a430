import asyncio
import json
import os
import sqlite3
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from hivemind_addon.kernel.values.events import AccountNamed, GuardTripped, PersonActed, StateUnsaved
from hivemind_addon.kernel.values.spend import Period, Spend
from hivemind_addon.kernel.values.ticket import PoolKey
from hivemind_addon.proxy.journal import journal as module
from hivemind_addon.proxy.journal.file import JournalFile
from hivemind_addon.proxy.journal.journal import Journal
from hivemind_addon.proxy.journal.retention import JournalKeep
from hivemind_addon.proxy.journal.rows import Rows
from tests.proxy.journal.samples import asked, booked, column, life


class Keeper:
    """Something that has learned."""

    def __init__(self):
        self.state = {"learned": {"limit": 4}}
        self.restored = []
        self.counted_in = []

    def export(self):
        return dict(self.state)

    def count_in(self, standings):
        self.counted_in.extend(standings)

    def restore(self, kept, standings):
        self.restored.append((dict(kept), [one.spent for one in standings]))


@pytest.fixture(autouse=True)
def prompt(monkeypatch):
    """The thread neither gathers nor rests, and it is waited for."""
    monkeypatch.setattr(module, "START_S", 120.0)
    monkeypatch.setattr(module, "FLUSH_S", 120.0)
    monkeypatch.setattr(module, "_GATHER_S", 0.0)
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine" / "journal.db"


@pytest.fixture
def keeper():
    return Keeper()


def opened(path, clock, keeper=None, note=None):
    return Journal(path, keep=JournalKeep(), keeper=keeper or Keeper(), clock=clock, note=note or (lambda event: None))


class Disk:
    """Stands in for SQLite's writing: hangs, or fails, as it is told."""

    def __init__(self, monkeypatch):
        self.go = threading.Event()
        self.asked = threading.Semaphore(0)
        self.go.set()
        write = JournalFile.write

        def slowly(file, statements):
            self.asked.release()
            assert self.go.wait(120)
            write(file, statements)

        monkeypatch.setattr(JournalFile, "write", slowly)

    async def was_asked(self):
        assert await asyncio.to_thread(self.asked.acquire, timeout=120)


async def becomes(condition):
    """The thread says to itself what it does after it has told the keeper."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0)  # noqa: TID251 - its next step


def was_written(path):
    """Whether a file of another thread has the end of a request and a budget."""
    with suppress(sqlite3.OperationalError):
        return column(path, "ticket", "end", "id") == ["delivered"] and bool(column(path, "budget", "name", "name"))
    return False


async def test_every_event_is_in_the_file_and_what_was_learned(path, clock, keeper):
    journal = opened(path, clock, keeper)
    journal.restore()
    assert keeper.restored == [({}, [])]
    for number in range(100):
        for event in [*life(f"t{number:02}"), booked(spent=number)]:
            journal(event)
    await journal.close()
    assert column(path, "ticket", "end", "id") == ["delivered"] * 100
    assert column(path, "ticket", "arrived", "id")[0] == clock.wall()
    assert column(path, "budget", "spent_tokens", "name") == [99]
    assert [json.loads(value) for value in column(path, "kept", "value", "name")] == [{"limit": 4}]


async def test_rows_are_made_off_the_loop(path, clock, monkeypatch):
    threads = set()
    for owner, name in ((Rows, "take"), (Rows, "batches")):
        made = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given, made=made: threads.add(threading.current_thread().name) or made(*given)
        )
    journal = opened(path, clock)
    for event in [*life(), booked(spent=1)]:
        journal(event)
    await journal.close()
    assert threads == {"hivemind-journal"}


async def test_the_next_one_restores_it_with_what_was_in_flight(path, clock, keeper):
    first = opened(path, clock)
    first(booked(spent=70, reserved=30))
    await first.close()
    second = opened(path, clock, keeper)
    second.restore()
    assert keeper.restored == [({"learned": {"limit": 4}}, [Spend(100, 0)])]
    await second.close()


async def test_what_was_spent_before_a_budget_was_set_is_counted_in_once(path, clock, keeper):
    journal = opened(path, clock, keeper)
    now = clock.monotonic()
    for number in range(3):
        for event in life(f"t{number}", at=now):
            journal(event)
    clock.advance(60)
    at = clock.monotonic()
    for _ in range(2):  # only the first word on an account asks
        journal(booked(at=at, began_at=at, spent=0, reserved=0))
        journal(booked(at=at, began_at=at, spent=0, reserved=0, name="somebody-else"))
    await becomes(lambda: keeper.counted_in)
    await journal.close()
    (standing,) = keeper.counted_in
    assert (standing.budget.name, standing.budget.per, standing.spent) == (
        "agent-1",
        Period.DAY,
        Spend(327, 81, calls=3, unpriced_tokens=327),
    )
    after = Keeper()
    second = opened(path, clock, after)
    second.restore()
    second(booked(at=clock.monotonic(), began_at=at))
    await second.close()
    assert after.counted_in == [], "its account goes on"


async def test_what_cannot_be_read_costs_one_line_and_a_fresh_start(path, clock, caplog, keeper):
    await opened(path, clock).close()
    file = JournalFile(path, wall=0, told=print)
    file.write([("UPDATE kept SET value = '{'", ())])
    file.close()
    journal = opened(path, clock, keeper)
    journal.restore()
    assert keeper.restored == [({}, [])]
    (line,) = caplog.messages
    assert "learned in" in line
    assert "starting fresh" in line
    await journal.close()


async def test_a_keeper_that_cannot_take_it_starts_fresh(path, clock, caplog, keeper):
    await opened(path, clock).close()
    keeper.restore = None
    journal = opened(path, clock, keeper)
    journal.restore()
    assert "starting fresh" in caplog.text
    await journal.close()


async def test_a_disk_that_hangs_makes_nobody_wait_and_what_was_lost_is_counted(path, clock, monkeypatch, caplog):
    monkeypatch.setattr(module, "KEPT", 10)
    disk = Disk(monkeypatch)
    disk.go.clear()
    journal = opened(path, clock)
    await disk.was_asked()
    for number in range(100):
        journal(GuardTripped(at=clock.monotonic(), ticket_id=None, where="hook", error=f"E{number}"))
        journal(booked(spent=number))
    assert "10 events wait" in repr(journal)
    disk.go.set()
    await journal.close()
    texts = column(path, "happening", "text")
    assert len(texts) == 6
    assert texts[-1] == "95 events are missing: too many waited for the file"
    assert column(path, "budget", "spent_tokens", "name") == [99], "the last word on an account is never dropped"
    assert "lost 95 events" in caplog.text


async def test_a_disk_that_never_answers_does_not_keep_the_proxy_from_ending(path, clock, monkeypatch):
    monkeypatch.setattr(module, "FLUSH_S", 0.05)
    disk = Disk(monkeypatch)
    journal = opened(path, clock)
    journal.restore()
    disk.go.clear()
    journal(life()[0])
    await asyncio.wait_for(journal.close(), 60)
    disk.go.set()


async def test_a_disk_that_opens_late_gives_what_it_has_late(path, clock, monkeypatch, caplog, keeper):
    await opened(path, clock).close()
    monkeypatch.setattr(module, "START_S", 0.01)
    go = threading.Event()
    monkeypatch.setattr(JournalFile, "_make_folder", lambda _: go.wait(120))
    journal = opened(path, clock, keeper)
    journal.restore()
    assert keeper.restored == []
    assert "does not open" in caplog.text
    go.set()
    await journal.close()
    await asyncio.sleep(0)  # noqa: TID251 - what the thread left on the loop
    assert keeper.restored == [({"learned": {"limit": 4}}, [])]


async def test_a_disk_that_fails_is_told_to_the_observers(tmp_path, clock):
    (tmp_path / "file").touch()
    told, twice = [], asyncio.Event()

    def note(event):
        told.append(event)
        if event.reason:
            (tmp_path / "file").unlink()
        if len(told) == 2:
            twice.set()

    journal = opened(tmp_path / "file" / "journal.db", clock, note=note)
    journal.restore()
    await asyncio.wait_for(twice.wait(), 120)
    assert [type(event) for event in told] == [StateUnsaved, StateUnsaved]
    assert [bool(event.reason) for event in told] == [True, False]
    await journal.close()


async def test_a_second_one_on_the_file_hears_who_has_it_and_takes_nothing(path, clock, caplog, monkeypatch):
    monkeypatch.setattr("hivemind_addon.proxy.journal.file.LOCK_S", 0.0)
    disk = Disk(monkeypatch)
    first = opened(path, clock)
    first.restore()
    assert column(path, "run", "listened") == [0], "one that is killed now has not died: it served nobody"
    first.is_at(8080)
    while "8080" not in path.with_name("journal.db.lock").read_text():
        await asyncio.to_thread(disk.asked.acquire, timeout=0.01)
    second = opened(path, clock)
    second.restore()
    await second.close()
    (line,) = caplog.messages
    assert "written by another proxy (the one at port 8080, process" in line
    await first.close()
    assert column(path, "run", "listened") == [1]
    assert list(path.parent.glob("*.db")) == [path], "nothing happened in it"


async def test_what_happened_in_a_second_one_that_ends_first_is_in_a_file_of_its_own(path, clock, caplog, monkeypatch):
    monkeypatch.setattr("hivemind_addon.proxy.journal.file.LOCK_S", 0.0)
    first, second = opened(path, clock), None
    first.restore()
    first(life("mine")[0])
    second = opened(path, clock, keeper := Keeper())
    second.restore()
    await becomes(lambda: second._is_taken)
    for event in (*life("early"), *life("later"), booked(spent=70)):
        second(event)
    await second.close()
    await first.close()
    assert column(path, "ticket", "id", "id") == ["mine"]
    (aside,) = set(path.parent.glob("*.db")) - {path}
    assert column(aside, "ticket", "id", "id") == ["early", "later"]
    assert [row["spent_tokens"] for row in asked(aside, "SELECT * FROM budget")] == [70]
    assert keeper.restored == []
    assert str(aside) in caplog.messages[-1]


async def test_what_happens_in_a_second_one_is_beside_the_file_at_once_should_it_be_killed(path, clock, monkeypatch):
    monkeypatch.setattr("hivemind_addon.proxy.journal.file.LOCK_S", 0.0)
    first = opened(path, clock)
    first.restore()
    second = opened(path, clock)
    second.restore()
    await becomes(lambda: second._is_taken)
    for event in (*life("one"), booked(spent=70)):
        second(event)
    beside = path.with_name(f"journal-{os.getpid()}.db")
    await becomes(lambda: beside.exists() and was_written(beside))
    assert column(beside, "budget", "spent_tokens", "name") == [70]
    await second.close()
    await first.close()


async def test_of_what_waits_for_a_file_no_more_is_kept_than_fits(path, clock, monkeypatch):
    monkeypatch.setattr("hivemind_addon.proxy.journal.file.LOCK_S", 0.0)
    monkeypatch.setattr(module, "KEPT", 5)
    first = opened(path, clock)
    first.restore()
    second = opened(path, clock)
    second.restore()
    await becomes(lambda: second._is_taken)
    for number in range(9):
        second(life(f"t{number}")[0])
    assert "5 events wait" in repr(second)
    await second.close()
    await first.close()
    (aside,) = set(path.parent.glob("*.db")) - {path}
    assert len(asked(aside, "SELECT * FROM ticket")) == 5
    assert "4 events are missing" in str([dict(row) for row in asked(aside, "SELECT * FROM happening")])


async def test_what_was_spent_before_the_file_was_free_is_in_it(path, clock, keeper, monkeypatch):
    monkeypatch.setattr("hivemind_addon.proxy.journal.file.LOCK_S", 0.0)
    monkeypatch.setattr("hivemind_addon.proxy.journal.writer.TAKEN_S", 0.0)
    first, second = opened(path, clock), None
    first.restore()
    second = opened(path, clock, keeper)
    for spent in (10, 70):  # within one step, so at the same instant
        second(booked(spent=spent))
    second.restore()
    await becomes(lambda: second._is_taken)
    second(life("meanwhile")[0])
    restored = asyncio.Event()
    keeper.restore = lambda *_: restored.set()  # before the file is free: its thread looks at it all the time
    await first.close()
    await asyncio.wait_for(restored.wait(), 120)
    await becomes(lambda: not second._is_taken)
    second(life("later")[0])
    await second.close()
    assert column(path, "ticket", "id", "id") == ["later", "meanwhile"]
    assert [row["spent_tokens"] for row in asked(path, "SELECT * FROM budget")] == [70]
    assert {file.name for file in path.parent.iterdir()} <= {"journal.db", "journal.db.lock"}, "nothing stays beside it"


async def test_a_persons_word_is_kept_at_once(path, clock, monkeypatch, keeper):
    monkeypatch.setattr(module, "SOON_S", 3600.0)  # what was learned may wait, and the order comes after it
    monkeypatch.setattr(module, "SAVE_EVERY_S", 3600.0)
    exported = asyncio.Event()
    journal = opened(path, clock, keeper)
    keeper.export = lambda: exported.set() or {"orders": ["pause"]}
    journal(AccountNamed(at=clock.monotonic(), pool=PoolKey("api.test", "key-1", "large"), name="acme"))
    journal(PersonActed(at=clock.monotonic(), text="paused"))
    await asyncio.wait_for(exported.wait(), 120)
    await journal.close()


async def test_it_is_looked_at_by_the_timer_again_and_again(path, clock, monkeypatch, keeper):
    monkeypatch.setattr(module, "SAVE_EVERY_S", 0.0)
    thrice = asyncio.Event()
    count = iter(range(1000))
    keeper.export = lambda: {"learned": next(count)} if next(count) < 6 else thrice.set() or {}
    journal = opened(path, clock, keeper)
    await asyncio.wait_for(thrice.wait(), 120)
    await journal.close()


async def test_it_goes_on_in_another_file(path, clock):
    journal = opened(path, clock)
    journal.restore()
    journal(life("one")[0])
    other = path.with_name("other.db")
    journal.follow(other, JournalKeep(days=1))
    journal(life("two")[0])
    await journal.close()
    assert column(other, "ticket", "id", "id")[-1] == "two"
    assert journal.path == other


async def test_a_defect_of_ours_does_not_end_the_journal(path, clock, caplog):
    journal = opened(path, clock)
    journal.restore()
    journal(SimpleNamespace(at=clock.monotonic()))
    await journal.close()
    assert "the journal has failed" in caplog.text
    assert asked(path, "SELECT ended FROM run")[0]["ended"] is not None
