"""Server-sent events, read from chunks that end anywhere.

Every chunk of every streamed answer passes here, so a chunk is split into lines in one call and read in another, only
the unfinished last line is copied, and an event costs one object. As in the WHATWG rules, with two deliberate
differences: an event that has a name but no data is given out (providers send `event: ping` alone), and `finish`
gives out an event whose closing blank line never came (some servers close right after `data: [DONE]`).
"""

from msgspec import Struct

SSE = "text/event-stream"

MAX_EVENT_BYTES = 1024 * 1024
"""Data of one event beyond it is dropped: nothing that we read is longer, and memory stays bounded."""

_MAX_NAME_BYTES = 200
# Room for a byte order mark, the field's name, the colon and the space before the data.
_MAX_LINE_BYTES = MAX_EVENT_BYTES + 16
_BOM = b"\xef\xbb\xbf"
_LF, _CR = 10, 13


class SseEvent(Struct, frozen=True, gc=False):
    """One event."""

    event: str
    """Its `event:` field; empty when it has none."""
    data: bytes
    """Its `data:` lines, joined by line feeds, cut at `MAX_EVENT_BYTES`."""


class SseParser:
    """Turns chunks into events: the same events for any way to cut the same bytes."""

    __slots__ = ("_after_cr", "_at_start", "_data", "_data_bytes", "_event", "_line")

    def __init__(self) -> None:
        self._line = bytearray()  # a line whose end has not come yet
        self._event = ""
        self._data: list[bytes] = []
        self._data_bytes = 0  # one separator counted with each line
        self._at_start = True
        self._after_cr = False  # the last chunk ended in CR: a LF that follows belongs to it

    def __repr__(self) -> str:
        return f"<SseParser {len(self._line)} bytes of a line, {len(self._data)} data lines>"

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that this chunk completes, in order."""
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
        events = self._read(lines)
        if rest:
            self._keep(rest)
        return events

    def finish(self) -> list[SseEvent]:
        """The bytes are at their end: the event that was begun, if any."""
        last = [bytes(self._line)] if self._line else []
        self._line.clear()
        return self._read([*last, b""])

    def _keep(self, part: bytes) -> None:
        room = _MAX_LINE_BYTES - len(self._line)
        if room > 0:
            self._line += part[:room]

    def _read(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(_BOM)
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

    def _add(self, value: bytes) -> None:
        room = MAX_EVENT_BYTES - self._data_bytes
        if room > 0:
            self._data.append(value if len(value) <= room else value[:room])
            self._data_bytes += len(value) + 1
