"""Hosts, paths and names as rules name them, and the one spelling in which each of them is compared.

In a glob `*` matches any run of characters, `/` and nothing included.

What goes upstream stays as it came. Servers and the gateways before them serve one path under many spellings, each by
its own rules. What any of them is known to do is undone here: a request that is scheduled for nothing is answered 404
by the upstream, while one that goes past the scheduler is neither counted nor held nor paid from a budget.
"""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from urllib.parse import unquote

from hivemind_addon.formats.base.memo import REMEMBERED_CHARS, by_text


def glob_matches(glob: str, text: str) -> bool:
    """Whether the whole text matches. `*` is the only wildcard; linear in the text, whatever the glob."""
    return _remembered_globs(glob, text) if len(text) <= REMEMBERED_CHARS else _matches(glob, text)


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
_remembered_globs = lru_cache(maxsize=2048)(_matches)


def path_matches(glob: str, path: str) -> bool:
    """Whether a path, as it stands in a request, is one that the glob means."""
    return matching_path((glob,), path) is not None


def matching_path(globs: Sequence[str], path: str) -> str | None:
    """The first of the globs that means a path, as it stands in a request; None: none of them does."""
    known = _matching if len(path) > REMEMBERED_CHARS else _remembered_matching
    return known(tuple(globs), path)


def _matching(globs: tuple[str, ...], path: str) -> str | None:
    normal = normal_path(path)
    return next((glob for glob in globs if glob_matches(glob.lower(), normal)), None)


@by_text
def normal_path(path: str) -> str:
    """Without query, percent-encoding, parameters (`;x`), empty and dot segments, trailing slash and upper case."""
    segments: list[str] = []
    for raw in unquote(path.partition("?")[0].partition("#")[0]).replace("\\", "/").lower().split("/"):
        segment = raw.partition(";")[0].strip()
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)


# An agent has few.
_remembered_matching = lru_cache(maxsize=2048)(_matching)


@cache
def host_parts(pattern: str) -> tuple[str, int | None]:
    """`host` or `host:port`, in the spelling in which hosts are compared. ValueError when it is neither."""
    host, colon, port = pattern.rpartition(":")
    if not colon or pattern.endswith("]"):
        host, port = pattern, ""
    elif not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        msg = f"no port: {port!r}"
        raise ValueError(msg)
    name = normal_host(host)
    if not re.fullmatch(r"[\w.*-]+|[0-9a-f:.]+", name):
        msg = f"no host name: {host!r}"
        raise ValueError(msg)
    return name, int(port) if port else None


@by_text
def normal_host(host: str) -> str:
    """The spelling in which hosts are compared: lower case, IDNA, no trailing dot, no brackets."""
    host = host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return host
