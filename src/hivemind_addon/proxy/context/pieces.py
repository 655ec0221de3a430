"""A request's body as pieces that come again in the next request, and the frame that joins them, byte by byte.

Agents send the whole conversation with each request, so all but the newest messages are what was sent before. A piece
is one item of a long list (a message, a tool) or one long value (a system prompt). What lies between is the frame's,
and so are the marks of a prompt cache, which agents move on from request to request.
"""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Raw, Struct

from hivemind_addon.system.json_values import read_list, read_object

MESSAGES = 0
"""The slot of the conversation's messages."""
MOST_ITEMS = 1 << 20
"""Of a slot; so the place of a piece is `slot * MOST_ITEMS + index`."""
_LEAST_BYTES = 256
"""A shorter value stays in the frame."""
_LEAST_ITEM_BYTES = 64
"""On average; a list of shorter items is one piece, unless they are messages."""
_DEEPEST = 3
_PROBE_BYTES = 48
_BETWEEN = frozenset((b",", b" ", b"\t", b"\r", b"\n"))
_OPENS_LIST, _OPENS_OBJECT = b"["[0], b"{"[0]
_MARK_NAME = b'"cache_control"'
_MARK_VALUE = _MARK_NAME + rb"\s*:\s*(?:null|\{[^{}]*\})"
_MARK = re.compile(rb"\s*,\s*" + _MARK_VALUE + rb"|" + _MARK_VALUE + rb"\s*,?")


class PieceRun(Struct, frozen=True, array_like=True):
    """Pieces that follow each other."""

    slot: int
    count: int
    between: bytes | None
    """What stands between each two of them; None: it differs, and is in `betweens`."""
    betweens: list[bytes] = []


class Frame(Struct, frozen=True, array_like=True):
    """What joins pieces: the n-th literal, the n-th run, the next literal …; one literal more than runs."""

    literals: list[bytes]
    runs: list[PieceRun]
    marks: list[tuple[int, int, bytes]]
    """What was cut out: of the piece at a place, behind so many of its bytes."""


class SplitBody(Struct, frozen=True):
    """A body in parts."""

    frame: Frame
    pieces: dict[int, bytes]
    """By place."""


def split(body: bytes, messages: tuple[str, ...] | None) -> SplitBody:
    """Take it apart. `messages`: the members that lead to the conversation; None: there is none that is known.

    What is no JSON object is all frame.
    """
    return _Splitter(body, messages).split()


def join(frame: Frame, pieces: Mapping[int, bytes]) -> bytes:
    """The body that was taken apart. Raises KeyError where a piece is missing."""
    marks: dict[int, list[tuple[int, bytes]]] = {}
    for place, offset, mark in frame.marks:
        marks.setdefault(place, []).append((offset, mark))
    parts: list[bytes] = []
    for literal, run in zip(frame.literals, [*frame.runs, None], strict=True):
        parts.append(literal)
        if run is None:
            break
        for index in range(run.count):
            if index:
                parts.append(run.betweens[index - 1] if run.between is None else run.between)
            place = run.slot * MOST_ITEMS + index
            parts.extend(_marked(pieces[place], marks.get(place, ())))
    return b"".join(parts)


class _Splitter:
    def __init__(self, body: bytes, messages: tuple[str, ...] | None) -> None:
        self._body = body
        self._messages = messages
        self._at = 0
        """Up to here the body is in literals and pieces."""
        self._literals: list[bytes] = []
        self._runs: list[PieceRun] = []
        self._marks: list[tuple[int, int, bytes]] = []
        self._pieces: dict[int, bytes] = {}
        self._slots: set[int] = set()

    def split(self) -> SplitBody:
        self._object(self._body, ())
        self._literals.append(self._body[self._at :])
        return SplitBody(Frame(self._literals, self._runs, self._marks), self._pieces)

    def _object(self, raw: bytes | Raw, way: tuple[str, ...]) -> None:
        for name, value in (read_object(raw) or {}).items():
            if len(value) < _LEAST_BYTES and (*way, name) != self._messages:
                continue
            self._member(value, (*way, name))

    def _member(self, value: Raw, way: tuple[str, ...]) -> None:
        first = memoryview(value)[0]
        if first == _OPENS_LIST:
            items = read_list(value) or []
            is_conversation = way == self._messages
            if items and len(items) < MOST_ITEMS and (is_conversation or len(value) >= len(items) * _LEAST_ITEM_BYTES):
                self._take(items, MESSAGES if is_conversation else _slot_of(way))
                return
        elif first == _OPENS_OBJECT and len(way) < _DEEPEST:
            self._object(value, way)
            return
        self._take([value], _slot_of(way))

    def _take(self, items: Sequence[Raw], slot: int) -> None:
        """Cut out what follows each other."""
        if slot in self._slots:
            return
        found = self._places(items)
        if not found:
            return
        self._slots.add(slot)
        self._literals.append(self._body[self._at : found[0][0]])
        betweens = [self._body[end:begin] for (_, end), (begin, _) in pairwise(found)]
        for index, (begin, end) in enumerate(found):
            self._piece(slot, index, self._body[begin:end])
        self._at = found[-1][1]
        is_regular = len(set(betweens)) <= 1
        between = (betweens[0] if betweens else b"") if is_regular else None
        self._runs.append(PieceRun(slot, len(items), between, [] if is_regular else betweens))

    def _places(self, items: Sequence[Raw]) -> list[tuple[int, int]]:
        """Where each of what follows each other begins and ends; nothing where that cannot be said."""
        found: list[tuple[int, int]] = []
        begin = self._find(bytes(items[0]))
        for raw in items:
            if found:
                begin = found[-1][1]
                while self._body[begin : begin + 1] in _BETWEEN:
                    begin += 1
            if begin < 0 or not self._body.startswith(raw, begin):
                return []
            found.append((begin, begin + len(raw)))
        return found

    def _piece(self, slot: int, index: int, data: bytes) -> None:
        place = slot * MOST_ITEMS + index
        if _MARK_NAME in data:
            data, marks = _unmarked(data)
            self._marks += [(place, offset, mark) for offset, mark in marks]
        self._pieces[place] = data

    def _find(self, data: bytes) -> int:
        """Where the next value that reads so begins: by its beginning, since a long text is dear to look for."""
        probe, at = data[:_PROBE_BYTES], self._at
        while (at := self._body.find(probe, at)) >= 0:
            if self._body.startswith(data, at):
                return at
            at += 1
        return at


def _slot_of(way: tuple[str, ...]) -> int:
    """The same whatever else is in the body; never the messages'."""
    return (zlib.crc32("/".join(way).encode("utf-8", "surrogatepass")) & 0x7FFFFFFF) + 1


def _unmarked(data: bytes) -> tuple[bytes, list[tuple[int, bytes]]]:
    """The rest, and what was cut out of it, behind how many bytes of the rest. Texts have their quotes escaped."""
    kept: list[bytes] = []
    marks: list[tuple[int, bytes]] = []
    at = kept_bytes = 0
    for found in _MARK.finditer(data):
        kept.append(data[at : found.start()])
        kept_bytes += found.start() - at
        marks.append((kept_bytes, found[0]))
        at = found.end()
    return b"".join((*kept, data[at:])), marks


def _marked(data: bytes, marks: Sequence[tuple[int, bytes]]) -> Iterator[bytes]:
    at = 0
    for offset, mark in marks:
        yield data[at:offset]
        yield mark
        at = offset
    yield data[at:]
