"""JSON as others send it: read as far as it can be, layer by layer, without an exception."""

import re

import msgspec

_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder()
# The last two are what msgspec lets through for broken text and for thousands of nested brackets.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def whole_characters(data: bytes) -> bytes:
    """JSON in which U+FFFD stands for halves of characters: others may write them, and msgspec does not read them."""
    return _LONE_SURROGATE.sub(rb"\\ufffd", data)


def read_object(data: bytes | msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    """The members of a JSON object, each still JSON; None when it is no object."""
    return _read(_OBJECT, data)


def read_list(data: bytes | msgspec.Raw) -> list[msgspec.Raw] | None:
    """The items of a JSON list, each still JSON; None when it is no list."""
    return _read(_LIST, data)


def read_value(raw: bytes | msgspec.Raw | None) -> object:
    """One JSON value; None when it is absent or cannot be read."""
    return None if raw is None else _read(_ANY, raw)


def _read[T](decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T | None:
    try:
        return decoder.decode(data)
    except _UNREADABLE:
        broken = bytes(data)
        whole = whole_characters(broken)
    try:
        return None if whole == broken else decoder.decode(whole)
    except _UNREADABLE:
        return None


def read_number(raw: bytes | msgspec.Raw | None) -> float | None:
    """A JSON number, also one that is written as a text; None when it is neither."""
    value = read_value(raw)
    if isinstance(value, str) and len(value) <= 30:
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
