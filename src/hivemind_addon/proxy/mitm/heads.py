"""Heads of HTTP/1: read with bounds, checked and changed.

What is said of a bad one never quotes it: a provider may echo a key in it, and the words go far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mitmproxy.net.http import http1
from mitmproxy.net.http.validate import validate_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from h11._receivebuffer import ReceiveBuffer
    from mitmproxy import http

LONGEST_HEAD_BYTES = 64 * 1024
MOST_FIELDS = 256
BAD_HEAD = "bad head: "
"""How our words for a head begin that is no HTTP, or too long."""
TOO_LONG = f"it is longer than {LONGEST_HEAD_BYTES // 1024} KB"
TOO_MANY = f"it has more than {MOST_FIELDS} fields"


class BadHead(ValueError):
    """A head that is no HTTP or beyond the bounds, in words that quote nothing of it."""


def take_request(buf: ReceiveBuffer) -> http.Request | None:
    """The next request's head; None: it is not complete. Raises BadHead."""
    head = _take_lines(buf)
    return None if head is None else _parsed(http1.read_request_head, head)


def take_response(buf: ReceiveBuffer) -> http.Response | None:
    """The next answer's head; None: it is not complete. Raises BadHead."""
    head = _take_lines(buf)
    return None if head is None else _parsed(http1.read_response_head, head)


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


def _parsed[M](read: Callable[[list[bytes]], M], head: list[bytes]) -> M:
    try:
        return read(head)
    except ValueError:
        raise BadHead("it is no HTTP/1") from None


def body_size(request: http.Request, response: http.Response | None = None) -> int | None:
    """As mitmproxy says it. Raises BadHead."""
    try:
        return http1.expected_http_body_size(request, response)
    except ValueError:
        raise BadHead("it does not say how long the body is") from None


def check_fields(response: http.Response) -> None:
    """Raises BadHead: they are invalid."""
    try:
        validate_headers(response)
    except ValueError:
        raise BadHead("it has invalid fields") from None


def with_field(response: http.Response, name: str, value: str) -> http.Response:
    """The same answer with one more field in its head, in place of any of this name; `response` stays as it is."""
    head, wanted = _twin(response), name.encode()
    data = head.data = _twin(response.data)
    fields = [field for field in data.headers.fields if field[0].lower() != wanted]
    data.headers = _twin(data.headers)
    data.headers.fields = (*fields, (wanted, value.encode()))
    return head


def _twin[One](one: One) -> One:
    """What `copy.copy` answers, in less time."""
    twin: One = object.__new__(type(one))
    vars(twin).update(vars(one))
    return twin
