"""JSON objects cut out of text that comes in pieces which end anywhere: where their braces balance outside strings.

Nothing is decoded, and one step is made for a brace, not for a byte or a string. What stands between objects is
skipped, quotes and all: one that nobody closes must not hide what follows it.
"""

import re

_OPEN, _CLOSE = b"{}"
# Possessive: what was eaten is never given back, so that no text costs more than one look at each of its bytes.
_IN_STRING = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_to_brace = re.compile(rb'[^"{}]*+(?:"' + _IN_STRING + rb'"[^"{}]*+)*+', re.DOTALL).match
"""Up to the next brace outside a string, or to the quote that begins one without an end."""
_to_quote = re.compile(_IN_STRING, re.DOTALL).match
"""Up to the quote that ends a string, or to a backslash at the very end."""


class JsonObjects:
    """Turns pieces of text into the objects that are whole: the same for any way to cut the same text."""

    __slots__ = ("_begun", "_depth", "_escaped", "_in_string", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        """Of each object, what is beyond `max_bytes` is dropped."""
        self._max_bytes = max_bytes
        self._begun = bytearray()
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the last piece ended between a backslash and what it escapes

    @property
    def is_open(self) -> bool:
        """Whether an object was begun and is not whole."""
        return self._depth > 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The objects that this piece completes, in order."""
        objects: list[bytes] = []
        depth, start, end = self._depth, 0, len(piece)
        at = self._leave_string(piece) if self._in_string else 0
        while at < end:
            if not depth:
                start = piece.find(b"{", at)
                if start < 0:
                    break
                depth, at = 1, start + 1
            at = _to_brace(piece, at).end()  # type: ignore[union-attr]  # it matches nothing, too
            if at == end:
                break
            byte = piece[at]
            at += 1
            if byte == _OPEN:
                depth += 1
            elif byte == _CLOSE:
                depth -= 1
                if not depth:
                    objects.append(self._whole(piece[start:at]))
            else:
                self._in_string = True
                at = self._leave_string(piece, at)
        self._depth = depth
        if depth:
            self._keep(piece[start:] if start else piece)
        return objects

    def drop(self) -> None:
        """Forget the object that was begun."""
        self._begun.clear()
        self._depth = 0
        self._in_string = self._escaped = False

    def _leave_string(self, piece: bytes, at: int = 0) -> int:
        """Where the text goes on behind the string; its end where the string has none."""
        if self._escaped and piece:
            self._escaped = False
            at += 1
        end = len(piece)
        at = _to_quote(piece, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        if at < end:
            self._escaped = piece[at] != b'"'[0]
            self._in_string = self._escaped
            at += 1
        return at

    def _whole(self, last: bytes) -> bytes:
        if self._begun:
            self._keep(last)
            last = bytes(self._begun)
            self._begun.clear()
        return last[: self._max_bytes]

    def _keep(self, part: bytes) -> None:
        room = self._max_bytes - len(self._begun)
        if room > 0:
            self._begun += part[:room]
