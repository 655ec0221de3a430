"""Who listens on a port that we do not serve: a proxy of another home, user or container, or a foreign program."""

import errno
import socket
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from hivemind_addon.tools.launch.claim import is_supervised

_PATIENCE_S = 2.0
_MOST_BYTES = 4096
_PAGE_HOST = "hivemind.internal"


@dataclass(frozen=True, slots=True)
class PortHolder:
    """Something that listens on a port."""

    port: int
    who: str
    is_proxy: bool

    @property
    def cure(self) -> str:
        """What to do instead, for people."""
        free = free_port(self.port)
        other = f"choose another port: `-p {free}`" if free else "choose another port with -p"
        return f"go through it by its address, or {other}" if self.is_proxy else other

    def __str__(self) -> str:
        return f"port {self.port} is taken by {self.who}; {self.cure}"


def find_neighbour(port: int, host: str = "127.0.0.1") -> PortHolder | None:
    """Who listens there; None: nobody does. Of a proxy of ours that is not to be found by its socket, whose it is."""
    if not is_taken(port, host):
        return None
    health = _ask(port)
    if health is None:
        return PortHolder(port, "a program that is no proxy of hivemind", is_proxy=False)
    if "pid" not in health:  # it takes us for a client from elsewhere, as behind a container's published port
        return PortHolder(port, "a hivemind proxy in a container or on another machine", is_proxy=True)
    here = socket.gethostname()
    user, home, machine = (health.get(name) or "" for name in ("user", "home", "machine"))
    whose = [f"user {user}" if user else "", f"home {home}" if home else ""]
    whose += [f"container or machine {machine}" if machine not in ("", here) else ""]
    named = ", ".join(filter(None, whose)) or "another user"
    return PortHolder(port, f"the hivemind proxy of {named} (process {health['pid']})", is_proxy=True)


def find_stranger(port: int) -> PortHolder | None:
    """The same, but of a port whose supervisor is this user's own: that one's proxy may be starting just now."""
    return None if is_supervised(port) else find_neighbour(port)


def is_taken(port: int, host: str = "127.0.0.1") -> bool:
    """Whether nobody else can listen there. A port that fails for another reason is left to the one who listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as asyncio's servers do
        try:
            attempt.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def free_port(near: int) -> int | None:
    """The next free one; None: there is none near."""
    return next((port for port in range(near + 1, min(near + 100, 65536)) if not is_taken(port)), None)


def _ask(port: int) -> dict[str, Any] | None:
    """What `/health` tells of a proxy of ours; None: it is none."""
    import json  # noqa: PLC0415 - as is the next, for few
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - it loads ssl

    with (
        closing(HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)) as connection,
        suppress(OSError, HTTPException, ValueError),
    ):
        # By the name that is ours in every mode: in reverse mode all other paths are the upstream's.
        connection.request("GET", "/health", headers={"Host": _PAGE_HOST})
        told = json.loads(connection.getresponse().read(_MOST_BYTES))
        if isinstance(told, dict) and "hivemind" in told:
            return told
    return None
