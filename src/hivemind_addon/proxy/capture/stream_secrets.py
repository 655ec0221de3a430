"""Secrets that a model has streamed out in pieces: each piece alone looks like nothing.

    data: {"delta": {"text": "KEY=sk-ant-"}}        data: {"delta": {"text": "KEY=redacted-ab12-1"}}
    data: {"delta": {"text": "api03-Ab1Ab1"}}   →   data: {"delta": {"text": ""}}

The pieces of one text are joined, and what is found in it is taken out of all of them. Whole secrets within a piece
are the redactor's own business.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec

from hivemind_addon.proxy.capture.secrets import Redactor

_TEXTS = frozenset(
    ("text", "partial_json", "thinking", "content", "reasoning_content", "reasoning", "arguments", "delta", "response")
)
"""Members that hold a piece, in all dialects."""
_NAMES = ("type", "index", "output_index", "content_index", "item_id")
"""Members of an event, or of a choice within it, that tell which text a piece is of."""


@dataclass(frozen=True, slots=True)
class _Piece:
    line: int
    holder: dict[str, object]
    member: str
    text: bytes


def clean_stream(body: bytes, redactor: Redactor) -> bytes:
    """A body of server-sent events or of JSON lines without the secrets that lie across its pieces."""
    lines = body.split(b"\n")
    events: dict[int, tuple[bytes, object]] = {}
    texts: defaultdict[tuple[object, ...], list[_Piece]] = defaultdict(list)
    for number, line in enumerate(lines):
        start = 5 if line.startswith(b"data:") else 0
        if not line[start:].lstrip().startswith(b"{"):
            continue
        try:
            event = msgspec.json.decode(line[start:])
        except msgspec.DecodeError:
            continue
        events[number] = (line[:start], event)
        for key, holder, member, text in _pieces(event, ()):
            texts[key].append(_Piece(number, holder, member, text.encode("utf-8", "surrogatepass")))
    changed: set[int] = set()
    for pieces in texts.values():
        changed |= _clean(pieces, redactor)
    for number in changed:
        prefix, event = events[number]
        end = b"\r" if lines[number].endswith(b"\r") else b""
        lines[number] = prefix + (b" " if prefix else b"") + msgspec.json.encode(event) + end
    return b"\n".join(lines) if changed else body


def _pieces(value: object, key: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], dict[str, object], str, str]]:
    """Which text, the object that holds a piece of it, by which name, and the piece."""
    if isinstance(value, list):
        for one in value:
            yield from _pieces(one, key)
    elif isinstance(value, dict):
        key = (*key, *(value.get(name) for name in _NAMES))
        for name, one in value.items():
            if isinstance(one, str) and name in _TEXTS:
                yield (*key, name), value, name, one
            elif isinstance(one, dict | list):
                yield from _pieces(one, (*key, name))


def _clean(pieces: Sequence[_Piece], redactor: Redactor) -> set[int]:
    """Take out what lies across them; the lines that have changed."""
    joined = b"".join(piece.text for piece in pieces)
    begins = [0, *accumulate(len(piece.text) for piece in pieces)]
    across = [(start, stop) for start, stop in redactor.spans(joined) if stop > begins[bisect_right(begins, start)]]
    changed: set[int] = set()
    for piece, (begin, end) in zip(pieces, pairwise(begins), strict=True):
        text, done = b"", begin
        for start, stop in across:
            if start >= end or stop <= begin:
                continue
            text += joined[done : max(done, start)]
            if start >= begin:
                text += redactor.placeholder(joined[start:stop])
            done = min(stop, end)
            changed.add(piece.line)
        piece.holder[piece.member] = (text + joined[done:end]).decode("utf-8", "surrogatepass")
    return changed
