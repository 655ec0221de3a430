"""NDJSON streams: one JSON value a line, read from chunks that end anywhere.

A line is given out as an event without a name, so that whoever watches a stream need not know how it is framed.
"""

from typing import ClassVar

from hivemind_addon.formats.wire.sse import MAX_EVENT_BYTES, SseEvent

NDJSON = "application/x-ndjson"


class NdjsonParser:
    """Turns chunks into lines: the same lines for any way to cut the same bytes. Blank ones are dropped."""

    __slots__ = ("_line",)

    broken: ClassVar[str | None] = None
    """Whatever comes, what follows it can be read."""

    def __init__(self) -> None:
        self._line = bytearray()  # one whose end has not come yet

    @property
    def is_between(self) -> bool:
        """Whether all that came was whole events."""
        return not self._line

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The lines that this chunk completes, in order; each is cut at `MAX_EVENT_BYTES`."""
        *lines, rest = chunk.split(b"\n")
        if lines and self._line:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        self._line += rest[: max(0, MAX_EVENT_BYTES - len(self._line))]
        return [SseEvent("", cut) for line in lines if (cut := line[:MAX_EVENT_BYTES]).strip()]

    def finish(self) -> list[SseEvent]:
        """The bytes are at their end: the line that was begun, if any."""
        line = bytes(self._line)
        self._line.clear()
        return [SseEvent("", line)] if line.strip() else []
