"""mitmproxy's flow files, record by record, however they end.

mitmproxy's own reader asks a damaged file for as many bytes as it says to have, and skips nothing; here a record is
read only where the file has all of it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mitmproxy.flow import Flow
from mitmproxy.io import compat, tnetstring

from hivemind_addon.plugins.captures.model import NotACapture

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD_BYTES = 14
"""Twelve digits at most, and a colon; mitmproxy reads no more of them."""
_END = b"}"


class Damaged(Exception):
    """What cannot be read, in words, and where it begins."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(f"{what} (from byte {at:,} on)")
        self.at = at


def dump(state: dict[str, Any]) -> bytes:
    """A flow's state as a record."""
    return tnetstring.dumps(state)


def read_flows(file: int) -> Iterator[Flow]:
    """The flows of an open file (its descriptor), one after the other. Raises Damaged where they end too early."""
    for start, end in _records(file):
        try:
            state: Any = tnetstring.loads(_read(file, start, end - start))
            yield Flow.from_state(compat.migrate_flow(state))
        except Exception as error:  # whatever the host's parsers stumble over
            raise Damaged(start, f"a record is no flow: {type(error).__name__}") from error


def whole_bytes(file: int) -> int:
    """Up to the end of the last whole record of an open file. Raises NotACapture where there is another thing in it."""
    end = 0
    try:
        for _, record_end in _records(file):
            end = record_end
    except Damaged as damaged:
        if not damaged.at and not _head(_read(file, 0, _HEAD_BYTES)):
            raise NotACapture("it is there and holds something else; name another file") from None
    return end


def _records(file: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each whole record. Raises Damaged."""
    size, start = os.fstat(file).st_size, 0
    while start < size:
        head = _head(_read(file, start, _HEAD_BYTES))
        if head is None:
            raise Damaged(start, "no record begins there")
        digits, length = head
        end = start + digits + 1 + length + 1
        if end > size:
            raise Damaged(start, f"the last {size - start:,} bytes are a torn record")
        if _read(file, end - 1, 1) != _END:
            raise Damaged(start, "a record does not end where it should")
        yield start, end
        start = end


def _read(file: int, at: int, size: int) -> bytes:
    os.lseek(file, at, os.SEEK_SET)
    return os.read(file, size)


def _head(data: bytes) -> tuple[int, int] | None:
    """Number of digits, and what they say. None: this is no record's beginning."""
    digits, colon, _ = data.partition(b":")
    if not digits.isdigit() or len(digits) > _HEAD_BYTES - 2 or (len(data) == _HEAD_BYTES and not colon):
        return None
    return len(digits), int(digits)
