from types import SimpleNamespace

import pytest
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test import tflow

from hivemind_addon.proxy.mitm.own_addresses import OwnAddresses, hang_up, is_on_loopback

OWN = OwnAddresses((("127.0.0.1", 8080), ("127.0.0.1", 8081)))
WIDE = OwnAddresses((("0.0.0.0", 8080), ("", 8081), ("some-name", 8082)))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "LocalHost.", "0.0.0.0", "::ffff:127.0.0.1", "[::ffff:127.0.0.1]", "::"]
)
def test_an_own_address_is_known_before_it_is_connected_to(host):
    assert OWN.are_asked((host, 8080))
    assert OWN.are_asked((host, 8081))
    assert not OWN.are_asked((host, 11434))


@pytest.mark.parametrize("host", ["example.com", "10.0.0.1", "127.0.0.2", "", "fe80::1%eth0"])
def test_another_address_is_not(host):
    assert not OWN.are_asked((host, 8080))


def test_a_name_is_seen_through_once_it_is_connected():
    assert OWN.are_reached(("127.0.0.1", 8080), ("127.0.0.1", 50000))
    assert OWN.are_reached(("::ffff:127.0.0.1", 8081, 0, 0), None)
    assert not OWN.are_reached(("93.184.216.34", 8080), ("10.0.0.5", 50000))
    assert not OWN.are_reached(("127.0.0.1", 11434), ("127.0.0.1", 50000))


@pytest.mark.parametrize("port", [8080, 8081, 8082])
def test_a_wide_listener_is_reached_by_every_address_of_this_machine(port):
    assert WIDE.are_reached(("10.0.0.5", port), ("10.0.0.5", 50000))
    assert WIDE.are_reached(("::1", port), ("::1", 50000))
    assert not WIDE.are_reached(("10.0.0.6", port), ("10.0.0.5", 50000))


def test_another_address_of_this_machine_is_free_where_the_listener_is_narrow():
    assert not OWN.are_reached(("127.0.0.2", 8080), ("127.0.0.1", 50000))
    assert not OWN.are_reached(("10.0.0.5", 8080), ("10.0.0.5", 50000))


class Writer:
    closed = False

    def close(self):
        self.closed = True


def test_hanging_up_closes_the_connection_and_says_why():
    server, client, writer = tflow.tserver_conn(), tflow.tclient_conn(), Writer()
    handler = SimpleNamespace(transports={server: SimpleNamespace(writer=writer)})
    data = ServerConnectionHookData(server=server, client=client)
    hang_up(SimpleNamespace(connections={client.id: handler}), data, "because")
    assert writer.closed
    assert server.error == "because"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"])
def test_what_is_on_loopback(host):
    assert is_on_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.5", "name.test", "::2", ""])
def test_what_is_not(host):
    assert not is_on_loopback(host)


def test_a_client_that_has_gone_meanwhile_needs_no_hanging_up():
    data = ServerConnectionHookData(server=tflow.tserver_conn(), client=tflow.tclient_conn())
    hang_up(SimpleNamespace(connections={}), data, "because")
