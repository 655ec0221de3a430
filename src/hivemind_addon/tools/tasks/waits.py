"""Who waits for which tasks, inside a fleet and from outside. Names only; pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class BoardWait:
    """One of them; others read it."""

    waiter: str
    """Empty: somebody outside."""
    names: tuple[str, ...]
    is_over: bool = False
    """All of them are."""


class Waits:
    """Those that have not been answered, by number, in the order in which they began."""

    def __init__(self) -> None:
        self._waits: dict[int, BoardWait] = {}
        self._last = 0

    def __repr__(self) -> str:
        return f"<Waits {len(self._waits)}>"

    def __iter__(self) -> Iterator[tuple[int, BoardWait]]:
        """As they are now; they may be ended on the way."""
        return iter(list(self._waits.items()))

    def begin(self, waiter: str, names: Sequence[str]) -> int:
        """Its number."""
        self._last += 1
        self._waits[self._last] = BoardWait(waiter, tuple(names))
        return self._last

    def look_again(self, is_over: Callable[[str], bool]) -> None:
        """Tasks have ended. A task that is over stays so, and is not asked about again."""
        for wait in self._waits.values():
            wait.is_over = wait.is_over or all(map(is_over, wait.names))

    def end(self, number: int) -> BoardWait | None:
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
