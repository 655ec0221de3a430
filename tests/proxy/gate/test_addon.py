"""The hooks that an end-to-end test would only see from afar."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Server
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test import taddons, tflow

from hivemind_addon.kernel.values.events import TicketEnded
from hivemind_addon.proxy.gate.addon import Hivemind, Replays
from hivemind_addon.proxy.gate.addresses import parse_upstream
from tests.plugins.captures.captured import answered
from tests.proxy.gate.samples import make_flow, make_proxy


@pytest.fixture
async def hivemind():
    made = Hivemind()
    made.proxy = make_proxy(redirects={"api.anthropic.com": ("127.0.0.1", 9000)})
    return made


def hello(sni, address, mode="regular"):
    client = make_flow(mode=mode).client_conn
    return SimpleNamespace(
        client_hello=SimpleNamespace(sni=sni),
        context=SimpleNamespace(client=client, server=SimpleNamespace(address=address)),
        ignore_connection=False,
    )


async def test_only_hosts_of_profiles_are_intercepted(hivemind):
    for sni, address, ignored in (
        ("api.anthropic.com", ("1.2.3.4", 443), False),
        (None, ("api.anthropic.com", 443), False),
        ("github.com", ("api.anthropic.com", 443), True),
        ("github.com", ("github.com", 443), True),
        (None, ("1.2.3.4", 443), True),
        (None, None, False),  # TLS to the proxy itself
        ("localhost", None, False),
    ):
        data = hello(sni, address)
        hivemind.tls_clienthello(data)
        assert data.ignore_connection is ignored, sni


async def test_in_reverse_mode_everything_is_ours(hivemind):
    data = hello("anything.test", ("anything.test", 443), mode="reverse:https://anything.test")
    hivemind.tls_clienthello(data)
    assert data.ignore_connection is False


async def test_a_redirect_moves_the_address_only(hivemind):
    server = Server(address=("API.Anthropic.com.", 443), sni="api.anthropic.com")
    hivemind.server_connect(ServerConnectionHookData(server=server, client=tflow.tclient_conn()))
    assert server.address == ("127.0.0.1", 9000)
    assert server.sni == "api.anthropic.com"
    other = Server(address=("other.test", 443))
    hivemind.server_connect(ServerConnectionHookData(server=other, client=tflow.tclient_conn()))
    assert other.address == ("other.test", 443)


def connecting(to, peer="192.168.1.9", mode="regular"):
    client = make_flow(mode=mode).client_conn
    client.peername = (peer, 50000)
    return ServerConnectionHookData(server=Server(address=to), client=client)


async def test_clients_elsewhere_do_not_reach_other_services_of_this_machine(hivemind):
    with taddons.context(Proxyserver()):
        for to in (("127.0.0.1", 22), ("localhost", 631), ("::1", 8500), ("0.0.0.0", 5432)):
            data = connecting(to)
            hivemind.server_connect(data)
            assert "hivemind_lan_ports" in data.server.error
            mine = connecting(to, peer="127.0.0.1")
            hivemind.server_connect(mine)
            assert mine.server.error is None


async def test_what_is_allowed_to_them_is_reached(hivemind):
    for to, mode in (
        (("127.0.0.1", 8000), "regular"),  # hivemind_lan_ports
        (("127.0.0.1", 11434), "regular"),  # a profile's
        (("api.anthropic.com", 443), "regular"),  # redirected
        (("127.0.0.1", 9999), "reverse:http://127.0.0.1:9999"),
        (("127.0.0.1", 9001), "regular"),  # hivemind_upstream
        (("10.0.0.7", 22), "regular"),
        (("a.name.test", 22), "regular"),
    ):
        hivemind.proxy.settings.current = replace(
            hivemind.proxy.settings.current,
            lan_ports=frozenset({8000}),
            upstream=parse_upstream("http://127.0.0.1:9001/v1"),
        )
        with taddons.context(Proxyserver()):
            data = connecting(to, mode=mode)
            hivemind.server_connect(data)
            assert data.server.error is None


async def test_a_name_that_leads_to_this_machine_is_closed_for_clients_elsewhere(hivemind):
    with taddons.context(Proxyserver()):
        data = connecting(("a.name.test", 22))
        hivemind.server_connect(data)
        data.server.peername, data.server.sockname = ("127.0.0.1", 22), ("127.0.0.1", 50001)
        hivemind.server_connected(data)
        assert "hivemind_lan_ports" in data.server.error


async def test_ours_is_buffered_and_anything_else_streamed(hivemind):
    for url, streamed in (
        ("https://api.anthropic.com/v1/messages", False),
        ("https://api.anthropic.com/v1/files", True),
        ("https://other.test/", True),
    ):
        flow = make_flow(url)
        hivemind.requestheaders(flow)
        assert bool(flow.request.stream) is streamed


async def test_hooks_of_an_addon_that_did_not_start_do_nothing():
    idle = Hivemind()
    flow = make_flow()
    idle.requestheaders(flow)
    idle.http_connect(flow)
    assert not any(
        hasattr(one, hook) for one in (idle, *idle.addons) for hook in ("request", "response", "error", "update")
    )
    idle.client_disconnected(flow.client_conn)
    data = hello("api.anthropic.com", None)
    idle.tls_clienthello(data)
    assert not flow.request.stream
    assert data.ignore_connection is False
    assert flow.response is None


def failed_handshake(error):
    client = tflow.tclient_conn()
    client.peername, client.sni, client.error = ("127.0.0.1", 1), "api.anthropic.com", error
    return SimpleNamespace(conn=client, context=SimpleNamespace(client=client))


async def test_a_client_that_does_not_trust_us_is_told_the_cure_once(hivemind, caplog, tmp_path):
    distrust = "The client does not trust the proxy's certificate for api.anthropic.com (OpenSSL Error)"
    with taddons.context() as context:
        context.options.update(confdir=str(tmp_path))
        for error, user in [(distrust, "claude-1"), (distrust, "claude-1"), (distrust, ""), ("cipher mismatch", "x")]:
            data = failed_handshake(error)
            hivemind.proxy.intake._proxy_users[data.conn.id] = (user, "x")
            hivemind.tls_failed_client(data)
    said = [record.getMessage() for record in caplog.records]
    assert [line.split(": ")[1] for line in said] == ["claude-1", "a client at 127.0.0.1"]
    assert all(str(tmp_path / "mitmproxy-ca-cert.pem") in line for line in said)
    assert hivemind.proxy.distrusting == dict.fromkeys(["claude-1", "a client at 127.0.0.1"], "api.anthropic.com")


HOOKS = ("request", "response", "error")


@pytest.fixture
async def replays():
    made = Replays()
    made.proxy = make_proxy()
    return made


def replayed(url="https://api.anthropic.com/v1/messages"):
    flow = make_flow(url)
    flow.is_replay = "request"
    return flow


def ends(replays):
    return [event.end for event in replays.proxy.heard if isinstance(event, TicketEnded)]


async def test_a_replay_is_scheduled_and_its_hooks_go_with_it(replays):
    assert not any(hasattr(replays, hook) for hook in HOOKS)
    flow = replayed()
    replays.hear(flow)
    replays.response(answered(make_flow("https://other.test/")))
    assert hasattr(replays, "request"), "another flow has ended, and the replay is still to come"
    await replays.request(flow)
    assert [pool.in_flight for pool in replays.proxy.driver.snapshot().pools] == [1]
    answered(flow)
    replays.response(flow)
    assert ends(replays) == ["delivered"]
    assert not any(hasattr(replays, hook) for hook in HOOKS)


async def test_a_replay_without_an_answer_holds_no_slot(replays):
    one, other = replayed(), replayed()
    replays.hear(one)
    replays.hear(other)
    await replays.request(one)
    await replays.request(other)
    replays.error(one)
    assert hasattr(replays, "request"), "the other one still runs"
    replays.error(other)
    assert not any(hasattr(replays, hook) for hook in HOOKS)
    assert [pool.in_flight for pool in replays.proxy.driver.snapshot().pools] == [0]


async def test_other_flows_pass_by_meanwhile(replays):
    replays.hear(replayed())
    for flow in (make_flow(), replayed("https://other.test/"), answered(replayed())):
        await replays.request(flow)
    assert not replays.proxy.live
