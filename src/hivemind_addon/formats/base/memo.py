"""Answers that are kept, because the same is asked with every request. What is kept is bounded."""

from collections.abc import Callable
from functools import lru_cache

REMEMBERED_CHARS = 200
"""What is asked of longer texts is answered anew: else a stranger's would fill the memory."""
_MOST = 1024


def by_text[S: (str, bytes), T](answer: Callable[[S], T]) -> Callable[[S], T]:
    """The same answers, each worked out once for a text. They depend on nothing else."""
    remembered = lru_cache(maxsize=_MOST)(answer)

    def ask(text: S) -> T:
        return remembered(text) if len(text) <= REMEMBERED_CHARS else answer(text)

    return ask


def by_thing[K, T](answer: Callable[[K], T]) -> Callable[[K], T]:
    """The same answers, each worked out once for a thing, which never changes and need not be hashable."""
    remembered: dict[int, tuple[K, T]] = {}

    def ask(thing: K) -> T:
        known = remembered.get(id(thing))
        if known is None:
            known = thing, answer(thing)
            if len(remembered) >= _MOST:
                remembered.clear()
            remembered[id(thing)] = known  # with the thing itself: as long as it lives no other one has its id
        return known[1]

    return ask


def by_thing_and_text[K, T](answer: Callable[[K, str], T]) -> Callable[[K, str], T]:
    """The same answers, each worked out once for a thing (as above) and a text."""
    remembered: dict[tuple[int, str], tuple[K, T]] = {}

    def ask(thing: K, text: str) -> T:
        known = remembered.get((id(thing), text))
        if known is None:
            known = thing, answer(thing, text)
            if len(text) <= REMEMBERED_CHARS:
                if len(remembered) >= _MOST:
                    remembered.clear()
                remembered[id(thing), text] = known
        return known[1]

    return ask
