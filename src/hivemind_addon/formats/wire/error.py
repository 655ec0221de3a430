"""The error object of an answer or a stream's event, at the places of all formats, because gateways mix them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

import msgspec

from hivemind_addon.formats.base.json_values import read_list, read_object, read_value
from hivemind_addon.formats.base.memo import by_thing
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.format import ErrorPlaces

MAX_WORD_CHARS = 200
_MAX_MESSAGE_CHARS = 2000
_MOST_NAMES = 16
_MOST_TEXTS = 64
_DEEPEST = 8
_MAX_MEMBER_BYTES = 64 * 1024
ERROR_MARK = b'"err'
"""Begins the name of the member that holds an error or its code, in nearly all formats."""
_CODES = ("code", "error_code", "errorCode", "errcode", "status_code", "statusCode", "status")
_MESSAGES = ("message", "error_msg", "error_message", "errorMessage", "errmsg", "msg", "detail", "title")
"""Names that gateways have for the code and the message of an error (Huawei, Baidu, FastAPI, RFC 9457; 2026-11)."""
_SURE_CODES = frozenset(_CODES[1:4])
_BESIDE = frozenset({"type", "param", "errors", "success", "instance", "path", "timestamp", "request_id", "requestId"})
_NO_ERRORS = frozenset({"", "0", "200", "ok", "success"})
USUAL_PLACES = ErrorPlaces()
"""For a format without own places."""


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """An error object as the provider wrote it; absent members are empty."""

    type: str = ""
    code: str = ""
    """A number is written in digits."""
    message: str = ""
    """At most 2,000 characters."""
    details_code: str = ""
    """`details.error_code`."""
    own_names: tuple[str, ...] = ()
    """The names at the places that the format adds."""
    top: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    """The members of the answer, or of the event, that contains the error; each may still be JSON."""

    members: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    """The error's own; each may still be JSON."""

    @property
    def names(self) -> tuple[str, ...]:
        """The error's names, the most specific name first."""
        return tuple(name for name in (*self.own_names, self.details_code, self.code, self.type) if name)

    def texts(self) -> Iterator[tuple[str, str]]:
        """Name and text of the members, also within their objects and lists; as many as an honest error has."""
        return islice(_texts("", dict(self.members), _DEEPEST), _MOST_TEXTS)


def error_in_body(body: bytes, places: ErrorPlaces = USUAL_PLACES) -> ErrorFacts | None:
    """The error object of a whole answer; None when the body holds none or is no JSON."""
    top = error_members(body)
    return None if top is None else explicit_error(top, places)


def error_members(body: bytes) -> Mapping[str, msgspec.Raw] | None:
    """The members of an answer's JSON object, also of one in a list; None: there is no object."""
    top = read_object(body)
    if top is None:
        # Google's OpenAI-compatible endpoint wraps its error in a list.
        items = read_list(body)
        top = read_object(items[0]) if items else None
    return top


def explicit_error(top: Mapping[str, msgspec.Raw], places: ErrorPlaces = USUAL_PLACES) -> ErrorFacts | None:
    """The error object among an answer's or an event's members; None: there is none."""
    members = _usual_error(top)
    if places is USUAL_PLACES:
        return None if members is None else _facts(top, members)
    reader = _reader(places)
    if (members is None and not reader.is_error(top)) or reader.is_none(top):
        return None
    return reader.add(_facts(top, members), top)


def failure(top: Mapping[str, msgspec.Raw], places: ErrorPlaces = USUAL_PLACES) -> ErrorFacts:
    """The facts of an answer that is an error by its status."""
    facts = _facts(top, _usual_error(top))
    return _reader(places).add(replace(facts, members=top), top)


def unreadable_error(data: bytes) -> ErrorFacts:
    """The facts of an error event that cannot be read."""
    return ErrorFacts(message=data[:MAX_WORD_CHARS].decode("utf-8", "replace"))


def error_marks(places: ErrorPlaces) -> tuple[bytes, ...]:
    """Pieces of JSON; each answer that has an error in spite of a good status contains at least one."""
    return _reader(places).marks


def _usual_error(top: Mapping[str, msgspec.Raw]) -> Mapping[str, msgspec.Raw] | None:
    """The members of the error object, wherever most formats have it; None: there is none."""
    error = top.get("error")
    if error is None and "response" in top:
        error = (read_object(top["response"]) or {}).get("error")
    if error is not None:
        members = read_object(error)
        if members is not None:
            return members
        value = read_value(error)
        if isinstance(value, str) and value:
            return {"message": error}
        if value:
            return {}
    if read_value(top.get("object")) == "error" or read_value(top.get("type")) == "error" or _is_foreign(top):
        return top
    return None


def _is_foreign(top: Mapping[str, msgspec.Raw]) -> bool:
    """Whether the members are those of an error without an error object: a code for errors, or nothing else at all."""
    names = top.keys()
    code = _first(top, _CODES)
    if not _SURE_CODES.isdisjoint(names):
        return code.lower() not in _NO_ERRORS
    if not names - _BESIDE or not names <= _BESIDE.union(_CODES, _MESSAGES):
        return False
    return bool(_first(top, _MESSAGES)) and (code.lower() not in _NO_ERRORS or (not code and "detail" in names))


def _first(members: Mapping[str, msgspec.Raw], names: tuple[str, ...], max_chars: int = MAX_WORD_CHARS) -> str:
    return next(filter(None, (word(members.get(name), max_chars) for name in names)), "")


def _facts(top: Mapping[str, msgspec.Raw], members: Mapping[str, msgspec.Raw] | None) -> ErrorFacts:
    """The facts of an error object; `members` None: there is no such object, only a message."""
    own = members or {}
    details = own.get("details")
    detail_members = read_object(details) if details is not None else None
    return ErrorFacts(
        type=word(own.get("type")),
        code=_first(own, _CODES),
        message=_first(top if members is None else own, _MESSAGES, _MAX_MESSAGE_CHARS),
        details_code=word((detail_members or {}).get("error_code")),
        top=top,
        members=own,
    )


class _PlacesReader:
    """A format's places of errors, taken apart once."""

    def __init__(self, places: ErrorPlaces) -> None:
        self._at = tuple(map(Pointer.parse, places.at))
        self._unless = tuple((Pointer.parse(at), re.compile(match)) for at, match in places.unless.items())
        self._names = tuple(map(Pointer.parse, places.names))
        self._message = tuple(map(Pointer.parse, places.message))
        self._firsts = dict.fromkeys(one.steps[0] for one in self._at if one.steps)
        self.marks = (ERROR_MARK, *(msgspec.json.encode(first) for first in self._firsts))

    def is_error(self, top: Mapping[str, object]) -> bool:
        """Whether anything stands where the format has its errors."""
        return any(one.is_anywhere(top) for one in self._at)

    def is_none(self, top: Mapping[str, object]) -> bool:
        """Whether a value at these places says that all is well."""
        return any(match.search(text) is not None for pointer, match in self._unless for text in texts_at(pointer, top))

    def add(self, facts: ErrorFacts, top: Mapping[str, object]) -> ErrorFacts:
        """The facts with the values at the format's own places."""
        if not facts.members:
            facts = replace(facts, members={name: top[name] for name in self._firsts if name in top})
        names = (text[:MAX_WORD_CHARS] for pointer in self._names for text in texts_at(pointer, top))
        messages = (text for pointer in self._message for text in texts_at(pointer, top) if text)
        own_names = tuple(islice(dict.fromkeys(names), _MOST_NAMES))
        return replace(facts, message=next(messages, facts.message), own_names=own_names)


_reader = by_thing(_PlacesReader)


def _texts(name: str, value: object, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, bytes | msgspec.Raw):
        value = read_value(value) if len(bytes(value)) <= _MAX_MEMBER_BYTES else None
    if isinstance(value, dict) and depth:
        for inner, one in value.items():
            yield from _texts(str(inner), one, depth - 1)
    elif isinstance(value, list) and depth:
        for one in value:
            yield from _texts(name, one, depth - 1)
    elif (text := _text(value)) is not None:
        yield name, text


def texts_at(pointer: Pointer, top: Mapping[str, object]) -> Iterator[str]:
    """The texts and numbers that stand there, as they are compared with regular expressions."""
    for value in pointer.find_all(top):
        text = _text(value)
        if text is not None:
            yield text


def _text(value: object) -> str | None:
    """A text, at most 2,000 characters of it; a number or a truth as JSON has it."""
    if isinstance(value, str):
        return value[:_MAX_MESSAGE_CHARS]
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else None


def word(raw: msgspec.Raw | bytes | None, max_chars: int = MAX_WORD_CHARS) -> str:
    """A text, or a whole number in digits; empty for anything else."""
    value = read_value(raw)
    if isinstance(value, str):
        return value[:max_chars]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)[:max_chars]
    return ""
