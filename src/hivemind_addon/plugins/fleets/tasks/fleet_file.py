"""A fleet file: YAML → rules and tasks. Whatever is wrong with it names file, key path and cure.

The same for a batch: tasks without a file of their own, as a YAML list or as lines of JSON.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hivemind_addon.formats.base.document import read_document, read_yaml
from hivemind_addon.formats.base.typed import DocumentError, DocumentRules, convert, positive
from hivemind_addon.plugins.fleets.tasks import graph, spec
from hivemind_addon.plugins.fleets.tasks.model import USUAL_AT_MOST, TaskSpec
from hivemind_addon.plugins.fleets.tasks.task_table import FleetRules
from hivemind_addon.tools.launch.programs import ProgramTable

_USUAL = FleetRules(at_most=USUAL_AT_MOST)


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """A queue with workers of its own."""

    workers: int
    """Places that serve it, of the fleet's `at_most`."""


@dataclass(frozen=True, slots=True)
class FleetFile:
    """A whole file."""

    at_most: int = _USUAL.at_most
    """Tasks that run at once; those that wait for their own children do not count."""
    start_every_s: float = _USUAL.start_every_s
    """The gap between two starts; each is jittered by half of it."""
    steal_above: int | None = _USUAL.steal_above
    """An idle worker of another group helps a queue that is longer than this; `null`: never."""
    groups: Mapping[str, WorkerGroup] = field(default_factory=dict)
    """Worker group → its workers; what they leave of `at_most` is for tasks without a group."""
    defaults: TaskSpec = field(default_factory=TaskSpec)
    """What every task has that does not say otherwise."""
    tasks: Mapping[str, TaskSpec] = field(default_factory=dict)
    """Name → task."""

    @property
    def rules(self) -> FleetRules:
        """How it is run."""
        return FleetRules(
            at_most=self.at_most,
            groups={name: group.workers for name, group in self.groups.items()},
            steal_above=self.steal_above,
            start_every_s=self.start_every_s,
        )

    @property
    def specs(self) -> list[TaskSpec]:
        """The tasks with their names, in the file's order."""
        return [msgspec.structs.replace(task, name=name) for name, task in self.tasks.items()]


FLEET_RULES = DocumentRules(
    values={(FleetFile, "at_most"): positive, (WorkerGroup, "workers"): positive},
    unwritten={TaskSpec: frozenset({"name"})},
)
"""Of a fleet file."""
BATCH_RULES = DocumentRules()
"""Of a batch's tasks, which may have names."""
_TO_RUN = ("command", "agent", "prompt")


def load_fleet(file: Path, table: ProgramTable) -> FleetFile:
    """A fleet that can run as it is. DocumentError: one line that names file, key path and cure."""
    document = dict(read_document(file, cure_when_empty="write tasks: with a command for each"))
    defaults = _split(document.get("defaults", {}), file, "defaults")
    if isinstance(defaults, Mapping) and "depends_on" in defaults:
        raise DocumentError(file, "defaults.depends_on", "every task would depend on it", "write it at the tasks")
    document["defaults"] = defaults
    if isinstance(tasks := document.get("tasks"), Mapping):
        convert(TaskSpec, defaults, file, rules=FLEET_RULES, at="defaults")
        document["tasks"] = {
            name: _merged(defaults, _split(task, file, f"tasks.{name}")) for name, task in tasks.items()
        }
    fleet: FleetFile = convert(FleetFile, document, file, rules=FLEET_RULES)
    if not fleet.tasks:
        raise DocumentError(file, "tasks", "there are none", "name each task and give it a command")
    _check_groups(fleet, file)
    for one in fleet.specs:
        _check(one, table, file, f"tasks.{one.name}")
    edges = {name: task.depends_on for name, task in fleet.tasks.items()}
    _check_edges(edges, file, {name: f"tasks.{name}" for name in edges})
    return _placed(fleet, file.absolute().parent)


def load_batch(text: str, source: Path, table: ProgramTable) -> list[TaskSpec]:
    """Tasks from a YAML list or from lines of JSON. DocumentError. A dependency may be a task that runs already."""
    lines = [line for line in text.splitlines() if line.strip()]
    items: Any
    if lines and all(line.lstrip().startswith("{") for line in lines):
        items = [_json(line, source, number) for number, line in enumerate(lines)]
    else:
        items = read_yaml(text, source)
    if not isinstance(items, list) or not items:
        cure = "write one task a line as JSON, or a YAML list; a fleet file is run by hivemind fleet run"
        raise DocumentError(source, "", "there is no list of tasks", cure)
    made: list[TaskSpec] = []
    for index, item in enumerate(items):
        at = f"[{index}]"
        made.append(convert(TaskSpec, _split(item, source, at), source, rules=BATCH_RULES, at=at))
        _check(made[-1], table, source, at)
    names = [one.name for one in made if one.name]
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise DocumentError(source, "", f"two are named {twice!r}", "rename one of them")
    edges = {one.name or f"[{index}]": one.depends_on for index, one in enumerate(made)}
    if circle := graph.cycle(edges):
        index = next(index for index, one in enumerate(made) if one.name == circle[0])
        raise _circle(source, f"[{index}].depends_on", circle)
    return made


def _json(line: str, source: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DocumentError(source, f"[{number}]", f"no JSON: {error}", "write one task a line") from None


def _split(task: Any, file: Path, at: str) -> Any:
    """A command that is a text becomes words, as a shell would see them."""
    if not isinstance(task, Mapping) or not isinstance(task.get("command"), str):
        return task
    try:
        return {**task, "command": shlex.split(task["command"])}
    except ValueError as error:
        raise DocumentError(file, f"{at}.command", f"{error}".lower(), "quote it, or write a list of words") from None


def _merged(defaults: Any, task: Any) -> Any:
    if not isinstance(task, Mapping) or not isinstance(defaults, Mapping):
        return task
    kept = dict(defaults)
    if "command" in task or ("agent" in task and "command" in defaults):
        kept = {key: value for key, value in defaults.items() if key not in _TO_RUN}
    if isinstance(kept.get("environment"), Mapping) and isinstance(task.get("environment"), Mapping):
        return {**kept, **task, "environment": {**kept["environment"], **task["environment"]}}
    return {**kept, **task}


def _check(one: TaskSpec, table: ProgramTable, file: Path, at: str) -> None:
    if found := spec.problem(one, table):
        raise DocumentError(file, f"{at}.{found.key}" if found.key != "name" else at, found.text, found.cure)


def _check_groups(fleet: FleetFile, file: Path) -> None:
    taken = sum(group.workers for group in fleet.groups.values())
    if taken > fleet.at_most:
        problem = f"their {taken} workers are more than at_most, {fleet.at_most}"
        raise DocumentError(file, "groups", problem, f"raise at_most to {taken}, or lower workers")
    for name, task in fleet.tasks.items():
        if task.group and task.group not in fleet.groups:
            known = ", ".join(fleet.groups) or "none"
            problem = f"there is no group {task.group!r}"
            raise DocumentError(file, f"tasks.{name}.group", problem, f"known: {known}; add it to groups")
        if not task.group and taken == fleet.at_most:
            problem = f"the groups have all {taken} places, so that nothing runs a task without a group"
            raise DocumentError(file, f"tasks.{name}.group", problem, "raise at_most, or name a group")


def _check_edges(edges: Mapping[str, Sequence[str]], file: Path, at: Mapping[str, str]) -> None:
    for name, index, wanted in graph.unknown(edges):
        known = [one for one in edges if one != name]
        some = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
        raise DocumentError(
            file, f"{at[name]}.depends_on[{index}]", f"there is no task {wanted!r}", f"known: {some or 'none'}"
        )
    if circle := graph.cycle(edges):
        raise _circle(file, f"{at[circle[0]]}.depends_on", circle)


def _circle(file: Path, at: str, circle: Sequence[str]) -> DocumentError:
    return DocumentError(file, at, f"a circle: {graph.arrows(circle)}", "take one of these dependencies out")


def _placed(fleet: FleetFile, folder: Path) -> FleetFile:
    """Each task's folder in full."""
    tasks = {
        name: msgspec.structs.replace(task, directory=str(folder / Path(task.directory).expanduser()))
        for name, task in fleet.tasks.items()
    }
    return FleetFile(fleet.at_most, fleet.start_every_s, fleet.steal_above, fleet.groups, fleet.defaults, tasks)
