"""A script beside the addon in a fleet's proxy.

It keeps the fleet on this machine: no connection goes beyond loopback. And it shows the addon's books: a request to
http://books.test/ is answered with the scheduler's counters, as JSON.
"""

import json
from dataclasses import asdict
from ipaddress import ip_address

from mitmproxy import ctx, http
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

BOOKS_HOST = "books.test"


class Inside:
    """Loaded after the addon, so that its redirects are done already."""

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Refuse what would leave this machine."""
        host = data.server.address[0] if data.server.address else ""
        try:
            stays = ip_address(host).is_loopback
        except ValueError:
            stays = False
        if not stays:
            data.server.error = f"{host} is not on this machine"

    def request(self, flow: http.HTTPFlow) -> None:
        """Answer with the books."""
        if flow.request.host != BOOKS_HOST:
            return
        intake = ctx.master.addons.get("hivemind").intake
        counters = asdict(intake.driver.snapshot().counters) | {"guard_trips": intake.guard.trips}
        flow.response = http.Response.make(200, json.dumps(counters), {"content-type": "application/json"})


addons = [Inside()]
