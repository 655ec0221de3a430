"""What a flow of mitmproxy's says in plain."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING

from hivemind_addon.formats.base.memo import REMEMBERED_CHARS
from hivemind_addon.formats.wire.description import PlainRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mitmproxy import http

_NAMES = 1024
"""So many names of fields are remembered."""
_HEADS = 128
"""So many heads: each is asked some twenty times, and soon no more."""


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


def plain_headers(fields: Sequence[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """A head's fields by lower-case name; of a tuple, which nobody can change, worked out once."""
    try:
        return _heads[id(fields)][1]
    except KeyError:
        plain = _plain(fields)
    if type(fields) is tuple:
        if len(_heads) >= _HEADS:
            _heads.clear()
        _heads[id(fields)] = fields, plain  # with the tuple itself: as long as it lives no other one has its id
    return plain


def _plain(fields: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    names, values = zip(*fields, strict=True) if fields else ((), ())
    pairs = list(zip(map(field_names.__getitem__, names), map(_decoded, values), strict=True))
    plain = dict(pairs)
    if len(plain) < len(pairs):  # some come more than once
        plain = {}
        for name, value in pairs:
            plain[name] = f"{plain[name]}, {value}" if name in plain else value
    return plain


class FieldNames(dict[str | bytes, str]):
    """Names of fields, as they come or are asked for → in lower case: all heads have the same few."""

    def __missing__(self, name: str | bytes) -> str:
        raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
        plain = raw.lower().decode("utf-8", "surrogateescape")
        if len(name) <= REMEMBERED_CHARS:
            if len(self) >= _NAMES:
                self.clear()
            self[name] = plain
        return plain


_decoded = methodcaller("decode", "utf-8", "surrogateescape")
field_names = FieldNames()
_heads: dict[int, tuple[object, Mapping[str, str]]] = {}
"""The last ones."""
