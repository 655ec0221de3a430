"""Amazon's event-stream messages, written."""

import struct
from zlib import crc32


def eventstream_message(headers: dict[str, str | bytes], payload: bytes) -> bytes:
    """One message. A text becomes a string header; bytes are a header's type and value, as they are."""
    head = b"".join(
        bytes([len(name.encode())])
        + name.encode()
        + (value if isinstance(value, bytes) else b"\x07" + struct.pack(">H", len(value.encode())) + value.encode())
        for name, value in headers.items()
    )
    message = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    message += struct.pack(">I", crc32(message)) + head + payload
    return message + struct.pack(">I", crc32(message))


def event_message(name: str, payload: bytes) -> bytes:
    """One event, with the headers that Bedrock sends."""
    return eventstream_message(
        {":event-type": name, ":content-type": "application/json", ":message-type": "event"}, payload
    )
