"""A script beside the addon in a fleet's proxy: it keeps the fleet on this machine."""

from ipaddress import ip_address

from mitmproxy.proxy.server_hooks import ServerConnectionHookData


class Inside:
    """Loaded after the addon, so that the redirects are done already."""

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Refuse what would leave this machine."""
        host = data.server.address[0] if data.server.address else ""
        try:
            stays = ip_address(host).is_loopback
        except ValueError:
            stays = False
        if not stays:
            data.server.error = f"{host} is not on this machine"


addons = [Inside()]
