"""What a request says in plain: where it goes, its body, how long its client waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hivemind_addon.proxy.wire.decoding import DecodeError, decode
from hivemind_addon.proxy.wire.request import MAX_BODY_BYTES
from hivemind_addon.system.glob import glob_matches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mitmproxy import http

    from hivemind_addon.proxy.profile.model import Profile


def destination(flow: http.HTTPFlow) -> tuple[str, int]:
    """Host and port that the client means: by SNI, else CONNECT host, else authority; never a resolved address."""
    request = flow.request
    sni = flow.client_conn.sni if request.scheme == "https" else None
    return (sni or request.host), request.port


def plain_body(request: http.Request) -> bytes:
    """The body without its content coding; as it is where that cannot be undone, which the reader then says."""
    body, encoding = request.raw_content or b"", request.headers.get("content-encoding", "")
    try:
        return decode(body, encoding, MAX_BODY_BYTES) if encoding else body
    except DecodeError:
        return body


def patience_of(headers: Mapping[str, str], profile: Profile) -> float:
    """How long the client waits: what it announces, else what is known of its kind, else the profile's default."""
    known_s = known_patience(headers, profile)
    return profile.patience.default_s if known_s is None else known_s


def known_patience(headers: Mapping[str, str], profile: Profile) -> float | None:
    """How long the client waits: what it announces, else what the profile knows of its kind; None: neither."""
    patience = profile.patience
    for name in patience.headers:
        try:
            announced = float(headers.get(name, ""))
        except ValueError:
            continue
        if 0 < announced < 86_400:
            return announced
    client = headers.get("user-agent", "")
    return next((seconds for glob, seconds in patience.clients.items() if glob_matches(glob, client)), None)
