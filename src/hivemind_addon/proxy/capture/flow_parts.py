"""What a flow of mitmproxy's says in plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hivemind_addon.proxy.wire.description import PlainRequest
from hivemind_addon.system.memo import REMEMBERED_CHARS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mitmproxy import http

_NAMES = 1024
"""So many names of fields are remembered."""


def destination(flow: http.HTTPFlow) -> tuple[str, int]:
    """Host and port that the client means: by SNI, else CONNECT host, else authority; never a resolved address."""
    request = flow.request
    sni = flow.client_conn.sni if request.scheme == "https" else None
    return (sni or request.host), request.port


def plain_request(flow: http.HTTPFlow) -> PlainRequest:
    """The flow's request."""
    request, (host, port) = flow.request, destination(flow)
    headers = plain_headers(request.headers.fields)
    return PlainRequest(request.scheme, host, port, request.path, headers, request.raw_content or b"")


def peer_of(flow: http.HTTPFlow) -> str:
    """The client's address; empty: it is not known."""
    peername = flow.client_conn.peername
    return f"{peername[0]}:{peername[1]}" if peername else ""


def plain_headers(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """A head's fields by lower-case name: mitmproxy's own look through all of them for each name that is asked."""
    plain: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name = _names.get(raw_name) or _plain_name(raw_name)
        value = raw_value.decode("utf-8", "surrogateescape")
        plain[name] = f"{plain[name]}, {value}" if name in plain else value
    return plain


_names: dict[bytes, str] = {}
"""Names of fields as they came → as they are asked for: all heads have the same few."""


def _plain_name(raw: bytes) -> str:
    name = raw.lower().decode("utf-8", "surrogateescape")
    if len(raw) <= REMEMBERED_CHARS:
        if len(_names) >= _NAMES:
            _names.clear()
        _names[raw] = name
    return name
