"""JSON as others write it: read as far as it can be, layer by layer, without an exception."""

import json
from collections.abc import Callable

import msgspec

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder()
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises: the last two are for broken text and for thousands of nested brackets."""


def read_object(data: bytes | msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    """The members of a JSON object, each still JSON; None when it is no object."""
    return _read(_OBJECT.decode, data)


def read_list(data: bytes | msgspec.Raw) -> list[msgspec.Raw] | None:
    """The items of a JSON list, each still JSON; None when it is no list."""
    return _read(_LIST.decode, data)


def read_value(raw: bytes | msgspec.Raw | None) -> object:
    """One JSON value; None when it is absent or cannot be read."""
    return None if raw is None else _read(_ANY.decode, raw)


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


def readable(data: bytes) -> bytes | None:
    """A JSON object in a form that every reader takes; None: it is no JSON object."""
    try:
        _OBJECT.decode(data)
        data.decode()
    except UNREADABLE:
        mended = _mended(data)
        return None if mended is None or read_object(mended) is None else mended
    return data


def _read[T](decode: Callable[[bytes | msgspec.Raw], T], data: bytes | msgspec.Raw) -> T | None:
    try:
        return decode(data)
    except msgspec.ValidationError:
        return None  # it is JSON, of another kind
    except UNREADABLE:
        mended = _mended(data)
    try:
        return None if mended is None else decode(mended)
    except UNREADABLE:
        return None


def _mended(data: bytes | msgspec.Raw) -> bytes | None:
    """JSON that only lenient readers take, as strict readers need it; None: nobody can read it.

    JavaScript writes half a surrogate pair where it cuts a text within an emoji, Python NaN, .NET a byte order mark;
    gateways cut within a character (2026-11). A half becomes `?`, NaN null.
    """
    text = bytes(data).strip()
    if text[:1] not in _FIRST_BYTES or text[-1:] not in _LAST_BYTES:
        return None
    try:
        value = json.loads(text.decode("utf-8-sig", "replace"), strict=False, parse_constant=lambda _: None)
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode(errors="replace")
    except (ValueError, RecursionError):
        return None


_FIRST_BYTES = (b"{", b"[", b'"', b"\xef")
"""Of a value in which anything can be mended, or of a byte order mark."""
_LAST_BYTES = (b"}", b"]", b'"')
"""Of such a value: a text that was cut is not read again."""
