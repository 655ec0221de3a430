"""The framing of AWS: `application/vnd.amazon.eventstream`, as much as Bedrock uses of it. Pure."""

import struct
import zlib
from collections.abc import Mapping

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_STRING = 7
"""Type of a header's value; Bedrock uses no other."""


def message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message: lengths and their checksum, headers, payload, and the checksum of all that."""
    head = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    lengths = struct.pack(">II", len(head) + len(payload) + 16, len(head))
    begun = lengths + struct.pack(">I", zlib.crc32(lengths)) + head + payload
    return begun + struct.pack(">I", zlib.crc32(begun))


def event(kind: str, payload: bytes) -> bytes:
    """A message that is an event of the model."""
    return message({":event-type": kind, ":content-type": "application/json", ":message-type": "event"}, payload)


def exception(kind: str, payload: bytes) -> bytes:
    """A message that ends a stream with an error."""
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return message(headers, payload)


def _header(name: bytes, value: bytes) -> bytes:
    return struct.pack(">B", len(name)) + name + struct.pack(">BH", _STRING, len(value)) + value
