"""What is kept of a fleet: its folder below the state folder, written by its runner and read by everybody.

    fleets/<id>/
      fleet.json      how it is run
      tasks.jsonl     one line for each change of a task; the last one of a task counts
      lock            held by the runner, and let go by the kernel however it ends
      tasks.lock      held by the runner and by the supervisors of its tasks, which outlive a killed one by some seconds
      runner.json     the runner's process and socket, as long as the lock is held
      logs/<task>.log          all that a task said
      results/<task>.txt       what it wrote on standard output, of its last try

Only its owner may read any of it: prompts, logs and results are in it. Variables of an environment that a submission
brought along are not. The newest hundred fleets are kept, for a month, and at most 2 GiB.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base import json_values
from hivemind_addon.plugins.fleets.tasks import supervisor
from hivemind_addon.plugins.fleets.tasks.model import FleetView, NotTaken, State, TaskSpec, TaskView
from hivemind_addon.plugins.fleets.tasks.task_table import FleetRules
from hivemind_addon.proxy.system.file_lock import take_lock
from hivemind_addon.proxy.system.folders import state_folder
from hivemind_addon.proxy.system.whole_file import write_whole

KEPT, KEPT_S, KEPT_BYTES = 100, 30 * 86_400.0, 2 * 1024**3
_LOCK_S = 1.0
"""A process that looks whether a fleet runs holds its lock for an instant."""
_ENDING_S = supervisor.GRACE_S + 10.0
"""So long the tasks of a runner that was killed may still be ending."""


class Fleet(Struct, frozen=True):
    """How a fleet is run."""

    id: str
    source: str
    """The fleet file; empty: submitted one by one."""
    port: int
    rules: FleetRules
    began_wall: float
    ended_wall: float | None = None


class TaskLine(Struct, frozen=True):
    """One line of tasks.jsonl."""

    view: TaskView
    spec: TaskSpec | None = None
    """Only in a task's first line."""


class RunnerOwner(Struct, frozen=True):
    """Who runs it."""

    pid: int
    socket: str


class FleetStore:
    """One fleet's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tasks_lock: int | None = None
        """For the supervisors: as long as one of them has it, no other runner begins."""
        self._lock: int | None = None
        self._lines: int | None = None

    @property
    def id(self) -> str:
        """The fleet's."""
        return self.folder.name

    def log(self, name: str) -> Path:
        """What a task says."""
        return self.folder / "logs" / f"{name}.log"

    def result(self, name: str) -> Path:
        """What it writes on standard output."""
        return self.folder / "results" / f"{name}.txt"

    # The runner's.

    def own(self, owner: RunnerOwner) -> None:
        """Be its runner until `close`; waits until all is over that a killed one has left.

        To others a new fleet is there from its first `write_fleet` on. Raises NotTaken: another runs it; OSError.
        """
        for folder in (self.folder, self.folder / "logs", self.folder / "results"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = take_lock(self.folder / "lock", wait_s=_LOCK_S)
        if self._lock is None:
            raise NotTaken(f"{self.id} is being run already, see `hivemind fleet status {self.id}`")
        try:
            self._begin(self._lock, owner)
        except BaseException:
            self.close()
            raise

    def _begin(self, lock: int, owner: RunnerOwner) -> None:
        if not _is_named(lock, self.folder / "lock"):
            raise NotTaken(f"{self.id} was too old to be kept, and has just been removed")
        self.tasks_lock = take_lock(self.folder / "tasks.lock", wait_s=_ENDING_S)
        if self.tasks_lock is None:
            raise NotTaken(f"tasks of {self.id} are still being ended; try again in a few seconds")
        write_whole(self.folder / "runner.json", msgspec.json.encode(owner))
        self._lines = os.open(self.folder / "tasks.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write_fleet(self, fleet: Fleet) -> None:
        """Raises OSError."""
        write_whole(self.folder / "fleet.json", msgspec.json.encode(fleet))

    def write(self, *changes: TaskLine) -> None:
        """Add how tasks are now, in one go. Raises OSError."""
        assert self._lines is not None, "own it first"
        # A line that was cut (a full disk) is closed by the newline before the next one.
        os.write(self._lines, b"".join(b"\n" + msgspec.json.encode(one) + b"\n" for one in changes))

    def close(self) -> None:
        """Own it no more."""
        for descriptor in (self._lines, self.tasks_lock, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._lines = self.tasks_lock = self._lock = None

    # Everybody's.

    def read(self) -> tuple[Fleet, dict[str, TaskLine]]:
        """How it is run, and its tasks by id, in order; as they were written last. Raises NotTaken."""
        try:
            fleet = json_values.decode((self.folder / "fleet.json").read_bytes(), Fleet)
        except (OSError, msgspec.MsgspecError) as error:
            raise NotTaken(f"{self.folder} holds no fleet that can be read ({error})") from error
        return fleet, self._tasks()

    def _tasks(self) -> dict[str, TaskLine]:
        tasks: dict[str, TaskLine] = {}
        with suppress(FileNotFoundError), (self.folder / "tasks.jsonl").open("rb") as lines:
            for line in lines:
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # cut by a full disk or a kill
                    one = json_values.decode(line, TaskLine)
                    before = tasks.get(one.view.id)
                    tasks[one.view.id] = TaskLine(one.view, one.spec or (before.spec if before else None))
        return tasks

    def view(self) -> FleetView:
        """It as it is now. Raises NotTaken."""
        fleet, tasks = self.read()
        owner = self.owner()
        return FleetView(
            id=fleet.id,
            source=fleet.source,
            at_most=fleet.rules.at_most,
            began_wall=fleet.began_wall,
            ended_wall=fleet.ended_wall,
            runner_pid=owner.pid if owner else None,
            tasks=tuple(one.view if owner else _abandoned(one.view) for one in tasks.values()),
        )

    def owner(self) -> RunnerOwner | None:
        """Who runs it now; None: nobody."""
        try:
            lock = take_lock(self.folder / "lock", shared=True)
        except OSError:
            return None
        if lock is not None:
            os.close(lock)
            return None
        try:
            return json_values.decode((self.folder / "runner.json").read_bytes(), RunnerOwner)
        except (OSError, msgspec.MsgspecError):
            return None  # it is just beginning

    def socket(self) -> Path | None:
        """Where its runner is asked; None: nobody runs it."""
        owner = self.owner()
        return Path(owner.socket) if owner else None


def fleets_folder() -> Path:
    """Where all are kept; it need not exist."""
    return state_folder() / "fleets"


def fleets() -> list[FleetStore]:
    """All that can be read, the newest first."""
    found = []
    for store in _stores():
        with suppress(NotTaken):
            found.append((store.read()[0].began_wall, store))
    return [store for _, store in sorted(found, key=lambda one: one[0], reverse=True)]


def open_fleet(fleet_id: str) -> FleetStore:
    """The one of an id. Raises NotTaken: there is none."""
    stores = {store.id: store for store in _stores()}
    if fleet_id not in stores:
        newest = ", ".join(store.id for store in fleets()[:5]) or "none yet"
        raise NotTaken(f"there is no fleet {fleet_id!r}; the newest are: {newest}")
    return stores[fleet_id]


def forget_old(now_wall: float, *, besides: str = "") -> None:
    """Remove what is beyond number, age and size; never a fleet that is being run, or the one of an id (`besides`).

    Others write, begin and forget meanwhile.
    """
    kept_bytes = 0
    for number, store in enumerate(fleets()):
        with suppress(OSError):  # another one is forgetting it
            kept_bytes += _size_bytes(store.folder)
            age_s = now_wall - (store.folder / "fleet.json").stat().st_mtime
            if (number >= KEPT or age_s > KEPT_S or kept_bytes > KEPT_BYTES) and store.id != besides:
                _remove(store.folder)


def _size_bytes(folder: Path) -> int:
    size_bytes = 0
    for where, _, names in folder.walk():
        for name in names:
            with suppress(FileNotFoundError):  # a file that is being written has another name for an instant
                size_bytes += (where / name).lstat().st_size
    return size_bytes


def _remove(folder: Path) -> None:
    """Unless a process runs it: one that wants to run it later finds no folder, never half of one. Raises OSError."""
    lock = take_lock(folder / "lock")
    if lock is not None:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether an open file still is what the path names. Raises OSError."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _stores() -> Iterator[FleetStore]:
    folder = fleets_folder()
    if folder.is_dir():
        yield from (FleetStore(one) for one in sorted(folder.iterdir()) if (one / "fleet.json").is_file())


def _abandoned(view: TaskView) -> TaskView:
    """A task whose runner is gone before it was over."""
    if view.state.is_over:
        return view
    fleet = view.id.partition("/")[0]
    return msgspec.structs.replace(
        view, state=State.WAITING, reason=f"nothing runs it: hivemind fleet run --resume {fleet}"
    )
