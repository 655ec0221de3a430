"""All tasks of a fleet and where each one is: the only writer of their states. Pure: `now` is passed.

    add ──▶ WAITING ──poll──▶ RUNNING ──ended──▶ DONE | FAILED | CANCELLED | WAITING again (transient)
                                ▲  │                 │
                       poll: WaitOver └─wait─▶ LENDING  └─▶ dependents: ready, or SKIPPED and told why

A task that waits for others lends its place: while it does, it is not counted, and `poll` may start others. When what
it waits for is over it takes a place of the same group back, before anything new starts, and only then is answered
(`WaitOver`). So never more than N tasks run that do not wait, and N that wait for their children finish with N = 1.

Two waits can bring each other to a standstill only in a circle (a waits for b, which depends on a), and that is
refused when it would be closed. Depth is bounded, since everything that waits is a living process.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

import msgspec

from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.plugins.fleets.tasks import dispatch, graph
from hivemind_addon.plugins.fleets.tasks.dispatch import COMMON, Candidate, Stagger, TaskStart
from hivemind_addon.plugins.fleets.tasks.model import MAX_DEPTH, NotTaken, State, TaskSpec
from hivemind_addon.proxy.api.words import several

_MAX_TASKS = 100_000
_STEM_CHARS = 50
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class FleetRules:
    """How a fleet is run."""

    at_most: int
    groups: Mapping[str, int] = field(default_factory=dict)
    """Worker group → its places, of those `at_most`."""
    steal_above: int | None = 2
    start_every_s: float = 0.25


@dataclass(frozen=True, slots=True)
class WaitOver:
    """A wait that is over, and whose waiter has its place again: answer it."""

    wait: int


@dataclass(frozen=True, slots=True)
class TryEnding:
    """How one try of a task ended."""

    exit_status: int | None
    """None: it was never started."""
    reason: str
    """In one line; empty: there is nothing to say."""
    is_transient: bool = False
    """It may go better when it is tried again."""
    result: str = ""


@dataclass(frozen=True, slots=True)
class _Wait:
    waiter: str
    """The task that waits; empty: a client that is no task."""
    names: tuple[str, ...]


@dataclass(slots=True)
class Task:
    """One task; others read it."""

    name: str
    spec: TaskSpec
    number: int
    parent: str
    depth: int
    group: str
    submitted_at: float
    ready_at: float
    """When its last dependency was done, or its backoff over; meaningless before."""
    state: State = State.WAITING
    attempts: int = 0
    reason: str = ""
    place: str = COMMON
    """The group whose place it has, or has lent."""
    cancelled: str = ""
    """Why it is being ended; empty: it is not."""
    exit_status: int | None = None
    result: str = ""
    began_at: float | None = None
    ended_at: float | None = None
    children: int = 0

    @property
    def is_alive(self) -> bool:
        """Whether a process of it runs."""
        return self.state in (State.RUNNING, State.LENDING)


class TaskTable:
    """The tasks of one fleet."""

    def __init__(self, rules: FleetRules, *, rng: Random) -> None:
        self.rules = rules
        self.tasks: dict[str, Task] = {}
        """By name, in order of arrival. To be read."""
        self._places = dispatch.places(rules.at_most, rules.groups)
        self._stagger = Stagger(rules.start_every_s, rng=rng)
        self._rng = rng
        self._waits: dict[int, _Wait] = {}
        """Those that have not been answered, by number, in the order in which they began."""
        self._numbers = count(1)
        self._dependents: dict[str, list[str]] = {}
        self._changed: dict[str, None] = {}

    def __repr__(self) -> str:
        alive = sum(task.is_alive for task in self.tasks.values())
        return f"<TaskTable {len(self.tasks)} tasks, {alive} alive>"

    def changed(self) -> list[Task]:
        """Those that have changed since the last call."""
        names, self._changed = self._changed, {}
        return [self.tasks[name] for name in names]

    @property
    def is_over(self) -> bool:
        """Whether nothing waits or runs any more."""
        return all(task.state.is_over for task in self.tasks.values())

    def add(self, specs: Sequence[TaskSpec], now: float, *, parent: str = "") -> list[str]:
        """Their names. Raises NotTaken, and then none of them is taken."""
        above = self._parent(parent)
        depth = above.depth + 1 if above else 0
        if depth > MAX_DEPTH:
            raise NotTaken(
                f"{parent} was itself submitted by a task, {MAX_DEPTH} levels deep: deeper ones are refused; "
                "do it in this task, or submit it from one further up"
            )
        if len(self.tasks) + len(specs) > _MAX_TASKS:
            raise NotTaken(f"a fleet has at most {_MAX_TASKS:,} tasks")
        renamed: dict[str, str] = {}
        named: list[tuple[str, TaskSpec]] = []
        used_before = {"", *self.tasks}
        used = {*used_before, *(spec.name for spec in specs)}
        for spec in specs:
            name = _free_name(spec, above, used) if spec.name in used_before else spec.name
            used.add(name)
            if spec.name in renamed:
                raise NotTaken(f"two tasks are named {spec.name!r}; give each a name of its own")
            if spec.name:
                renamed[spec.name] = name
            named.append((name, spec))
        made = [
            (name, msgspec.structs.replace(spec, name=name, depends_on=self._depends(spec, renamed), group=group))
            for name, spec in named
            for group in [self._group(spec, above)]
        ]
        if circle := graph.cycle({name: spec.depends_on for name, spec in made}):
            raise NotTaken(f"they depend on each other in a circle: {graph.arrows(circle)}")
        if above:
            above.children += len(made)
        for name, spec in made:
            self._take(Task(name, spec, len(self.tasks), parent, depth, spec.group, now, now))
        for name, _ in made:
            self._look_at(name, now)
        return [name for name, _ in made]

    def restore(self, task: Task) -> None:
        """Take over a task that an earlier runner has finished; before any other is added."""
        self._take(task)

    def poll(self, now: float) -> Iterator[TaskStart | WaitOver]:
        """What happens now; the tasks are in their new state when it is handed out."""
        free = self._free()
        for number, wait in list(self._waits.items()):
            if not self._is_wait_over(wait):
                continue
            waiter = self.tasks.get(wait.waiter)
            if waiter and waiter.state is State.LENDING and all(map(self._is_wait_over, self._waits_of(wait.waiter))):
                if free[waiter.place] <= 0:
                    continue
                free[waiter.place] -= 1
                self._set(waiter, State.RUNNING)
            self._waits.pop(number, None)
            yield WaitOver(number)
        while now >= self._stagger.next_at:
            start = dispatch.choose(self._ready(now), free, steal_above=self.rules.steal_above, now=now)
            if start is None:
                return
            free[start.group] -= 1
            task = self.tasks[start.name]
            task.place, task.attempts = start.group, task.attempts + 1
            task.began_at = now if task.began_at is None else task.began_at
            self._set(task, State.RUNNING)
            self._stagger.started(now)
            yield start

    def next_wakeup(self, now: float) -> float | None:
        """When `poll` has to be called again, should nothing else happen; None: time alone changes nothing."""
        instants = [
            task.ready_at
            for task in self.tasks.values()
            if task.state is State.WAITING and task.ready_at > now and self._is_free(task)
        ]
        ready = self._ready(now)
        if ready and dispatch.choose(ready, self._free(), steal_above=self.rules.steal_above, now=now):
            instants.append(self._stagger.next_at)
        return min(instants, default=None)

    def ended(self, name: str, ending: TryEnding, now: float) -> list[str]:
        """A task's process has. Names of running tasks that have to be ended with it: those that it submitted."""
        task = self.tasks[name]
        self._waits = {number: wait for number, wait in self._waits.items() if wait.waiter != name}
        task.exit_status, task.result = ending.exit_status, ending.result
        if task.cancelled:
            return self._over(task, State.CANCELLED, task.cancelled, now)
        if ending.exit_status == 0:
            return self._over(task, State.DONE, ending.reason, now)
        if ending.is_transient and task.attempts <= task.spec.retries:
            backoff_s = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** (task.attempts - 1)) * self._rng.uniform(0.5, 1.5)
            task.ready_at = now + backoff_s
            task.reason = f"{ending.reason}; it is tried again"
            self._set(task, State.WAITING)
            return self._end_children(task, now)
        times = f" ({several(task.attempts, 'time')})" if task.attempts > 1 else ""
        return self._over(task, State.FAILED, f"{ending.reason}{times}", now)

    def wait(self, names: Sequence[str], *, waiter: str = "") -> int:
        """Begin to wait; `poll` hands out `WaitOver` with this number when it is over. Raises NotTaken."""
        for name in names:
            if name not in self.tasks:
                raise NotTaken(f"there is no task {name!r} in this fleet")
        if waiter:
            if waiter not in self.tasks or not self.tasks[waiter].is_alive:
                raise NotTaken(f"{waiter!r} is no task that runs here, so it cannot wait")
            if circle := graph.way(self._blocked_on(), names, waiter):
                raise NotTaken(f"{waiter} would wait for itself: {graph.arrows([waiter, *circle])}")
        number = next(self._numbers)
        self._waits[number] = _Wait(waiter, tuple(names))
        if waiter and not all(map(self._is_over, names)):
            self._set(self.tasks[waiter], State.LENDING)
        return number

    def leave(self, number: int) -> None:
        """Wait no more: its client has gone, or goes on without. It is one of those that run again, at once."""
        wait = self._waits.pop(number, None)
        if wait is None:
            return
        waiter = self.tasks.get(wait.waiter)
        if waiter and waiter.state is State.LENDING and not self._waits_of(wait.waiter):
            # Its process goes on whatever we say, so it counts. One more than N may run now, until one ends.
            self._set(waiter, State.RUNNING)

    def cancel(self, name: str, now: float, *, reason: str = "cancelled") -> list[str]:
        """End a task and what it submitted. Names of those whose processes have to be ended. Raises NotTaken."""
        task = self.tasks.get(name)
        if task is None:
            raise NotTaken(f"there is no task {name!r} in this fleet")
        if task.state.is_over:
            raise NotTaken(f"{name} is over: {task.state.value}")
        if task.is_alive:
            task.cancelled = task.cancelled or reason
            return [name, *self._end_children(task, now)]
        return self._over(task, State.CANCELLED, reason, now)

    def _take(self, task: Task) -> None:
        self.tasks[task.name] = task
        self._dependents.setdefault(task.name, [])
        for one in dict.fromkeys(task.spec.depends_on):
            self._dependents.setdefault(one, []).append(task.name)
        self._changed[task.name] = None

    def _set(self, task: Task, state: State) -> None:
        task.state = state
        if state is not State.WAITING and not state.is_over:
            task.reason = ""
        self._changed[task.name] = None

    def _over(self, task: Task, state: State, reason: str, now: float) -> list[str]:
        """It is over; those that depend on it hear so. Names of running tasks to end."""
        to_end: list[str] = []
        todo = [(task, state, reason)]
        while todo:  # no recursion: a chain may be thousands long
            one, how, why = todo.pop()
            if one.state.is_over:
                continue
            one.reason, one.ended_at = why, now
            self._set(one, how)
            if how is not State.DONE:
                to_end += self._end_children(one, now)
            for name in self._dependents[one.name]:
                dependent = self.tasks[name]
                if how is State.DONE:
                    self._look_at(name, now)
                elif dependent.state is State.WAITING:
                    todo.append((dependent, State.SKIPPED, _skipped_for(one)))
        return to_end

    def _end_children(self, task: Task, now: float) -> list[str]:
        to_end: list[str] = []
        if task.children:
            for child in [one for one in self.tasks.values() if one.parent == task.name and not one.state.is_over]:
                if not child.cancelled and not child.state.is_over:  # the one before may have ended it
                    to_end += self.cancel(child.name, now, reason=f"{task.name}, which submitted it, has ended")
            task.children = 0
        return to_end

    def _look_at(self, name: str, now: float) -> None:
        """Whether a task that waits can be ready, or never will be."""
        task = self.tasks[name]
        if task.state is not State.WAITING:
            return
        for one in task.spec.depends_on:
            before = self.tasks[one]
            if before.state.is_over and before.state is not State.DONE:
                self._over(task, State.SKIPPED, _skipped_for(before), now)
                return
        missing = self._missing(task)
        task.reason = (
            f"waits for {', '.join(missing[:3])}{' and others' if len(missing) > 3 else ''}" if missing else ""
        )
        if not missing:
            task.ready_at = now
        self._changed[name] = None

    def _is_over(self, name: str) -> bool:
        return self.tasks[name].state.is_over

    def _is_wait_over(self, wait: _Wait) -> bool:
        return all(map(self._is_over, wait.names))

    def _waits_of(self, waiter: str) -> list[_Wait]:
        return [wait for wait in self._waits.values() if wait.waiter == waiter]

    def _missing(self, task: Task) -> list[str]:
        return [one for one in task.spec.depends_on if self.tasks[one].state is not State.DONE]

    def _is_free(self, task: Task) -> bool:
        return all(self.tasks[one].state is State.DONE for one in task.spec.depends_on)

    def _ready(self, now: float) -> list[Candidate]:
        mean = dispatch.mean_tokens(
            [one.spec.estimated_tokens for one in self.tasks.values() if one.spec.estimated_tokens is not None]
        )
        awaited = self._awaited()
        return [
            Candidate(
                name=one.name,
                group=one.group,
                priority=Priority[one.spec.priority.upper()],
                tokens=mean if one.spec.estimated_tokens is None else one.spec.estimated_tokens,
                ready_at=one.ready_at,
                number=one.number,
                is_awaited=one.name in awaited,
            )
            for one in self.tasks.values()
            if one.state is State.WAITING and one.ready_at <= now and self._is_free(one)
        ]

    def _awaited(self) -> set[str]:
        """What a task inside waits for, with all that this depends on."""
        found: set[str] = set()
        todo = [name for wait in self._waits.values() if wait.waiter for name in wait.names]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self.tasks[name].spec.depends_on
        return found

    def _free(self) -> dict[str, int]:
        free = dict(self._places)
        for task in self.tasks.values():
            if task.state is State.RUNNING:
                free[task.place] -= 1
        return free

    def _blocked_on(self) -> dict[str, list[str]]:
        edges = {name: list(task.spec.depends_on) for name, task in self.tasks.items() if task.state is State.WAITING}
        for wait in self._waits.values():
            if wait.waiter:
                edges.setdefault(wait.waiter, []).extend(wait.names)
        return edges

    def _parent(self, name: str) -> Task | None:
        if not name:
            return None
        task = self.tasks.get(name)
        if task is None or not task.is_alive or task.cancelled:
            raise NotTaken(f"{name!r} is no task that runs here, so it cannot submit any")
        return task

    def _depends(self, spec: TaskSpec, renamed: Mapping[str, str]) -> tuple[str, ...]:
        names = []
        for one in spec.depends_on:
            name = renamed.get(one) or one.rpartition("/")[2]
            if name not in self.tasks and name not in renamed.values():
                known = ", ".join([*renamed, *self.tasks][:8]) or "none"
                raise NotTaken(f"depends on {one!r}, and there is no such task; there are {known}")
            names.append(name)
        return tuple(dict.fromkeys(names))

    def _group(self, spec: TaskSpec, above: Task | None) -> str:
        group = spec.group or (above.group if above else COMMON)
        if group not in self._places:
            known = ", ".join(name for name in self._places if name) or "none"
            raise NotTaken(f"there is no worker group {group!r}; there are {known}")
        if self._places[group] < 1:
            raise NotTaken(
                f"the worker groups have all {several(self.rules.at_most, 'place')}, and a task of no group has none; "
                "raise at_most, or name a group"
            )
        return group


def _skipped_for(task: Task) -> str:
    if task.state is State.SKIPPED:
        return task.reason  # the one that failed, not each link of the chain
    how = "was cancelled" if task.state is State.CANCELLED else "failed"
    return f"{task.name} {how}: {task.reason}" if task.reason not in ("", "cancelled") else f"{task.name} {how}"


def _free_name(spec: TaskSpec, above: Task | None, used: Container[str]) -> str:
    stem = (spec.name or (above.name if above else spec.agent or _bare(spec.command)))[:_STEM_CHARS]
    return next(name for number in count(1) if (name := f"{stem}-{number}") not in used)


def _bare(command: Sequence[str]) -> str:
    name = command[0].rpartition("/")[2].partition(".")[0] if command else ""
    return "".join(char for char in name if char.isascii() and (char.isalnum() or char in "-_"))[:40] or "task"
