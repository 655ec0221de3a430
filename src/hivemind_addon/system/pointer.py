"""JSON pointers: where in a JSON value something stands.

As RFC 6901 has them (`/usage/prompt_tokens`, `/choices/0/delta`, `~1` for a slash and `~0` for a tilde in a name); a
step that is `*` stands for every item of a list, or every member of an object. The empty pointer is the whole value.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Raw

from hivemind_addon.system.json_values import read_list, read_object, read_value
from hivemind_addon.system.typed import BadValue

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
    for step in steps:
        values = _next(values, step)
        if not values:
            break
    return values


class Pointers:
    """Several pointers, looked for together: the way that some of them have in common is gone once."""

    def __init__(self, pointers: Sequence[Pointer]) -> None:
        ways = sorted({one.steps[:end] for one in pointers for end in range(1, len(one.steps) + 1)})
        places = {(): 0, **{way: place for place, way in enumerate(ways, 1)}}
        self._moves = [
            # From where, by which step, and where it goes on where that leads nowhere.
            (places[way[:-1]], way[-1], sum(1 for one in ways if one <= way or one[: len(way)] == way))
            for way in ways
        ]
        self._nowhere: list[list[object]] = [[] for _ in places]
        self._ends = [places[one.steps] for one in pointers]

    def __repr__(self) -> str:
        return f"<Pointers {len(self._ends)} in {len(self._moves)} steps>"

    def find_all(self, top: object) -> list[list[object]]:
        """What stands at each of them, as it is: decoded or still JSON."""
        moves, place, last = self._moves, 0, len(self._moves)
        reached = self._nowhere.copy()
        reached[0] = [top]
        while place < last:
            source, step, behind = moves[place]
            place += 1
            values = _next(reached[source], step)
            if values:
                reached[place] = values
            else:
                place = behind
        return [reached[end] for end in self._ends]


def _next(values: list[object], step: str) -> list[object]:
    """What a step leads to."""
    # The exact type first: each event of a stream asks dozens of times, and what is abstract takes its time to tell.
    if step == _EVERY:
        return [
            one for value in values for one in (value if type(value) is list else _members(value)) if one is not None
        ]
    return [
        one for value in values if (one := value.get(step) if type(value) is dict else _member(value, step)) is not None
    ]


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
