"""Work in parts: a generator that yields wherever others may have the processor, and returns what was made."""

from collections.abc import Generator


def whole[Made](parts: Generator[None, None, Made]) -> Made:
    """All of it at once."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            made: Made = end.value
            return made
