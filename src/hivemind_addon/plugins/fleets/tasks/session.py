"""A fleet from its beginning to its end in this process: where a runner and its parts meet."""

import asyncio
import os
import re
import secrets
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hivemind_addon.plugins.fleets.tasks.launcher import Launcher
from hivemind_addon.plugins.fleets.tasks.model import FleetView, NotTaken, State, TaskSpec, TaskView
from hivemind_addon.plugins.fleets.tasks.process import TaskNotStarted
from hivemind_addon.plugins.fleets.tasks.runner import Runner, signal_reason
from hivemind_addon.plugins.fleets.tasks.store import Fleet, FleetStore, TaskLine, fleets_folder, forget_old, open_fleet
from hivemind_addon.plugins.fleets.tasks.task_table import FleetRules, TaskTable
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.proxy.system.folders import runtime_folder
from hivemind_addon.tools.launch import claim
from hivemind_addon.tools.launch.programs import load_programs

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STEM_CHARS = 24


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What is to be run."""

    fleet: Fleet
    tasks: tuple[TaskSpec, ...]
    done: tuple[TaskLine, ...] = ()
    """What an earlier runner has finished."""


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """What became of it."""

    fleet: FleetView
    signal: int | None
    """The one that ended it early."""


def new_plan(rules: FleetRules, tasks: Sequence[TaskSpec], *, source: str, port: int, clock: Clock) -> FleetPlan:
    """A fleet with an id of its own."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(source).stem.lower()).strip("-")[:_STEM_CHARS] or "tasks"
    taken = fleets_folder()
    fleet_id = next(one for _ in range(100) if not (taken / (one := f"{stem}-{secrets.token_hex(2)}")).exists())
    return FleetPlan(Fleet(fleet_id, source, port, rules, clock.wall()), tuple(tasks))


def resumed_plan(
    fleet_id: str, *, port: int | None, changed: tuple[FleetRules, Sequence[TaskSpec]] | None
) -> FleetPlan:
    """What is not done of an earlier fleet. `changed`: the file's rules and tasks, if they are read anew.

    Tasks that tasks have submitted do not come back: their parents run again, and submit them again.
    Raises NotTaken.
    """
    fleet, written = open_fleet(fleet_id).read()
    rules, specs = changed or (
        fleet.rules,
        [one.spec for one in written.values() if one.spec is not None and not one.view.parent],
    )
    names = {one.name for one in specs}
    done = tuple(
        one
        for one in written.values()
        if one.spec is not None and one.spec.name in names and one.view.state is State.DONE
    )
    done_names = {one.spec.name for one in done if one.spec is not None}
    if not names - done_names:
        raise NotTaken(f"all of {fleet_id} is done")
    again = Fleet(fleet.id, fleet.source, fleet.port if port is None else port, rules, fleet.began_wall)
    return FleetPlan(again, tuple(one for one in specs if one.name not in done_names), done)


async def run_plan(
    plan: FleetPlan,
    *,
    clock: Clock,
    tell: Callable[[TaskView], None],
    warn: Callable[[str], None],
    socket: Path | None = None,
    idle_s: float | None = None,
) -> FleetOutcome:
    """Run it behind the proxy of its port, which is started if there is none, and kept. Raises NotTaken, OSError."""
    port, programs = plan.fleet.port, load_programs()
    place = socket or runtime_folder() / f"f-{secrets.token_hex(3)}.sock"
    # Waits while the last proxy of the port is ending.
    user = await asyncio.to_thread(claim.use, port)
    try:
        launcher = Launcher(port, table=programs, clock=clock, socket=place)
        try:
            await launcher.proxy()
        except TaskNotStarted as error:
            raise NotTaken(str(error)) from error
        forget_old(clock.wall(), besides=plan.fleet.id)
        runner = Runner(
            plan.fleet,
            TaskTable(plan.fleet.rules, rng=Random()),  # noqa: S311 - gaps between starts
            store=FleetStore(fleets_folder() / plan.fleet.id),
            launcher=launcher,
            programs=programs,
            socket=place,
            clock=clock,
            tell=tell,
            warn=warn,
            idle_s=idle_s,
        )
        for one in plan.done:
            if one.spec is not None:
                runner.restore(one.view, one.spec)
        return await _until_over(runner, plan.tasks)
    finally:
        os.close(user)


async def _until_over(runner: Runner, tasks: Sequence[TaskSpec]) -> FleetOutcome:
    loop, seen = asyncio.get_running_loop(), list[int]()

    def stop(number: int) -> None:
        seen.append(number)
        runner.stop(signal_reason(number))

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        return FleetOutcome(await runner.run(tasks), seen[0] if seen else None)
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
