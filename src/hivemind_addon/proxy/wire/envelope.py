"""Events that are wrapped in others."""

import base64
import binascii

from hivemind_addon.proxy.profile.format import Envelope
from hivemind_addon.proxy.wire.sse import SseEvent
from hivemind_addon.system.json_values import read_object, read_value


def unwrap(event: SseEvent, envelope: Envelope) -> SseEvent:
    """The event within; itself where it has no such envelope."""
    raw = (read_object(event.data) or {}).get(envelope.at.removeprefix("/"))
    if raw is None:
        return event
    if not envelope.base64:
        return SseEvent(event.event, bytes(raw))
    text = read_value(raw)
    if not isinstance(text, str):
        return event
    try:
        return SseEvent("", base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return event
