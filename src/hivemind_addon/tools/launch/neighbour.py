"""Who listens on a port that we do not serve: a proxy of another home, user or container, or a foreign program."""

import errno
import os
import socket
from contextlib import closing, suppress
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from hivemind_addon.tools.launch.claim import is_supervised

_PATIENCE_S = 2.0
_MOST_BYTES = 4096
_PAGE_HOST = "hivemind.internal"


class _Health(Struct):
    """Of what `/health` tells, what says whose it is."""

    hivemind: bool
    pid: int
    user: str = ""
    home: str = ""
    machine: str = ""


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
    here = socket.gethostname()
    whose = [f"user {health.user}" if health.user else "", f"home {health.home}" if health.home else ""]
    whose += [f"container or machine {health.machine}" if health.machine not in ("", here) else ""]
    named = ", ".join(filter(None, whose)) or "another user"
    return PortHolder(port, f"the hivemind proxy of {named} (process {health.pid})", is_proxy=True)


def find_stranger(port: int) -> PortHolder | None:
    """The same, but of a port whose supervisor is this user's own: that one's proxy may be starting just now."""
    return None if is_supervised(port) else find_neighbour(port)


def is_taken(port: int, host: str = "127.0.0.1") -> bool:
    """Whether nobody else can listen there. A port that fails for another reason is left to the one who listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        if os.name == "posix":
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as asyncio's servers do
        try:
            attempt.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def free_port(near: int) -> int | None:
    """The next free one; None: there is none near."""
    return next((port for port in range(near + 1, min(near + 100, 65536)) if not is_taken(port)), None)


def _ask(port: int) -> _Health | None:
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - for few, and it loads ssl

    with (
        closing(HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)) as connection,
        suppress(OSError, HTTPException),
    ):
        # By the name that is ours in every mode: in reverse mode all other paths are the upstream's.
        connection.request("GET", "/health", headers={"Host": _PAGE_HOST})
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(connection.getresponse().read(_MOST_BYTES), type=_Health)
    return None
