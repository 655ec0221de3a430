"""Globs of hosts, paths and model names: `*` matches any run of characters, `/` and nothing included."""

from functools import lru_cache

_REMEMBERED_CHARS = 200
"""Longer texts are matched anew: what is remembered stays below a megabyte."""


def glob_matches(glob: str, text: str) -> bool:
    """Whether the whole text matches. `*` is the only wildcard; linear in the text, whatever the glob."""
    return _remembered(glob, text) if len(text) <= _REMEMBERED_CHARS else _matches(glob, text)


def _matches(glob: str, text: str) -> bool:
    head, *rest = glob.split("*")
    if not rest:
        return glob == text
    *middle, tail = rest
    if not text.startswith(head):
        return False
    position = len(head)
    for piece in middle:
        found = text.find(piece, position)
        if found < 0:
            return False
        position = found + len(piece)
    return len(text) - position >= len(tail) and text.endswith(tail)


# Every request asks for its host, path and model, of which an agent has few, against two dozen globs.
_remembered = lru_cache(maxsize=2048)(_matches)
