"""JSON and MessagePack from outside: the only place that hands foreign bytes to a decoder.

    decode, decoder, packed_decoder    whole values of a known type; any fault is a msgspec.DecodeError
    read_…                             layer by layer; None for an unreadable value

Others write and read more than msgspec does: bytes that are no UTF-8, half a surrogate pair where JavaScript cuts a
text within an emoji, Python's NaN, .NET's byte order mark. Such JSON is read as `readable` repairs it.
"""

import json
from collections.abc import Callable
from typing import Any, overload

import msgspec

type Encoded = bytes | bytearray | str | msgspec.Raw
UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""The last two are let through by msgspec, for broken text and for thousands of nested brackets."""


@overload
def decoder[T](kind: type[T]) -> Callable[[Encoded], T]: ...
@overload
def decoder(kind: Any) -> Callable[[Encoded], Any]: ...
def decoder(kind: Any) -> Callable[[Encoded], Any]:
    """A reader of JSON values of one type. The reader raises only msgspec.DecodeError."""
    strictly = msgspec.json.Decoder(kind).decode

    def read(data: Encoded) -> Any:
        try:
            return strictly(data)
        except msgspec.ValidationError:
            raise
        except UNREADABLE as error:
            if (repaired := _repaired(data)) is None:
                raise msgspec.DecodeError(str(error)) from error
        return strictly(repaired)

    return read


@overload
def packed_decoder[T](kind: type[T]) -> Callable[[bytes | msgspec.Raw], T]: ...
@overload
def packed_decoder(kind: Any) -> Callable[[bytes | msgspec.Raw], Any]: ...
def packed_decoder(kind: Any) -> Callable[[Any], Any]:
    """The same for MessagePack, of which nothing is repaired."""
    strictly = msgspec.msgpack.Decoder(kind).decode

    def read(data: bytes | msgspec.Raw) -> Any:
        try:
            return strictly(data)
        except (UnicodeError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from error

    return read


@overload
def decode[T](data: Encoded, kind: type[T]) -> T: ...
@overload
def decode(data: Encoded, kind: Any = object) -> Any: ...
def decode(data: Encoded, kind: Any = object) -> Any:
    """A JSON value. Raises only msgspec.DecodeError."""
    return decoder(kind)(data)


_FIRST_BYTES = (b"{", b"[", b'"', b"\xef")
"""Of a value in which anything can be repaired, or of a byte order mark."""
_LAST_BYTES = (b"}", b"]", b'"')
"""Of such a value: a text that was cut is not read again."""


def _repaired(data: Encoded) -> bytes | None:
    """The same JSON as strict readers take it; None: it is no JSON."""
    text = data.encode(errors="replace") if isinstance(data, str) else bytes(data)
    text = text.strip()
    if text[:1] not in _FIRST_BYTES or text[-1:] not in _LAST_BYTES:
        return None
    try:
        value = json.loads(text.decode("utf-8-sig", "replace"), strict=False, parse_constant=lambda _: None)
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode(errors="replace")
    except (ValueError, RecursionError):
        return None


_STRICT_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT, _LIST, _ANY = decoder(dict[str, msgspec.Raw]), decoder(list[msgspec.Raw]), decoder(object)


def readable(data: bytes) -> bytes | None:
    """A JSON object as strict readers take it: bad characters become `?` or U+FFFD, NaN null. None: it is no object."""
    for text in (data, _repaired(data)):
        try:
            if text is not None and (text.isascii() or text.decode()) and _STRICT_OBJECT.decode(text) is not None:
                return text
        except UNREADABLE:
            continue
    return None


def read_object(data: bytes | msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    """The members of a JSON object, each still JSON; None when it is no object."""
    try:
        return _OBJECT(data)
    except msgspec.DecodeError:
        return None


def read_list(data: bytes | msgspec.Raw) -> list[msgspec.Raw] | None:
    """The items of a JSON list, each still JSON; None when it is no list."""
    try:
        return _LIST(data)
    except msgspec.DecodeError:
        return None


def read_value(raw: bytes | msgspec.Raw | None) -> object:
    """One JSON value; None when it is absent or cannot be read."""
    try:
        return None if raw is None else _ANY(raw)
    except msgspec.DecodeError:
        return None


def is_json(data: bytes) -> bool:
    """Whether the bytes are one JSON value."""
    return read_value(data) is not None or data.strip() == b"null"


def read_number(raw: bytes | msgspec.Raw | None) -> float | None:
    """A JSON number, also one that is written as a text; None when it is neither."""
    value = read_value(raw)
    if isinstance(value, str) and len(value) <= 30:
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
