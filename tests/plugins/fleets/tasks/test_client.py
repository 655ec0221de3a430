"""Submitting, waiting and looking, as commands and MCP do: blocking, from another thread than the runner's."""

import asyncio
import socket
import sys
import threading
from contextlib import suppress

import pytest

from hivemind_addon.plugins.fleets.tasks import client
from hivemind_addon.plugins.fleets.tasks.model import NotTaken, State, TaskSpec
from hivemind_addon.plugins.fleets.tasks.store import FleetStore
from hivemind_addon.proxy.system.json_socket import is_answered
from tests.cases import each
from tests.plugins.fleets.tasks.plain import made_runner, shell, short_folder


class Served:
    """A runner on a thread of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.runner = made_runner(folder / "state" / "hivemind_addon", fleet_id="bg-1", at_most=1, idle_s=600.0)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        while not is_answered(self.runner._socket.path):
            self.thread.join(0.01)
            assert self.thread.is_alive()

    def _run(self):
        with asyncio.Runner(loop_factory=lambda: self.loop) as running:
            running.run(self.runner.run([]))

    def end(self):
        with suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self.runner.stop, "the test is over")
        self.thread.join(120)
        assert not self.thread.is_alive()


@pytest.fixture
def served(monkeypatch):
    """A runner that stays until it is ended."""
    with short_folder() as folder:
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        made = Served(folder)
        monkeypatch.setattr(client, "find_or_start", lambda port: made.runner._socket.path)
        yield made
        made.end()


def test_ids_come_back_and_their_end_can_be_waited_for(served, monkeypatch):
    monkeypatch.chdir(served.folder)
    ids = client.submit([shell("a", "pwd"), shell("b", "echo $HIVEMIND_TASK; exit 3", ["a"])], port=8080)
    assert ids == ["bg-1/a", "bg-1/b"]
    b, a = client.wait(list(reversed(ids)), timeout_s=None)
    assert (a.state, a.result) == (State.DONE, str(served.folder))
    assert (b.state, b.exit_status, b.result) == (State.FAILED, 3, "bg-1/b")
    assert client.task("bg-1/a").state is State.DONE
    assert [fleet.id for fleet in client.status()] == ["bg-1"]
    assert client.status(fleet="bg-1")[0].source == ""


def test_a_wait_has_its_time_and_what_waits_can_be_cancelled(served):
    (one,) = client.submit([shell("slow", "sleep 600")], port=8080)
    (view,) = client.wait([one], timeout_s=0.2)
    assert not view.state.is_over
    assert client.cancel(one) in ("bg-1/slow is being ended", "bg-1/slow is cancelled")
    (view,) = client.wait([one], timeout_s=120)
    assert view.state is State.CANCELLED


def test_a_task_submits_to_its_own_runner_as_its_child(served):
    (parent,) = client.submit([shell("parent", "sleep 600")], port=8080)
    while client.task(parent).state is not State.RUNNING:
        client.wait([parent], timeout_s=0.02)
    place = client.open_fleet("bg-1").socket()
    (child,) = client.submit([shell("", "echo hi")], parent=parent, runner=place, port=1)
    assert child == "bg-1/parent-1"
    (view,) = client.wait([child], waiter=parent, timeout_s=120, runner=place)
    assert (view.state, view.parent) == (State.DONE, parent)
    client.cancel("bg-1")


@each(
    ("call", "says"),
    [
        (lambda: client.submit([TaskSpec(agent="clippy")], port=1), "task 1: agent: 'clippy' is not known here"),
        (lambda: client.wait(["bg-1/x"], timeout_s=1), "there is no task 'x' in this fleet"),
        (lambda: client.wait(["other-1/x"], timeout_s=1), "there is no fleet 'other-1'; the newest are: bg-1"),
        (lambda: client.task("bg-1/x"), "no task 'bg-1/x' in bg-1; there are none"),
        (lambda: client.cancel("bg-1/x"), "there is no task 'x'"),
        (lambda: client.status(fleet="x"), "there is no fleet 'x'"),
    ],
)
def test_what_cannot_be_is_one_line(served, call, says):
    with pytest.raises(NotTaken, match=says):
        call()


def test_a_runner_that_is_gone_is_told_and_what_is_written_remains(served):
    ids = client.submit([shell("a", "echo kept")], port=8080)
    client.wait(ids, timeout_s=120)
    served.end()
    assert client.wait(ids, timeout_s=1)[0].result == "kept"
    with pytest.raises(NotTaken, match="nothing runs bg-1"):
        client.cancel(ids[0])
    with pytest.raises(NotTaken, match="ends again and again"):
        client.submit([shell("b", "true")], port=8080)


def test_a_fleet_that_is_forgotten_meanwhile_is_not_listed(served, monkeypatch):
    known = client.fleets()
    monkeypatch.setattr(client, "fleets", lambda: [FleetStore(served.folder / "gone-1"), *known])
    assert [fleet.id for fleet in client.status()] == ["bg-1"]


def test_too_much_at_once_is_refused_before_it_is_sent(served, monkeypatch):
    monkeypatch.setattr(client, "MAX_LINE_BYTES", 100)
    with pytest.raises(NotTaken, match="bytes are too much at once"):
        client.submit([shell("a", "x" * 100)], port=8080)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    with short_folder() as folder:
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder


def test_one_that_answers_is_used():
    place = client.socket_of(8080)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        assert client.find_or_start(8080) == place


def test_one_that_does_not_start_is_told_with_its_last_words(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NotTaken, match="of port 8080 does not start; it said:\nnothing"):
        client.find_or_start(8080)


def test_a_folder_that_cannot_be_used_is_one_line(machine):
    (machine / "hivemind").write_text("a file")
    with pytest.raises(NotTaken, match="hivemind"):
        client.find_or_start(8080)
