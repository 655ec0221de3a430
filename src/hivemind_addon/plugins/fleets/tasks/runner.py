"""Runs a fleet: the task table says what starts, its process is started behind the proxy, each change is written down.

    RunnerSocket ──asked──▶ Runner ──▶ TaskTable (pure) ──poll──▶ Runner ──▶ Launcher, TaskProcess (supervised)
                              └──────▶ FleetStore, `tell`

Everything on one event loop. Whatever ends it ends its tasks: each task's supervisor holds a pipe to this process.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from hivemind_addon.plugins.fleets.tasks import spec as specs
from hivemind_addon.plugins.fleets.tasks.ending import ending_of
from hivemind_addon.plugins.fleets.tasks.launcher import Launcher, agent_name, result_variable
from hivemind_addon.plugins.fleets.tasks.model import FleetView, NotTaken, TaskSpec, TaskView
from hivemind_addon.plugins.fleets.tasks.process import TaskNotStarted, TaskProcess, start
from hivemind_addon.plugins.fleets.tasks.runner_socket import (
    MAX_SPECS,
    CancelTask,
    Question,
    RunnerAnswer,
    RunnerSocket,
    SubmitTasks,
    WaitForTasks,
)
from hivemind_addon.plugins.fleets.tasks.store import Fleet, FleetStore, RunnerOwner, TaskLine
from hivemind_addon.plugins.fleets.tasks.task_table import Task, TaskTable, TryEnding, WaitOver
from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.tools.launch.programs import ProgramTable


class Runner:
    """One fleet, until all its tasks are over."""

    def __init__(
        self,
        fleet: Fleet,
        table: TaskTable,
        *,
        store: FleetStore,
        launcher: Launcher,
        programs: ProgramTable,
        socket: Path,
        clock: Clock,
        tell: Callable[[TaskView], None],
        warn: Callable[[str], None],
        idle_s: float | None = None,
    ) -> None:
        """`tell` hears every change of a task, `warn` one line for people. `idle_s`: it stays for so long after its
        last task is over, for others; None: it ends with it.
        """
        self._fleet = fleet
        self._table = table
        self._store = store
        self._launcher = launcher
        self._programs = programs
        self._clock = clock
        self._tell = tell
        self._warn = warn
        self._idle_s = idle_s
        self._wake = asyncio.Event()
        self._socket = RunnerSocket(socket, answer=self._answer, left=self._wake.set)
        self._wall_offset_s = clock.wall() - clock.monotonic()
        self._processes: dict[str, TaskProcess] = {}
        self._tries: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, asyncio.Event] = {}
        self._environments: dict[str, Mapping[str, str]] = {}
        self._known: set[str] = set()
        """Tasks whose spec is written."""
        self._ended_by = ""
        self._is_failing = False

    def __repr__(self) -> str:
        return f"<Runner of {self._fleet.id}, {len(self._processes)} processes>"

    def restore(self, view: TaskView, spec: TaskSpec) -> None:
        """Take over a task that is done; before `run`."""
        name = view.id.partition("/")[2]
        submitted_at = view.submitted_wall - self._wall_offset_s
        task = Task(
            name, spec, len(self._table.tasks), self._name(view.parent), 0, spec.group, submitted_at, submitted_at
        )
        task.state, task.attempts, task.reason = view.state, view.attempts, view.reason
        task.exit_status, task.result = view.exit_status, view.result
        task.began_at = None if view.began_wall is None else view.began_wall - self._wall_offset_s
        task.ended_at = None if view.ended_wall is None else view.ended_wall - self._wall_offset_s
        self._table.restore(task)

    async def run(self, tasks: Sequence[TaskSpec]) -> FleetView:
        """Until all is over; how it then is. Raises NotTaken, OSError before anything is started."""
        await asyncio.to_thread(self._store.own, RunnerOwner(os.getpid(), str(self._socket.path)))
        try:
            self._table.add(tasks, self._clock.monotonic())
            if self._ended_by:  # before there was anything to end
                self._cancel(list(self._table.tasks), self._ended_by)
            # A fleet is there with all its tasks or not at all: `--resume` would not miss the others.
            self._written()
            self._store.write_fleet(self._fleet)
            await self._socket.open()
            await self._loop()
        finally:
            await self._end_all()
            await self._socket.close()
            self._written()
            self._save(lambda: self._store.write_fleet(_ended(self._fleet, self._clock.wall())))
            self._store.close()
        return self.view()

    def stop(self, reason: str) -> None:
        """End every task, politely; a second call kills them."""
        if self._ended_by:
            for process in self._processes.values():
                process.kill()
        self._ended_by = self._ended_by or reason
        self._end(self._cancel([one.name for one in self._table.tasks.values()], reason))
        self._wake.set()

    def view(self) -> FleetView:
        """The fleet as it is now."""
        return FleetView(
            id=self._fleet.id,
            source=self._fleet.source,
            at_most=self._fleet.rules.at_most,
            began_wall=self._fleet.began_wall,
            ended_wall=None,
            runner_pid=os.getpid(),
            tasks=tuple(self._view(task) for task in self._table.tasks.values()),
        )

    # The loop.

    async def _loop(self) -> None:
        while True:
            self._wake.clear()
            now = self._clock.monotonic()
            for step in () if self._ended_by else self._table.poll(now):
                if isinstance(step, WaitOver):
                    self._waiting[step.wait].set()
                else:
                    self._begin(step.name)
            self._written()
            if self._ended_by or (self._idle_s is None and self._table.is_over):
                if self._table.is_over:
                    return
                wakeup_at = None
            else:
                wakeup_at = self._table.next_wakeup(now)
            was_idle = self._is_idle
            pause_s = self._idle_s if was_idle else None if wakeup_at is None else max(0.0, wakeup_at - now)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                if was_idle and self._is_idle:  # a client may have begun to ask at the last moment
                    return

    @property
    def _is_idle(self) -> bool:
        """Whether it stays only for what may come."""
        return self._idle_s is not None and self._table.is_over and not self._socket.asking

    def _begin(self, name: str) -> None:
        trying = asyncio.get_running_loop().create_task(self._try(name), name=name)
        self._tries.add(trying)
        trying.add_done_callback(self._tries.discard)

    async def _try(self, name: str) -> None:
        task = self._table.tasks[name]
        try:
            ending = await self._run_once(task)
        except TaskNotStarted as error:
            ending = TryEnding(None, " ".join(str(error).split()))
        except Exception as error:  # noqa: BLE001 - the guard at the edge: a task must come to an end, whatever happens here
            self._warn(f"{name}: {failing(error)}")
            ending = TryEnding(None, failing(error))
        finally:
            self._processes.pop(name, None)
        self._end(self._table.ended(name, ending, self._clock.monotonic()))
        self._wake.set()

    async def _run_once(self, task: Task) -> TryEnding:
        task_id = self._id(task.name)
        base = self._environments.get(task.name, os.environ)
        results = {result_variable(one): str(self._store.result(one)) for one in task.spec.depends_on}
        command, environment = await self._launcher.launch(task_id, task.spec, base, results)
        process = await start(
            command,
            environment=environment,
            directory=Path(task.spec.directory or Path.cwd()),
            log=self._store.log(task.name),
            result=self._store.result(task.name),
            lock=self._store.tasks_lock,
        )
        self._processes[task.name] = process
        if task.cancelled:
            process.end()
        return ending_of(await process.wait(timeout_s=task.spec.timeout_s), task.spec)

    def _cancel(self, names: Iterable[str], reason: str) -> list[str]:
        """Those whose processes are to be ended."""
        to_end: list[str] = []
        for name in names:
            if not self._table.tasks[name].state.is_over:
                to_end += self._table.cancel(name, self._clock.monotonic(), reason=reason)
        return to_end

    def _end(self, names: Iterable[str]) -> None:
        for name in names:
            if process := self._processes.get(name):  # else it is just being started, and looks by itself
                process.end()

    async def _end_all(self) -> None:
        """Nothing stays, however we got here."""
        self._ended_by = self._ended_by or "its runner has ended"
        self._end(self._cancel(list(self._table.tasks), self._ended_by))
        if self._tries:
            await asyncio.gather(*self._tries, return_exceptions=True)

    # What others ask.

    async def _answer(self, question: Question) -> RunnerAnswer:
        match question:
            case SubmitTasks():
                return self._submit(question)
            case CancelTask():
                return self._cancelled(question.id)
            case WaitForTasks():
                return await self._wait(question)

    def _submit(self, asked: SubmitTasks) -> RunnerAnswer:
        if self._ended_by:
            raise NotTaken(f"{self._fleet.id} is ending: {self._ended_by}")
        if not 0 < len(asked.specs) <= MAX_SPECS:
            raise NotTaken(f"{len(asked.specs):,} tasks at once are none or too many; at most {MAX_SPECS:,}")
        for number, one in enumerate(asked.specs, 1):
            if found := specs.problem(one, self._programs):
                raise NotTaken(f"{one.name or f'task {number}'}: {found}")
        names = self._table.add(asked.specs, self._clock.monotonic(), parent=self._name(asked.parent))
        if asked.environment is not None:
            self._environments.update(dict.fromkeys(names, asked.environment))
        self._written()  # clients may look for the ids at once
        return RunnerAnswer(ids=tuple(self._id(name) for name in names))

    def _cancelled(self, task_id: str) -> RunnerAnswer:
        names = list(self._table.tasks) if task_id == self._fleet.id else [self._name(task_id)]
        if len(names) == 1:
            to_end = self._table.cancel(names[0], self._clock.monotonic())
        else:
            to_end = self._cancel(names, "cancelled")
        self._end(to_end)
        self._written()
        if not to_end:
            return RunnerAnswer(text=f"{task_id} is cancelled")
        more = len(to_end) - 1
        return RunnerAnswer(text=f"{self._id(to_end[0])}{f' and {more} more are' if more else ' is'} being ended")

    async def _wait(self, asked: WaitForTasks) -> RunnerAnswer:
        names = [self._name(one) for one in asked.ids]
        number = self._table.wait(names, waiter=self._name(asked.waiter))
        is_over = self._waiting[number] = asyncio.Event()
        self._wake.set()
        try:
            await is_over.wait()
        finally:
            del self._waiting[number]
            self._table.leave(number)
            self._wake.set()
        return RunnerAnswer(tasks=tuple(self._view(self._table.tasks[name]) for name in names))

    # What is told.

    def _written(self) -> None:
        changed = self._table.changed()
        if not changed:
            return
        lines = [TaskLine(self._view(one), one.spec if one.name not in self._known else None) for one in changed]
        self._save(lambda: self._store.write(*lines))
        self._known.update(one.name for one in changed)
        for line in lines:
            self._tell(line.view)

    def _save(self, write: Callable[[], None]) -> None:
        """A disk that is full or gone stops no task; it is told of once."""
        try:
            write()
        except OSError as error:
            if not self._is_failing:
                self._warn(f"{self._store.folder} cannot be written ({error.strerror}); going on without")
            self._is_failing = True
        else:
            self._is_failing = False

    def _view(self, task: Task) -> TaskView:
        log = self._store.log(task.name)
        return TaskView(
            id=self._id(task.name),
            state=task.state,
            priority=task.spec.priority,
            agent_name=agent_name(self._id(task.name)),
            attempts=task.attempts,
            depends_on=task.spec.depends_on,
            parent=self._id(task.parent) if task.parent else "",
            reason=task.cancelled if task.is_alive and task.cancelled else task.reason,
            exit_status=task.exit_status if task.state.is_over else None,
            submitted_wall=task.submitted_at + self._wall_offset_s,
            began_wall=None if task.began_at is None else task.began_at + self._wall_offset_s,
            ended_wall=None if task.ended_at is None else task.ended_at + self._wall_offset_s,
            log=str(log) if task.attempts else "",
            result=task.result,
        )

    def _id(self, name: str) -> str:
        return f"{self._fleet.id}/{name}"

    def _name(self, task_id: str) -> str:
        """Raises NotTaken: it is of another fleet."""
        if not task_id:
            return ""
        fleet, slash, name = task_id.rpartition("/")
        if slash and fleet != self._fleet.id:
            raise NotTaken(f"{task_id} is no task of {self._fleet.id}")
        return name


def _ended(fleet: Fleet, wall: float) -> Fleet:
    return Fleet(fleet.id, fleet.source, fleet.port, fleet.rules, fleet.began_wall, wall)


def signal_reason(number: int) -> str:
    """Why tasks are ended when a signal ends their runner."""
    return f"the fleet was ended by {signal.Signals(number).name}"
