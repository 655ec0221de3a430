"""One JSON array that is sent over time: its elements are the events (Gemini without `alt=sse`).

An object alone, as an error may be sent, is one event, too. What is no object is skipped: no provider sends an event
that is none. An object that the end of the bytes leaves open is skipped, since half of one says nothing.
"""

from typing import ClassVar

from hivemind_addon.formats.wire.json_objects import JsonObjects
from hivemind_addon.formats.wire.sse import MAX_EVENT_BYTES, SseEvent


class JsonArrayParser:
    """Turns chunks into events without names: the same for any way to cut the same bytes."""

    __slots__ = ("_objects",)

    broken: ClassVar[str | None] = None
    """Whatever comes, what follows it can be read."""

    def __init__(self) -> None:
        self._objects = JsonObjects(MAX_EVENT_BYTES)

    @property
    def is_between(self) -> bool:
        """Whether all that came was whole events."""
        return not self._objects.is_open

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The objects that this chunk completes, in order; each is cut at `MAX_EVENT_BYTES`."""
        return [SseEvent("", data) for data in self._objects.feed(chunk)]

    def finish(self) -> list[SseEvent]:
        """The bytes are at their end: nothing is left that is whole."""
        self._objects.drop()
        return []
