"""What listens in this process is not to be reached through the proxy, under whatever name; and what else listens on
this machine's loopback not by clients elsewhere.

mitmweb's page can change every request, and only its token protects it; the proxy's own ports would be a loop.
mitmproxy resolves names when it connects, so an address is looked at twice: as it was asked for, which gives the
client a clear answer, and as it was reached, before a byte goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mitmproxy.addons.proxyserver import Proxyserver
    from mitmproxy.proxy.server_hooks import ServerConnectionHookData

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
