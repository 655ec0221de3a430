import os
import shutil
from pathlib import Path

import pytest

from hivemind_addon.plugins.fleets.tasks import store as stores
from hivemind_addon.plugins.fleets.tasks.model import NotTaken, State, TaskSpec, TaskView
from hivemind_addon.plugins.fleets.tasks.store import (
    Fleet,
    FleetStore,
    RunnerOwner,
    TaskLine,
    fleets,
    fleets_folder,
    forget_old,
    open_fleet,
)
from hivemind_addon.plugins.fleets.tasks.task_table import FleetRules


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def view(name, state=State.WAITING, **more):
    return TaskView(
        **{
            "id": f"night-1/{name}",
            "state": state,
            "priority": "normal",
            "agent_name": f"night-1.{name}",
            "attempts": 0,
            "depends_on": (),
            "parent": "",
            "reason": "",
            "exit_status": None,
            "submitted_wall": 1.0,
            "began_wall": None,
            "ended_wall": None,
            "log": "",
        }
        | more
    )


def owned(fleet_id="night-1", began_wall=1.0):
    made = FleetStore(fleets_folder() / fleet_id)
    made.own(RunnerOwner(77, "/run/f.sock"))
    made.write_fleet(Fleet(fleet_id, "night.yaml", 8080, FleetRules(2, {"g": 1}), began_wall))
    return made


def test_the_last_line_of_a_task_counts_and_its_spec_stays():
    one = owned()
    one.write(TaskLine(view("a"), TaskSpec(command=("make",), name="a")))
    one.write(TaskLine(view("b"), TaskSpec(command=("make",), name="b")))
    one.write(TaskLine(view("a", State.DONE, exit_status=0)))
    fleet, written = open_fleet("night-1").read()
    assert (fleet.rules.groups, fleet.source) == ({"g": 1}, "night.yaml")
    assert [(key, task.view.state, task.spec.command) for key, task in written.items()] == [
        ("night-1/a", State.DONE, ("make",)),
        ("night-1/b", State.WAITING, ("make",)),
    ]


def test_a_line_that_was_cut_costs_itself_only():
    one = owned()
    one.write(TaskLine(view("a"), TaskSpec(name="a")))
    with (one.folder / "tasks.jsonl").open("ab") as file:
        file.write(b'{"view":{"id":"night-1/a","sta')
    one.write(TaskLine(view("b"), TaskSpec(name="b")))
    assert list(one.read()[1]) == ["night-1/a", "night-1/b"]


def test_only_its_owner_may_read_any_of_it():
    one = owned()
    one.write(TaskLine(view("a")))
    for path in (one.folder, *one.folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_one_that_is_run_says_by_whom_and_one_that_is_not_says_what_to_do():
    one = owned()
    one.write(TaskLine(view("a", State.RUNNING)))
    one.write(TaskLine(view("b", State.DONE)))
    assert (one.view().runner_pid, one.socket().name) == (77, "f.sock")
    assert one.view().tasks[0].state is State.RUNNING
    with pytest.raises(NotTaken, match="night-1 is being run already"):
        owned()
    one.close()
    ended = open_fleet("night-1").view()
    assert (ended.runner_pid, open_fleet("night-1").socket()) == (None, None)
    assert [task.state for task in ended.tasks] == [State.WAITING, State.DONE]
    assert ended.tasks[0].reason == "nothing runs it: hivemind fleet run --resume night-1"
    owned().close()


def test_an_unknown_fleet_is_told_beside_the_known_ones():
    with pytest.raises(NotTaken, match="no fleet 'x'; the newest are: none yet"):
        open_fleet("x")
    owned("old-1", 1.0)
    owned("new-1", 2.0)
    assert [one.id for one in fleets()] == ["new-1", "old-1"]
    with pytest.raises(NotTaken, match="the newest are: new-1, old-1"):
        open_fleet("../../etc")


def test_a_damaged_one_hides_no_other(tmp_path):
    owned("good-1")
    bad = owned("bad-1")
    (bad.folder / "fleet.json").write_text("{")
    assert [one.id for one in fleets()] == ["good-1"]
    with pytest.raises(NotTaken, match="holds no fleet that can be read"):
        open_fleet("bad-1").view()


def test_the_oldest_go_but_never_one_that_is_run(monkeypatch):
    monkeypatch.setattr(stores, "KEPT", 2)
    made = [owned(f"f-{n}", float(n)) for n in range(5)]
    for one in made[1:]:
        one.close()
    now = (made[4].folder / "fleet.json").stat().st_mtime
    forget_old(now)
    assert [one.id for one in fleets()] == ["f-4", "f-3", "f-0"]
    forget_old(now + stores.KEPT_S + 1)
    assert [one.id for one in fleets()] == ["f-0"]


def test_the_one_that_is_to_go_on_is_not_forgotten():
    owned("old-1").close()
    owned("old-2").close()
    forget_old(stores.KEPT_S * 1e6, besides="old-1")
    assert [one.id for one in fleets()] == ["old-1"]


def test_what_vanishes_while_it_is_counted_disturbs_nobody(monkeypatch):
    for n in range(3):
        owned(f"f-{n}", float(n)).close()
    count = stores._size_bytes

    def vanishing(folder):
        if folder.name == "f-2":
            shutil.rmtree(folder)  # by another process
        return count(folder)

    monkeypatch.setattr(stores, "_size_bytes", vanishing)
    monkeypatch.setattr(stores, "KEPT", 1)
    forget_old(0)
    assert fleets() == []


def test_a_file_that_is_just_being_renamed_has_no_size(monkeypatch, tmp_path):
    (tmp_path / "one").write_bytes(b"x" * 10)
    monkeypatch.setattr(Path, "walk", lambda _: [(tmp_path, [], ["one", ".one.new"])])
    assert stores._size_bytes(tmp_path) == 10


def test_one_that_is_forgotten_just_now_is_not_begun_again(monkeypatch):
    owned().close()
    folder = fleets_folder() / "night-1"
    take = stores.take_lock

    def late(path, **how):
        lock = take(path, **how)
        shutil.rmtree(folder)  # by another process, which had the lock before
        return lock

    monkeypatch.setattr(stores, "take_lock", late)
    with pytest.raises(NotTaken, match="night-1 was too old to be kept, and has just been removed"):
        FleetStore(folder).own(RunnerOwner(1, "x"))
    assert not folder.exists()


def test_one_whose_killed_runner_has_tasks_that_still_end_is_not_begun_again(monkeypatch):
    monkeypatch.setattr(stores, "_ENDING_S", 0.0)
    killed = owned()
    supervisors = os.dup(killed.tasks_lock)
    killed.close()
    with pytest.raises(NotTaken, match="tasks of night-1 are still being ended; try again in a few seconds"):
        owned()
    assert open_fleet("night-1").owner() is None
    os.close(supervisors)
    owned().close()


def test_large_ones_go_sooner(monkeypatch):
    monkeypatch.setattr(stores, "KEPT_BYTES", 5000)
    for n in range(3):
        one = owned(f"f-{n}", float(n))
        one.log("a").write_bytes(b"x" * 2000)
        one.close()
    forget_old(0)
    assert [one.id for one in fleets()] == ["f-2", "f-1"]
