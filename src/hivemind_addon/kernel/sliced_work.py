"""Work in parts: a generator that yields where other work may run, and returns the result."""

from collections.abc import Generator


def whole[Made](parts: Generator[None, None, Made]) -> Made:
    """Run all parts at once, and return the result."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            made: Made = end.value
            return made
