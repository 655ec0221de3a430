"""Bodies without their words: the same structure and nearly the same size, filled with words that mean nothing.

The same text gives the same filler within one recording, so that what was a common prefix, or a request sent twice,
still is one. What replays need stays: roles, types, models, numbers, and where the prompt cache is marked.
"""

import hashlib

import msgspec

_KEPT = frozenset(
    (
        *("type", "role", "model", "object", "status", "stop_reason", "finish_reason", "stop_sequence", "event"),
        *("service_tier", "ttl", "effort", "media_type", "encoding", "truncation", "tool_choice", "code", "phase"),
    )
)
"""Members whose texts are the API's own words."""
_USERS_OWN = frozenset(("input", "input_schema", "parameters", "schema", "properties", "arguments", "metadata"))
"""Members whose objects have keys of the user's own."""
_LONGEST_KEPT = 64
_PROSE = (
    "the of and to in is that it was for on are as with his they at be this have from or one had by word but not what "
    "all were we when your can said there use an each which she do how their if will up other about out many then them "
    "these so some her would make like him into time has look two more write go see number no way could people my than"
)
_WORDS = tuple(_PROSE.split())
_BLOCK_WORDS = 200


def filler(text: bytes, salt: bytes) -> bytes:
    """As many bytes of words; which ones depends on the text alone."""
    if not text:
        return b""
    digest = hashlib.blake2b(text, key=salt).digest()
    block = " ".join(_WORDS[digest[place % len(digest)] % len(_WORDS)] for place in range(_BLOCK_WORDS)).encode() + b" "
    named = digest[:4].hex().encode() + b" " + block
    return (named * (len(text) // len(named) + 1))[: len(text)]


def hollow(body: bytes, salt: bytes) -> bytes:
    """A body of JSON, of server-sent events or of JSON lines without its words; of anything else only its size."""
    if (value := _json(body)) is not None:
        return msgspec.json.encode(_hollow(value, salt))
    lines = body.split(b"\n")
    if not any(line.startswith((b"data:", b"event:", b"{")) for line in lines):
        return filler(body, salt)
    return b"\n".join(_hollow_line(line, salt) for line in lines)


def _hollow_line(line: bytes, salt: bytes) -> bytes:
    field, colon, rest = line.partition(b":")
    if line.startswith(b"{"):
        field, colon, rest = b"", b"", line
    elif field == b"event":
        return line if len(line) <= _LONGEST_KEPT else field
    elif field != b"data":
        return field[:_LONGEST_KEPT] if field in (b"id", b"retry", b"", b"\r") else filler(line, salt)
    text = rest.strip()
    if text in (b"", b"[DONE]"):
        return line
    value = _json(text)
    hollowed = filler(text, salt) if value is None else msgspec.json.encode(_hollow(value, salt))
    return (
        field + colon + (b" " if rest.startswith(b" ") else b"") + hollowed + (b"\r" if rest.endswith(b"\r") else b"")
    )


def _json(text: bytes) -> dict[str, object] | list[object] | None:
    """An object or array; None: it is none."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _hollow(value: object, salt: bytes, *, users_own: bool = False) -> object:
    match value:
        case str():
            return _fill(value, salt)
        case list():
            return [_hollow(one, salt, users_own=users_own) for one in value]
        case dict() if users_own:
            return {_fill(name, salt): _hollow(one, salt, users_own=True) for name, one in value.items()}
        case dict():
            return {name: _member(name, one, salt) for name, one in value.items()}
        case _:
            return value


def _member(name: str, value: object, salt: bytes) -> object:
    if name in _KEPT and isinstance(value, str) and len(value) <= _LONGEST_KEPT:
        return value
    return _hollow(value, salt, users_own=name in _USERS_OWN and isinstance(value, dict))


def _fill(text: str, salt: bytes) -> str:
    # As long as it is in JSON, where a line's end takes two bytes.
    return filler(msgspec.json.encode(text)[1:-1], salt).decode()
