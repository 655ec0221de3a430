"""A proxy that the environment already names (a company's) becomes the upstream of ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_NAMES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
_PORTS = {"http": 80, "https": 443}


class UpstreamUnusable(Exception):
    """The environment's proxy is none that mitmproxy can go through; one line with the cure."""


@dataclass(frozen=True, slots=True)
class CompanyProxy:
    """An HTTP proxy to go through."""

    url: str
    """`http://host:port` or `https://host:port`, as mitmproxy's mode takes it."""
    auth: str
    """`user:password`, or empty."""

    @property
    def mode(self) -> str:
        """Mitmproxy's mode."""
        return f"upstream:{self.url}"

    @property
    def options(self) -> list[str]:
        """What else mitmproxy has to be told."""
        return ["--upstream-auth", self.auth] if self.auth else []


def upstream_of(environment: Mapping[str, str], own_port: int) -> CompanyProxy | None:
    """The proxy that the environment names, unless it is ours. Raises UpstreamUnusable."""
    name = next((name for name in _NAMES if environment.get(name)), None)
    if name is None:
        return None
    value = environment[name]
    url = urlsplit(value if "://" in value else f"http://{value}")
    try:
        port = url.port or _PORTS.get(url.scheme)
    except ValueError as error:
        raise UpstreamUnusable(f"{name}: {error}; write http://host:port, or unset it") from error
    host = url.hostname
    if host in ("localhost", "127.0.0.1", "::1") and port == own_port:
        return None
    if url.scheme not in _PORTS or not host:
        raise UpstreamUnusable(
            f"{name}: mitmproxy cannot go through a proxy of the kind {url.scheme!r}; "
            "name one with http:// or https://, or unset it"
        )
    address = f"[{host}]" if ":" in host else host
    auth = f"{unquote(url.username)}:{unquote(url.password or '')}" if url.username else ""
    return CompanyProxy(url=f"{url.scheme}://{address}:{port}", auth=auth)
