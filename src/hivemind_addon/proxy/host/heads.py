"""Heads of HTTP/1: read with bounds, checked and changed.

What is said of a bad one never quotes it: a provider may echo a key in it, and the words go far.
"""

from __future__ import annotations

import re
import time
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from h11._receivebuffer import ReceiveBuffer
from mitmproxy.net.http import http1
from mitmproxy.net.http.http1 import read
from mitmproxy.net.http.validate import validate_headers

from hivemind_addon.formats.base.memo import REMEMBERED_CHARS, by_text
from hivemind_addon.proxy.host.flow_parts import field_names, plain_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from mitmproxy import http

LONGEST_HEAD_BYTES = 64 * 1024
MOST_FIELDS = 256
BAD_HEAD = "bad head: "
"""How our words for a head begin that is no HTTP, or too long."""
TOO_LONG = f"it is longer than {LONGEST_HEAD_BYTES // 1024} KB"
TOO_MANY = f"it has more than {MOST_FIELDS} fields"


_END = b"\r\n\r\n"
_NO_HTTP = "it is no HTTP/1"
_USUAL_FIELD = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t ]*+[\t\x20-\x7e\x80-\xff]*+(?<![\t ])\r\n"
_USUAL = re.compile(rb"(?P<line>[^\r\n]++)\r\n(?P<fields>(?:%b)*+)\r\n" % _USUAL_FIELD)
"""A head of which mitmproxy's own reading is the one below."""
_FIELD = re.compile(rb"([^:]++):[\t ]*+([^\r]*+)\r\n")
_LENGTH = re.compile("0|[1-9][0-9]{0,17}")
_UNSAID = -1
"""As mitmproxy has it for an answer: it ends with its connection."""
_OTHERWISE = -2
_NAMES = 1024
"""So many names of fields are remembered to be valid."""
_come = attrgetter("_data") if hasattr(ReceiveBuffer(), "_data") else bytes
"""What a buffer has; a long one is not copied for it where that can be helped."""


class BadHead(ValueError):
    """A head that is no HTTP or beyond the bounds, in words that quote nothing of it."""


_request_like: Callable[[bytes], http.Request] = by_text(lambda line: http1.read_request_head([line]))
_response_like: Callable[[bytes], http.Response] = by_text(lambda line: http1.read_response_head([line]))
"""A message with this first line; both raise ValueError."""


def take_request(buf: ReceiveBuffer) -> http.Request | None:
    """The next request's head; None: it is not complete. Raises BadHead."""
    return _take_usual(buf, _request_like) or _take_any(buf, http1.read_request_head)


def take_response(buf: ReceiveBuffer) -> http.Response | None:
    """The next answer's head; None: it is not complete. Raises BadHead."""
    return _take_usual(buf, _response_like) or _take_any(buf, http1.read_response_head)


def _take_usual[M: (http.Request, http.Response)](buf: ReceiveBuffer, like: Callable[[bytes], M]) -> M | None:
    """A head as nearly all are written, read in two steps; None: it is another, or not complete. Raises BadHead."""
    come = _come(buf)
    # Looked for first: else one that comes in a thousand pieces would be read a thousand times.
    end = come.find(_END, 0, LONGEST_HEAD_BYTES) + len(_END)
    head = _USUAL.fullmatch(come, 0, end)
    if head is None:
        return None
    fields = _FIELD.findall(come, *head.span("fields"))
    if len(fields) > MOST_FIELDS:
        return None
    line = head["line"]
    buf.maybe_extract_at_most(end)
    try:
        return _made(like(line), tuple(fields))
    except ValueError:
        raise BadHead(_NO_HTTP) from None


def _made[M: (http.Request, http.Response)](like: M, fields: tuple[tuple[bytes, bytes], ...]) -> M:
    message = twin(like)
    data = message.data = twin(like.data)
    data.headers = twin(data.headers)
    data.headers.fields = fields
    data.timestamp_start = time.time()  # noqa: TID251 - mitmproxy's own wall stamp
    return message


def _take_any[M](buf: ReceiveBuffer, read: Callable[[list[bytes]], M]) -> M | None:
    head = _take_lines(buf)
    if head is None:
        return None
    try:
        return read(head)
    except ValueError:
        raise BadHead(_NO_HTTP) from None


def _take_lines(buf: ReceiveBuffer) -> list[bytes] | None:
    """The lines of the next head; None: it is not complete. Raises BadHead beyond the bounds."""
    lines: list[bytearray] | None = []
    while lines == [] and buf:  # empty lines before a head are passed over
        lines = buf.maybe_extract_lines()
    size = len(buf) if lines is None else sum(map(len, lines or []))
    if size > LONGEST_HEAD_BYTES:
        raise BadHead(TOO_LONG)
    if len(lines or []) > MOST_FIELDS + 1:
        raise BadHead(TOO_MANY)
    return [bytes(line) for line in lines] if lines else None


def body_size(request: http.Request, response: http.Response | None = None) -> int | None:
    """As mitmproxy says it. Raises BadHead."""
    try:
        return expected_body_size(request, response)
    except ValueError:
        raise BadHead("it does not say how long the body is") from None


def check_fields(response: http.Response) -> None:
    """Raises BadHead: they are invalid."""
    try:
        validate(response)
    except ValueError:
        raise BadHead("it has invalid fields") from None


def expected_body_size(request: http.Request, response: http.Response | None = None) -> int | None:
    """What mitmproxy answers, in less time where the head says it in one of the usual ways. Raises ValueError."""
    said = _said_size((response or request).data)
    if said == _OTHERWISE or (response is not None and not _has_body(request, response.status_code)):
        return read.expected_http_body_size(request, response)
    return 0 if said == _UNSAID and response is None else said


def validate(message: http.Message) -> None:
    """Do what mitmproxy does, in less time for a head of names that have been valid before. Raises ValueError."""
    data = message.data
    names = [*map(itemgetter(0), data.headers.fields)]
    if _valid_names.issuperset(names) and _is_framed_validly(data):
        return
    validate_headers(message)
    if len(_valid_names) > _NAMES:
        _valid_names.clear()
    _valid_names.update([name for name in names if len(name) <= REMEMBERED_CHARS])


def _is_framed_validly(data: http.MessageData) -> bool:
    """Whether it is without a closer look."""
    said = _said_size(data)
    if said is not None:
        return said != _OTHERWISE
    status = getattr(data, "status_code", 200)
    return data.http_version == b"HTTP/1.1" and status >= 200 and status != 204


def is_framed(message: http.Message) -> bool:
    """Whether its head says where its body ends."""
    return "content-length" in message.headers or "transfer-encoding" in message.headers


def _said_size(data: http.MessageData) -> int | None:
    """How many bytes a body has; None: it comes in chunks. Or _UNSAID, or _OTHERWISE than usual."""
    plain = plain_headers(data.headers.fields)
    coding, length = plain.get("transfer-encoding"), plain.get("content-length")
    if coding is None:
        if length is None:
            return _UNSAID
        return int(length) if _LENGTH.fullmatch(length) else _OTHERWISE
    return None if coding == "chunked" and length is None else _OTHERWISE


def _has_body(request: http.Request, status: int) -> bool:
    return status >= 200 and status not in (204, 304) and request.data.method.upper() not in (b"HEAD", b"CONNECT")


def leave_open(request: http.Request, response: http.Response) -> bool:
    """Whether both connections certainly take another message after these two; if not, that takes a closer look."""
    asked, answered = request.data, response.data
    return (
        asked.http_version == answered.http_version == b"HTTP/1.1"
        and _has_body(request, answered.status_code)
        and "close" not in plain_headers(asked.headers.fields).get("connection", "")
        and "close" not in plain_headers(answered.headers.fields).get("connection", "")
        and _said_size(answered) not in (_UNSAID, _OTHERWISE)
    )


def with_field(response: http.Response, name: str, value: str) -> http.Response:
    """The same answer with one more field in its head, in place of any of this name, which is in lower case.

    `response` stays as it is.
    """
    head = twin(response)
    data = head.data = twin(response.data)
    fields = data.headers.fields
    if name in plain_headers(fields):
        fields = tuple([field for field in fields if field_names[field[0]] != name])
    data.headers = twin(data.headers)
    data.headers.fields = *fields, (name.encode(), value.encode())
    return head


def twin[One](one: One) -> One:
    """What `copy.copy` answers, in less time."""
    twin: One = object.__new__(type(one))
    vars(twin).update(vars(one))
    return twin


_valid_names = set[bytes]()
