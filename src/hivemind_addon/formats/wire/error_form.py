"""Our own errors in the shape that a format's clients understand."""

import math
import re
import struct
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import msgspec

from hivemind_addon.formats.profile.format import ErrorForm, Framing

_VALUE = re.compile(r"\{(message|error|status|retry_after_s|retry_after_ms|resets_at)\}")
_LEFT_OUT = object()
_COME_BACK_STATUS, _STAY_STATUS = 503, 400
_NO_HEADER_TEXT = re.compile(r"[^\x21-\x7e]+")
_STRING = 7
"""The type of a header in an event stream."""

type _Values = Mapping[str, object]


def error_body(
    form: ErrorForm, status: int, error: str, message: str, resets_at: int | None, retry_after_s: float | None
) -> bytes:
    """An error answer. `error` empty: what usually comes with the status; `resets_at`: epoch seconds."""
    error = error or usual_error(form, status)
    message = _message(form.body, error, message)
    return msgspec.json.encode(_filled(form.body, _values(error, message, status, resets_at, retry_after_s)))


def error_headers(
    form: ErrorForm, status: int, error: str, resets_at: int | None, retry_after_s: float | None
) -> dict[str, str]:
    """What its head has, beside what every refusal has."""
    values = _values(error or usual_error(form, status), "", status, resets_at, retry_after_s)
    filled = {name: _filled(template, values) for name, template in form.headers.items()}
    # A header is a line: what is no character of one would end it.
    return {name: _NO_HEADER_TEXT.sub(" ", str(value)) for name, value in filled.items() if value is not _LEFT_OUT}


def usual_error(form: ErrorForm, status: int) -> str:
    """What an error with this status is called."""
    return form.usual.get(str(status)) or form.usual.get("5xx" if status >= 500 else "4xx", "")


def error_event(form: ErrorForm, framing: Framing, error: str, message: str, retry_after_s: float | None) -> bytes:
    """One event that ends a stream; `retry_after_s` None: coming back is useless."""
    template = form.event or form.body
    name = form.known_as.get(error, error) if retry_after_s is None or not form.again else form.again
    name = name or form.usual_in_stream
    message = with_delay(_message(template, name, message), retry_after_s)
    status = _status_of(form, name, retry_after_s)
    data = msgspec.json.encode(_filled(template, _values(name, message, status, None, retry_after_s)))
    match framing:
        case Framing.SSE if not form.bare:
            head = f"event: {form.event_name}\n".encode() if form.event_name else b""
            return head + b"data: " + data + b"\n\n"
        case Framing.AWS_EVENTSTREAM:
            return _aws_exception(name, data)
        case Framing.JSON_ARRAY:
            return b",\n" + data + b"\n]"
    return data + b"\n"


def _status_of(form: ErrorForm, name: str, retry_after_s: float | None) -> int:
    """The status with which an error of that name would come."""
    found = next((status for status, usual in form.usual.items() if usual == name), "")
    if found:
        return int(found.replace("x", "0"))
    return _STAY_STATUS if retry_after_s is None else _COME_BACK_STATUS


def _message(template: Mapping[str, Any], error: str, message: str) -> str:
    """What is said; where the form has no place for the error's name, that where nothing is."""
    return message or ("" if b"{error}" in msgspec.json.encode(template) else error)


def with_delay(message: str, retry_after_s: float | None) -> str:
    """The words that clients read a delay from."""
    if retry_after_s is None:
        return message
    return f"{message.rstrip('. ')}. Please try again in {retry_after_s:.10g} s.".lstrip(". ")


def _values(error: str, message: str, status: int, resets_at: int | None, retry_after_s: float | None) -> _Values:
    delay_s = None if retry_after_s is None else max(1, math.ceil(retry_after_s))
    return {
        "error": error,
        "message": message,
        "status": status,
        "resets_at": resets_at,
        "retry_after_s": delay_s,
        "retry_after_ms": None if delay_s is None else delay_s * 1000,
    }


def _filled(template: Any, values: _Values) -> Any:
    match template:
        case str():
            whole = _VALUE.fullmatch(template)
            if whole:
                value = values[whole[1]]
                return _LEFT_OUT if value is None else value
            if any(values[name] is None for name in _VALUE.findall(template)):
                return _LEFT_OUT
            return _VALUE.sub(lambda found: str(values[found[1]]), template)
        case Mapping():
            members = {name: _filled(one, values) for name, one in template.items()}
            return {name: one for name, one in members.items() if one is not _LEFT_OUT}
        case list():
            kept = [_filled(one, values) for one in template if not _lacks(one, values)]
            return _LEFT_OUT if template and not kept else kept
    return template


def _lacks(item: Any, values: _Values) -> bool:
    """Whether one of the values that an item of a list is made of is not there."""
    return any(values[name] is None for name in _VALUE.findall(msgspec.json.encode(item).decode()))


def _aws_exception(name: str, payload: bytes) -> bytes:
    """A message that ends an event stream. There the names of exceptions begin with a small letter."""
    told = {
        ":message-type": "exception",
        ":exception-type": name[:1].lower() + name[1:],
        ":content-type": "application/json",
    }
    headers = b"".join(
        struct.pack(f">B{len(key)}sBH", len(key), key.encode(), _STRING, len(value.encode())) + value.encode()
        for key, value in told.items()
    )
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", crc32(prelude)) + headers + payload
    return message + struct.pack(">I", crc32(message))
