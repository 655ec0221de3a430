"""Amazon's event streams: binary messages with two checksums, read from chunks that end anywhere.

    u32 length of all | u32 length of the headers | u32 CRC of these 8 bytes
    headers: each u8 length, name, u8 type, value
    payload
    u32 CRC of all before

Numbers are big-endian. There is no mark that a message begins with: behind one that is damaged nothing can be found,
so nothing more is read then (`broken`). Headers of a sound message that cannot be read count as absent, and its payload
as content.
"""

import struct
from functools import lru_cache
from zlib import crc32

import msgspec

from hivemind_addon.formats.base.json_values import read_object
from hivemind_addon.formats.wire.sse import MAX_EVENT_BYTES, SseEvent

AWS_EVENTSTREAM = "application/vnd.amazon.eventstream"

_PRELUDE = struct.Struct(">III")
PRELUDE_BYTES = 12
_CRC_BYTES = 4
_MAX_HEADERS_BYTES = 128 * 1024
_MAX_PAYLOAD_BYTES = 24 * 1024 * 1024
_MAX_KEPT_BYTES = PRELUDE_BYTES + _MAX_HEADERS_BYTES + MAX_EVENT_BYTES
# A provider's events have a handful of different headers, which are short; a stranger's must not fill the memory.
_MAX_MEMOIZED_BYTES = 512
_MAX_MESSAGE_BYTES = 2000
_USUAL_BYTES = _MAX_HEADERS_BYTES
"""A message that is no longer has no part that is too long."""
_TROUBLES = frozenset({"exception", "error"})
"""Types of messages that tell of an error."""
_BYTES, _STRING = 6, 7
_VALUE_BYTES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Header type → bytes of its value; those of bytes and strings tell their length."""


def is_prelude(start: bytes) -> bool:
    """Whether a message begins so."""
    return crc32(start[:8]) == int.from_bytes(start[8:PRELUDE_BYTES])


class EventStreamParser:
    """Turns chunks into events: the same events for any way to cut the same bytes.

    An event has the name that its `:event-type` says. An exception or an error of the provider becomes an event
    `error` whose data is `{"error": {"type": …, "message": …}}` with the other members of its payload.
    """

    __slots__ = ("_begun", "_crc", "_headers_bytes", "_last", "_missing", "broken")

    def __init__(self) -> None:
        self.broken: str | None = None
        """Why what follows cannot be trusted, and is not read."""
        # A message that came in part; one that comes in one chunk is read where it is.
        self._begun = bytearray()  # at first its prelude; without its CRC
        self._headers_bytes = 0
        self._crc = 0  # of what came
        self._missing = 0  # bytes before its CRC; 0 before the prelude is whole, and after the rest is
        self._last = bytearray()  # its CRC

    @property
    def is_between(self) -> bool:
        """Whether all that came was whole events."""
        return not self._begun

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that this chunk completes, in order; the data of each is cut at `MAX_EVENT_BYTES`."""
        events: list[SseEvent] = []
        at, end = 0, len(chunk)
        while at < end and self.broken is None:
            if self._begun or end - at < PRELUDE_BYTES:
                at = self._go_on(chunk, at, events)
                continue
            size, headers_bytes, crc = _PRELUDE.unpack_from(chunk, at)
            first = chunk[at : at + 8]
            is_odd = crc32(first) != crc or not headers_bytes + PRELUDE_BYTES + _CRC_BYTES <= size <= _USUAL_BYTES
            if is_odd and self._is_damaged(first, size, headers_bytes, crc):
                break
            if end - at < size:
                at = self._go_on(chunk, at, events)
                continue
            headers_at = at + PRELUDE_BYTES
            payload_at = headers_at + headers_bytes
            at += size
            payload_end = at - _CRC_BYTES
            # The CRC of everything goes on from that of the first 8 bytes, over that CRC itself.
            if crc32(chunk[headers_at - _CRC_BYTES : payload_end], crc) != int.from_bytes(chunk[payload_end:at]):
                self._break()
                break
            events.append(_event(chunk[headers_at:payload_at], chunk[payload_at:payload_end]))
        return events

    def finish(self) -> list[SseEvent]:
        """The bytes are at their end: half a message, which nothing vouches for, is none."""
        self._reset()
        return []

    def _go_on(self, chunk: bytes, at: int, events: list[SseEvent]) -> int:
        """Add to the message that comes in part; answers where the next part of the chunk begins."""
        begun = self._begun
        if len(begun) < PRELUDE_BYTES:
            part = chunk[at : at + PRELUDE_BYTES - len(begun)]
            begun += part
            if len(begun) == PRELUDE_BYTES:
                size, self._headers_bytes, crc = _PRELUDE.unpack(begun)
                if not self._is_damaged(begun[:8], size, self._headers_bytes, crc):
                    self._crc = crc32(begun)
                    self._missing = size - PRELUDE_BYTES - _CRC_BYTES
            return at + len(part)
        if self._missing:
            part = chunk[at : at + self._missing]
            self._crc = crc32(part, self._crc)
            self._missing -= len(part)
            begun += part[: _MAX_KEPT_BYTES - len(begun)]
            return at + len(part)
        part = chunk[at : at + _CRC_BYTES - len(self._last)]
        self._last += part
        if len(self._last) == _CRC_BYTES:
            if int.from_bytes(self._last) == self._crc:
                message = bytes(begun)
                payload_at = PRELUDE_BYTES + self._headers_bytes
                events.append(_event(message[PRELUDE_BYTES:payload_at], message[payload_at:]))
                self._reset()
            else:
                self._break()
        return at + len(part)

    def _is_damaged(self, first: bytes | bytearray, size: int, headers_bytes: int, crc: int) -> bool:
        """Whether a message's first 8 bytes say what cannot be. Then the stream is broken."""
        if crc32(first) != crc:
            self._break("the head of an event-stream message does not have its checksum")
        elif (
            headers_bytes > _MAX_HEADERS_BYTES
            or not 0 <= size - headers_bytes - PRELUDE_BYTES - _CRC_BYTES <= _MAX_PAYLOAD_BYTES
        ):
            self._break("an event-stream message has a length that none may have")
        return self.broken is not None

    def _break(self, why: str = "an event-stream message does not have its checksum") -> None:
        self.broken = why
        self._reset()

    def _reset(self) -> None:
        self._begun.clear()
        self._last.clear()
        self._headers_bytes = self._crc = self._missing = 0


def _event(headers: bytes, payload: bytes) -> SseEvent:
    heading = _known_heading(headers) if len(headers) <= _MAX_MEMOIZED_BYTES else _heading(headers)
    kind, name, said = heading
    if kind not in _TROUBLES:
        return SseEvent(name, payload[:MAX_EVENT_BYTES])
    members = read_object(payload) if len(payload) <= MAX_EVENT_BYTES else None
    error: dict[str, object] = {"type": name, "message": said}
    if members is None:
        error["message"] = said or payload[:_MAX_MESSAGE_BYTES].decode("utf-8", "replace")
    else:
        # Some of Amazon's services write it with a capital; its clients read both.
        error["message"] = said or members.get("message") or members.get("Message") or ""
        error |= {member: value for member, value in members.items() if member.lower() not in error}
    return SseEvent("error", msgspec.json.encode({"error": error}))


def _heading(headers: bytes) -> tuple[str, str, str]:
    """What the headers say: the message's kind, its name, and an error's message; empty where they do not."""
    values = _strings(headers)
    kind = values.get(":message-type", "event")
    name_at = {"exception": ":exception-type", "error": ":error-code"}.get(kind, ":event-type")
    return kind, values.get(name_at, ""), values.get(":error-message", "") if kind == "error" else ""


_known_heading = lru_cache(maxsize=64)(_heading)


def _strings(headers: bytes) -> dict[str, str]:
    """The headers that are strings, by name; up to the first that cannot be read."""
    values: dict[str, str] = {}
    at, end = 0, len(headers)
    while at < end:
        type_at = at + 1 + headers[at]
        if type_at >= end:
            break
        value_type = headers[type_at]
        value_at = type_at + 1
        if value_type in {_BYTES, _STRING}:
            value_bytes = int.from_bytes(headers[value_at : value_at + 2])
            value_at += 2
        elif value_type in _VALUE_BYTES:
            value_bytes = _VALUE_BYTES[value_type]
        else:
            break
        next_at = value_at + value_bytes
        if next_at > end:
            break
        if value_type == _STRING:
            name = headers[at + 1 : type_at].decode("utf-8", "replace")
            values[name] = headers[value_at:next_at].decode("utf-8", "replace")
        at = next_at
    return values
