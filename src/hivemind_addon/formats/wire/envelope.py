"""Events that are wrapped in others: Code Assist's in `{"response": {…}}`, Bedrock's in `{"bytes": "<base64>"}`.

Every event of a stream passes here, so that the outer one is not decoded: all but one of its members are overlooked.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from hivemind_addon.formats.base.json_values import UNREADABLE, readable
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.wire.sse import SseEvent

if TYPE_CHECKING:
    from collections.abc import Callable


class Unwrapper:
    """Takes events out of their envelope. Stateless; one that has none passes as it is: an error, most likely."""

    __slots__ = ("_decode", "_is_base64", "_steps")

    def __init__(self, at: str, *, base64: bool = False) -> None:
        """`at`: the member that holds the event, as a JSON pointer; `base64`: it is a text in base64."""
        self._steps = Pointer.parse(at).steps
        self._is_base64 = base64
        kind: type = bytes if base64 else msgspec.Raw
        for step in reversed(self._steps):
            kind = msgspec.defstruct("_Outer", [("inner", kind)], rename={"inner": step}, gc=False)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode

    def unwrap(self, event: SseEvent) -> SseEvent:
        """The event within, under the outer one's name; without it where it was text, since `chunk` names no event."""
        try:
            inner = self._decode(event.data)
        except msgspec.ValidationError:
            return event
        except UNREADABLE:
            plain = readable(event.data)
            return event if plain is None or plain is event.data else self.unwrap(SseEvent(event.event, plain))
        for _ in self._steps:
            inner = inner.inner
        if self._is_base64:
            return SseEvent("", inner)
        data = bytes(inner)
        return SseEvent(event.event, data) if data.startswith(b"{") else event
