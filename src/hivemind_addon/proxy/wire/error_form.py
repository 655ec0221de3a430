"""Our own errors in the shape that a format's clients understand."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from hivemind_addon.proxy.profile.format import ErrorForm, Framing

_VALUE = re.compile(r"\{(message|error|status|retry_after_s|resets_at)\}")
_LEFT_OUT = object()


def error_body(
    form: ErrorForm, status: int, error: str, message: str, resets_at: int | None, retry_after_s: float | None
) -> bytes:
    """An error answer. `error` empty: what usually comes with the status; `resets_at`: epoch seconds."""
    error = error or form.usual.get(str(status)) or form.usual.get("5xx" if status >= 500 else "4xx", "")
    message = _message(form.body, error, message)
    return msgspec.json.encode(_filled(form.body, _values(error, message, status, resets_at, retry_after_s)))


def error_event(form: ErrorForm, framing: Framing, error: str, message: str, retry_after_s: float | None) -> bytes:
    """One event that ends a stream; `retry_after_s` None: coming back is useless. Binary framings have none."""
    if framing is Framing.AWS_EVENTSTREAM:
        return b""
    template = form.event or form.body
    name = form.known_as.get(error, error) if retry_after_s is None or not form.again else form.again
    name = name or form.usual_in_stream
    message = with_delay(_message(template, name, message), retry_after_s)
    data = msgspec.json.encode(_filled(template, _values(name, message, form.status_in_stream, None, retry_after_s)))
    if framing is not Framing.SSE or form.bare:
        return data + b"\n"
    head = f"event: {form.event_name}\n".encode() if form.event_name else b""
    return head + b"data: " + data + b"\n\n"


def _message(template: Mapping[str, Any], error: str, message: str) -> str:
    """What is said; where the form has no place for the error's name, that where nothing is."""
    return message or ("" if b"{error}" in msgspec.json.encode(template) else error)


def with_delay(message: str, retry_after_s: float | None) -> str:
    """The words that clients read a delay from."""
    if retry_after_s is None:
        return message
    return f"{message.rstrip('. ')}. Please try again in {retry_after_s:.10g} s.".lstrip(". ")


def _values(
    error: str, message: str, status: int, resets_at: int | None, retry_after_s: float | None
) -> Mapping[str, object]:
    return {
        "error": error,
        "message": message,
        "status": status or None,
        "resets_at": resets_at,
        "retry_after_s": None if retry_after_s is None else int(retry_after_s) or 1,
    }


def _filled(template: Any, values: Mapping[str, object]) -> Any:
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
            return [_filled(one, values) for one in template if not _lacks(one, values)]
    return template


def _lacks(item: Any, values: Mapping[str, object]) -> bool:
    """Whether one of the values that an item of a list is made of is not there."""
    return any(values[name] is None for name in _VALUE.findall(msgspec.json.encode(item).decode()))
