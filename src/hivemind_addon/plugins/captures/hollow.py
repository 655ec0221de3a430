"""Bodies without their words: the structure, and of each text its size and a hash.

    {"role": "user", "content": "Fix the parser"}  →  {"role": "user", "content": "(14 bytes 5f0c1d2e)"}

The same text has the same hash within one recording, and none outside it: the hash is keyed. What tells how a request
is scheduled stays: models, roles, types, numbers, and where the prompt cache is marked.
"""

import hashlib

import msgspec

from hivemind_addon.formats.base.json_values import read_value

_KEPT = frozenset(
    (
        *("type", "role", "model", "object", "status", "stop_reason", "finish_reason", "event", "code", "phase"),
        *("service_tier", "ttl", "effort", "media_type", "encoding", "truncation", "tool_choice"),
    )
)
"""Members whose texts are the API's own words."""
_USERS_OWN = frozenset(
    ("input", "input_schema", "parameters", "schema", "properties", "arguments", "metadata", "format")
)
"""Members whose objects have keys of the user's own: they become one text."""
_LONGEST_KEPT = 64
_HASH_BYTES = 4


def hollow(body: bytes, key: bytes) -> bytes:
    """A body of JSON, of server-sent events or of JSON lines without its words; of anything else only its size.

    `key`: of the recording's hashes.
    """
    if (hollowed := _hollow_json(body, key)) is not None:
        return hollowed
    lines = body.split(b"\n")
    if not any(line.startswith((b"data:", b"event:", b"{")) for line in lines):
        return _told(body, key).encode() if body else b""
    return b"\n".join(_hollow_line(line, key) for line in lines)


def _hollow_line(line: bytes, key: bytes) -> bytes:
    end = b"\r" if line.endswith(b"\r") else b""
    line = line.removesuffix(b"\r")
    if line.startswith(b"{"):
        return _hollow_data(line, key) + end
    field, colon, rest = line.partition(b":")
    if field == b"data":
        return field + colon + b" " + _hollow_data(rest.strip(), key) + end
    if field == b"event" and len(line) <= _LONGEST_KEPT:
        return line + end
    return (b": " if colon and not field else b"") + end  # a comment, or nothing that a client reads


def _hollow_data(data: bytes, key: bytes) -> bytes:
    if data in (b"", b"[DONE]"):
        return data
    return _hollow_json(data, key) or _told(data, key).encode()


def _hollow_json(text: bytes, key: bytes) -> bytes | None:
    """An object or array without words; None: the text is neither, or is nested too deeply."""
    value = read_value(text)
    try:
        return msgspec.json.encode(_hollow(value, key)) if isinstance(value, dict | list) else None
    except RecursionError:
        return None


def _hollow(value: object, key: bytes) -> object:
    match value:
        case str():
            return _told(value.encode("utf-8", "surrogatepass"), key)
        case list():
            return [_hollow(one, key) for one in value]
        case dict():
            return {name: _member(name, one, key) for name, one in value.items()}
        case _:
            return value


def _member(name: str, value: object, key: bytes) -> object:
    if name in _KEPT and isinstance(value, str) and len(value) <= _LONGEST_KEPT:
        return value
    if name in _USERS_OWN and isinstance(value, dict) and value:
        return _told(msgspec.json.encode(value), key)
    return _hollow(value, key)


def _told(text: bytes, key: bytes) -> str:
    return f"({len(text)} bytes {hashlib.blake2b(text, key=key, digest_size=_HASH_BYTES).hexdigest()})"
