"""What depends on what: a graph without circles. Names only; pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

Edges = Mapping[str, Sequence[str]]
"""Task → what it depends on (or waits for)."""


def cycle(edges: Edges) -> list[str]:
    """One circle, its first task again at its end: `[a, b, a]`; empty: there is none. Unknown names lead nowhere."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]  # graphlib begins with what others depend on
    return []


def arrows(way: Sequence[str]) -> str:
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
