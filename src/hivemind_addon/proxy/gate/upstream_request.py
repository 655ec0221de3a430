"""A request as it goes to an endpoint of the profile's own: another host, another key, and all else as it came.

The flow keeps the request of the client: only what is sent is another one, made for each attempt. So neither views nor
captures nor the journal ever have a key of ours.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from mitmproxy.net.http.url import hostport
from mitmproxy.proxy.mode_specs import ReverseMode
from msgspec import Raw

from hivemind_addon.formats.base.json_values import decoder
from hivemind_addon.formats.base.patterns import host_parts, normal_host
from hivemind_addon.formats.profile.load import model_group, model_of
from hivemind_addon.formats.wire.decoding import DecodeError, decode
from hivemind_addon.formats.wire.request import MAX_BODY_BYTES
from hivemind_addon.kernel.values.ticket import Endpoint, PoolKey
from hivemind_addon.proxy.gate.addresses import is_on_loopback
from hivemind_addon.proxy.host.flow_parts import destination
from hivemind_addon.proxy.host.port import Outgoing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mitmproxy import http

    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.formats.profile.upstreams import EqualUpstream, Keys, UpstreamKey
    from hivemind_addon.formats.wire.description import Description
    from hivemind_addon.proxy.gate.settings import Settings

_SIGNED = ("aws4-", "hmac ", "sharedkey ")
"""How `authorization` begins where it signs what is sent."""
_LOGIN = re.compile(r"bearer (sk-ant-oat|eyJ[\w-]*\.[\w-]+\.)", re.ASCII)
_OF_THE_CLIENT = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie")
"""Headers that are for nobody but the host that the client meant, whatever the profile calls credentials."""
_decode = decoder(dict[str, Raw])
_encode = msgspec.json.Encoder().encode


def upstreams_of(
    profile: Profile, told: Description, headers: Mapping[str, str], path: str
) -> dict[PoolKey, EqualUpstream]:
    """The pools that a request may go to, and their endpoints; none: it goes where it was sent, as it came.

    A signed request is never moved, nor one with the login of a subscription.
    """
    if not profile.upstreams or is_bound(headers, path):
        return {}
    model, kind = told.facts.model, told.kind
    return {_pool(profile, told.pool, one, model): one for one in profile.upstreams if one.takes(model, kind)}


def is_bound(headers: Mapping[str, str], path: str) -> bool:
    """Whether a request is signed for its host, or brings a login: it goes nowhere else."""
    value = headers.get("authorization", "")
    return is_signed(headers, path) or _LOGIN.match(value[:7].lower() + value[7:]) is not None


def is_signed(headers: Mapping[str, str], path: str) -> bool:
    """Whether a request is signed, so that nothing in it can be changed."""
    return "x-amz-signature=" in path.lower() or headers.get("authorization", "").lower().startswith(_SIGNED)


def endpoints_of(upstreams: Mapping[PoolKey, EqualUpstream]) -> tuple[Endpoint, ...]:
    """The same for the scheduler."""
    return tuple(Endpoint(pool, one.weight) for pool, one in upstreams.items())


def _pool(profile: Profile, pool: PoolKey, upstream: EqualUpstream, model: str) -> PoolKey:
    if upstream.is_own:
        return pool
    host = upstream.host if upstream.url else pool.host
    return PoolKey(host, upstream.name, model_group(profile, upstream.model(model)))


def address_of(flow: http.HTTPFlow) -> tuple[str, int]:
    """Where a request goes whose endpoint has no `url`: to the name by which its profile is found."""
    if isinstance(flow.client_conn.proxy_mode, ReverseMode):  # a client's SNI is the proxy's own name there
        return flow.request.host, flow.request.port
    host, port = destination(flow)
    return normal_host(host), port


def why_without_key(flow: http.HTTPFlow, profile: Profile, upstream: EqualUpstream, settings: Settings) -> str:
    """Why a request may not have an endpoint's key, for its client; empty: it may, or there is none.

    Clients that have no key of their own choose scheme, port and host of what they ask for.
    """
    if not upstream.key.is_given:
        return ""
    host, port = address = upstream.address or address_of(flow)
    is_tls = upstream.is_tls if upstream.url else flow.request.scheme == "https"
    usual_port = 443 if is_tls else 80
    asked = f"{'https' if is_tls else 'http'}://{host}:{port}"
    if not is_tls and (flow.server_conn.via or not is_on_loopback(host)):
        return f"{upstream.name}'s key goes by https only, not to {asked}; ask for https://{host}"
    is_told = (
        upstream.address is not None
        or isinstance(flow.client_conn.proxy_mode, ReverseMode)
        or (settings.upstream is not None and address == settings.upstream.address)
    )
    named = [f"{name}:{at or usual_port}" for name, at in map(host_parts, profile.hosts)]
    if not is_told and f"{host}:{port}" not in named:
        return f"{upstream.name}'s key goes to {', '.join(named)} only, not to {asked}; ask for one of them"
    if not flow.request.path.startswith("/"):
        return f"{upstream.name}'s key goes with a path that begins with / only; ask for one"
    return ""


def outgoing(
    request: http.Request,
    profile: Profile,
    upstream: EqualUpstream,
    keys: Keys,
    model: str,
    address: tuple[str, int] | None = None,
) -> Outgoing | None:
    """What is sent to an endpoint; None: the request as it came. `address`: where an endpoint is that has no `url`."""
    if upstream.is_own:
        return None
    sent = request.copy()
    if upstream.address is not None:
        sent.scheme = "https" if upstream.is_tls else "http"
    sent.host, sent.port = upstream.address or address or (request.host, request.port)
    # Whatever the client has put there: behind one address others may listen, under other names.
    sent.host_header = hostport(sent.scheme, f"[{sent.host}]" if ":" in sent.host else sent.host, sent.port)
    path, question, query = request.path.partition("?")
    for begins, instead in upstream.paths.items():
        if path.startswith(begins):
            path = instead + path[len(begins) :]
            break
    wanted = upstream.model(model)
    if wanted != model:
        if profile.model_paths and model_of(profile, request.path, ""):
            path = re.sub(rf"(?<=/){re.escape(model)}(?=[/:]|$)", lambda _: wanted, path, count=1, flags=re.IGNORECASE)
        _rename(sent, wanted)
    pairs = [one for one in query.split("&") if not one.startswith("key=")]
    sent.path = path + (question + "&".join(pairs) if pairs and question else "")
    _replace_key(sent, profile, upstream, keys.get((profile.name, upstream.name)))
    return Outgoing(sent)


def _replace_key(sent: http.Request, profile: Profile, upstream: EqualUpstream, key: UpstreamKey | None) -> None:
    """The client's credentials are for the host that it meant, and go to no other."""
    brought = next((name for name in profile.credential_headers if name in sent.headers), "")
    for name in (*_OF_THE_CLIENT, *profile.credential_headers, *profile.account_headers):
        if name in sent.headers:
            del sent.headers[name]
    if key is not None:
        name = upstream.header or brought or next(iter(profile.credential_headers), "authorization")
        sent.headers[name] = key.in_header(name)


def _rename(sent: http.Request, model: str) -> None:
    """Name another model in the body, where it names one; all else in it stays as it is."""
    body, encoding = sent.raw_content or b"", sent.headers.get("content-encoding", "")
    try:
        members = _decode(decode(body, encoding, MAX_BODY_BYTES) if encoding else body)
    except (DecodeError, msgspec.DecodeError):
        return
    if "model" not in members:
        return
    members["model"] = Raw(_encode(model))
    put_body(sent, _encode(members))


def put_body(request: http.Request, body: bytes) -> None:
    """Give it another body, as it is sent."""
    request.raw_content = body
    request.headers.pop("content-encoding", None)
    if "content-length" in request.headers:
        request.headers["content-length"] = str(len(body))
