"""Monkeypatches: faster versions of small mitmproxy functions that run for every message, with the same results."""

from __future__ import annotations

import logging
import re
from operator import itemgetter, methodcaller
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakMethod

import hpack.hpack
import hpack.table
from h2 import utilities
from hpack.table import HeaderTable
from hyperframe import frame as h2_frame
from mitmproxy import http, version
from mitmproxy.options import Options
from mitmproxy.utils import strutils

from hivemind_addon.proxy.host.flow_parts import field_names, plain_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from h2.utilities import HeaderValidationFlags

    Field = tuple[bytes, bytes]

logger = logging.getLogger("hivemind")

_IMMUTABLE = frozenset({bool, int, float, str, bytes, type(None)})
_MOST_COMBINATIONS = 1000
"""Combinations of types to remember; a dozen is usual."""


def take_short_ways(options: Options) -> None:
    """Apply all patches in this process; skips parts that this mitmproxy does not have, with a single warning."""
    if moved := [
        *look_up_quickly(),
        *remember_options(options),
        *check_messages_quickly(),
        *show_frames_quickly(),
        *code_heads_quickly(),
    ]:
        what = ", ".join(moved)
        logger.warning("hivemind: mitmproxy %s has no %s as we know it; requests take longer", version.VERSION, what)


def look_up_quickly() -> list[str]:
    """Let mitmproxy look headers up in a dict per head, which is computed once.

    mitmproxy looks up some 25 headers per request, and each lookup goes through all headers and lower-cases each name.
    Returns the missing names.
    """
    if not isinstance(vars(http.Headers).get("_kconv"), staticmethod):
        return ["Headers._kconv"]
    for name, quick in _LOOKUPS.items():
        setattr(http.Headers, name, quick)
    return []


def _get(headers: http.Headers, name: str | bytes, default: object = None) -> object:
    return plain_headers(headers.fields).get(field_names[name], default)


def _has(headers: http.Headers, name: str | bytes) -> bool:
    return field_names[name] in plain_headers(headers.fields)


def _item(headers: http.Headers, name: str | bytes) -> str:
    value = plain_headers(headers.fields).get(field_names[name])
    if value is None:
        raise KeyError(name)
    return value


def _set_all(headers: http.Headers, name: str | bytes, values: Iterable[str | bytes]) -> None:
    raw, fields, key = [_raw(value) for value in values], headers.fields, field_names[name]
    keys = [*map(field_names.__getitem__, map(itemgetter(0), fields))]
    if len(raw) == keys.count(key) == 1:
        place = keys.index(key)
        headers.fields = *fields[:place], (fields[place][0], raw[0]), *fields[place + 1 :]
    else:
        super(http.Headers, headers).set_all(_raw(name), raw)


def _raw(text: str | bytes) -> bytes:
    return strutils.always_bytes(text, "utf-8", "surrogateescape")


def _written(headers: http.Headers) -> bytes:
    return b"\r\n".join([*map(b": ".join, headers.fields), b""])


_LOOKUPS = {
    "get": _get,
    "__contains__": _has,
    "__getitem__": _item,
    "set_all": _set_all,
    "__bytes__": _written,
    "_kconv": staticmethod(methodcaller("lower")),
}


class RememberingOptions(Options):
    """mitmproxy's options. An immutable value is looked up once, until any option is set.

    mitmproxy and the addons read some 20 options per request, and each read copies the value twice.
    """

    remembered: list[str]
    """The names of the remembered values."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)  # type: ignore[no-untyped-call]
        if type(value) in _IMMUTABLE:
            vars(self)[name] = value  # found there from now on, without a call of this function
            self.remembered.append(name)
        return value

    def forget(self, updated: set[str]) -> None:  # noqa: ARG002 - the signature of a receiver
        """Look all values up anew."""
        for name in self.remembered:
            del vars(self)[name]
        self.remembered.clear()


def remember_options(options: Options) -> list[str]:
    """Let these options remember their values. Returns the missing name."""
    receivers = getattr(options.changed, "receivers", None)
    if type(options) is Options and isinstance(receivers, list):
        vars(options)["remembered"] = []
        object.__setattr__(options, "__class__", RememberingOptions)  # these options treat an assignment as an option
        # Before all other receivers: they ask for values when they receive a change.
        receivers.insert(0, WeakMethod(cast("RememberingOptions", options).forget))
    return [] if hasattr(options, "remembered") else ["Options.changed"]


def check_messages_quickly() -> list[str]:
    """Let mitmproxy check the types of a message's fields once per combination of types.

    The original check raises and catches an exception for each field that may be None: some 40 µs a head, and a hundred
    objects per request for the garbage collector. Only the types matter, so a combination that passed always passes.
    Returns the name of the check if missing.
    """
    checked = getattr(http.MessageData, "__post_init__", None)
    if checked is None:
        return ["MessageData.__post_init__"] if __debug__ else []
    if hasattr(checked, "theirs"):  # a reloaded addon has done this
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
    """Let HTTP/2's data frames show their length only.

    h2 formats each received frame for a log that nobody reads, and a data frame would write all content in hexadecimal.
    Returns the missing name.
    """
    if not hasattr(h2_frame.Frame, "_body_repr"):
        return ["Frame._body_repr"]
    h2_frame.DataFrame._body_repr = _shortly  # type: ignore[assignment, method-assign]  # noqa: SLF001
    return []


def _shortly(frame: h2_frame.DataFrame) -> str:
    return f"{len(frame.data)} bytes"


def code_heads_quickly() -> list[str]:
    """Let HTTP/2 check the characters of a head and search the header table faster, without debug lines.

    h2 checks each character, and hpack compares each field with each entry of the table; hpack also formats each step
    for a log that mitmproxy never shows. Returns the missing names; an older h2 has another check.
    """
    if callable(theirs := getattr(utilities, "_reject_illegal_characters", None)) and not hasattr(theirs, "theirs"):
        utilities._reject_illegal_characters = _checker(theirs)  # type: ignore[assignment]  # noqa: SLF001
    if not {"STATIC_TABLE_MAPPING", "STATIC_TABLE_LENGTH", "search"} <= set(vars(HeaderTable)):
        return ["HeaderTable.search"]
    HeaderTable.search = _search  # type: ignore[assignment, method-assign]
    for module in (hpack.hpack, hpack.table):
        if not logging.getLogger(module.__name__).isEnabledFor(logging.DEBUG):
            module.log = _SILENT  # type: ignore[attr-defined]
    return []


def _checker(theirs: Callable[..., Iterator[Field]]) -> Callable[..., Iterator[Field]]:
    def check(fields: Iterable[Field], flags: HeaderValidationFlags) -> Iterator[Field]:
        for field in fields:
            if _LEGAL_NAME.fullmatch(field[0]) and _LEGAL_VALUE.fullmatch(field[1]):
                yield field
            else:  # the original check gives the error
                yield from theirs((field,), flags)

    check.theirs = theirs  # type: ignore[attr-defined]
    return check


def _search(table: HeaderTable, name: bytes, value: bytes) -> tuple[int, bytes, bytes | None] | None:
    """Find an entry by index in C; entries with only the same name matter if no entry has name and value."""
    partial = None
    if known := HeaderTable.STATIC_TABLE_MAPPING.get(name):
        index = known[1].get(value)
        if index is not None:
            return index, name, value
        partial = known[0], name, None
    offset = HeaderTable.STATIC_TABLE_LENGTH + 1
    entries = table.dynamic_entries
    if (name, value) in entries:
        return entries.index((name, value)) + offset, name, value
    if partial is None:
        for index, entry in enumerate(entries):
            if entry[0] == name:
                return index + offset, name, None
    return partial


_LEGAL_NAME = re.compile(rb":?[!-9;-@\[-~]*+")
_LEGAL_VALUE = re.compile(rb"(?:[^\0\n\r \t](?:[^\0\n\r]*[^\0\n\r \t])?)?")
_SILENT = SimpleNamespace(debug="".format)
"""A logger that drops all lines, without a Python function."""
