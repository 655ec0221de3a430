"""Answers that are kept, because the same is asked with every request. What is kept is bounded."""

from collections.abc import Callable
from functools import lru_cache

REMEMBERED_CHARS = 200
"""What is asked of longer texts is answered anew: else a stranger's would fill the memory."""
_TEXTS = 1024
_THINGS = 256


def by_text[T](answer: Callable[[str], T]) -> Callable[[str], T]:
    """The same answers, each worked out once for a text. `answer` depends on nothing else."""
    remembered = lru_cache(maxsize=_TEXTS)(answer)

    def ask(text: str) -> T:
        return remembered(text) if len(text) <= REMEMBERED_CHARS else answer(text)

    return ask


def by_thing[K, T](answer: Callable[[K], T]) -> Callable[[K], T]:
    """The same answers, each worked out once for a thing that never changes and need not be hashable, by what it is."""
    remembered: dict[int, tuple[K, T]] = {}

    def ask(thing: K) -> T:
        known = remembered.get(id(thing))
        if known is None:
            if len(remembered) >= _THINGS:
                remembered.clear()
            # The thing stays with its answer, so that no other one gets its id.
            known = remembered[id(thing)] = thing, answer(thing)
        return known[1]

    return ask
