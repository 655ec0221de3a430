"""A message's body while it comes."""

from typing import Self


class Body:
    """Stands in for the buffer of mitmproxy's streams: what comes in one piece is kept as it came, without a copy."""

    __slots__ = ("_more", "_piece")

    def __init__(self) -> None:
        self._piece = b""
        self._more = bytearray()
        """All of it, once there is more than one piece."""

    def __iadd__(self, piece: bytes) -> Self:
        if self._more:
            self._more += piece
        elif self._piece:
            self._more += self._piece
            self._more += piece
            self._piece = b""
        else:
            self._piece = bytes(piece)
        return self

    def __len__(self) -> int:
        return len(self._more) or len(self._piece)

    def __bytes__(self) -> bytes:
        return bytes(self._more) if self._more else self._piece

    def clear(self) -> None:
        """Nothing has come."""
        self._piece = b""
        self._more = bytearray()
