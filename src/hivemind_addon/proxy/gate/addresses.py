"""Addresses that mean something to this process: where it listens, what is on this machine, where providers are.

What listens in this process is not to be reached through the proxy, under whatever name; and what else listens on this
machine's loopback not by clients elsewhere. mitmweb's page can change every request, and only its token protects it;
the proxy's own ports would be a loop. mitmproxy resolves names when it connects, so an address is looked at twice: as
it was asked for, which gives the client a clear answer, and as it was reached, before a byte goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mitmproxy import ctx

from hivemind_addon.formats.base.patterns import normal_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mitmproxy import http
    from mitmproxy.addons.proxyserver import Proxyserver
    from mitmproxy.proxy.server_hooks import ServerConnectionHookData

    from hivemind_addon.formats.profile.load import Profiles

PAGE_HOST = "hivemind.internal"
"""The name under which the proxy shows its own pages; nobody resolves it."""
_LOOPBACK = {"localhost": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class OwnAddresses:
    """Where this process listens."""

    listens: tuple[tuple[str, int], ...]
    """Host and port; an empty host is every interface."""

    def are_asked(self, address: Sequence[object]) -> bool:
        """Whether an address names one of them, as far as that shows before its name is resolved."""
        return self._has(_ip(str(address[0])), address[1], on_this_machine=False)

    def are_reached(self, peername: Sequence[object], sockname: Sequence[object] | None) -> bool:
        """Whether a connection has come to one of them. From this machine to itself both ends have one address."""
        there = _ip(str(peername[0]))
        here = _ip(str(sockname[0])) if sockname else None
        return self._has(there, peername[1], on_this_machine=there is not None and there == here)

    def _has(self, ip: IPv4Address | IPv6Address | None, port: object, *, on_this_machine: bool) -> bool:
        if ip is None:
            return False
        on_this_machine = on_this_machine or ip.is_loopback or ip.is_unspecified
        for host, own_port in self.listens:
            own = _ip(host)
            everywhere = own is None or own.is_unspecified
            if port == own_port and (on_this_machine if everywhere else own == ip or ip.is_unspecified):
                return True
        return False


def listens() -> list[tuple[str, int]]:
    """Where the proxy listens."""
    return [(str(address[0]), int(address[1])) for address in ctx.master.addons.get("proxyserver").listen_addrs()]


def own_addresses() -> OwnAddresses:
    """Everything that listens in this process."""
    web = ((ctx.options.web_host, ctx.options.web_port),) if is_mitmweb() else ()
    return OwnAddresses((*listens(), *web))


def web_page() -> str:
    """Where mitmweb is, without its token, which stays with it; empty: this is not mitmweb."""
    return f"http://{ctx.options.web_host}:{ctx.options.web_port}/" if is_mitmweb() else ""


def is_mitmweb() -> bool:
    """Whether this process has mitmweb's page."""
    return ctx.master.addons.get("webauth") is not None


def is_on_loopback(host: str) -> bool:
    """Whether an address leads to this machine alone; False for a name, which is looked at when it is resolved."""
    ip = _ip(host)
    return ip is not None and (ip.is_loopback or ip.is_unspecified)


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a text is; None: it is a name."""
    try:
        address = ip_address(_LOOPBACK.get(host.lower().rstrip("."), host).strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def hang_up(proxyserver: Proxyserver, data: ServerConnectionHookData, why: str) -> None:
    """Close a connection that has just been opened, before anything is written to it."""
    data.server.error = why
    handler = proxyserver.connections.get(data.client.id)
    io = handler.transports.get(data.server) if handler else None
    if io is not None and io.writer is not None:
        io.writer.close()


def is_loopback(host: str) -> bool:
    """Whether a listen or peer address is this machine's own."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


Network = IPv4Network | IPv6Network
_MAPPED = IPv6Network("::ffff:0:0/96")
"""IPv4 addresses as IPv6 ones."""


def parse_networks(text: str) -> tuple[Network, ...]:
    """`10.0.0.0/8,192.168.1.7`. ValueError: one of them is no network; its text says which, and the cure."""
    return tuple(_network(part.strip()) for part in text.split(",") if part.strip())


def _network(text: str) -> Network:
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is no network; write 10.0.0.0/8, fd00::/8 or one address") from None
    if str(network.network_address) != str(ip_address(text.partition("/")[0])):
        raise ValueError(f"{text!r} names an address and a network; write {network}, or {text.partition('/')[0]}")
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network


def is_in(networks: Sequence[Network], host: str) -> bool:
    """Whether one of the networks has an address. An IPv4 address counts as one, however it is written."""
    address = _ip(host)
    return address is not None and any(address in network for network in networks)


_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Upstream:
    """A provider's address."""

    scheme: str
    host: str
    port: int
    path: str = ""
    """What comes before the path of a request; without a slash at its end."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port

    def receive(self, request: http.Request) -> None:
        """Let a request go there."""
        data = request.data  # else each of these would write the Host header anew
        data.scheme, data.host, data.port, data.authority = self.scheme.encode(), self.host, self.port, b""
        data.path = self.path.encode() + data.path
        name = f"[{self.host}]" if ":" in self.host else self.host
        request.host_header = name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"


def parse_upstream(url: str) -> Upstream:
    """`http://host:port/path`, or https. ValueError: it is none."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError(url)
    return Upstream(
        parts.scheme, normal_host(parts.hostname), parts.port or _PORTS[parts.scheme], parts.path.rstrip("/")
    )


def upstream_by_path(profiles: Profiles, path: str) -> Upstream | None:
    """The host of a profile whose model calls have this path, or one above it; None: no profile knows it."""
    address = profiles.host_for_path(path)
    if address is None:
        return None
    host, port, is_local = address
    scheme = "http" if is_local else "https"
    return Upstream(scheme, host, port or _PORTS[scheme])
