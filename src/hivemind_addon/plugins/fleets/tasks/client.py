"""How tasks are submitted, waited for and looked at, by commands and by agents. All of it blocks.

What a task submits goes to its own runner; what others submit, to the runner in the background of a port, which is
found or started, and ends when it is idle.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import msgspec

from hivemind_addon.formats.base import json_values
from hivemind_addon.plugins.fleets.tasks.model import FleetView, NotTaken, TaskSpec, TaskView
from hivemind_addon.plugins.fleets.tasks.runner_socket import (
    MAX_LINE_BYTES,
    CancelTask,
    Question,
    RunnerAnswer,
    SubmitTasks,
    WaitForTasks,
)
from hivemind_addon.plugins.fleets.tasks.store import FleetStore, fleets, open_fleet
from hivemind_addon.proxy.system.clock import Clock, SystemClock
from hivemind_addon.proxy.system.folders import FolderNotPrivate, runtime_folder, state_folder
from hivemind_addon.proxy.system.json_socket import ask, is_answered
from hivemind_addon.tools.launch import detached

_ANSWER_S = 60.0
"""A runner answers at once; it may be starting a proxy."""
_TRIES = 3
"""A runner that nobody used may be ending just now."""


def submit(
    specs: Sequence[TaskSpec],
    *,
    parent: str = "",
    runner: Path | None = None,
    port: int,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Have tasks run; their ids, in order. Raises NotTaken with one line.

    `parent` and `runner` are a task's own `HIVEMIND_TASK` and `HIVEMIND_RUNNER`; without a runner the one in the
    background of the port takes them, which is started if there is none. They run in our folder where a spec names
    none, and with `environment` (None: ours).
    """
    here = str(Path.cwd())
    placed = tuple(
        msgspec.structs.replace(one, directory=os.path.join(here, one.directory))  # noqa: PTH118 - as it is written
        for one in specs
    )
    question = SubmitTasks(placed, parent=parent, environment=dict(os.environ if environment is None else environment))
    if runner is not None:
        return list(_ask(runner, question, timeout_s=_ANSWER_S).ids)
    for _ in range(_TRIES):
        try:
            return list(_ask(find_or_start(port), question, timeout_s=_ANSWER_S).ids)
        except RunnerGone:
            continue
    raise NotTaken(f"the runner of port {port} ends again and again; see {log_file(port)}")


def wait(
    ids: Sequence[str],
    *,
    waiter: str = "",
    timeout_s: float | None,
    runner: Path | None = None,
    connected: Callable[[socket.socket], None] = lambda _: None,
) -> list[TaskView]:
    """Block until these tasks are over, or for so long; as they then are, in order. Raises NotTaken.

    `waiter`: the task that asks (`HIVEMIND_TASK`), which lends its place to its own children meanwhile. `connected`
    gets each connection to a runner: another thread that shuts it down ends the wait.
    """
    found: dict[str, TaskView] = {}
    for fleet, group in groupby(sorted(ids), key=_fleet_of):
        wanted = tuple(group)
        store = open_fleet(fleet)
        place = runner if runner is not None and fleet == _fleet_of(waiter) else store.socket()
        if place is not None:
            asked = WaitForTasks(wanted, waiter=waiter if fleet == _fleet_of(waiter) else "")
            try:
                answer = _ask(place, asked, timeout_s=timeout_s, connected=connected)
                found.update({task.id: task for task in answer.tasks})
            except (RunnerGone, TimeoutError):
                pass  # what is written tells the rest
        found.update(_written(store, [one for one in wanted if one not in found]))
    return [found[one] for one in ids]


def status(*, fleet: str | None = None) -> list[FleetView]:
    """All fleets that are kept, the newest first, or the one of that id. Raises NotTaken: there is none."""
    if fleet is not None:
        return [open_fleet(fleet).view()]
    views = []
    for store in fleets():
        with suppress(NotTaken):  # forgotten meanwhile
            views.append(store.view())
    return views


def task(task_id: str) -> TaskView:
    """One task as it is. Raises NotTaken."""
    return _written(open_fleet(_fleet_of(task_id)), [task_id])[task_id]


def cancel(task_id: str) -> str:
    """End a task (or a whole fleet, by its id); what was done, in one line. Raises NotTaken."""
    store = open_fleet(_fleet_of(task_id))
    place = store.socket()
    if place is None:
        raise NotTaken(f"nothing runs {store.id} (any more), so there is nothing to cancel")
    try:
        return _ask(place, CancelTask(task_id), timeout_s=_ANSWER_S).text
    except RunnerGone as error:
        raise NotTaken(f"nothing runs {store.id} any more, so there is nothing to cancel") from error


class RunnerGone(NotTaken):
    """Nobody answers at the socket."""


def _ask(
    place: Path,
    question: Question,
    *,
    timeout_s: float | None,
    connected: Callable[[socket.socket], None] = lambda _: None,
) -> RunnerAnswer:
    """Raises RunnerGone, NotTaken, TimeoutError (of a wait)."""
    line = msgspec.json.encode(question) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise NotTaken(f"{len(line):,} bytes are too much at once: submit fewer tasks, or shorter prompts")
    try:
        said = ask(place, line, timeout_s=timeout_s, connected=connected)
    except TimeoutError:
        if isinstance(question, WaitForTasks):
            raise
        raise NotTaken(f"{place}: no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise RunnerGone(f"{place}: no runner is there (any more)") from error
    if said is None:
        raise RunnerGone(f"{place}: the runner is gone")
    answer = json_values.decode(said, RunnerAnswer)
    if answer.refused:
        raise NotTaken(answer.refused)
    return answer


def _fleet_of(task_id: str) -> str:
    return task_id.partition("/")[0]


def _written(store: FleetStore, ids: Sequence[str]) -> dict[str, TaskView]:
    if not ids:
        return {}
    known = {one.id: one for one in store.view().tasks}
    for one in ids:
        if one not in known:
            some = ", ".join(list(known)[:8]) or "none"
            raise NotTaken(f"no task {one!r} in {store.id}; there are {some}{', …' if len(known) > 8 else ''}")
    return {one: known[one] for one in ids}


IDLE_S = 60.0
"""It ends so long after the last task, when nobody asks any more."""
_START_S = 90.0
"""It may have to start a proxy, too."""
_LOOK_S = 5.0


def socket_of(port: int) -> Path:
    """Where the runner of a port is asked. Raises FolderNotPrivate, OSError."""
    return runtime_folder() / f"r-{port}.sock"


def log_file(port: int) -> Path:
    """What the runner of a port says."""
    return state_folder() / f"runner-{port}.log"


def find_or_start(port: int, *, clock: Clock | None = None) -> Path:
    """The socket of the port's runner, started if there is none. Raises NotTaken."""
    try:
        place = socket_of(port)
        return _answering(place) or _start(port, place, clock or SystemClock())
    except FolderNotPrivate as error:
        raise NotTaken(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise NotTaken(f"{where}{error.strerror or error}") from error


def _start(port: int, place: Path, clock: Clock) -> Path:
    try:
        found = detached.start(
            ["fleet", "serve", "--port", str(port), "--idle", str(int(IDLE_S))],
            log=log_file(port),
            look=lambda: _answering(place),
            patience_s=_START_S,
            clock=clock,
        )
    except detached.NotStarted as said:
        raise NotTaken(f"the runner of port {port} does not start; it said:\n{said}") from said
    if found is None:
        raise NotTaken(f"the runner of port {port} does not answer at {place}; see {log_file(port)}")
    return found


def _answering(place: Path) -> Path | None:
    return place if is_answered(place, patience_s=_LOOK_S) else None
