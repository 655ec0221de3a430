"""Which requests and connections are ours, by the settings of the moment. Asking changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mitmproxy.proxy.mode_specs import ReverseMode

from hivemind_addon.formats.base.memo import REMEMBERED_CHARS
from hivemind_addon.formats.base.patterns import normal_host
from hivemind_addon.formats.profile.format import Wording
from hivemind_addon.formats.profile.load import format_for, is_call
from hivemind_addon.formats.profile.model import WebSocketUse
from hivemind_addon.formats.profile.unclaimed_calls import is_shaped_like_a_call
from hivemind_addon.formats.wire.dialect import dialect_of
from hivemind_addon.proxy.gate.addresses import PAGE_HOST, is_loopback, is_on_loopback, upstream_by_path
from hivemind_addon.proxy.gate.refusal import make_upgrade_refusal
from hivemind_addon.proxy.host.flow_parts import destination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mitmproxy import http
    from mitmproxy.connection import Client
    from mitmproxy.proxy.context import Context

    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.proxy.gate.addresses import Upstream
    from hivemind_addon.proxy.gate.settings import LiveSettings, Settings

_MOST_KNOWN = 1024
BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
KEPT_BODY_BYTES = 1024 * 1024
"""A plain call's body of at most so much is kept, so that it can be sent again; a longer one passes as it comes."""


class Claims:
    """Asked of a request once by its head, and once more at the gate: until then other addons may change it."""

    def __init__(self, settings: LiveSettings) -> None:
        self._settings = settings
        self._known: dict[tuple[object, ...], Profile | None] = {}
        """What `profile_for` answered, by all that it depends on, as it came."""
        self._known_by = settings.current
        self._has_plain = _has_plain(settings.current)
        """Whether any profile is of a service that is no model."""

    def profile_for(self, flow: http.HTTPFlow) -> Profile | None:
        """The profile of a request that is a model call of ours; None: it passes by."""
        settings, client, raw = self._settings.current, flow.client_conn, flow.request.data
        if settings is not self._known_by or len(self._known) >= _MOST_KNOWN:
            self._begin_anew(settings)
        asked = (raw.host, raw.port, client.sni, raw.scheme, raw.method, raw.path, type(client.proxy_mode))
        if asked in self._known:
            return self._known[asked]
        profile = self.profile_of(flow)
        if profile is not None and not is_call(profile, flow.request.method, flow.request.path):
            profile = None
        if len(raw.path) <= REMEMBERED_CHARS:
            self._known[asked] = profile
        return profile

    def _begin_anew(self, settings: Settings) -> None:
        self._known_by = settings
        self._known.clear()
        self._has_plain = _has_plain(settings)

    def passes_body(self, flow: http.HTTPFlow) -> bool:
        """Whether a scheduled request's body goes on as it comes: of a plain call, where it is long or endless."""
        if self._settings.current is not self._known_by:
            self._begin_anew(self._settings.current)
        if not self._has_plain:
            return False
        profile = self.profile_for(flow)
        if profile is None or not profile.is_plain:
            return False
        headers = flow.request.headers
        length = headers.get("content-length", "")
        if length.isdecimal():
            return int(length) > KEPT_BODY_BYTES
        # HTTP/2 needs to say neither; a body that is none is at its end with its head.
        return "transfer-encoding" in headers or flow.request.method not in BODILESS

    def upgrade_refusal(self, flow: http.HTTPFlow) -> http.Response | None:
        """What a WebSocket upgrade gets where its profile wants plain requests; None: it passes by."""
        request = flow.request
        if request.method == "POST" or request.headers.get("upgrade", "").lower() != "websocket":
            return None
        profile = self.profile_of(flow)
        if profile is None or not is_call(profile, "POST", request.path):
            return None
        is_scheduled = profile.websocket is WebSocketUse.TURNS and _has_turns(profile, request.path)
        if profile.websocket is WebSocketUse.TUNNEL or is_scheduled:
            return None
        return make_upgrade_refusal(dialect_of(format_for(profile, request.path)))

    def is_loose_socket(self, flow: http.HTTPFlow) -> bool:
        """Whether a request opens a WebSocket for model calls that nobody schedules."""
        request = flow.request
        return (
            request.method == "GET"
            and request.headers.get("upgrade", "").lower() == "websocket"
            and is_shaped_like_a_call("POST", request.path.partition("?")[0])
            and self.profile_of_turns(flow) is None
        )

    def profile_of_turns(self, flow: http.HTTPFlow) -> Profile | None:
        """The profile of a WebSocket whose turns are scheduled; None: it is a tunnel."""
        profile, path = self.profile_of(flow), flow.request.path
        if profile is None or profile.websocket is not WebSocketUse.TURNS or not is_call(profile, "POST", path):
            return None
        return profile if _has_turns(profile, path) else None

    def profile_of(self, flow: http.HTTPFlow) -> Profile | None:
        """The profile of the host that a request goes to; None: no profile names it."""
        settings, path = self._settings.current, flow.request.path
        address = destination(flow)
        profile = settings.profiles.match_host(*address)
        if isinstance(flow.client_conn.proxy_mode, ReverseMode):
            if settings.reverse_profile:
                return settings.profiles.by_name[settings.reverse_profile]
            return profile or settings.profiles.for_path(path)
        if profile is None and settings.upstream is not None and address == settings.upstream.address:
            return settings.profiles.for_path(path)
        return profile

    def upstream_of(self, request: http.Request) -> Upstream | None:
        """Where a request goes that was sent straight to the proxy's own port; None: nobody knows."""
        settings = self._settings.current
        return settings.upstream or upstream_by_path(settings.profiles, request.path)

    def foreign_host(self, context: Context, sni: str | None) -> str | None:
        """The host of no profile that a client connection goes to: it is tunnelled, never intercepted. None: ours."""
        if isinstance(context.client.proxy_mode, ReverseMode):
            return None
        if context.server.address is None:  # it goes nowhere yet: TLS to the proxy itself, of an https:// proxy URL
            return None
        host, port = context.server.address
        if normal_host(host) == PAGE_HOST:
            return None
        name = sni or host
        return None if self._settings.current.profiles.match_host(name, port) is not None else normal_host(name)

    def may_reach(self, client: Client, asked: tuple[str, int], reached: Sequence[object] | None = None) -> bool:
        """Whether a client may reach an address: this machine's loopback is not for clients elsewhere.

        `reached`: the address that a name has led to; None: that is not known yet.
        """
        there, port = str((reached or asked)[0]), asked[1]
        if is_loopback(client.peername[0]) or not is_on_loopback(there):
            return True
        settings = self._settings.current
        told = (getattr(client.proxy_mode, "address", None), settings.upstream and settings.upstream.address)
        if port in settings.lan_ports or asked in told:
            return True  # the latter: where the proxy itself was told to go
        if any(one.address == asked for profile in settings.profiles.with_upstreams() for one in profile.upstreams):
            return True
        return any(settings.profiles.match_host(host, port) for host in (asked[0], there))


def _has_turns(profile: Profile, path: str) -> bool:
    """Whether the format of a path has a WebSocket mode, and all goes to one endpoint: no connection moves."""
    return format_for(profile, path).wording is Wording.RESPONSES and not profile.upstreams


def _has_plain(settings: Settings) -> bool:
    return any(claim.is_plain for claim in settings.profiles.claims.values())
