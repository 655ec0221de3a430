"""Where this process listens, and who may connect."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.proxy.mode_specs import ProxyMode, ReverseMode
from mitmproxy.utils import human

from hivemind_addon.proxy.mitm.options import is_loopback, open_listeners
from hivemind_addon.proxy.mitm.own_addresses import OwnAddresses
from hivemind_addon.proxy.mitm.stream import datagram_listeners, forget_unbound
from hivemind_addon.proxy.observe.log import NOTICE

if TYPE_CHECKING:
    from mitmproxy.connection import Client

logger = logging.getLogger("hivemind")

_BINDING = "setup_servers"
"""What mitmproxy calls the task that binds its ports."""


def call_off_listening() -> None:
    """Let mitmproxy not bind its ports where the options said before: when scripts are loaded it looks up its host.

    A mode with an address of its own is bound already, and where it is to be.
    """
    if any(ProxyMode.parse(mode).custom_listen_host for mode in ctx.options.mode):
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
            else:
                logger.log(NOTICE, "hivemind: listening at %s; try `hivemind exec -p %d -- claude`", where, port)
    if _is_mitmweb() and ctx.options.termlog_verbosity == "alert":
        # Its page asks for the token that is printed here, and mitmweb's own line is among those that are left out.
        logger.log(NOTICE, "hivemind: mitmweb is at %s", ctx.master.addons.get("webauth").web_url)


def is_welcome(client: Client) -> bool:
    """Nobody from elsewhere, unless the user opened a listener for it."""
    return is_loopback(client.peername[0]) or bool(open_listeners(ctx.options))


def listens() -> list[tuple[str, int]]:
    """Where the proxy listens."""
    return [(str(address[0]), int(address[1])) for address in ctx.master.addons.get("proxyserver").listen_addrs()]


def own_addresses() -> OwnAddresses:
    """Everything that listens in this process."""
    web = ((ctx.options.web_host, ctx.options.web_port),) if _is_mitmweb() else ()
    return OwnAddresses((*listens(), *web))


def web_page() -> str:
    """Where mitmweb is, without its token, which stays with it; empty: this is not mitmweb."""
    return f"http://{ctx.options.web_host}:{ctx.options.web_port}/" if _is_mitmweb() else ""


def _is_mitmweb() -> bool:
    return ctx.master.addons.get("webauth") is not None
