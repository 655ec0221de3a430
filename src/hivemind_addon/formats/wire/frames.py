"""The text frames of Responses over a WebSocket: what they are, and the ones that we write. Pure.

    client   {"type":"response.create", …}      asks for an answer: a turn, or (`generate: false`) warms a cache only
    server   the events of a streamed answer, one a frame, and {"type":"error","status":n,"error":{…},"headers":{…}}

Either side may send more; what is not known here passes. A frame with `stream_id` belongs to the lane of that name,
one without to the lane without a name. (OpenAI's WebSocket mode of 2026; Codex 0.169 uses no lanes.)
"""

import json
from collections.abc import Mapping
from enum import Enum

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base.json_values import read_object, read_value, readable
from hivemind_addon.formats.wire.error import word
from hivemind_addon.formats.wire.error_form import with_delay
from hivemind_addon.kernel.values.ticket import REQUEST_HEADER

_CREATE = "response.create"
_ERROR = "error"
_FAILED = "response.failed"
_ENDS = frozenset({"response.completed", "response.incomplete", _FAILED, _ERROR})
_DEADLY = frozenset({"server_is_overloaded", "slow_down"})
"""Codes upon which Codex 0.169 gives its turn up, where they stand in a frame (measured 2026-11)."""
_LIMITED = "rate_limit_exceeded"
_LIMITED_STATUS = 429
_NO_STATUS = 500
"""What an error without one gets: Codex overlooks such a frame, and waits on for five minutes."""
DELAY_S = 1.0
"""Until the client is to come back, where the provider does not say: how long it then waits is ours to decide."""
_HEADERS_IN_METADATA = ("x-codex-", "x-openai-")
_MOST_HEADERS = 100
_NO_HEADERS: Mapping[str, str] = {}


class Asking(Enum):
    """What a client's frame wants."""

    TURN = "turn"
    WARM_UP = "warm-up"
    """It is answered, too, without a word of the model's."""
    OTHER = "other"


class Asked(Struct, frozen=True):
    """A client's frame."""

    what: Asking
    lane: str = ""
    previous: str = ""
    """Id of an earlier answer, which the provider knows in this connection alone and forgets when this one fails."""
    told: Mapping[str, str] = _NO_HEADERS
    """What the frame says in place of a request's headers: texts of `client_metadata`."""


class Told(Struct, frozen=True):
    """A server's frame."""

    name: str
    """The event's; empty: it has none."""
    lane: str | None = None
    """None: it names none."""
    status: int | None = None
    """Of an error: the HTTP status that it would have had as an answer."""
    headers: Mapping[str, str] = _NO_HEADERS
    """Of an error: what its head would have had, by lower-case name."""

    @property
    def ends(self) -> bool:
        """Whether it is the last one of its answer."""
        return self.name in _ENDS

    @property
    def is_error(self) -> bool:
        """Whether it tells of a failure."""
        return self.name in {_ERROR, _FAILED}


_OTHER = Asked(Asking.OTHER)
_UNKNOWN = Told("")


def is_ambiguous(text: bytes) -> bool:
    """Whether a client's frame that is readable says something twice: readers take the first or the last."""
    try:
        pairs = json.loads(text.decode("utf-8-sig"), object_pairs_hook=list)
    except (ValueError, RecursionError):
        return True
    return len(dict(pairs)) < len(pairs)


def read_asked(text: bytes) -> Asked:
    """What a client's frame wants; OTHER where it cannot be read."""
    members = read_object(text)
    if members is None or word(members.get("type")) != _CREATE:
        return _OTHER
    metadata = read_object(members["client_metadata"]) if "client_metadata" in members else None
    is_warm_up = read_value(members.get("generate")) is False
    return Asked(
        what=Asking.WARM_UP if is_warm_up else Asking.TURN,
        lane=word(members.get("stream_id")),
        previous=word(members.get("previous_response_id")),
        told={} if metadata is None else _texts(metadata, only=_HEADERS_IN_METADATA),
    )


def read_told(text: bytes) -> Told:
    """What a server's frame tells; one without a name where it cannot be read."""
    members = read_object(text)
    if members is None:
        return _UNKNOWN
    name = word(members.get("type"))
    lane = word(members["stream_id"]) if "stream_id" in members else None
    if name != _ERROR:
        return Told(name, lane)
    status = read_value(members.get("status", members.get("status_code")))
    head = read_object(members["headers"]) if "headers" in members else None
    is_status = isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 999
    return Told(name, lane, status if is_status else None, {} if head is None else _texts(head))  # type: ignore[arg-type]  # mypy does not follow


def _texts(members: Mapping[str, msgspec.Raw], *, only: tuple[str, ...] = ("",)) -> Mapping[str, str]:
    """The members that can stand for headers, by lower-case name."""
    read = ((name.lower(), read_value(raw)) for name, raw in list(members.items())[:_MOST_HEADERS])
    return {
        name: str(value)
        for name, value in read
        if name.startswith(only) and isinstance(value, str | int | float) and str(value).isprintable()
    }


def id_of(text: bytes) -> str:
    """The id of the answer that a server's frame belongs to; empty: it tells none."""
    members = read_object(text) or {}
    response = read_object(members["response"]) if "response" in members else None
    return word((response or {}).get("id"))


def going_on_from(text: bytes, previous: str) -> bytes:
    """A client's frame with another earlier answer."""
    return msgspec.json.encode({**(read_object(text) or {}), "previous_response_id": previous})


def as_event(name: str, text: bytes) -> bytes:
    """The server-sent event that a server's frame is in a plain answer."""
    head = b"event: %b\n" % name.encode() if name and name.isprintable() else b""
    return b"%bdata: %b\n\n" % (head, text.replace(b"\r", b" ").replace(b"\n", b" "))


def as_request(text: bytes) -> bytes:
    """The body that a turn has as a plain request, which has to say that its answer is to be streamed."""
    text = readable(text) or text
    members = read_object(text)
    if members is None or read_value(members.get("stream")) is True:
        return text
    return msgspec.json.encode({**members, "stream": True})


def held(lane: str) -> bytes:
    """What a held turn's client hears now and then: any text frame ends its patience's count, of whatever type."""
    return _framed({"type": "hivemind.held"}, lane)


def come_back(message: str, delay_s: float, lane: str, ticket_id: str = "") -> bytes:
    """The error that makes a client come back after the delay: Codex with its whole input, by a new connection.

    `ticket_id`: of the turn; empty: it has none.
    """
    error = {"type": _LIMITED, "code": _LIMITED, "message": with_delay(message, delay_s)}
    return _error(_LIMITED_STATUS, error, {"retry-after": _seconds(delay_s)} | _named(ticket_id), lane)


def unreadable() -> bytes:
    """The error for a client's frame that may be a turn or may be none."""
    message = (
        "hivemind: this frame is no JSON object that has each name once, so it cannot be scheduled; nothing was sent"
    )
    return _error(400, {"type": "invalid_request_error", "code": "invalid_json", "message": message}, _NO_HEADERS, "")


def refusal(status: int, headers: Mapping[str, str], body: bytes, lane: str, ticket_id: str = "") -> bytes:
    """The frame for what a plain request is refused with; `headers` by lower-case name."""
    error = read_value((read_object(body) or {}).get("error"))
    error = error if isinstance(error, dict) else {"type": "server_error", "code": "server_error", "message": ""}
    delay = headers.get("retry-after", "")
    if _DEADLY.isdisjoint((error.get("code"), error.get("type"))):
        return _error(status, error, ({"retry-after": delay} if delay else {}) | _named(ticket_id), lane)
    return come_back(str(error.get("message") or ""), _delay_s(headers), lane, ticket_id)


def _named(ticket_id: str) -> dict[str, str]:
    return {REQUEST_HEADER: ticket_id} if ticket_id else {}


def harmless(text: bytes, told: Told) -> bytes:
    """A server's frame as a client survives it: no code that ends a turn for good, no error without a status."""
    if not told.is_error:
        return text
    members = read_value(text)
    if not isinstance(members, dict):
        return text
    inner = members.get("response") if told.name == _FAILED else members
    error = inner.get("error") if isinstance(inner, dict) else None
    if isinstance(error, dict) and not _DEADLY.isdisjoint((error.get("code"), error.get("type"))):
        delay_s = _delay_s(told.headers)
        error |= {"code": _LIMITED, "message": with_delay(str(error.get("message") or ""), delay_s)}
        if "type" in error:
            error["type"] = _LIMITED
        if told.name == _ERROR:
            headers = members.get("headers")
            given = headers if isinstance(headers, dict) else {}
            members |= {"status": _LIMITED_STATUS, "headers": {**given, "retry-after": _seconds(delay_s)}}
    elif told.name == _ERROR and told.status is None:
        members["status"] = _NO_STATUS
    else:
        return text
    return msgspec.json.encode(members)


def answered(frames: list[tuple[str, bytes]]) -> bytes:
    """The body that these named frames are in a plain answer."""
    return b"".join(as_event(name, text) for name, text in frames)


def _error(status: int, error: Mapping[str, object], headers: Mapping[str, str], lane: str) -> bytes:
    frame: dict[str, object] = {"type": _ERROR, "status": status, "error": error}
    return _framed(frame | ({"headers": headers} if headers else {}), lane)


def _framed(frame: dict[str, object], lane: str) -> bytes:
    return msgspec.json.encode(frame | ({"stream_id": lane} if lane else {}))


def _delay_s(headers: Mapping[str, str]) -> float:
    try:
        delay_s = float(headers.get("retry-after", ""))
    except ValueError:
        return DELAY_S
    return delay_s if 0 < delay_s <= 3600 else DELAY_S


def _seconds(delay_s: float) -> str:
    return f"{max(1, round(delay_s))}"
