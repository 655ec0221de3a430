"""The error object of an answer or a stream's event, wherever one of the formats puts it: gateways mix the shapes."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hivemind_addon.proxy.profile.format import ErrorPlaces
from hivemind_addon.system.json_values import read_list, read_number, read_object, read_value

MAX_WORD_CHARS = 200
_MAX_MESSAGE_CHARS = 2000
_USUAL = ErrorPlaces()


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """An error object as the provider wrote it; what is absent is empty."""

    type: str = ""
    code: str = ""
    """A number is written in digits."""
    message: str = ""
    """At most 2,000 characters."""
    details_code: str = ""
    """`details.error_code`."""
    resets_at: float | None = None
    """Epoch seconds at which a spent limit comes back (ChatGPT's plans)."""
    resets_in_s: float | None = None
    """The same, in seconds from now."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the error is called, the most specific name first."""
        return tuple(name for name in (self.details_code, self.code, self.type) if name)


def error_in_body(body: bytes, places: ErrorPlaces = _USUAL) -> ErrorFacts | None:
    """The error object of a whole answer; None when the body holds none or is no JSON."""
    top = read_object(body)
    if top is None:
        # Google's OpenAI-compatible endpoint wraps its error in a list.
        items = read_list(body)
        top = read_object(items[0]) if items else None
    return None if top is None else explicit_error(top, places)


def explicit_error(top: Mapping[str, msgspec.Raw], places: ErrorPlaces = _USUAL) -> ErrorFacts | None:  # noqa: ARG001
    """The error object among an answer's or an event's members; None: there is none."""
    error = top.get("error")
    if error is None and "response" in top:
        error = (read_object(top["response"]) or {}).get("error")
    if error is not None:
        members = read_object(error)
        if members is not None:
            return _facts(members)
        value = read_value(error)
        if isinstance(value, str) and value:
            return ErrorFacts(message=value[:_MAX_MESSAGE_CHARS])
        if value:
            return ErrorFacts()
    if read_value(top.get("object")) == "error" or read_value(top.get("type")) == "error":
        return _facts(top)
    return None


def unreadable_error(data: bytes) -> ErrorFacts:
    """An event that says it is an error, and nothing that can be read."""
    return ErrorFacts(message=data[:MAX_WORD_CHARS].decode("utf-8", "replace"))


def _facts(members: Mapping[str, msgspec.Raw]) -> ErrorFacts:
    details = members.get("details")
    detail_members = read_object(details) if details is not None else None
    return ErrorFacts(
        type=word(members.get("type")),
        code=word(members.get("code")),
        message=word(members.get("message"), _MAX_MESSAGE_CHARS),
        details_code=word((detail_members or {}).get("error_code")),
        resets_at=read_number(members.get("resets_at")),
        resets_in_s=read_number(members.get("resets_in_seconds")),
    )


def word(raw: msgspec.Raw | None, max_chars: int = MAX_WORD_CHARS) -> str:
    """A text, or a whole number in digits; empty where it is neither."""
    value = read_value(raw)
    if isinstance(value, str):
        return value[:max_chars]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)[:max_chars]
    return ""
