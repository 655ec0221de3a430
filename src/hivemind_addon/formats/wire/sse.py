"""Server-sent events, read from chunks that end anywhere.

What is whole is taken out of a chunk in one call; the rest of it is split into lines. Only the unfinished last line is
copied, and an event costs one object. As in the WHATWG rules, with two deliberate
differences: an event that has a name but no data is given out (providers send `event: ping` alone), and `finish`
gives out an event whose closing blank line never came (some servers close right after `data: [DONE]`).

Some providers (Gemini) send an error as bare JSON between the events, over several lines or in one. A parser that is
asked to gives it out, too; what else is no field is skipped, as the rules have it.
"""

import re
from typing import ClassVar

from msgspec import Struct

from hivemind_addon.formats.base.json_values import read_object
from hivemind_addon.formats.wire.json_objects import JsonObjects

SSE = "text/event-stream"

MAX_EVENT_BYTES = 1024 * 1024
"""Data of one event beyond it is dropped: nothing that we read is longer, and memory stays bounded."""

_MAX_NAME_BYTES = 200
# Room for a byte order mark, the field's name, the colon and the space before the data.
_MAX_LINE_BYTES = MAX_EVENT_BYTES + 16
BOM = b"\xef\xbb\xbf"
_LF, _CR = 10, 13
# An event as nearly all come: a line with its name or none, and a line of data.
_NAME = rb"event: ?([^\r\n]{0,%d}+)\r?\n" % _MAX_NAME_BYTES
_USUAL = re.compile(rb"(?:%b)?data: ?([^\r\n]*+)\r?\n\r?\n" % _NAME)
_USUALS = re.compile(rb"(?:(?:%b)?data:[^\r\n]*+\r?\n\r?\n)*+" % _NAME)


class SseEvent(Struct, frozen=True, gc=False):
    """One event."""

    event: str
    """Its `event:` field; empty when it has none."""
    data: bytes
    """Its `data:` lines, joined by line feeds, cut at `MAX_EVENT_BYTES`."""


class SseParser:
    """Turns chunks into events: the same events for any way to cut the same bytes."""

    __slots__ = ("_after_cr", "_at_start", "_bare", "_data", "_data_bytes", "_event", "_line")

    broken: ClassVar[str | None] = None
    """Whatever comes, what follows it can be read."""

    def __init__(self, *, bare_json: bool = False) -> None:
        """`bare_json`: a JSON object between two events is one, called `error` if it has such a member."""
        self._bare = JsonObjects(MAX_EVENT_BYTES) if bare_json else None
        self._line = bytearray()  # a line whose end has not come yet
        self._event = ""
        self._data: list[bytes] = []
        self._data_bytes = 0  # one separator counted with each line
        self._at_start = True
        self._after_cr = False  # the last chunk ended in CR: a LF that follows belongs to it

    @property
    def is_between(self) -> bool:
        """Whether all that came was whole events."""
        return not (
            self._data or self._line or self._event or self._after_cr or (self._bare is not None and self._bare.is_open)
        )

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that this chunk completes, in order."""
        if not self.is_between:
            return self._feed_lines(chunk)
        end = _USUALS.match(chunk).end()  # type: ignore[union-attr]  # it matches nothing, too
        if not end:
            return self._feed_lines(chunk)
        self._at_start = False
        events = [
            SseEvent(name.decode("utf-8", "replace"), data[:MAX_EVENT_BYTES])
            for name, data in _USUAL.findall(chunk, 0, end)
        ]
        return events if end == len(chunk) else events + self._feed_lines(chunk[end:])

    def _feed_lines(self, chunk: bytes) -> list[SseEvent]:
        if not chunk:
            return []
        if self._after_cr:
            self._after_cr = False
            if chunk[0] == _LF:
                chunk = chunk[1:]
                if not chunk:
                    return []
        if b"\n" not in chunk and b"\r" not in chunk:
            self._keep(chunk)
            return []
        lines = chunk.splitlines()
        last = chunk[-1]
        rest = b"" if last in (_LF, _CR) else lines.pop()
        self._after_cr = last == _CR
        if self._line:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        events = self._read(lines) if self._bare is None else self._read_with_bare(lines, self._bare)
        if rest:
            self._keep(rest)
        return events

    def finish(self) -> list[SseEvent]:
        """The bytes are at their end: the event that was begun, if any."""
        last = [bytes(self._line)] if self._line else []
        self._line.clear()
        last.append(b"")
        return self._read(last) if self._bare is None else self._read_with_bare(last, self._bare)

    def _keep(self, part: bytes) -> None:
        room = _MAX_LINE_BYTES - len(self._line)
        if room > 0:
            self._line += part[:room]

    def _read(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(BOM)
        for line in lines:
            if line.startswith(b"data:"):
                self._add(line[6:] if line.startswith(b" ", 5) else line[5:])
            elif not line:
                data = self._data
                if data:
                    events.append(SseEvent(self._event, data[0] if len(data) == 1 else b"\n".join(data)))
                    self._data = []
                    self._data_bytes = 0
                elif self._event:
                    events.append(SseEvent(self._event, b""))
                self._event = ""
            elif line.startswith(b"event:"):
                name = line[6 : 7 + _MAX_NAME_BYTES].removeprefix(b" ")[:_MAX_NAME_BYTES]
                self._event = name.decode("utf-8", "replace")
            elif line == b"data":
                self._add(b"")
            elif line == b"event":
                self._event = ""
        return events

    def _read_with_bare(self, lines: list[bytes], bare: JsonObjects) -> list[SseEvent]:
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(BOM)
        if not bare.is_open and not any(line.startswith(b"{") for line in lines):
            return self._read(lines)
        events: list[SseEvent] = []
        for line in lines:
            if bare.is_open and line.startswith((b"data:", b"event:")):
                bare.drop()  # no line of JSON begins so
            if bare.is_open or (line.startswith(b"{") and not self._data and not self._event):
                for data in bare.feed(line):
                    members = read_object(data)
                    if members is not None:
                        events.append(SseEvent("error" if "error" in members else "", data))
            else:
                events += self._read([line])
        return events

    def _add(self, value: bytes) -> None:
        room = MAX_EVENT_BYTES - self._data_bytes
        if room > 0:
            self._data.append(value if len(value) <= room else value[:room])
            self._data_bytes += len(value) + 1
