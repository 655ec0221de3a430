"""The rebinding itself is seen in tests/e2e/test_start.py."""

from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.test import taddons, tflow

from hivemind_addon.proxy.mitm.listeners import is_welcome, own_addresses, web_page


async def test_strangers_are_kept_out_until_the_user_opened_a_listener():
    with taddons.context(Proxyserver()) as context:
        stranger, own = tflow.tclient_conn(), tflow.tclient_conn()
        stranger.peername, own.peername = ("10.0.0.9", 1), ("127.0.0.1", 1)
        context.options.update(listen_host="127.0.0.1")
        assert not is_welcome(stranger)
        assert is_welcome(own)
        context.options.update(listen_host="0.0.0.0")
        assert is_welcome(stranger)


class WebAuth:
    """What tells mitmweb from the others."""

    name = "webauth"

    def load(self, loader):
        loader.add_option("web_host", str, "127.0.0.1", "")
        loader.add_option("web_port", int, 8081, "")


async def test_the_web_page_is_one_of_the_own_addresses():
    with taddons.context(Proxyserver()) as context:
        assert web_page() == ""
        context.master.addons.add(WebAuth())
        assert web_page() == "http://127.0.0.1:8081/"
        assert own_addresses().are_asked(("localhost", 8081))
        assert not own_addresses().are_asked(("localhost", 8082))
