"""Leases that are kept for a process; the whole way is in tests/e2e/test_tasks.py."""

import os
import signal
import subprocess
import sys
from threading import Event

import pytest

from hivemind_addon.plugins.fleets.leases import holder, lease_keeper
from hivemind_addon.plugins.fleets.leases.holder import holder_of
from hivemind_addon.plugins.fleets.leases.lease_keeper import WatchedProcess, keep
from hivemind_addon.plugins.fleets.leases.model import Lease, LeaseError, NotGranted
from tests.plugins.fleets.leases.store import EngineMachine, Machine, asks


class Watched:
    """It ends at an instant."""

    def __init__(self, clock, ends_at, meanwhile=lambda: None):
        self.clock, self.ends_at, self.meanwhile = clock, ends_at, meanwhile

    def ends_within(self, seconds):
        until = min(self.clock.awake() + seconds, self.ends_at)
        self.clock.advance(max(0.0, until - self.clock.awake()))
        self.meanwhile()
        return self.clock.awake() >= self.ends_at

    def terminate(self):
        raise AssertionError("that is its owner's business")


@pytest.fixture
def lost():
    return []


def test_it_is_renewed_until_the_process_ends_and_then_released(store, clock, lost):
    begun = clock.awake()
    lease = store.acquire(asks("a", "x", ttl_s=10), begun)
    keep(store, lease, Watched(clock, begun + 100), ttl_s=10, clock=clock, lost=lost.append)
    assert lost == []
    assert clock.awake() == begun + 100
    assert store.standings(begun + 100) == []


def test_its_loss_is_told_once(store, clock, lost):
    begun = clock.awake()
    lease = store.acquire(asks("a", "x", ttl_s=10), begun)

    def somebody_ends_it():
        if clock.awake() > begun + 20 and store.standings(clock.awake()):
            store.release(lease.id, clock.awake())

    watched = Watched(clock, begun + 100, somebody_ends_it)
    keep(store, lease, watched, ttl_s=10, clock=clock, lost=lost.append)
    assert len(lost) == 1
    assert "is over" in lost[0]
    assert clock.awake() < begun + 25


def sleeps_and_keeps(store, clock, lost):
    """Who is refused a name when its holder's machine has slept for long."""
    begun = clock.awake()
    lease = store.acquire(asks("a", "x", ttl_s=10), store.instant(clock))
    answers = []

    def sleep():
        clock.sleep(1000)
        answers.append(store.acquire(asks("b", "x"), store.instant(clock)))

    keep(store, lease, Watched(clock, begun + 9, sleep), ttl_s=10, clock=clock, lost=lost.append)
    return answers


def test_a_sleep_of_the_machine_costs_no_lease_that_nobody_else_could_take(tmp_path, clock, lost):
    with Machine(tmp_path / "leases.db").store() as store:
        answers = sleeps_and_keeps(store, clock, lost)
    assert lost == []
    assert all(isinstance(answer, NotGranted) for answer in answers)
    assert len(answers) > 1


def test_a_sleep_of_the_machine_is_time_for_an_engine_and_told_as_soon_as_it_wakes(engine, clock, lost):
    begun = clock.awake()
    with EngineMachine(engine).store() as store:
        answer, *_ = sleeps_and_keeps(store, clock, lost)
    assert isinstance(answer, Lease)
    assert len(lost) == 1
    assert clock.awake() <= begun + 1


def test_a_machine_that_stood_still_has_lost_it(store, clock, lost):
    begun = clock.awake()
    lease = store.acquire(asks("a", "x", ttl_s=10), begun)

    def stand_still():
        clock.advance(11)

    keep(store, lease, Watched(clock, begun + 100, stand_still), ttl_s=10, clock=clock, lost=lost.append)
    assert len(lost) == 1


@pytest.mark.parametrize(("broken_s", "losses"), [(8, 0), (30, 1)])
def test_a_store_that_cannot_be_used_costs_the_lease_when_its_time_is_over(
    store, clock, lost, monkeypatch, broken_s, losses
):
    begun = clock.awake()
    lease = store.acquire(asks("a", "x", ttl_s=10), begun)
    renew = store.renew

    def sometimes(lease_id, ttl_s, now):
        if begun < now < begun + broken_s:
            raise LeaseError("the disk is full")
        return renew(lease_id, ttl_s, now)

    monkeypatch.setattr(store, "renew", sometimes)
    keep(store, lease, Watched(clock, begun + 100), ttl_s=10, clock=clock, lost=lost.append)
    assert lost == ["the disk is full"] * losses
    assert clock.awake() == pytest.approx(begun + (10 if losses else 100), abs=1)


@pytest.fixture(params=[True, False], ids=["by handle", "by looking"])
def child(request, monkeypatch):
    if not request.param:
        holder.boot()  # remembered for all tests to come: by the system's true name
        monkeypatch.setattr(sys, "platform", "elsewhere")
    elif sys.platform != "linux":
        pytest.skip("Linux has handles")
    started = subprocess.Popen(["sleep", "600"])
    yield started
    started.kill()
    started.wait()


def test_a_real_process_is_seen_to_end(child, monkeypatch):
    monkeypatch.setattr(lease_keeper, "_LOOK_EVERY_S", 0.01)
    watched = WatchedProcess(holder_of("a", child.pid), pause=Event().wait)
    assert not watched.ends_within(0)
    assert not watched.ends_within(0.02)
    watched.terminate()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert watched.ends_within(60)
    assert child.wait() == -signal.SIGTERM
    watched.terminate()


START = """
import os, sys
from threading import Event
from hivemind_addon.plugins.fleets.leases.holder import holder_of
from hivemind_addon.plugins.fleets.leases.lease_keeper import start_keeper
from hivemind_addon.plugins.fleets.leases.lease_keeper import WatchedProcess
process = WatchedProcess(holder_of("a", os.getpid()), pause=Event().wait)
others = os.open(os.devnull, os.O_RDONLY)
def work():
    {work}
start_keeper(process, work)
os.execvp("sh", ["sh", "-c", "sleep 0.05; echo out; exit 3"])
"""


def start(work, before=""):
    return subprocess.run(
        [sys.executable, "-c", before + START.format(work=work)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_works_beside_until_the_process_ends_and_holds_none_of_its_files():
    done = start(
        "print('nobody hears this'); "
        "ended = process.ends_within(60); "
        "apart = os.getsid(0) == os.getpgid(0) != os.getpid() - 0 * others; "
        "held = [one for one in os.listdir('/dev/fd') if int(one) > 2]; "
        "sys.stderr.write(f'{ended} {len(held) <= 3} {os.read(0, 1)}'); sys.stderr.flush()"
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "True True b''")


def test_what_fails_in_it_is_one_line_and_not_the_commands_business():
    done = start("raise OSError('no')")
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert done.stderr == "hivemind: keeping the lease has failed: OSError: no\n"


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux says it")
def test_it_is_nobodys_child():
    done = start(
        "from pathlib import Path; "
        "sys.stderr.write(str(process._holder.pid != os.getppid())); sys.stderr.flush(); process.ends_within(60)"
    )
    assert done.stderr == "True"


def test_closed_files_are_no_trouble():
    done = start("sys.stderr.write(str(process.ends_within(60))); sys.stderr.flush()", before="import os; os.close(0)")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "True")
