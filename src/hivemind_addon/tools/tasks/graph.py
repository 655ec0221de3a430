"""Which tasks depend on which, and who waits for which. Names only; pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Edges = Mapping[str, Sequence[str]]
"""Task → what it depends on (or waits for)."""


def cycle(edges: Edges) -> list[str]:
    """One circle, its first task again at its end: `[a, b, a]`; empty: there is none. Unknown names lead nowhere."""
    done: set[str] = set()
    for start in edges:
        if start in done:
            continue
        path: dict[str, Iterator[str]] = {start: iter(edges[start])}
        while path:
            here = next(reversed(path))
            step = next(path[here], None)
            if step is None:
                done.add(here)
                del path[here]
            elif step in path:
                way = list(path)
                return [*way[way.index(step) :], step]
            elif step not in done:
                path[step] = iter(edges.get(step, ()))
    return []


def said(way: Sequence[str]) -> str:
    """`a → b → a`."""
    return " → ".join(way)


def unknown(edges: Edges) -> Iterator[tuple[str, int, str]]:
    """Task, place in its list, and name of each dependency that is no task."""
    for name, wanted in edges.items():
        yield from ((name, index, one) for index, one in enumerate(wanted) if one not in edges)


def way(edges: Edges, starts: Iterable[str], goal: str) -> list[str]:
    """How one of `starts` leads to `goal`, both included; empty: none does."""
    before: dict[str, str] = dict.fromkeys(starts, "")
    todo = list(before)
    while todo:
        here = todo.pop()
        if here == goal:
            found = [here]
            while before[found[0]]:
                found.insert(0, before[found[0]])
            return found
        for step in edges.get(here, ()):
            if step not in before:
                before[step] = here
                todo.append(step)
    return []


@dataclass(slots=True)
class TableWait:
    """One of them; others read it."""

    waiter: str
    """Empty: somebody outside."""
    names: tuple[str, ...]
    is_over: bool = False
    """All of them are."""


class Waits:
    """Those that have not been answered, by number, in the order in which they began."""

    def __init__(self) -> None:
        self._waits: dict[int, TableWait] = {}
        self._last = 0

    def __repr__(self) -> str:
        return f"<Waits {len(self._waits)}>"

    def __iter__(self) -> Iterator[tuple[int, TableWait]]:
        """As they are now; they may be ended on the way."""
        return iter(list(self._waits.items()))

    def begin(self, waiter: str, names: Sequence[str]) -> int:
        """Its number."""
        self._last += 1
        self._waits[self._last] = TableWait(waiter, tuple(names))
        return self._last

    def look_again(self, is_over: Callable[[str], bool]) -> None:
        """Tasks have ended. A task that is over stays so, and is not asked about again."""
        for wait in self._waits.values():
            wait.is_over = wait.is_over or all(map(is_over, wait.names))

    def end(self, number: int) -> TableWait | None:
        """It was answered, or nobody wants to know any more. None: it had ended already."""
        return self._waits.pop(number, None)

    def forget(self, waiter: str) -> None:
        """A task that waited has gone."""
        for number, wait in self:
            if wait.waiter == waiter:
                del self._waits[number]

    def has(self, waiter: str) -> bool:
        """Whether a task has a wait that was not answered."""
        return any(wait.waiter == waiter for wait in self._waits.values())

    def has_open(self, waiter: str) -> bool:
        """Whether a task waits for something that is not over."""
        return any(wait.waiter == waiter and not wait.is_over for wait in self._waits.values())

    def of_tasks(self) -> Mapping[str, list[str]]:
        """What the tasks of the fleet wait for."""
        found: dict[str, list[str]] = {}
        for wait in self._waits.values():
            if wait.waiter:
                found.setdefault(wait.waiter, []).extend(wait.names)
        return found
