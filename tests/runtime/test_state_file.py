import asyncio
import json
import os
import stat
import sys

import pytest

from hivemind_addon.core.events import StateUnsaved
from hivemind_addon.runtime import state_file
from hivemind_addon.runtime.state_file import StateFile, default_state_file


class Keeper:
    """Something that has learned."""

    def __init__(self, state=None):
        self.state = {"limit": 4} if state is None else state
        self.restored = None

    def export(self):
        return self.state

    def restore(self, state, *, age_s):
        self.restored = state, age_s


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "state.json"


def kept(path, clock, keeper, note=None):
    return StateFile(path, keeper=keeper, clock=clock, note=note or (lambda event: None))


async def test_what_is_saved_is_restored_with_its_age(path, clock):
    await kept(path, clock, Keeper()).save()
    clock.advance(90)
    later = Keeper()
    kept(path, clock, later).load()
    assert later.restored == ({"limit": 4}, 90)


async def test_only_its_owner_may_read_it_and_nothing_else_is_left(path, clock):
    await kept(path, clock, Keeper()).save()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["state.json"]


async def test_it_is_written_only_when_something_has_changed(path, clock, monkeypatch):
    writes = []
    monkeypatch.setattr(state_file, "_write", lambda *written: writes.append(written))
    keeper = Keeper()
    one = kept(path, clock, keeper)
    await one.save()
    await one.save()
    assert len(writes) == 1
    keeper.state = {"limit": 5}
    await one.save()
    assert len(writes) == 2


async def test_it_is_written_off_the_event_loop(path, clock, monkeypatch):
    seen = []

    def write(*_):
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        seen.append("written")

    monkeypatch.setattr(state_file, "_write", write)
    await kept(path, clock, Keeper()).save()
    assert seen == ["written"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        '{"version": 99, "saved_at": 1, "state": {}}',
        '{"version": 1, "saved_at": "x", "state": {}}',
        '{"version": 1, "saved_at": NaN, "state": {}}',
        '{"version": 1, "saved_at": 1, "state": []}',
        '{"version": 1, "saved_at": 1}',
        "\udcff",
    ],
)
def test_a_file_that_cannot_be_used_costs_one_line_and_a_fresh_start(path, clock, caplog, text):
    path.parent.mkdir()
    path.write_text(text, errors="surrogateescape")
    keeper = Keeper()
    kept(path, clock, keeper).load()
    assert keeper.restored is None
    (line,) = caplog.messages
    assert "starting fresh" in line


def test_a_keeper_that_cannot_take_it_starts_fresh(path, clock, caplog):
    class Picky(Keeper):
        def restore(self, state, *, age_s):
            raise KeyError("limit")

    path.parent.mkdir()
    path.write_text(json.dumps({"version": 1, "saved_at": 1, "state": {}}))
    kept(path, clock, Picky()).load()
    assert "starting fresh" in caplog.text


def test_the_first_start_says_nothing(path, clock, caplog):
    keeper = Keeper()
    kept(path, clock, keeper).load()
    assert (keeper.restored, caplog.messages) == (None, [])


async def test_a_disk_that_fails_is_told_once_and_again_when_it_is_well(tmp_path, clock):
    (tmp_path / "file").touch()
    keeper, events = Keeper(), []
    one = kept(tmp_path / "file" / "state.json", clock, keeper, events.append)
    await one.save()
    keeper.state = {}
    await one.save()
    (tmp_path / "file").unlink()
    await one.save()
    assert [type(event) for event in events] == [StateUnsaved, StateUnsaved]
    assert "file" in events[0].reason
    assert events[1].reason == ""


async def test_a_write_that_fails_leaves_the_old_file(path, clock, monkeypatch):
    keeper = Keeper()
    one = kept(path, clock, keeper)
    await one.save()
    keeper.state = {"limit": 5}

    def full(_):
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", full)
    await one.save()
    assert json.loads(path.read_text())["state"] == {"limit": 4}
    assert [one.name for one in path.parent.iterdir()] == ["state.json"]


async def test_the_timer_saves_and_starts_again(path, clock, monkeypatch):
    monkeypatch.setattr(state_file, "SAVE_EVERY_S", 0.0)
    written = asyncio.Event()
    count = iter(range(100))
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(state_file, "_write", lambda *_: loop.call_soon_threadsafe(written.set))

    class Learning(Keeper):
        def export(self):
            return {"limit": next(count)}

    one = kept(path, clock, Learning())
    one.start()
    for _ in range(2):
        await asyncio.wait_for(written.wait(), 10)
        written.clear()
    one.stop()
    await one.save()


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of Linux")
def test_it_lies_in_the_users_state_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_file() == tmp_path / "hivemind_addon" / "state.json"
