"""Tasks without a proxy: what the tests of the room share."""

import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from random import Random

from hivemind_addon.plugins.fleets.tasks.launcher import TaskLaunch
from hivemind_addon.plugins.fleets.tasks.model import TaskSpec
from hivemind_addon.plugins.fleets.tasks.runner import Runner
from hivemind_addon.plugins.fleets.tasks.store import Fleet, FleetStore
from hivemind_addon.plugins.fleets.tasks.task_table import FleetRules, TaskTable
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.launch.programs import load_programs


class PlainLauncher:
    """Runs a command as it is."""

    async def launch(self, task_id, spec, base, more):
        return TaskLaunch(list(spec.command), {**base, **spec.environment, **more, "HIVEMIND_TASK": task_id})


@contextmanager
def short_folder():
    """Sockets' names may not be long."""
    with tempfile.TemporaryDirectory(prefix="hm") as folder:
        yield Path(folder)


def shell(name, script, depends_on=(), **more):
    return TaskSpec(command=("sh", "-c", script), name=name, depends_on=tuple(depends_on), **more)


def python(name, script, **more):
    return TaskSpec(command=(sys.executable, "-c", script), name=name, **more)


def made_runner(folder, *, at_most=4, told=None, warned=None, fleet_id="night-1", **more):
    rules = FleetRules(at_most, start_every_s=0.0)
    clock = SystemClock()
    return Runner(
        Fleet(fleet_id, "", 8080, rules, clock.wall()),
        TaskTable(rules, rng=Random(1)),
        store=FleetStore(folder / "fleets" / fleet_id),
        launcher=PlainLauncher(),
        programs=load_programs(),
        socket=folder / "r.sock",
        clock=clock,
        tell=(told if told is not None else []).append,
        warn=(warned if warned is not None else []).append,
        **more,
    )
