"""What a flow of mitmproxy's says in plain."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from hivemind_addon.proxy.wire.description import PlainRequest
from hivemind_addon.system.memo import REMEMBERED_CHARS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mitmproxy import http

_MOST_NAMES = 1024
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


def plain_headers(fields: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """A head's fields by lower-case name: mitmproxy's own look through all of them for each name that is asked."""
    if not fields:
        return {}
    raw_names, raw_values = zip(*fields, strict=True)
    names = list(map(_names.__getitem__, raw_names))
    values = list(map(bytes.decode, raw_values, repeat("utf-8"), repeat("surrogateescape")))
    plain = dict(zip(names, values, strict=True))
    if len(plain) == len(names):
        return plain
    plain.clear()
    for name, value in zip(names, values, strict=True):
        plain[name] = f"{plain[name]}, {value}" if name in plain else value
    return plain


class _Names(dict[bytes, str]):
    """Names of fields as they came → as they are asked for: all heads have the same few."""

    def __missing__(self, raw: bytes) -> str:
        name = raw.lower().decode("utf-8", "surrogateescape")
        if len(raw) <= REMEMBERED_CHARS:
            if len(self) >= _MOST_NAMES:
                self.clear()
            self[raw] = name
        return name


_names = _Names()
