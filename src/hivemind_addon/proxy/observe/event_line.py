"""One event as one line of JSON, for logs that machines read. docs/events.md has every field."""

import json

import msgspec

from hivemind_addon.api.events import SCHEMA_VERSION, Event

_encode = msgspec.json.Encoder().encode


def event_line(event: Event, wall: float) -> bytes:
    r"""The line, with its end. `wall` is the event's instant in epoch seconds.

    An event's own fields follow `v`, `wall` and `event`; they hold no prompts, keys or tokens' contents.
    """
    head = f'{{"v":{SCHEMA_VERSION},"wall":{wall:.3f},"event":"{type(event).__name__}",'
    try:
        fields = _encode(event)
    except UnicodeEncodeError:  # bytes of a header that are no text; escaped they are still JSON
        fields = json.dumps(msgspec.to_builtins(event)).encode()
    return head.encode() + fields[1:] + b"\n"


def dropped_line(lines: int, wall: float) -> bytes:
    """What stands where so many lines could not be written."""
    return _encode({"v": SCHEMA_VERSION, "wall": round(wall, 3), "event": "LinesDropped", "lines": lines}) + b"\n"
