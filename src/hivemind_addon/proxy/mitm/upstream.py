"""Where requests go that are sent straight to the proxy's own port, as clients do whose base URL names it.

To the provider that `hivemind_upstream` names; else by their path, to the host of the profile that knows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hivemind_addon.system.hosts import normal_host

if TYPE_CHECKING:
    from mitmproxy import http

    from hivemind_addon.proxy.profile.load import Profiles

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
        request.scheme, request.host, request.port, request.authority = self.scheme, self.host, self.port, ""
        request.path = self.path + request.path
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
