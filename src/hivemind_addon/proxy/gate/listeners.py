"""Where this process listens, and who may connect; and what of mitmproxy's own options is set for that."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mitmproxy import ctx
from mitmproxy.proxy.mode_specs import ProxyMode, RegularMode, ReverseMode, UpstreamMode
from mitmproxy.utils import human

from hivemind_addon.proxy.gate.addresses import is_in, is_loopback, is_mitmweb
from hivemind_addon.proxy.gate.options import is_asking, open_listeners
from hivemind_addon.proxy.host.http_layer import datagram_listeners, forget_unbound
from hivemind_addon.proxy.record.news import NOTICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mitmproxy.connection import Client

    from hivemind_addon.proxy.gate.addresses import Network

logger = logging.getLogger("hivemind")

WEB_COLUMNS = ["icon", "comment", "path", "status", "size", "time"]
"""Of mitmweb's list: the comment says whose a flow is and why it is held; all model calls are POST over TLS."""
_MOST_TOLD = 100
_BINDING = "setup_servers"
"""What mitmproxy calls the task that binds its ports."""


def page_address() -> str:
    """Where a browser of this machine sees the page: `http://127.0.0.1:8080/`. ValueError: nowhere, and the cure."""
    for server in ctx.master.addons.get("proxyserver").servers:
        if isinstance(server.mode, ReverseMode):
            continue  # there every path is the upstream's
        for address in server.listen_addrs:
            host, port = str(address[0]), int(address[1])
            if host in ("", "0.0.0.0", "::") or is_loopback(host):  # noqa: S104 - read, not bound
                return f"http://{'[::1]' if host == '::1' else '127.0.0.1'}:{port}/"
    raise ValueError(
        "the page steers only where the proxy has a forward listener on this machine's loopback: "
        "add --mode regular, or listen on 127.0.0.1"
    )


def set_defaults() -> bool:
    """Loopback, upstream connections only when a request goes, comments shown.

    True: the ports have to be bound anew. Scripts are loaded when mitmproxy has begun to bind them elsewhere.
    """
    is_moved = not ctx.options.listen_host and not said_by_user("listen_host")
    if is_moved:
        ctx.options.listen_host = "127.0.0.1"
    if not said_by_user("connection_strategy"):
        ctx.options.connection_strategy = "lazy"
    if "web_columns" in ctx.options and not said_by_user("web_columns"):
        ctx.options.web_columns = WEB_COLUMNS
    return is_moved and not ctx.master.addons.get("proxyserver").is_running


def said_by_user(name: str) -> bool:
    """Whether the user set an option, be it to its default: mitmproxy does not tell."""
    if any(argument.partition("=")[0] == name for argument in sys.argv):
        return True
    if name == "listen_host" and "--listen-host" in sys.argv:
        return True
    folder = Path(ctx.options.confdir).expanduser()
    files: Any = (folder / "config.yaml", folder / "config.yml")
    return any(
        line.startswith(f"{name}:") for file in files if file.is_file() for line in file.read_text().splitlines()
    )


def call_off_listening() -> None:
    """Let mitmproxy not bind its ports where the options said before: when scripts are loaded it looks up its host.

    A mode with an address of its own is bound already, and where it is to be; one without a port (local, tun) has begun
    what it cannot begin twice.
    """
    modes = map(ProxyMode.parse, ctx.options.mode)
    if any(mode.custom_listen_host or mode.default_port is None for mode in modes):
        return
    for task in asyncio.all_tasks():
        if task.get_name().startswith(_BINDING):  # in tests mitmproxy adds to the name
            task.cancel()


async def rebind() -> None:
    """Listen where the options say now. What has been bound elsewhere is closed; `is_welcome` keeps strangers out."""
    servers = ctx.master.addons.get("proxyserver").servers
    modes = [ProxyMode.parse(mode) for mode in ctx.options.mode]
    await servers.update(modes)  # waits for mitmproxy's own first round
    forget_unbound(servers)
    listeners = datagram_listeners(servers)
    await servers.update([])
    for listener in listeners:
        await listener.wait_closed()  # mitmproxy does not, and finds its own port taken
    await servers.update(modes)


async def tell_listeners(after: asyncio.Future[None] | None) -> None:
    """Say where the proxy listens, and what for, as soon as it does."""
    if after is not None:
        await asyncio.wait([after])
    for server in ctx.master.addons.get("proxyserver").servers:
        for host, port, *_ in server.listen_addrs[:1]:
            where = human.format_address((host, port))
            if isinstance(server.mode, ReverseMode):
                logger.log(NOTICE, "hivemind: listening at %s for %s", where, server.mode.data)
            elif isinstance(server.mode, (RegularMode, UpstreamMode)):
                logger.log(NOTICE, "hivemind: listening at %s; try `hivemind exec -p %d -- claude`", where, port)
            else:
                logger.log(NOTICE, "hivemind: listening at %s (%s)", where, server.mode.description)
    if (wide := open_listeners(ctx.options)) and not is_asking(ctx.options):
        networks = ctx.options.hivemind_allow_clients
        who = f"every client in {','.join(networks)}" if networks else "whoever reaches the port"
        logger.warning(
            "hivemind: listening on %s, where %s can spend your key under any name; hivemind_agent_secrets=FILE "
            "(`hivemind agent add`) or proxyauth=USER:PASSWORD asks who it is",
            ", ".join(wide),
            who,
        )
    if is_mitmweb() and ctx.options.termlog_verbosity == "alert":
        # Its page asks for the token that is printed here, and mitmweb's own line is among those that are left out.
        logger.log(NOTICE, "hivemind: mitmweb is at %s", ctx.master.addons.get("webauth").web_url)


class AllowedClients:
    """Who may connect. A client that may not is told of once for each address."""

    def __init__(self) -> None:
        self._refused: set[str] = set()

    def have(self, client: Client, networks: Sequence[Network]) -> bool:
        """Nobody from elsewhere, unless the user opened a listener for it; `networks`: only from there, if any."""
        host = client.peername[0]
        if is_loopback(host):
            return True
        if not open_listeners(ctx.options):
            return False
        if not networks or is_in(networks, host):
            return True
        if host not in self._refused and len(self._refused) < _MOST_TOLD:
            self._refused.add(host)
            logger.warning("hivemind: %s is refused: hivemind_allow_clients names no network of it", host)
        return False


def let_in_public(networks: Sequence[Network]) -> None:
    """Have mitmproxy block no client from the internet that a network allows: it blocks all of them by default."""
    if any(not network.is_private for network in networks) and not said_by_user("block_global"):
        ctx.options.block_global = False
