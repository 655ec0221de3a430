"""What each message costs: mitmproxy's own small functions, with the same results in less time."""

from __future__ import annotations

import copy
import logging
from operator import methodcaller

from hyperframe import frame as h2_frame
from mitmproxy import http, optmanager, version

logger = logging.getLogger("hivemind")

_IMMUTABLE = frozenset({bool, int, float, str, bytes, type(None)})
_MOST_COMBINATIONS = 1000
"""Of types; a dozen is usual."""


def take_short_ways() -> None:
    """Replace them in this process; what this mitmproxy has in another way stays as it is, with one warning."""
    if moved := [*look_up_quickly(), *check_messages_quickly(), *show_frames_quickly()]:
        what = ", ".join(moved)
        logger.warning("hivemind: mitmproxy %s has no %s as we know it; requests take longer", version.VERSION, what)


def look_up_quickly() -> list[str]:
    """Let mitmproxy compare a header's name, and answer an option's value, without functions of Python's in between.

    For a request it looks some 25 headers up, each among all that there are, and some 20 options, each copied twice.
    Answers the names that it did not find.
    """
    moved = []
    if isinstance(vars(http.Headers).get("_kconv"), staticmethod):
        http.Headers.get = _get  # type: ignore[assignment, method-assign]
        http.Headers._kconv = staticmethod(methodcaller("lower"))  # type: ignore[assignment, method-assign]  # noqa: SLF001
    else:
        moved.append("Headers._kconv")
    option = getattr(optmanager, "_Option", None)
    if hasattr(option, "current") and hasattr(optmanager, "unset"):
        optmanager._Option.current = _current  # type: ignore[assignment, method-assign]  # noqa: SLF001
    else:
        moved.append("_Option.current")
    return moved


def _get(headers: http.Headers, name: str | bytes, default: object = None) -> object:
    wanted = (name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name).lower()
    values = [value for known, value in headers.fields if known.lower() == wanted]
    return ", ".join([value.decode("utf-8", "surrogateescape") for value in values]) if values else default


def _current(option: optmanager._Option) -> object:
    value = option._default if option.value is optmanager.unset else option.value  # noqa: SLF001
    return value if type(value) in _IMMUTABLE else copy.deepcopy(value)


def check_messages_quickly() -> list[str]:
    """Let mitmproxy check the types of a message's fields once for each combination of them.

    Its check raises and catches an exception for each field that may be None: some 40 µs a head, and what it raises
    waits for the collector, a hundred objects a request. It looks at types alone, so that what it let pass once passes.
    Answers the name of the check if it is not there.
    """
    checked = getattr(http.MessageData, "__post_init__", None)
    if checked is None:
        return ["MessageData.__post_init__"] if __debug__ else []
    if hasattr(checked, "theirs"):  # a reloaded addon has been here
        return []
    passed: set[tuple[type, ...]] = set()

    def check(self: http.MessageData) -> None:
        types = (type(self), *map(type, vars(self).values()))
        if types not in passed:
            checked(self)
            if len(passed) < _MOST_COMBINATIONS:
                passed.add(types)

    check.theirs = checked  # type: ignore[attr-defined]
    http.MessageData.__post_init__ = check  # type: ignore[method-assign]
    return []


def show_frames_quickly() -> list[str]:
    """Let HTTP/2's frames of data say how long they are.

    h2 words each frame that comes, for a log that nobody reads; a frame of data would write all that it carries in
    hexadecimal for that. Answers the name that it did not find.
    """
    if not hasattr(h2_frame.Frame, "_body_repr"):
        return ["Frame._body_repr"]
    h2_frame.DataFrame._body_repr = _shortly  # type: ignore[assignment, method-assign]  # noqa: SLF001
    return []


def _shortly(frame: h2_frame.DataFrame) -> str:
    return f"{len(frame.data)} bytes"
