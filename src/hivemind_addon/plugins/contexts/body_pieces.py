"""A request's body as pieces that come again in the next request, and the frame that joins them, byte by byte.

Agents send the whole conversation with each request, so all but the newest messages are what was sent before. A piece
is one item of a long list (a message, a tool) or one long value (a system prompt). What lies between is the frame's,
and so are the marks of a prompt cache, which agents move on from request to request.
"""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

from msgspec import Raw, Struct

from hivemind_addon.formats.base.json_values import read_list, read_object

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
_TRIES = 3
"""A value may stand in a body twice, and not everywhere with the same ones behind it."""
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
    hashes: dict[int, bytes]
    """Theirs."""
    is_object: bool
    """Whether it is a JSON object, as strict readers read it."""


def split(body: bytes, messages: tuple[str, ...] | None, items: Sequence[Raw] = ()) -> SplitBody:
    """Take it apart. `messages`: the members that lead to the conversation; None: there is none that is known.

    `items`: what the conversation consists of, where the body was read already: then only what lies around it is read
    again. What is no JSON object is all frame.
    """
    return _Splitter(body, messages).split(items)


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
        self._outer = body
        """What is looked through: without the conversation, once that was cut out."""
        self._messages = messages
        self._hole = -1
        """Where it was cut out."""
        self._cuts: list[tuple[int, int, PieceRun]] = []
        """What is in pieces: where that begins and ends in the outer part."""
        self._marks: list[tuple[int, int, bytes]] = []
        self._pieces: dict[int, bytes] = {}

    def split(self, items: Sequence[Raw]) -> SplitBody:
        if items and len(items) < MOST_ITEMS and (found := _found(self._outer, items, 0)) is not None:
            begin, end, between, betweens = found
            self._cut(begin, end, MESSAGES, items, between, betweens)
            self._outer = self._outer[:begin] + self._outer[end:]
            self._cuts = [(begin, begin, self._cuts[0][2])]
            self._hole, self._messages = begin, None
        is_object = self._object(self._outer, ())
        self._cuts.sort(key=lambda cut: cut[:2])
        ends = (0, *(end for _, end, _ in self._cuts))
        begins = (*(begin for begin, _, _ in self._cuts), len(self._outer))
        literals = [self._outer[end:begin] for end, begin in zip(ends, begins, strict=True)]
        frame = Frame(literals, [run for _, _, run in self._cuts], self._marks)
        hashes = {place: blake2b(data, digest_size=16).digest() for place, data in self._pieces.items()}
        return SplitBody(frame, self._pieces, hashes, is_object)

    def _object(self, raw: bytes | Raw, way: tuple[str, ...]) -> bool:
        members = read_object(raw)
        for name, value in (members or {}).items():
            if len(value) >= _LEAST_BYTES or (*way, name) == self._messages:
                self._member(value, (*way, name))
        return members is not None

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
        """Cut out what follows each other, behind all that was found so far."""
        if slot * MOST_ITEMS in self._pieces:
            return
        at = max((end for begin, end, _ in self._cuts if begin < end), default=0)
        if (found := _found(self._outer, items, at)) is not None:
            begin, end, between, betweens = found
            if not begin < self._hole < end:
                self._cut(begin, end, slot, items, between, betweens)

    def _cut(
        self, begin: int, end: int, slot: int, items: Sequence[Raw], between: bytes | None, betweens: list[bytes]
    ) -> None:
        place = slot * MOST_ITEMS
        pieces = dict(enumerate(map(bytes, items), place))
        if _MARK_NAME in self._outer[begin:end]:
            for at, data in pieces.items():
                if _MARK_NAME in data:
                    pieces[at], marks = _unmarked(data)
                    self._marks += [(at, offset, mark) for offset, mark in marks]
        self._pieces |= pieces
        self._cuts.append((begin, end, PieceRun(slot, len(items), between, betweens)))


def _found(text: bytes, items: Sequence[Raw], at: int) -> tuple[int, int, bytes | None, list[bytes]] | None:
    """Where values that follow each other begin and end, and what is between them; None: that cannot be said."""
    first = bytes(items[0])
    for _ in range(_TRIES):
        begin = _find(text, first, at)
        if begin < 0:
            break
        if (run := _run_at(text, items, begin)) is not None:
            return begin, *run
        at = begin + 1
    return None


def _find(text: bytes, value: bytes, at: int) -> int:
    """Where a value begins, from somewhere on: by its beginning, since a long text is dear to look for."""
    probe = value[:_PROBE_BYTES]
    while (at := text.find(probe, at)) >= 0:
        if text.startswith(value, at):
            return at
        at += 1
    return at


def _run_at(text: bytes, items: Sequence[Raw], begin: int) -> tuple[int, bytes | None, list[bytes]] | None:
    """Of values of which the first begins there: their end, and what is between them."""
    end = begin + len(items[0])
    between = text[end : _value_at(text, end)] if len(items) > 1 else b""
    whole = between.join(items)  # as nearly everybody writes it: the same between any two
    if text.startswith(whole, begin):
        return begin + len(whole), between, []
    betweens = []
    for raw in items[1:]:
        next_at = _value_at(text, end)
        if not text.startswith(raw, next_at):
            return None
        betweens.append(text[end:next_at])
        end = next_at + len(raw)
    return end, None, betweens


def _value_at(text: bytes, at: int) -> int:
    """Where the next value of a list begins, behind the end of one."""
    while text[at : at + 1] in _BETWEEN:
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
