"""JSON as others send it: read as far as it can be, layer by layer, without an exception."""

import msgspec

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder()
# The last two are what msgspec lets through for broken text and for thousands of nested brackets.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def read_object(data: bytes | msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    """The members of a JSON object, each still JSON; None when it is no object."""
    try:
        return _OBJECT.decode(data)
    except _UNREADABLE:
        return None


def read_list(data: bytes | msgspec.Raw) -> list[msgspec.Raw] | None:
    """The items of a JSON list, each still JSON; None when it is no list."""
    try:
        return _LIST.decode(data)
    except _UNREADABLE:
        return None


def read_value(raw: bytes | msgspec.Raw | None) -> object:
    """One JSON value; None when it is absent or cannot be read."""
    if raw is None:
        return None
    try:
        return _ANY.decode(raw)
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
