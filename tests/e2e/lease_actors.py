"""Real processes that want the same things. `python lease_actors.py FILE|URL LOG philosophers|crowd`, forked from this one.

Each line of the log is one meal: who, the token, which names, from when to when, by the machine's monotonic clock.
"""

import os
import sys
import time
import traceback
from multiprocessing import Barrier
from pathlib import Path
from threading import Event

from hivemind_addon.plugins.fleets.leases.choice import LeasePlace
from hivemind_addon.plugins.fleets.leases.holder import holder_of
from hivemind_addon.plugins.fleets.leases.model import Lease, Request
from hivemind_addon.plugins.fleets.leases.sqlite_store import SqliteLeases
from hivemind_addon.plugins.fleets.leases.waiting import wait_for_lease
from hivemind_addon.proxy.system.clock import SystemClock

TTL_S = 3600.0
PHILOSOPHERS, MEALS = 3, 20
CROWD, PLACES, TURNS = 20, 3, 1
KILLED_AT = 10
"""Philosopher 0 dies with both forks in hand at this meal."""


def eat(place, log, all_here, who, names, capacity, meals, dies_at=-1):
    clock = SystemClock()
    with LeasePlace(place).open({}) if "://" in place else SqliteLeases(Path(place)) as store:
        request = Request(names, holder_of(who, os.getpid()), TTL_S, capacity)
        for meal in range(meals):
            lease = wait_for_lease(store, request, clock=clock, wait_s=TTL_S, pause=Event().wait)
            assert isinstance(lease, Lease), lease
            begun = clock.awake()
            if meal == dies_at:
                os.kill(os.getpid(), 9)
            if lease.grants[0].token <= capacity:
                all_here.wait()  # the first ones fill every place at one instant
            time.sleep(0.01)
            line = f"{who} {lease.grants[0].token} {','.join(names)} {begun} {clock.awake()}\n"
            os.write(log, line.encode())
            store.release(lease.id, clock.awake())


def actors(kind):
    if kind == "philosophers":
        for seat in range(PHILOSOPHERS):
            forks = (f"fork-{seat}", f"fork-{(seat + 1) % PHILOSOPHERS}")
            yield f"philosopher-{seat}", forks, 1, MEALS, KILLED_AT if seat == 0 else -1
    else:
        for number in range(CROWD):
            yield f"one-{number}", ("phase",), PLACES, TURNS, -1


def main(place, log_path, kind):
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    children, all_here = [], Barrier(PLACES if kind == "crowd" else 1)
    for actor in actors(kind):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                eat(place, log, all_here, *actor)
                status = 0
            except Exception:  # noqa: BLE001 - the edge of a process
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main(*sys.argv[1:])
