"""Forward, reverse and upstream mode, which hosts the proxy intercepts, and what a redirect keeps."""

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection

import httpx
import pytest

from tests.e2e.conftest import Call
from tests.e2e.origin import PLAIN, running_origin
from tests.e2e.proxy import PATIENCE_S, body, for_host, options, profiles, running

pytestmark = [pytest.mark.slow, pytest.mark.quick, pytest.mark.xdist_group("modes")]

STREAMS = 100


def tickets(proxy):
    return proxy.state()["snapshot"]["counters"]["tickets"]


def submitted_by(state, agent):
    return [event for event in state["events"] if event.startswith("Submitted") and f"agent='{agent}'" in event]


def test_all_modes_share_one_scheduler(stage, key):
    before, seen = tickets(stage.proxy), stage.providers.h2.connections()
    tls = ssl.create_default_context(cafile=str(stage.proxy.ca))
    call = Call(key, stream=True)
    over_tls = httpx.Proxy(f"https://agent-8:x@localhost:{stage.proxy.port}", ssl_context=tls)
    ways = {
        "forward, HTTP/1.1": (stage.proxy.url(), "https://h1.sim.test"),
        "forward, HTTP/2": (stage.proxy.url(), "https://h2.sim.test"),
        "TLS to the proxy itself": (over_tls, "https://h1.sim.test"),
        "reverse": (None, stage.reverse),
        "reverse, HTTP/2": (None, stage.reverse_h2),
        "upstream": (stage.upstream, f"https://localhost:{stage.providers.h2.port}"),
    }

    def ask(way):
        proxy, url = way
        with httpx.Client(proxy=proxy, verify=tls, trust_env=False, timeout=PATIENCE_S) as client:
            return client.send(call.request(url))

    with ThreadPoolExecutor(len(ways)) as threads:
        answers = list(threads.map(ask, ways.values()))
    assert [name for name, answer in zip(ways, answers, strict=True) if answer.content != call.answer_of(answer)] == []
    assert tickets(stage.proxy) == before + len(ways)
    assert submitted_by(stage.settled(), "agent-8")
    assert "localhost" in {one.sni for one in new_connections(stage.providers.h2, seen)}, "through the other proxy"


def test_a_reverse_proxy_answers_nobody_who_calls_it_by_a_name_that_is_not_its_own(stage, key):
    """A page of that name, which its owner lets lead here, must not read a local model server."""
    call, before = Call(key), stage.providers.plain.connections()
    with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
        refused = client.get(f"{stage.reverse}/api/tags", headers={"host": f"evil.test:{stage.proxy.ports[1]}"})
        assert refused.status_code == 421
        assert stage.providers.plain.connections() == before
        answer = client.send(call.request(stage.reverse, host="proxy.local"))
    assert answer.content == call.answer_of(answer)
    stage.settled()


@pytest.mark.parametrize("upstream", ["h1", "h2"])
async def test_a_hundred_streams_on_one_connection_are_all_answered(stage, key, upstream):
    call = Call(key, stream=True)
    async with stage.proxy.async_client(http2=True) as http:
        await http.send(call.request(f"https://{upstream}.sim.test"))  # now one connection is known to be enough
        answers = await asyncio.gather(
            *(http.send(call.request(f"https://{upstream}.sim.test")) for _ in range(STREAMS))
        )
    assert [answer.status_code for answer in answers] == [200] * STREAMS
    assert [answer.http_version for answer in answers] == ["HTTP/2"] * STREAMS
    assert all(answer.content == call.answer_of(answer) for answer in answers)
    stage.settled()


# Reverse and plain forward mode ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def origin():
    with running_origin() as origin:
        origin.open()
        yield origin


def test_plain_http_through_the_forward_proxy_is_scheduled_too_also_in_a_tunnel_behind_tls(tmp_path, origin):
    settings = profiles(tmp_path, lan=for_host(origin.port))
    with running(tmp_path / "conf", *settings) as proxy:
        assert proxy.ask(f"{origin.url}/v1/messages", "agent-7").content == PLAIN
        assert submitted_by(proxy.state(), "agent-7")
        tls = ssl.create_default_context(cafile=str(proxy.ca))
        with closing(socket.create_connection(("127.0.0.1", proxy.port))) as wire:
            connection = HTTPConnection("127.0.0.1", origin.port, timeout=PATIENCE_S)
            connection.sock = tls.wrap_socket(wire, server_hostname="localhost")
            connection.sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % origin.port)
            assert connection.sock.recv(1000).startswith(b"HTTP/1.1 200")
            connection.request("POST", "/v1/messages", body(), {"x-api-key": "k", "content-type": "application/json"})
            assert connection.getresponse().read() == PLAIN
        state = proxy.state()
        assert [pool["key"].split("/")[0] for pool in state["snapshot"]["pools"]] == [f"127.0.0.1:{origin.port}"]
        assert tickets(proxy) == 2


def test_an_unknown_server_just_works_in_reverse_mode_or_by_the_profile_that_claims_or_is_named_for_it(
    tmp_path, origin
):
    modes = ("regular", f"reverse:{origin.url}")
    with running(tmp_path, modes=modes) as proxy:
        assert proxy.post("/v1/messages?beta=true").content == PLAIN
        assert proxy.post("/v1/chat/completions").content == PLAIN
        assert proxy.post("/v1/elsewhere").text == "/v1/elsewhere"
        assert proxy.settled()["snapshot"]["counters"]["delivered"] == tickets(proxy) == 2
    odd = [
        *profiles(tmp_path, odd="extends: anthropic\nhosts: []\npaths: ['/odd/*']\n"),
        *options(reverse_profile="odd"),
    ]
    with running(tmp_path, *odd, modes=modes) as proxy:
        assert proxy.post("/odd/messages").content == PLAIN
        assert proxy.post("/v1/messages").content == PLAIN
        assert tickets(proxy) == 1
    with running(tmp_path, *profiles(tmp_path, mine=for_host(origin.port, slots=1)), modes=modes) as proxy:
        assert proxy.post().content == PLAIN
        assert [pool["limit"] for pool in proxy.state()["snapshot"]["pools"]] == [1]


# Which hosts it intercepts -----------------------------------------------------------------------------------------------


def tunnel(proxy, host, port, sni, trusted):
    """A TLS connection through the proxy that trusts one authority only; SSLCertVerificationError when it is another's."""
    connection = socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S)
    connection.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    context = ssl.create_default_context(cafile=trusted)
    if sni is None:
        context.check_hostname = False
    return context.wrap_socket(connection, server_hostname=sni)


OF_NOBODY = {
    "address of claimed names": ("127.0.0.1", "127.0.0.1"),
    "SNI of nobody": ("127.0.0.1", "stranger.test"),
    "SNI of nobody at a claimed CONNECT host": ("localhost", "stranger.test"),
    "no SNI": ("127.0.0.1", None),
}
CLAIMED = {
    "claimed SNI at an address": ("127.0.0.1", "claimed.test"),
    "claimed SNI at a CONNECT host of nobody": ("stranger.test", "localhost"),
    "claimed CONNECT host, no SNI": ("localhost", None),
    "another spelling": ("CLAIMED.TEST.", "claimed.test"),
}
"""CONNECT host and SNI."""


def test_the_hosts_that_a_profile_names_are_intercepted_and_no_other(tmp_path, subtests, authority):
    """The profile claims two names of this machine, and no address of it."""
    trusted = str(tmp_path / "authority.pem")
    authority.cert_pem.write_to_path(trusted)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "stranger.test", "localhost", "claimed.test").configure_cert(tls)
    with running_origin(tls) as stranger:
        settings = profiles(tmp_path, two="extends: anthropic\nhosts: [localhost, claimed.test]\n")
        settings += ["--set", f"ssl_verify_upstream_trusted_ca={trusted}"]
        settings += options(redirect=f"claimed.test=127.0.0.1:{stranger.port}")
        with running(tmp_path / "conf", *settings) as own:
            for name, (host, sni) in OF_NOBODY.items():
                with subtests.test(name), closing(tunnel(own, host, stranger.port, sni, trusted)) as connection:
                    connection.sendall(b"GET /hello HTTP/1.1\r\nHost: stranger.test\r\nconnection: close\r\n\r\n")
                    assert b"".join(iter(lambda: connection.recv(4096), b"")).endswith(b"/hello")
            for name, (host, sni) in CLAIMED.items():
                with subtests.test(name):
                    tunnel(own, host, stranger.port, sni, str(own.ca)).close()
                    with pytest.raises(ssl.SSLCertVerificationError):
                        tunnel(own, host, stranger.port, sni, trusted)


# Connections ----------------------------------------------------------------------------------------------------------


def new_connections(server, before):
    last = max((one.number for one in before), default=0)
    return [one for one in server.connections() if one.number > last]


@pytest.mark.parametrize("version", ["h1", "h2"])
def test_twenty_requests_reuse_one_connection_that_keeps_a_redirected_hosts_sni_and_name(stage, key, version):
    server = getattr(stage.providers, version)
    before = server.connections()
    with stage.proxy.client(http2=version == "h2") as client:
        for number in range(20):
            call = Call(key, stream=number % 2 == 0)
            answer = client.send(call.request(f"https://{version}.sim.test"))
            assert answer.content == call.answer_of(answer)
    (connection,) = new_connections(server, before)
    assert connection.requests == 20
    assert connection.sni == f"{version}.sim.test"
    assert connection.hosts == {f"{version}.sim.test"}
    stage.settled()
