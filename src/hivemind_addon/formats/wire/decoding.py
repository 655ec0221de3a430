"""Content codings undone piece by piece: `gzip`, `deflate`, `br`, `zstd`, and stacks of them.

A few hundred hostile bytes can stand for gigabytes, so every stage stops at a bound: zlib and newer brotli take
the bound as an argument; zstandard and older brotli are fed slices so short that one slice's output stays small.
"""

import re
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

import brotli  # type: ignore[import-untyped]  # it ships none
import zstandard

from hivemind_addon.formats.wire.aws_eventstream import PRELUDE_BYTES, is_prelude

MAX_FEED_BYTES = 16 * 1024 * 1024
"""What one chunk may expand to. A chunk comes from one socket read (64 KiB); text rarely shrinks 100-fold."""

_MAX_STACK = 4
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# RFC 9659: decoders of the content coding need not support larger windows.
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
# A zstandard block of 4 bytes can stand for 128 KiB: a slice gives 16 MiB at most.
_ZSTD_SLICE_BYTES = 512
# A brotli meta-block of a few bytes can stand for 16 MiB.
_BROTLI_SLICE_BYTES = 16
# brotli 1.2 learned to stop; mitmproxy 12.2.0 still pins an older one.
_BROTLI_STOPS = hasattr(brotli.Decompressor, "can_accept_more_data")


class DecodeError(Exception):
    """A body is not what its `content-encoding` says, expands too far, or the encoding is unknown."""


class _Stage(Protocol):
    """One content coding."""

    def feed(self, chunk: bytes, max_bytes: int) -> bytes:
        """What the chunk stands for."""

    def finish(self) -> None:
        """Raise DecodeError when the end is missing."""


class _Zlib:
    """`gzip` (several members too) and `deflate` (with or without the zlib header: both are in use)."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16) if gzip else None
        self._held = b""  # too little to tell what begins
        self._fed = False

    def feed(self, chunk: bytes, max_bytes: int) -> bytes:
        pieces: list[bytes] = []
        room = max_bytes
        data = self._held + chunk
        self._held = b""
        while data:
            self._fed = True
            stream = self._stream
            if stream is None:
                if len(data) < 2:
                    self._held = data
                    break
                wrapped = data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0
                stream = self._stream = zlib.decompressobj(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
            elif stream.eof:
                if not self._gzip or not _GZIP_MAGIC.startswith(data[:2]):
                    break  # padding behind the end: curl and urllib3 drop it, too
                if len(data) < 2:
                    self._held = data
                    break
                stream = self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                piece = stream.decompress(data, room + 1)
            except zlib.error as error:
                raise DecodeError(f"{'gzip' if self._gzip else 'deflate'}: {error}") from error
            room = _take(piece, room, pieces)
            data = stream.unused_data
        return b"".join(pieces)

    def finish(self) -> None:
        if self._fed and (self._stream is None or not self._stream.eof):
            raise DecodeError(f"{'gzip' if self._gzip else 'deflate'}: ends too early")


class _Brotli:
    """`br`."""

    def __init__(self) -> None:
        self._stream = brotli.Decompressor()
        self._fed = False

    def feed(self, chunk: bytes, max_bytes: int) -> bytes:
        pieces: list[bytes] = []
        room = max_bytes
        self._fed = self._fed or bool(chunk)
        step = max(len(chunk), 1) if _BROTLI_STOPS else _BROTLI_SLICE_BYTES
        for start in range(0, len(chunk), step):
            if self._stream.is_finished():
                break
            room = _take(self._process(chunk[start : start + step], room + 1), room, pieces)
        return b"".join(pieces)

    def _process(self, data: bytes, limit: int) -> bytes:
        try:
            if _BROTLI_STOPS:
                return bytes(self._stream.process(data, output_buffer_limit=limit))
            return bytes(self._stream.process(data))
        except brotli.error as error:
            raise DecodeError(f"br: {error}") from error

    def finish(self) -> None:
        if self._fed and not self._stream.is_finished():
            raise DecodeError("br: ends too early")


class _Zstd:
    """`zstd` (several frames too)."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._stream = self._decompressor.decompressobj()
        self._between = True  # no frame is open
        self._held = b""  # too little to tell what begins
        self._fed = False

    def feed(self, chunk: bytes, max_bytes: int) -> bytes:
        pieces: list[bytes] = []
        room = max_bytes
        data = self._held + chunk
        self._held = b""
        start = 0
        while start < len(data):
            if self._between and self._fed:
                if not _ZSTD_MAGIC.startswith(data[start : start + 4]):
                    break  # padding behind the end
                if len(data) - start < 4:
                    self._held = data[start:]
                    break
                self._stream = self._decompressor.decompressobj()
            self._fed = True
            self._between = False
            part = data[start : start + _ZSTD_SLICE_BYTES]
            start += len(part)
            try:
                piece = self._stream.decompress(part)
            except zstandard.ZstdError as error:
                raise DecodeError(f"zstd: {error}") from error
            room = _take(piece, room, pieces)
            if self._stream.eof:
                self._between = True
                start -= len(self._stream.unused_data)
        return b"".join(pieces)

    def finish(self) -> None:
        if not self._between:
            raise DecodeError("zstd: ends too early")


def _take(piece: bytes, room: int, pieces: list[bytes]) -> int:
    if len(piece) > room:
        raise DecodeError("expands too far")
    if piece:
        pieces.append(piece)
    return room - len(piece)


_STAGES: Mapping[str, Callable[[], _Stage]] = {
    "gzip": lambda: _Zlib(gzip=True),
    "x-gzip": lambda: _Zlib(gzip=True),
    "deflate": lambda: _Zlib(gzip=False),
    "br": _Brotli,
    "zstd": _Zstd,
}


class BodyDecoder:
    """One body, decoded as it comes. After a DecodeError it must not be fed again."""

    def __init__(self, content_encoding: str, *, max_feed_bytes: int = MAX_FEED_BYTES) -> None:
        """`content_encoding` as in the header, empty for none; DecodeError when it is unknown.

        `max_feed_bytes` bounds what one call of `feed` may expand to.
        """
        self._max_feed_bytes = max_feed_bytes
        self._name = content_encoding
        names = [name.strip().lower() for name in content_encoding.split(",", _MAX_STACK)]
        names = [name for name in names if name not in {"", "identity"}]
        if len(names) > _MAX_STACK or any(name not in _STAGES for name in names):
            raise DecodeError("unknown content-encoding")
        # The header lists them in the order in which they were applied.
        self._stages = [_STAGES[name]() for name in reversed(names)]

    def feed(self, chunk: bytes) -> bytes:
        """The decoded bytes that this chunk completes; DecodeError when it is broken."""
        for stage in self._stages:
            chunk = stage.feed(chunk, self._max_feed_bytes)
        return chunk

    def finish(self) -> bytes:
        """The body is at its end; DecodeError when it stops too early. No stage keeps output back."""
        for stage in self._stages:
            stage.finish()
        return b""


class AnswerDecoder:
    """The body of an answer, decoded as it comes: gateways are wrong about the coding (2026-11).

    What begins as text is not compressed, whatever the head says, and an end that is missing is overlooked.
    """

    def __init__(self, content_encoding: str, *, max_feed_bytes: int = MAX_FEED_BYTES) -> None:
        """`content_encoding` as in the header."""
        self._decoder: BodyDecoder | None = None
        self._unknown: DecodeError | None = None
        try:
            self._decoder = BodyDecoder(content_encoding, max_feed_bytes=max_feed_bytes)
        except DecodeError as error:
            self._unknown = error
        self._start: bytes | None = b""
        """The first bytes, until they show whether the body is text; None: they have."""

    def feed(self, chunk: bytes) -> bytes:
        """The decoded bytes that this chunk completes; DecodeError when it is broken, or the coding is unknown."""
        if self._start is not None:
            chunk, self._start = self._start + chunk, None
            if _TEXT.match(chunk) or is_prelude(chunk):
                self._decoder = self._unknown = None
            elif len(chunk) < _START_BYTES:
                self._start = chunk
                return b""
        if self._unknown is not None:
            raise self._unknown
        return chunk if self._decoder is None else self._decoder.feed(chunk)

    def finish(self) -> bytes:
        """The body is at its end: the bytes that were too few to show anything."""
        start, self._start = self._start, None
        if start and self._unknown is not None:
            raise self._unknown
        return self._decoder.feed(start) if start and self._decoder else start or b""


_START_BYTES = PRELUDE_BYTES
_TEXT = re.compile(rb"\s*(?:\xef\xbb\xbf\s*)?(?:[\[{]\s*[]\"{}[]|<[!a-zA-Z]|(?:data|event|id|retry)?:[\s{\[a-z])")


def decode(body: bytes, content_encoding: str, max_bytes: int, *, is_answer: bool = False) -> bytes:
    """A whole body; DecodeError when it is broken, unknown or longer than `max_bytes` decoded."""
    decoded = body
    if content_encoding:
        decoder = (AnswerDecoder if is_answer else BodyDecoder)(content_encoding, max_feed_bytes=max_bytes)
        decoded = decoder.feed(body) + decoder.finish()
    if len(decoded) > max_bytes:
        raise DecodeError("longer than the bound")
    return decoded
