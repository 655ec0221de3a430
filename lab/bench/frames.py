"""HTTP/2 frames and headers, as few of them as a load client and a provider need."""

END_STREAM = ACK = 1
END_HEADERS = 4
FRAME_BYTES = 16_384
"""The largest content of a frame that everybody takes."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STATUS_200 = 0x88
"""As the first byte of a head: the static table's entry."""
_WIDEST = 2**31 - 1


class Kind:
    """Of a frame."""

    DATA = 0
    HEADERS = 1
    RESET = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW = 8


class Frames:
    """The frames in what comes in pieces."""

    def __init__(self, skip=b""):
        self._data = b""
        self._skip = len(skip)
        """Of what comes first."""

    def read(self, data):
        """(kind, flags, stream, content) of each frame that is complete now."""
        data = self._data + data
        if self._skip:
            if len(data) < self._skip:
                self._data = data
                return
            data, self._skip = data[self._skip :], 0
        start, size = 0, len(data)
        while size - start >= 9 and size >= (end := start + 9 + int.from_bytes(data[start : start + 3])):
            yield data[start + 3], data[start + 4], int.from_bytes(data[start + 5 : start + 9]), data[start + 9 : end]
            start = end
        self._data = data[start:]


def frame(kind, flags, stream, content):
    return len(content).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + content


WIDE_WINDOWS = frame(Kind.SETTINGS, 0, 0, (4).to_bytes(2) + _WIDEST.to_bytes(4)) + frame(
    Kind.WINDOW, 0, 0, (_WIDEST - 65_535).to_bytes(4)
)
"""Nobody has to wait for leave to send."""


def literal(name, value):
    """A header that no table remembers: HPACK's plainest way."""
    return b"\0" + _string(name.encode()) + _string(value.encode())


def _string(text):
    if len(text) < 127:
        return bytes((len(text),)) + text
    length, left = [127], len(text) - 127
    while left >= 128:
        length.append(left % 128 + 128)
        left //= 128
    return bytes((*length, left)) + text
