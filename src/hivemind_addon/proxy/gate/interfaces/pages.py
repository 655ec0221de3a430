"""The proxy's own pages. The present, for people (`/`), programs (`/report.json`), Prometheus (`/metrics`) and
supervisors (`/health`); the past, for people (`/history`, `/request/ID`, `/fleets`, `/fleet/ID`).

The pages are at `http://hivemind.internal/` through the proxy, and on the proxy's port (`http://127.0.0.1:8080/`). All
other paths of the port are for a provider, as a client's base URL may name the proxy. In reverse mode the upstream owns
every path, and the pages need the Host `hivemind.internal`. A Host that does not name this proxy is refused: a site
whose name resolves to this machine must not read a model server.

Readers: clients on this machine and in the networks of `hivemind_allow_clients`; with mitmproxy's `proxyauth` or with
secrets of agents, only clients with a password or secret. `/health` needs none, and says less to clients elsewhere. A
browser must not give the pages to other sites: by a name that resolves to us (the Host is checked), by a script or a
frame (no CORS, Sec-Fetch-Site, a strict CSP). A link may open the document, which is empty and requests the data.
The pages change nothing; `steering_page.py` does, for pages with a token. Only these pages show fleets, whose folders
belong to their owner.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from mitmproxy import ctx, http
from mitmproxy.addons.proxyauth import parse_http_basic_auth
from mitmproxy.net.http.url import parse_authority
from mitmproxy.proxy.mode_specs import ReverseMode

from hivemind_addon import __version__
from hivemind_addon.formats.base.memo import by_text
from hivemind_addon.formats.base.patterns import normal_host
from hivemind_addon.proxy.api.report_source import FRESH_S, LEAST_SHARE
from hivemind_addon.proxy.gate.addresses import PAGE_HOST, is_loopback
from hivemind_addon.proxy.gate.interfaces.page_history import ChartSpan
from hivemind_addon.proxy.gate.interfaces.steering_page import PATHS as STEERING_PATHS
from hivemind_addon.proxy.page.document import ASSETS, STRICTEST_POLICY, make_document
from hivemind_addon.proxy.record.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from mitmproxy.connection import Client

    from hivemind_addon.proxy.api.report_source import ReportSource
    from hivemind_addon.proxy.gate.addresses import Upstream
    from hivemind_addon.proxy.gate.authentication import Authentication
    from hivemind_addon.proxy.gate.interfaces.page_history import Past
    from hivemind_addon.proxy.gate.interfaces.steering_page import PageSteering
    from hivemind_addon.proxy.host.port import TakesBody
    from hivemind_addon.proxy.record.metrics import Metrics
    from hivemind_addon.proxy.run.driven import ClusterMembership
    from hivemind_addon.proxy.run.driver import Driver
    from hivemind_addon.proxy.run.guard import Guard
    from hivemind_addon.proxy.system.clock import Clock

_LOCAL_NAMES = (".localhost", ".local", ".internal")
_OWN_NAMES = {"localhost", "127.0.0.1", "::1"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": STRICTEST_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_PATHS = ("/", "/report.json", "/metrics", "/health", "/history", "/fleets")
_BELOW = ("/page/", "/request/", "/fleet/")
_VIEW = re.compile(r"/|/history|/fleets|/request/[0-9a-f]{1,40}|/fleet/[\w-]{1,80}")
"""Paths that the document shows."""
_DATA = re.compile(
    r"/page/(?:history/(?P<span>day|month)|request/(?P<request>[0-9a-f]{1,40})|fleets|fleet/(?P<fleet>[\w-]{1,80}))\.json"
)
_NOT_THERE = (
    b"hivemind: here are /, /report.json, /metrics and /health, and model calls by their paths; "
    b"`hivemind run --upstream URL` says where all other paths go\n"
)
_NOT_FROM_THERE = (
    b"hivemind: only for clients on the proxy's own machine; hivemind_allow_clients=NETWORK lets others look\n"
)
_ANOTHER_NAME = b"hivemind: this proxy has another name; hivemind_reverse_hosts=NAME gives it this one\n"
_FOR_THE_OWNER = b'{"problem": "fleets are shown to their owner only: `hivemind open` opens a page that shows them"}'
_FAILING = b"hivemind: this page cannot be made just now; the log says why\n"
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"


class Pages:
    """Answers requests for the proxy itself."""

    def __init__(
        self,
        *,
        reports: ReportSource,
        metrics: Metrics,
        driver: Driver,
        membership: ClusterMembership | None,
        guard: Guard,
        authentication: Authentication,
        is_stopping: Callable[[], bool],
        is_configured: Callable[[str, int], bool],
        may_look: Callable[[str], bool],
        upstream_of: Callable[[http.Request], Upstream | None],
        steering: PageSteering,
        past: Past,
    ) -> None:
        """`is_configured`: whether a user gave a name, for this proxy or for a provider.

        `may_look`: whether a client at an address may see the pages.

        `upstream_of`: the upstream of a provider request that was sent straight to the proxy.
        """
        self._upstream_of = upstream_of
        self._steering = steering
        self._past = past
        self._driver = driver
        self._guard = guard
        self._authentication = authentication
        self._is_stopping = is_stopping
        self._is_configured = is_configured
        self._may_look = may_look
        self._began_at = driver.clock.monotonic()
        self._reports = reports
        self._membership = membership
        self._exposition = metrics.exposition
        self._metrics = _Fresh(self._expose, driver.clock)
        self._failing = False
        """Whether the last page could not be made; logged once."""

    def answer(
        self, request: http.Request, client: Client, destination: tuple[str, int] | None
    ) -> http.Response | TakesBody | None:
        """The answer to a request for the proxy itself, or a function from the body to the answer. Never raises.

        None: the request is for another host.
        """
        is_for_us = False
        try:
            if _goes_elsewhere(client, destination):
                return None  # nearly all requests: nothing else is checked
            asked = _authority(request)
            is_from_afar = self._is_from_afar(request, client, destination)
            is_for_us = _is_for_us(request, client, destination, asked) or (is_from_afar and self._is_our_name(*asked))
            may_lead_on = is_for_us or self._is_called_so(request, client, destination, asked)
            response = _refuse_sites(request) if may_lead_on else None
            if may_lead_on and response is None:
                upstream = self._leads_on(request, destination, asked)
                if upstream is not None:
                    upstream.receive(request)
                    return None
            if not is_for_us and is_from_afar and _is_page(_path(request)):
                return _make(421, _TEXT, _ANOTHER_NAME)
            if not is_for_us:
                return response or self._refuse_stranger(request, client, asked)
            is_straight = destination is None and not request.host and asked[0] in _OWN_NAMES
            made = response or self._admit(request, client) or self._page(request, client, is_straight=is_straight)
            self._failing = False
        except Exception as error:  # noqa: BLE001 - the guard at the edge
            if not self._failing:
                self._guard.trip("page", error)
            self._failing = True
            if not is_for_us:
                return None
            made = _make(503, _TEXT, _FAILING)
        return _dressed(made) if isinstance(made, http.Response) else partial(self._with_body, made)

    def _with_body(self, takes_body: TakesBody, body: bytes) -> http.Response:
        try:
            made = takes_body(body)
        except Exception as error:  # noqa: BLE001 - as above
            self._guard.trip("page", error)
            made = _make(503, _TEXT, _FAILING)
        return _dressed(made)

    def _refuse_stranger(self, request: http.Request, client: Client, asked: tuple[str, int]) -> http.Response | None:
        """The refusal of a reverse-mode request for a name that is not ours; None: the upstream gets the request."""
        mode = client.proxy_mode
        if not isinstance(mode, ReverseMode):
            return None
        host, port = asked
        if host == normal_host(mode.address[0]) or self._is_our_name(host, port):
            return None
        if not (request.host or request.host_header):
            return None
        return _make(421, _TEXT, _ANOTHER_NAME)

    def _is_called_so(
        self, request: http.Request, client: Client, destination: tuple[str, int] | None, asked: tuple[str, int]
    ) -> bool:
        """Whether a client sent a request straight to a forward proxy, by a name that a reverse-mode proxy accepts."""
        if destination is not None or request.method == "CONNECT" or isinstance(client.proxy_mode, ReverseMode):
            return False
        host, port = asked
        return port == client.sockname[1] and self._is_our_name(host, port)

    def _is_from_afar(self, request: http.Request, client: Client, destination: tuple[str, int] | None) -> bool:
        """Whether a client of an allowed network elsewhere sent a request straight to a forward proxy.

        The request may name another port than ours: a container's is published, a service's is mapped.
        """
        if destination is not None or request.host or request.method == "CONNECT":
            return False
        peer = client.peername[0]
        return not isinstance(client.proxy_mode, ReverseMode) and not is_loopback(peer) and self._may_look(peer)

    def _is_our_name(self, host: str, port: int) -> bool:
        return bool(host) and (_is_local(host) or self._is_configured(host, port))

    def _leads_on(
        self, request: http.Request, destination: tuple[str, int] | None, asked: tuple[str, int]
    ) -> Upstream | None:
        """The provider of a request whose client's base URL names the proxy; None: the request is for a page."""
        if destination is not None or _is_page(_path(request)) or asked[0] == PAGE_HOST:
            return None
        return self._upstream_of(request)

    def _admit(self, request: http.Request, client: Client) -> http.Response | None:
        """The refusal for a client that may not look; None: admitted."""
        if not self._may_look(client.peername[0]):
            return _make(403, _TEXT, _NOT_FROM_THERE)
        if not _is_page(_path(request)):
            return _make(404, _TEXT, _NOT_THERE)
        if request.method not in ("GET", "HEAD") and request.path not in STEERING_PATHS:
            return _make(405, _TEXT, b"hivemind: these pages are read-only\n", {"Allow": "GET, HEAD"})
        if _path(request) != "/health":
            if self._authentication.is_on:
                is_proxied = _is_proxied(request, client)
                return self._authentication.refuse_reader(request, client, is_proxied=is_proxied)
            return _demand_password(request, client)
        return None

    def _expose(self) -> bytes:
        now, membership = self._driver.clock.monotonic(), self._membership
        return self._exposition(
            lambda: self._driver.snapshot(most_queued=0), cluster=membership.view(now) if membership else None
        )

    def _page(self, request: http.Request, client: Client, *, is_straight: bool) -> http.Response | TakesBody:
        match _path(request):
            case path if path in STEERING_PATHS:
                return self._steering.answer(request, client, is_straight=is_straight)
            case path if _VIEW.fullmatch(path):
                document, policy = make_document()
                return _make(200, "text/html; charset=utf-8", document, {"Content-Security-Policy": policy})
            case path if asset := ASSETS.get(path.removeprefix("/page/")):
                return _make(200, *asset)
            case path if asked := _DATA.fullmatch(path):
                is_steering = self._steering.user_of(request, client, is_straight=is_straight) is not None
                return self._past_page(asked, is_steering=is_steering)
            case "/report.json":
                return _make(200, _JSON, self._reports.at_once())
            case "/metrics":
                return _make(200, CONTENT_TYPE, self._metrics())
            case "/health":
                return self._health(is_near=is_loopback(client.peername[0]))
        return _make(404, _TEXT, _NOT_THERE)

    def _past_page(self, asked: re.Match[str], *, is_steering: bool) -> http.Response:
        """The page with data of the past; 202 while the data is being read: ask again."""
        if asked["span"]:
            told = self._past.charts(ChartSpan(asked["span"]))
        elif asked["request"]:
            told = self._past.story(asked["request"])
        elif not is_steering:
            return _make(401, _JSON, _FOR_THE_OWNER)
        else:
            told = self._past.fleet(asked["fleet"]) if asked["fleet"] else self._past.fleets()
        return _make(202, _JSON, b"null") if told is None else _make(200, _JSON, told)

    def _health(self, *, is_near: bool) -> http.Response:
        """Healthy: the proxy takes new requests, and a turn of the scheduler just now raised nothing.

        The state of providers does not count: nobody should restart the proxy for an outage of theirs. Only clients on
        this machine learn the owner of the proxy.
        """
        status = "stopping" if self._is_stopping() else "ok"
        try:
            self._driver.tick()
        except Exception:  # noqa: BLE001 - callers that wait for the scheduler get and log the error
            status = "failing"
        told: dict[str, object] = {"status": status, "hivemind": True}
        if is_near:
            told |= {
                "pid": os.getpid(),
                "user": _user(),
                "home": str(Path("~").expanduser()),
                "machine": socket.gethostname(),
            }
        told |= {
            "version": __version__,
            "up_s": round(self._driver.clock.monotonic() - self._began_at, 1),
            "guard_trips": self._guard.trips,
        }
        return _make(200 if status == "ok" else 503, _JSON, msgspec.json.encode(told))


def _user() -> str:
    """The user that runs the proxy; empty: a user without a name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


class _Fresh:
    """Keeps a result for a second, and longer if making the result takes long."""

    def __init__(self, make: Callable[[], bytes], clock: Clock) -> None:
        self._make = make
        self._clock = clock
        self._made = b""
        self._good_until = float("-inf")

    def __call__(self) -> bytes:
        began_at = self._clock.monotonic()
        if began_at >= self._good_until:
            self._made = self._make()
            now = self._clock.monotonic()
            self._good_until = now + max(FRESH_S, LEAST_SHARE * (now - began_at))
        return self._made


@by_text
def _is_local(host: str) -> bool:
    """Whether a host is an address or a name that no public server has, so nobody elsewhere can point the name here."""
    try:
        ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(_LOCAL_NAMES)
    return True


def _refuse_sites(request: http.Request) -> http.Response | None:
    """The refusal for a page of another site that sends requests through the reader's browser; None: allowed.

    A link may open the document in a new tab: `hivemind open` opens the document from a file, which is another site.
    """
    site = request.headers.get("sec-fetch-site", "none")
    if (
        request.method == "GET"
        and request.headers.get("sec-fetch-mode") == "navigate"
        and request.headers.get("sec-fetch-dest") == "document"
        and _VIEW.fullmatch(_path(request))
    ):
        return None
    if site == "cross-site" or (site == "same-site" and request.headers.get("sec-fetch-mode") != "navigate"):
        return _make(403, _TEXT, b"hivemind: not for other sites\n")
    return None


def _goes_elsewhere(client: Client, destination: tuple[str, int] | None) -> bool:
    """Whether a request came through a tunnel to another host."""
    return (
        destination is not None
        and normal_host(destination[0]) != PAGE_HOST
        and not isinstance(client.proxy_mode, ReverseMode)
    )


def _is_for_us(
    request: http.Request, client: Client, destination: tuple[str, int] | None, asked: tuple[str, int]
) -> bool:
    if request.method == "CONNECT":
        return False
    host, port = asked
    if destination is not None and not isinstance(client.proxy_mode, ReverseMode):
        return True  # a tunnel to us
    if host == PAGE_HOST:
        return True
    return destination is None and host in _OWN_NAMES and port == client.sockname[1]


def _authority(request: http.Request) -> tuple[str, int]:
    """The host and port that the client means: from the URL if complete, else from the Host header."""
    return (normal_host(request.host), request.port) if request.host else _read_authority(request.host_header or "")


@by_text
def _read_authority(text: str) -> tuple[str, int]:
    try:
        host, port = parse_authority(text, check=True)
    except ValueError:
        return "", 0
    return normal_host(host), port or 80


def _is_page(path: str) -> bool:
    return path in _PATHS or path.startswith(_BELOW)


def _dressed(response: http.Response) -> http.Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _path(request: http.Request) -> str:
    return request.path.partition("?")[0]


def _is_proxied(request: http.Request, client: Client) -> bool:
    return bool(request.host) and not isinstance(client.proxy_mode, ReverseMode)


def _demand_password(request: http.Request, client: Client) -> http.Response | None:
    """With `proxyauth`, pages need a password like all other requests. None: the password is right, or not needed."""
    proxyauth = ctx.master.addons.get("proxyauth")
    if proxyauth is None or proxyauth.validator is None or client in proxyauth.authenticated:
        return None
    is_proxied = _is_proxied(request, client)
    said = request.headers.get("proxy-authorization" if is_proxied else "authorization", "")
    try:
        _, user, password = parse_http_basic_auth(said)
    except ValueError:
        user = password = ""
    if (user or password) and proxyauth.validator(user, password):
        # As mitmproxy does after a CONNECT: a password check may be slow on purpose.
        proxyauth.authenticated[client] = user, password
        return None
    demand = {"Proxy-Authenticate" if is_proxied else "WWW-Authenticate": 'Basic realm="hivemind"'}
    return _make(407 if is_proxied else 401, _TEXT, b"hivemind: the proxy's user and password, please\n", demand)


def _make(status: int, content_type: str, content: bytes, headers: dict[str, str] | None = None) -> http.Response:
    return http.Response.make(status, content, {"Content-Type": content_type} | (headers or {}))
