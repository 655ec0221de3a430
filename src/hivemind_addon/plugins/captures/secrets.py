"""Credentials and personal names in texts, replaced by placeholders: the same one for the same secret.

Two ways lead to a placeholder: what somebody knows to be a secret (a header's value) is learned and then replaced
wherever it stands, and what looks like one is found by its shape (`secret_shapes.py`).

A model streams a secret out in pieces, of which each alone looks like nothing (`clean_stream`): the pieces of one text
are joined, and what is found in it is taken out of all of them.

    data: {"delta": {"text": "KEY=sk-ant-"}}        data: {"delta": {"text": "KEY=redacted-ab12-1"}}
    data: {"delta": {"text": "api03-Ab1Ab1"}}   →   data: {"delta": {"text": ""}}
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec

from hivemind_addon.formats.base.json_values import read_value
from hivemind_addon.plugins.captures.secret_shapes import found

_LEAST_KNOWN = 6
"""A learned value that is shorter is replaced where it was, and nowhere else: as a word of prose it means nothing."""
_LEAST_CHARS = 6
"""No secret is shorter."""
_LONG_BYTES = 4096
_MOST_KNOWN = 10_000
_PLACEHOLDER = re.compile(rb"redacted-[0-9a-f]{4}-\d+\Z")


class Redactor:
    """One for each recording. Not thread-safe."""

    def __init__(self, tag: str, *, breathe: Callable[[], None] = lambda: None) -> None:
        """`tag`: four hex digits, which tell its placeholders from another recording's.

        `breathe` is called now and then within long texts, so that other threads can run.
        """
        self._tag = tag
        self._breathe = breathe
        self._placeholders: dict[bytes, bytes] = {}
        self._known: dict[bytes, bytes] = {}
        """Learned values → placeholder, of those that are replaced wherever they stand."""

    def __repr__(self) -> str:
        return f"<Redactor, {len(self._placeholders)} secrets>"

    def placeholder(self, secret: bytes) -> bytes:
        """What stands for it."""
        if _PLACEHOLDER.match(secret):
            return secret
        known = self._placeholders.get(secret)
        if known is None:
            known = b"redacted-%s-%d" % (self._tag.encode(), len(self._placeholders) + 1)
            if len(self._placeholders) < _MOST_KNOWN:
                self._placeholders[secret] = known
        return known

    def learn(self, secret: bytes) -> bytes:
        """Its placeholder; from now on it is replaced in every text."""
        placeholder = self.placeholder(secret)
        if len(secret) >= _LEAST_KNOWN and placeholder != secret and len(self._known) < _MOST_KNOWN:
            self._known[secret] = placeholder
        return placeholder

    def spans(self, text: bytes) -> list[tuple[int, int]]:
        """Where something is known or looks like a secret, from left to right; none overlaps another."""
        if len(text) < _LEAST_CHARS:
            return []
        places = list(found(text, self._breathe if len(text) > _LONG_BYTES else _go_on))
        for secret in self._known:
            places += [(place, place + len(secret)) for place in _places(text, secret)]
        spans: list[tuple[int, int]] = []
        for start, stop in sorted(places, key=lambda span: (span[0], -span[1])):
            if spans and start < spans[-1][1]:
                spans[-1] = (spans[-1][0], max(stop, spans[-1][1]))
            else:
                spans.append((start, stop))
        return spans

    def clean(self, text: bytes) -> bytes:
        """The text without them."""
        pieces: list[bytes] = []
        end = 0
        for start, stop in self.spans(text):
            pieces += (text[end:start], self.placeholder(text[start:stop]))
            end = stop
        return b"".join((*pieces, text[end:])) if pieces else text

    def clean_text(self, text: str) -> str:
        """Likewise."""
        encoded = text.encode("utf-8", "surrogateescape")
        cleaned = self.clean(encoded)
        return text if cleaned is encoded else cleaned.decode("utf-8", "surrogateescape")


def _go_on() -> None:
    """Nobody waits for a short text."""


def _places(text: bytes, literal: bytes) -> Iterator[int]:
    place = text.find(literal)
    while place >= 0:
        yield place
        place = text.find(literal, place + 1)


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
        event = read_value(line[start:])
        events[number] = (line[:start], event)
        for key, holder, member, text in _pieces(event):
            texts[key].append(_Piece(number, holder, member, text.encode("utf-8", "surrogatepass")))
    changed: set[int] = set()
    for pieces in texts.values():
        changed |= _clean(pieces, redactor)
    for number in changed:
        prefix, event = events[number]
        end = b"\r" if lines[number].endswith(b"\r") else b""
        lines[number] = prefix + (b" " if prefix else b"") + msgspec.json.encode(event) + end
    return b"\n".join(lines) if changed else body


def _pieces(event: object) -> Iterator[tuple[tuple[object, ...], dict[str, object], str, str]]:
    """Which text, the object that holds a piece of it, by which name, and the piece."""
    values: list[tuple[object, tuple[object, ...]]] = [(event, ())]
    while values:
        value, key = values.pop()
        if isinstance(value, list):
            values += [(one, key) for one in reversed(value)]
        elif isinstance(value, dict):
            told = [value.get(name) for name in _NAMES]
            key = (*key, *(one if isinstance(one, str | int) else None for one in told))
            for name, one in value.items():
                if isinstance(one, str) and name in _TEXTS:
                    yield (*key, name), value, name, one
            values += [(one, (*key, name)) for name, one in reversed(value.items()) if isinstance(one, dict | list)]


def _clean(pieces: Sequence[_Piece], redactor: Redactor) -> set[int]:
    """Take out the secrets of the whole text; the lines that have changed."""
    joined = b"".join(piece.text for piece in pieces)
    begins = [0, *accumulate(len(piece.text) for piece in pieces)]
    spans = redactor.spans(joined)
    changed: set[int] = set()
    for piece, (begin, end) in zip(pieces, pairwise(begins), strict=True):
        text, done = b"", begin
        for start, stop in spans:
            if start >= end or stop <= begin:
                continue
            text += joined[done : max(done, start)]
            if start >= begin:
                text += redactor.placeholder(joined[start:stop])
            done = min(stop, end)
            changed.add(piece.line)
        piece.holder[piece.member] = (text + joined[done:end]).decode("utf-8", "surrogatepass")
    return changed
