"""The runner with real processes, without a proxy."""

import asyncio
import os
import signal
import socket
import stat
from pathlib import Path

import msgspec
import pytest

from hivemind_addon.plugins.fleets.tasks import client, supervisor
from hivemind_addon.plugins.fleets.tasks.model import NotTaken, State, TaskSpec
from hivemind_addon.plugins.fleets.tasks.runner_socket import CancelTask, RunnerSocket, SubmitTasks, WaitForTasks
from hivemind_addon.proxy.system.file_lock import is_free
from tests.plugins.fleets.tasks.plain import made_runner, shell, short_folder
from tests.processes import is_alive


@pytest.fixture
def folder():
    with short_folder() as made:
        yield made


async def run(folder, *tasks, **more):
    fleet = await asyncio.wait_for(made_runner(folder, **more).run(tasks), 120)
    return {task.id.partition("/")[2]: task for task in fleet.tasks}


def asked(folder, question):
    return asyncio.to_thread(client._ask, folder / "r.sock", question, timeout_s=120)


async def becomes(condition):
    async with asyncio.timeout(120):
        while not (answer := condition()):
            await asyncio.to_thread(lambda: None)
    return answer


async def test_tasks_run_in_their_order_and_results_go_on(folder):
    told = []
    tasks = await run(
        folder,
        shell("b", 'cat "$HIVEMIND_RESULT_A_1"; echo "$MORE $HIVEMIND_TASK"', ["a-1"], environment={"MORE": "m"}),
        shell("a-1", "echo hello; echo oops >&2"),
        shell("c", "exit 3", ["a-1"]),
        shell("d", "true", ["c", "b"]),
        told=told,
    )
    assert {name: task.state.value for name, task in tasks.items()} == {
        "a-1": "done",
        "b": "done",
        "c": "failed",
        "d": "skipped",
    }
    assert tasks["b"].result == "hello\nm night-1/b"
    assert (tasks["c"].exit_status, tasks["d"].reason) == (3, "c failed: exit status 3")
    assert tasks["b"].began_wall >= tasks["a-1"].ended_wall
    assert [task.state.value for task in told if task.id == "night-1/c"] == ["waiting", "running", "failed"]
    assert "oops" in (folder / "fleets/night-1/logs/a-1.log").read_text()


async def test_one_that_dies_of_something_transient_is_tried_again(folder):
    script = f'echo try >> {folder}/tries; [ "$(wc -l < {folder}/tries)" = 2 ] || kill -9 $$'
    tasks = await run(folder, shell("a", script), shell("b", "echo Error 529 overloaded; exit 1", retries=0))
    assert (tasks["a"].state, tasks["a"].attempts) == (State.DONE, 2)
    assert (tasks["b"].state, tasks["b"].attempts) == (State.FAILED, 1)
    assert tasks["b"].reason == "exit status 1, it said “Error 529”"


async def test_how_a_task_failed_is_said_in_one_line(folder):
    tasks = {
        "late": (shell("late", "sleep 600", timeout_s=0.2), "took longer than 0.2 s"),
        "none": (
            TaskSpec(command=("nonesuch",), name="none"),
            "exit status 127: there is no command 'nonesuch' on the PATH",
        ),
        "bad": (shell("bad", "echo no good; exit 2"), "exit status 2: no good"),
        "red": (
            shell("red", r"printf '\033[31mno\033[0m \033[2Jgood\a\n\033[0m\n'; exit 2"),
            "exit status 2: no good",
        ),
        "where": (shell("where", "true", directory="/nonexistent"), "/nonexistent: No such file or directory"),
    }
    ended = await run(folder, *(task for task, _ in tasks.values()))
    assert {name: (task.state, task.reason) for name, task in ended.items()} == {
        name: (State.FAILED, reason) for name, (_, reason) in tasks.items()
    }


async def test_a_task_waits_for_its_own_with_one_place_and_others_ask_on_the_socket(folder):
    runner = made_runner(folder, at_most=1)
    running = asyncio.ensure_future(runner.run([shell("a", f"while [ ! -e {folder}/go ]; do sleep 0.02; done")]))
    await becomes((folder / "r.sock").exists)
    ids = (
        await asked(folder, SubmitTasks((shell("", "pwd; echo $X"),), parent="night-1/a", environment={"X": "7"}))
    ).ids
    assert ids == ("night-1/a-1",)
    (child,) = (await asked(folder, WaitForTasks(ids, waiter="night-1/a"))).tasks
    assert (child.state, child.result.splitlines()[-1], child.parent) == (State.DONE, "7", "night-1/a")
    (folder / "go").touch()
    assert {task.state for task in (await running).tasks} == {State.DONE}


async def test_what_cannot_be_is_refused(folder):
    running = asyncio.ensure_future(made_runner(folder).run([shell("a", "sleep 600")]))
    await becomes((folder / "r.sock").exists)
    for question, says in [
        (SubmitTasks(()), "0 tasks at once are none or too many"),
        (SubmitTasks((TaskSpec(),)), "task 1: command: there is nothing to run"),
        (SubmitTasks((TaskSpec(command=("x",)),), parent="other-1/a"), "other-1/a is no task of night-1"),
        (SubmitTasks((TaskSpec(command=("x",)),), parent="night-1/b"), "'b' is no task that runs here"),
        (WaitForTasks(("night-1/x",)), "there is no task 'x'"),
        (CancelTask("night-1/x"), "there is no task 'x'"),
    ]:
        with pytest.raises(NotTaken, match=says):
            await asked(folder, question)
    assert "is being ended" in (await asked(folder, CancelTask("night-1"))).text
    assert [task.state for task in (await running).tasks] == [State.CANCELLED]


async def test_stop_ends_what_runs_and_what_it_started(folder):
    runner = made_runner(folder)
    script = f"sleep 600 & echo $! > {folder}/pid.new; mv {folder}/pid.new {folder}/pid; wait"
    running = asyncio.ensure_future(runner.run([shell("a", script), shell("b", "true", ["a"])]))
    pid = int(await becomes(lambda: (folder / "pid").exists() and (folder / "pid").read_text()))
    runner.stop("enough")
    tasks = (await asyncio.wait_for(running, 120)).tasks
    assert [(task.state, task.reason) for task in tasks] == [(State.CANCELLED, "enough")] * 2
    assert not is_alive(pid)


async def test_a_second_stop_kills(folder, monkeypatch):
    patient = folder / "supervisor.py"
    patient.write_text(Path(supervisor.__file__).read_text().replace("GRACE_S = 5.0", "GRACE_S = 600.0"))
    monkeypatch.setattr(supervisor, "__file__", str(patient))
    runner = made_runner(folder)
    running = asyncio.ensure_future(
        runner.run([shell("a", f"trap '' TERM; touch {folder}/on; sleep 600 & wait; sleep 600")])
    )
    await becomes((folder / "on").exists)
    runner.stop("enough")
    runner.stop("now")
    (task,) = (await asyncio.wait_for(running, 120)).tasks  # its grace would be longer
    assert (task.state, task.exit_status) == (State.CANCELLED, 128 + signal.SIGKILL)


async def test_a_disk_that_cannot_be_written_stops_no_task_and_is_told_once(folder, monkeypatch):
    warned = []
    runner = made_runner(folder, warned=warned)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner._store, "write", full)
    fleet = await asyncio.wait_for(runner.run([shell("a", "echo x"), shell("b", "true")]), 120)
    assert {task.state for task in fleet.tasks} == {State.DONE}
    assert warned == [f"{folder}/fleets/night-1 cannot be written (No space left on device); going on without"]


async def test_what_was_done_is_taken_over_and_not_run_again(folder):
    first = await run(folder, shell("a", f"echo x >> {folder}/ran; echo result"))
    runner = made_runner(folder)
    runner.restore(first["a"], shell("a", "false"))
    fleet = await asyncio.wait_for(runner.run([shell("b", 'cat "$HIVEMIND_RESULT_A"', ["a"])]), 120)
    a, b = fleet.tasks
    assert (folder / "ran").read_text() == "x\n"
    assert (a.state, b.result) == (State.DONE, "result")
    assert a.ended_wall == pytest.approx(first["a"].ended_wall, abs=0.01)


async def test_one_that_is_stopped_before_it_begins_ends_at_once(folder):
    runner = made_runner(folder)
    runner.stop("enough")
    (task,) = (await asyncio.wait_for(runner.run([shell("a", "sleep 600")]), 120)).tasks
    assert (task.state, task.reason) == (State.CANCELLED, "enough")


async def test_a_fleet_is_there_only_with_all_its_tasks(folder, monkeypatch):
    runner = made_runner(folder)
    write, found = runner._store.write_fleet, []

    def spied(fleet):
        found.append(list(runner._store._tasks()))
        write(fleet)

    monkeypatch.setattr(runner._store, "write_fleet", spied)
    await asyncio.wait_for(runner.run([shell("a", "true"), shell("b", "true", ["a"])]), 120)
    assert found == [["night-1/a", "night-1/b"]] * 2


async def test_an_idle_one_stays_for_others_and_then_ends(folder):
    runner = made_runner(folder, idle_s=600.0)
    running = asyncio.ensure_future(runner.run([]))
    await becomes((folder / "r.sock").exists)
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(folder / "r.sock"))  # it is not idle from here on
        (task_id,) = (await asked(folder, SubmitTasks((shell("x", "sleep 0.1"),)))).ids
        (task,) = (await asked(folder, WaitForTasks((task_id,)))).tasks
        runner._idle_s = 0.2
    assert task.state is State.DONE
    await asyncio.wait_for(running, 120)
    assert not (folder / "r.sock").exists()


async def test_whoever_asks_at_the_last_moment_is_answered(folder, monkeypatch):
    runner = made_runner(folder, idle_s=0.0)
    looks = []

    class Wake(asyncio.Event):
        async def wait(self):
            looks.append("")
            if len(looks) == 2:
                self.set()
            return await super().wait()

    monkeypatch.setattr(RunnerSocket, "asking", property(lambda _: int(len(looks) == 1)))
    monkeypatch.setattr(runner, "_wake", Wake())
    await asyncio.wait_for(runner.run([]), 120)
    assert len(looks) == 3


async def test_what_a_killed_runner_has_left_keeps_others_from_beginning(folder):
    runner = made_runner(folder)
    script = f"touch {folder}/on; while [ ! -e {folder}/go ]; do sleep 0.02; done"
    running = asyncio.ensure_future(runner.run([shell("a", script)]))
    await becomes((folder / "on").exists)
    own, runner._store.tasks_lock = runner._store.tasks_lock, None
    os.close(own)  # as the kernel does with one that was killed
    lock = folder / "fleets/night-1/tasks.lock"
    assert not is_free(lock)
    (folder / "go").touch()
    await asyncio.wait_for(running, 120)
    assert is_free(lock)


async def test_two_runners_of_one_fleet_are_one_too_many(folder):
    running = asyncio.ensure_future(made_runner(folder).run([shell("a", "sleep 600")]))
    await becomes((folder / "r.sock").exists)
    with pytest.raises(NotTaken, match="night-1 is being run already"):
        await made_runner(folder).run([])
    assert (folder / "r.sock").exists()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_environments_are_never_written_down(folder):
    runner = made_runner(folder, idle_s=60)
    running = asyncio.ensure_future(runner.run([]))
    await becomes((folder / "r.sock").exists)
    asking = SubmitTasks((shell("x", "true"),), environment=dict(os.environ) | {"MY_KEY": "sk-secret"})
    await asked(folder, WaitForTasks((await asked(folder, asking)).ids))
    runner.stop("enough")
    await asyncio.wait_for(running, 120)
    for path in folder.rglob("*"):
        assert not stat.S_ISREG(path.stat().st_mode) or b"sk-secret" not in path.read_bytes()
    assert b"sk-secret" in msgspec.json.encode(asking)
