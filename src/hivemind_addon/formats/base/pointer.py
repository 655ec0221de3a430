"""JSON pointers: where in a JSON value something stands.

As RFC 6901 has them (`/usage/prompt_tokens`, `/choices/0/delta`, `~1` for a slash and `~0` for a tilde in a name); a
step that is `*` stands for every item of a list, or every member of an object. The empty pointer is the whole value.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import Raw

from hivemind_addon.formats.base.json_values import read_list, read_object, read_value
from hivemind_addon.formats.base.typed import BadValue

_EVERY = "*"
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_BAD_ESCAPE = re.compile(r"~(?![01])")
_NULL = b"null"


@dataclass(frozen=True, slots=True)
class Pointer:
    """One pointer, taken apart. What it looks through may be decoded or still JSON (`msgspec.Raw`), at any depth:
    only the members that lead to its end are read. It never raises; null, and what cannot be read, is not there.
    """

    text: str
    steps: tuple[str, ...]
    _is_single: bool
    """No step stands for several."""

    @classmethod
    def parse(cls, text: str) -> "Pointer":
        """The pointer that is written so. Raises BadValue."""
        if text and not text.startswith("/"):
            raise BadValue(f"no JSON pointer: {text!r}", "begin it with /, such as /error/code")
        if _BAD_ESCAPE.search(text):
            raise BadValue(f"no JSON pointer: {text!r}", "write ~0 for a tilde in a name, and ~1 for a slash")
        steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])
        return cls(text, steps, _EVERY not in steps)

    def __str__(self) -> str:
        return self.text

    def find(self, top: object) -> object:
        """The first value there, decoded; None: there is none."""
        if not self._is_single:
            return next(iter(self.find_all(top)), None)
        value = top
        for step in self.steps:
            value = value.get(step) if type(value) is dict else _member(value, step)
            if value is None:
                return None
        return read_value(value) if type(value) is Raw else value

    def find_all(self, top: object) -> list[object]:
        """Every value there, decoded, in the order of the JSON."""
        return [
            value
            for one in _reached(top, self.steps)
            if (value := read_value(one) if type(one) is Raw else one) is not None
        ]

    def is_anywhere(self, top: object) -> bool:
        """Whether anything stands there; what does is not decoded."""
        return any(
            one is not None and (type(one) is not Raw or memoryview(one) != _NULL) for one in _reached(top, self.steps)
        )


def _reached(top: object, steps: tuple[str, ...]) -> list[object]:
    """What the steps lead to, decoded or still JSON: then it may be null."""
    values = [top]
    # The exact type first: it is asked for often, and what is abstract takes its time to tell.
    for step in steps:
        if step == _EVERY:
            values = [
                one
                for value in values
                for one in (value if type(value) is list else _members(value))
                if one is not None
            ]
        else:
            values = [
                one
                for value in values
                if (one := value.get(step) if type(value) is dict else _member(value, step)) is not None
            ]
        if not values:
            break
    return values


class _Node:
    """What stands behind a step, and the ways on from there."""

    __slots__ = ("every", "names", "place", "steps")

    def __init__(self) -> None:
        self.place = -1
        """Of the pointer that ends here; below 0: none does."""
        self.steps: dict[str, _Node] = {}
        self.names = self.steps.keys()
        self.every: _Node | None = None


class Pointers:
    """Several pointers, looked for together: of a value only what leads to the end of one is looked at."""

    def __init__(self, pointers: Iterable[Pointer]) -> None:
        self._root = _Node()
        self.places: list[int] = []
        """Of each pointer, in their order; equal ones have the same."""
        for number, pointer in enumerate(pointers):
            node = self._root
            for step in pointer.steps:
                if step == _EVERY:
                    node.every = node.every or _Node()
                    node = node.every
                else:
                    node = node.steps.setdefault(step, _Node())
            if node.place < 0:
                node.place = number
            self.places.append(node.place)

    def find_all(self, top: object) -> dict[int, list[object]]:
        """Every value that stands at a place, by the place, decoded or still JSON; places without any are left out."""
        found: dict[int, list[object]] = {}
        if top is not None:
            _visit(self._root, top, found)
        return found


def _visit(node: _Node, value: object, found: dict[int, list[object]]) -> None:
    if node.place >= 0:
        found.setdefault(node.place, []).append(value)
    if type(value) is dict:  # nearly always
        for name in node.names & value.keys():
            if (one := value[name]) is not None:
                _visit(node.steps[name], one, found)
    else:
        for name, inner in node.steps.items():
            if (one := _member(value, name)) is not None:
                _visit(inner, one, found)
    if node.every is not None:
        for one in value if type(value) is list else _members(value):
            if one is not None:
                _visit(node.every, one, found)


def _member(value: object, step: str) -> object:
    if type(value) is Raw:
        value = _opened(value)
    if type(value) is dict or isinstance(value, Mapping):
        return value.get(step)
    if isinstance(value, list) and _INDEX.fullmatch(step):
        index = int(step)
        return value[index] if index < len(value) else None
    return None


def _members(value: object) -> Iterable[object]:
    if type(value) is Raw:
        value = _opened(value)
    if type(value) is list:
        return value
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _opened(value: Raw) -> object:
    """One layer of it."""
    first = bytes(memoryview(value)[:1])
    if first == b"{":
        return read_object(value)
    return read_list(value) if first == b"[" else None
