import asyncio
import json
import os
import stat
import threading

import pytest

from hivemind_addon.kernel.values.events import GuardTripped
from hivemind_addon.proxy.run import event_log
from hivemind_addon.proxy.run.event_log import EventLog


def event(number, clock):
    return GuardTripped(at=clock.monotonic(), ticket_id=f"ticket-{number}", where="hook", error="E")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def tickets(path):
    return [line.get("ticket_id", line["event"]) for line in lines(path)]


@pytest.fixture(autouse=True)
def prompt(monkeypatch):
    """The thread neither gathers nor rests, and it is waited for."""
    monkeypatch.setattr(event_log, "FLUSH_S", 120.0)
    monkeypatch.setattr(event_log, "_GATHER_S", 0.0)
    monkeypatch.setattr(event_log, "_AGAIN_S", 0.0)


class Disk:
    """Stands in for `os.write`: takes what it may."""

    def __init__(self, monkeypatch):
        self.write = os.write
        self.room = 0
        self.asked = threading.Semaphore(0)
        self.refused = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()
        monkeypatch.setattr(event_log.os, "write", self)

    def __call__(self, file, data):
        self.asked.release()
        assert self.go.wait(120)
        if not self.room:
            self.refused.release()
            raise OSError(28, "No space left on device")
        written = self.write(file, bytes(data[: self.room]))
        self.room -= written
        return written

    async def was_asked(self):
        """The thread has tried to write."""
        assert await asyncio.to_thread(self.asked.acquire, timeout=120)

    async def was_full(self):
        """The thread has tried in vain."""
        assert await asyncio.to_thread(self.refused.acquire, timeout=120)


async def test_every_event_is_appended_with_its_instant_and_only_its_owner_may_read(tmp_path, clock):
    path = tmp_path / "events.jsonl"
    for start in (0, 3):
        log = EventLog(path, clock=clock)
        for number in range(start, start + 3):
            log(event(number, clock))
            clock.advance(1)
        await log.close()
    assert tickets(path) == [f"ticket-{number}" for number in range(6)]
    assert [line["wall"] for line in lines(path)] == [1_700_001_000.0 + number for number in range(6)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_file_that_was_moved_away_is_made_anew(tmp_path, clock, monkeypatch):
    path = tmp_path / "events.jsonl"
    disk = Disk(monkeypatch)
    disk.room = 10**6
    log = EventLog(path, clock=clock)
    log(event(1, clock))
    await disk.was_asked()
    path.rename(tmp_path / "events.jsonl.1")
    log(event(2, clock))
    await log.close()
    assert tickets(tmp_path / "events.jsonl.1") == ["ticket-1"]
    assert tickets(path) == ["ticket-2"]


async def test_a_disk_that_hangs_makes_nobody_wait_and_what_was_lost_is_counted(tmp_path, clock, monkeypatch, caplog):
    monkeypatch.setattr(event_log, "KEPT", 10)
    path = tmp_path / "events.jsonl"
    disk = Disk(monkeypatch)
    disk.room = 10**6
    disk.go.clear()
    log = EventLog(path, clock=clock)
    log(event(0, clock))
    await disk.was_asked()
    for number in range(1, 101):
        log(event(number, clock))
    assert "10 lines wait" in repr(log)
    disk.go.set()
    await log.close()
    assert tickets(path) == ["ticket-0", "LinesDropped", *(f"ticket-{number}" for number in range(1, 11))]
    assert lines(path)[1]["lines"] == 90
    assert "lost 90 lines" in caplog.text


async def test_a_full_disk_is_told_once_and_nothing_is_lost_that_fits_the_buffer(tmp_path, clock, monkeypatch, caplog):
    path = tmp_path / "events.jsonl"
    disk = Disk(monkeypatch)
    disk.room = 150  # ends within the second line
    log = EventLog(path, clock=clock)
    for number in range(3):
        log(event(number, clock))
    for _ in range(2):
        await disk.was_full()
    disk.room = 10**6
    await log.close()
    whole = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["ticket_id"] for line in whole] == ["ticket-0", "ticket-1", "ticket-2"]
    assert len(path.read_text().splitlines()) == 4, "one torn line, and no line glued to it"
    assert [message.count("No space left") for message in caplog.messages if "cannot be written" in message] == [1]
    assert "written again" in caplog.text


async def test_a_disk_that_never_takes_anything_does_not_keep_the_proxy_from_ending(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(event_log, "FLUSH_S", 0.05)
    fifo = tmp_path / "nobody-reads"
    os.mkfifo(fifo)
    log = EventLog(fifo, clock=clock)
    log(event(1, clock))
    await asyncio.wait_for(log.close(), 120)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # lets the thread go
    os.close(reader)


async def test_standard_output_is_a_place_too(clock, capfd):
    log = EventLog(None, clock=clock)
    log(event(1, clock))
    await log.close()
    assert json.loads(capfd.readouterr().out)["ticket_id"] == "ticket-1"
