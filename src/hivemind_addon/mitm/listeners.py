"""Where this process listens, and who may connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.proxy.mode_specs import ProxyMode

from hivemind_addon.mitm.options import is_loopback, open_listeners
from hivemind_addon.mitm.own_addresses import OwnAddresses
from hivemind_addon.mitm.stream import datagram_listeners

if TYPE_CHECKING:
    from mitmproxy.connection import Client


async def rebind() -> None:
    """Listen again, where the options say now. Until then `is_welcome` keeps strangers out."""
    servers = ctx.master.addons.get("proxyserver").servers
    modes = [ProxyMode.parse(mode) for mode in ctx.options.mode]
    await servers.update(modes)  # waits for mitmproxy's own first round
    listeners = datagram_listeners(servers)
    await servers.update([])
    for listener in listeners:
        await listener.wait_closed()  # mitmproxy does not, and finds its own port taken
    await servers.update(modes)


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
