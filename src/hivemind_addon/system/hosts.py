"""Names of hosts, in the one spelling in which they are compared."""

import re
from functools import cache


@cache
def host_parts(pattern: str) -> tuple[str, int | None]:
    """`host` or `host:port`, in the spelling in which hosts are compared. ValueError when it is neither."""
    host, colon, port = pattern.rpartition(":")
    if not colon or pattern.endswith("]"):
        host, port = pattern, ""
    elif not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        msg = f"no port: {port!r}"
        raise ValueError(msg)
    name = normal_host(host)
    if not re.fullmatch(r"[\w.*-]+|[0-9a-f:.]+", name):
        msg = f"no host name: {host!r}"
        raise ValueError(msg)
    return name, int(port) if port else None


def normal_host(host: str) -> str:
    """The spelling in which hosts are compared: lower case, IDNA, no trailing dot, no brackets."""
    host = host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return host
