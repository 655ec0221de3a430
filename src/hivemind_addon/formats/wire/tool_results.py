"""Where in a request's body the results of tools' calls stand, to the byte, so that others can be put in their place.

Everything else of the body stays as it came. Whole layers are read by msgspec, whose slices say how long each value is;
only what stands between the values is looked at here. What cannot be understood has no results.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base.json_values import read_list, read_object, read_value
from hivemind_addon.formats.base.memo import by_thing
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.format import ResultPlace
from hivemind_addon.formats.wire.conversation_parts import text_of
from hivemind_addon.formats.wire.dialect import Dialect

_between = re.compile(rb"[\s,]*").match
_colon = re.compile(rb"\s*:\s*").match
_string = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL).match
_EVERY = "*"


class Extent(NamedTuple):
    """A value's place in a body."""

    start: int
    end: int


class ToolResult(Struct, frozen=True, gc=False):
    """What one call of a tool brought, as a request repeats it."""

    message: int
    """The index of its message."""
    span: Extent
    """Where it stands in the body."""
    value: bytes
    """It, as JSON."""
    call_id: str
    """Empty: the format has none, or the message says none."""
    stub_member: str
    """What stands in its place must be an object with this member; empty: it may be a text."""

    def stub(self, text: str) -> bytes:
        """What says the text in its place."""
        return msgspec.json.encode({self.stub_member: text} if self.stub_member else text)


class Conversation(Struct, frozen=True):
    """A body's messages, by their places."""

    messages: Sequence[Extent]
    results: Sequence[ToolResult]
    """In their order."""


def read_results(body: bytes, dialect: Dialect) -> Conversation | None:
    """None: there is no conversation that can be edited."""
    places = _places(dialect.form.request.tool_results)
    if not places:
        return None
    for way in dialect.plan.messages.ways:
        span: Extent | None = Extent(_between(body).end(), len(body))  # type: ignore[union-attr]  # it matches nothing, too
        for name in way:
            span = (members_at(body, span) or {}).get(name) if span else None
        messages = items_at(body, span) if span else None
        if messages:
            results = [one for index, each in enumerate(messages) for one in _results(body, index, each, places)]
            return Conversation(messages, results)
    return None


def members_at(body: bytes, span: Extent) -> Mapping[str, Extent] | None:
    """Where the members of an object stand; None: there is none, or it has two of one name."""
    data = body[span.start : span.end]
    values = read_object(data)
    if values is None:
        return None
    found: dict[str, Extent] = {}
    at = _between(data, data.index(b"{") + 1).end()  # type: ignore[union-attr]  # it matches nothing, too
    while data[at : at + 1] != b"}":
        name = _string(data, at)
        colon = _colon(data, name.end()) if name else None
        value = values.get(str(read_value(name[0]))) if name and colon else None
        if colon is None or value is None or not data.startswith(value, colon.end()):
            return None
        begin, end = colon.end(), colon.end() + len(value)
        found[str(read_value(name[0]))] = Extent(span.start + begin, span.start + end)  # type: ignore[index]
        at = _between(data, end).end()  # type: ignore[union-attr]
    return found if len(found) == len(values) else None


def items_at(body: bytes, span: Extent) -> Sequence[Extent] | None:
    """Where the items of a list stand; None: there is none."""
    data = body[span.start : span.end]
    values = read_list(data)
    if values is None:
        return None
    found: list[Extent] = []
    at = data.index(b"[") + 1
    for value in values:
        begin = _between(data, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        at = begin + len(value)
        found.append(Extent(span.start + begin, span.start + at))
    return found


def spliced(body: bytes, pieces: Sequence[tuple[Extent, bytes]]) -> bytes:
    """The body with others in the place of some values, given in their order."""
    parts: list[bytes] = []
    at = 0
    for span, piece in pieces:
        parts += (body[at : span.start], piece)
        at = span.end
    return b"".join((*parts, body[at:]))


def plain_text(value: bytes) -> str:
    """What a result says, for people and models."""
    return text_of(read_value(value))


class _Place(NamedTuple):
    place: ResultPlace
    steps: tuple[str, ...]
    mark: bytes
    """Stands in every message that has such a result: inside a text the quotes are escaped."""


@by_thing
def _places(places: Sequence[ResultPlace]) -> tuple[_Place, ...]:
    return tuple(map(_taken_apart, places))


def _taken_apart(place: ResultPlace) -> _Place:
    steps = Pointer.parse(place.at).steps
    telling = [*place.where.values(), *(step for step in reversed(steps) if step != _EVERY), place.content]
    return _Place(place, steps, msgspec.json.encode(telling[0]))


def _results(body: bytes, index: int, message: Extent, places: Sequence[_Place]) -> Iterator[ToolResult]:
    for place, steps, mark in places:
        if body.find(mark, message.start, message.end) < 0:
            continue
        for span in _walk(body, message, steps):
            members = members_at(body, span) or {}
            value = members.get(place.content)
            if value is None or any(_text(body, members.get(name)) != text for name, text in place.where.items()):
                continue
            yield ToolResult(
                message=index,
                span=value,
                value=body[value.start : value.end],
                call_id=_text(body, members.get(place.call)),
                stub_member=place.stub,
            )


def _walk(body: bytes, span: Extent, steps: Sequence[str]) -> Iterator[Extent]:
    for number, step in enumerate(steps):
        if step == _EVERY:
            for one in items_at(body, span) or ():
                yield from _walk(body, one, steps[number + 1 :])
            return
        inner = (members_at(body, span) or {}).get(step)
        if inner is None:
            return
        span = inner
    yield span


def _text(body: bytes, span: Extent | None) -> str:
    value = read_value(body[span.start : span.end]) if span else None
    return value if isinstance(value, str) else ""
