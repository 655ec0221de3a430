"""Paths, in the one spelling in which they are compared: what goes upstream stays as it came.

Servers and the gateways before them serve one resource under many spellings, each by its own rules. What any of them
is known to do is undone here: a request that is scheduled for nothing is answered 404 by the upstream, while one that
goes past the scheduler is neither counted nor held nor paid from a budget.
"""

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import unquote

from hivemind_addon.system.glob import glob_matches

_REMEMBERED_CHARS = 200


def path_matches(glob: str, path: str) -> bool:
    """Whether a path, as it stands in a request, is one that the glob means."""
    return matching((glob,), path) is not None


def matching(globs: Sequence[str], path: str) -> str | None:
    """The first of the globs that means a path, as it stands in a request; None: none of them does."""
    known = _matching if len(path) > _REMEMBERED_CHARS else _remembered_matching
    return known(tuple(globs), path)


def _matching(globs: tuple[str, ...], path: str) -> str | None:
    normal = normal_path(path)
    return next((glob for glob in globs if glob_matches(glob.lower(), normal)), None)


def normal_path(path: str) -> str:
    """Without query, percent-encoding, parameters (`;x`), empty and dot segments, trailing slash and upper case."""
    return _remembered(path) if len(path) <= _REMEMBERED_CHARS else _normal(path)


def _normal(path: str) -> str:
    segments: list[str] = []
    for raw in unquote(path.partition("?")[0].partition("#")[0]).replace("\\", "/").lower().split("/"):
        segment = raw.partition(";")[0].strip()
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)


# An agent has few.
_remembered = lru_cache(maxsize=2048)(_normal)
_remembered_matching = lru_cache(maxsize=2048)(_matching)
