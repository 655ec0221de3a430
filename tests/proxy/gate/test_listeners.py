"""The rebinding itself is seen in tests/e2e/test_start.py."""

import asyncio
import sys

import pytest
from mitmproxy.addons.block import Block
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.test import taddons, tflow

from hivemind_addon.proxy.gate.addresses import own_addresses, parse_networks, web_page
from hivemind_addon.proxy.gate.listeners import (
    AllowedClients,
    call_off_listening,
    let_in_public,
    said_by_user,
    set_defaults,
)
from tests.cases import each


async def test_strangers_are_kept_out_until_the_user_opened_a_listener(caplog):
    with taddons.context(Proxyserver()) as context:
        stranger, own, allowed = tflow.tclient_conn(), tflow.tclient_conn(), AllowedClients()
        stranger.peername, own.peername = ("10.0.0.9", 1), ("127.0.0.1", 1)
        context.options.update(listen_host="127.0.0.1")
        assert not allowed.have(stranger, ())
        assert allowed.have(own, ())
        context.options.update(listen_host="0.0.0.0")
        assert allowed.have(stranger, ())
        for _ in range(3):
            assert not allowed.have(stranger, parse_networks("10.0.0.0/29"))
        assert [line for line in caplog.messages if "10.0.0.9 is refused" in line] == caplog.messages[:1]
        assert allowed.have(own, parse_networks("10.0.0.0/29"))
        assert allowed.have(stranger, parse_networks("10.0.0.0/28"))


async def test_mitmproxy_blocks_no_public_client_that_a_network_allows(context):
    context.master.addons.add(Block())
    let_in_public(parse_networks("10.0.0.0/8"))
    assert context.options.block_global
    let_in_public(parse_networks("10.0.0.0/8,8.8.8.0/24"))
    assert not context.options.block_global


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


@pytest.fixture
def context(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["mitmdump"])
    with taddons.context(Proxyserver()) as context:
        context.options.update(confdir=str(tmp_path))
        yield context


async def test_the_proxy_is_loopbacks_and_moves_there_when_it_has_begun_to_listen_elsewhere(context):
    context.master.addons.get("proxyserver").is_running = False
    assert set_defaults()
    assert context.options.listen_host == "127.0.0.1"
    assert context.options.connection_strategy == "lazy"
    assert not set_defaults(), "once"


@each(
    ("modes", "is_called_off"),
    [
        (["regular", "socks5@1080"], True),
        (["regular", "socks5@127.0.0.1:1080"], False),
        (["local:curl"], False),  # mitmproxy would say that it cannot spawn more than one redirector
        (["regular", "tun"], False),
    ],
)
async def test_what_cannot_begin_twice_is_let_begin(context, modes, is_called_off):
    async def wait():
        await asyncio.Event().wait()

    context.options.mode = modes
    binding = asyncio.create_task(wait(), name="setup_servers (test)")
    call_off_listening()
    assert bool(binding.cancelling()) is is_called_off
    binding.cancel()


async def test_what_the_user_said_stays(context, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mitmdump", "--listen-host", "", "--set", "connection_strategy=eager"])
    context.options.update(connection_strategy="eager")
    assert not set_defaults()
    assert context.options.listen_host == ""
    assert context.options.connection_strategy == "eager"


@pytest.mark.parametrize(
    ("arguments", "yaml", "said"),
    [
        (["mitmdump"], "", False),
        (["mitmdump", "--set", "connection_strategy=lazy"], "", True),
        (["mitmdump", "--set", "other=1"], "connection_strategy: eager\n", True),
        (["mitmdump"], "# connection_strategy: eager\nother: 1\n", False),
    ],
)
async def test_whether_the_user_set_an_option(context, monkeypatch, tmp_path, arguments, yaml, said):
    monkeypatch.setattr(sys, "argv", arguments)
    (tmp_path / "config.yaml").write_text(yaml)
    assert said_by_user("connection_strategy") is said
