"""Heads of HTTP/1: read with bounds, checked and changed.

What is said of a bad one never quotes it: a provider may echo a key in it, and the words go far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mitmproxy.net.http import http1
from mitmproxy.net.http.validate import validate_headers

from hivemind_addon.proxy.host.flow_parts import field_names, plain_headers

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
_NO_HTTP = "it is no HTTP/1"


class BadHead(ValueError):
    """A head that is no HTTP or beyond the bounds, in words that quote nothing of it."""


def take_request(buf: ReceiveBuffer) -> http.Request | None:
    """The next request's head; None: it is not complete. Raises BadHead."""
    return _take(buf, http1.read_request_head)


def take_response(buf: ReceiveBuffer) -> http.Response | None:
    """The next answer's head; None: it is not complete. Raises BadHead."""
    return _take(buf, http1.read_response_head)


def _take[M](buf: ReceiveBuffer, read: Callable[[list[bytes]], M]) -> M | None:
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
        return http1.expected_http_body_size(request, response)
    except ValueError:
        raise BadHead("it does not say how long the body is") from None


def check_fields(response: http.Response) -> None:
    """Raises BadHead: they are invalid."""
    try:
        validate_headers(response)
    except ValueError:
        raise BadHead("it has invalid fields") from None


def is_framed(message: http.Message) -> bool:
    """Whether its head says where its body ends."""
    return "content-length" in message.headers or "transfer-encoding" in message.headers


def leave_open(request: http.Request, response: http.Response) -> bool:
    """Whether their connection takes another message after these two, which have bodies of known length."""
    return (
        request.http_version == response.http_version == "HTTP/1.1"
        and not http1.connection_close(request.http_version, request.headers)
        and not http1.connection_close(response.http_version, response.headers)
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
