"""What a flow of mitmproxy's says in plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hivemind_addon.proxy.wire.description import PlainRequest, plain_headers

if TYPE_CHECKING:
    from mitmproxy import http


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
