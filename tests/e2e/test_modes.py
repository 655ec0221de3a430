"""Forward, reverse and upstream mode, and whom the proxy intercepts."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection

import httpx
import pytest

from tests.e2e.conftest import Call
from tests.e2e.origin import PLAIN, running_origin
from tests.e2e.proxy import NO_TLS, PATIENCE_S, body, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("modes")]

HEADERS = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def stranger(authority):
    """A TLS server of no profile; also at names that the profiles claim."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "stranger.test", "localhost", "claimed.test").configure_cert(tls)
    with running_origin(tls) as origin:
        yield origin


def tickets(proxy):
    return proxy.state()["snapshot"]["counters"]["tickets"]


def test_forward_mode_schedules_what_it_intercepts(stage, key):
    call, before = Call(key), tickets(stage.proxy)
    with stage.proxy.client() as client:
        answer = client.send(call.request("https://h1.sim.test"))
    assert answer.content == call.answer_of(answer)
    assert tickets(stage.proxy) == before + 1
    stage.settled()


def tls_to(proxy, tls):
    """A proxy URL whose first hop is encrypted, too."""
    return httpx.Proxy(f"https://agent-8:x@localhost:{proxy.port}", ssl_context=tls)


def test_a_client_may_speak_tls_to_the_proxy_itself(stage, key):
    call, before = Call(key), tickets(stage.proxy)
    tls = ssl.create_default_context(cafile=str(stage.proxy.ca))
    with httpx.Client(proxy=tls_to(stage.proxy, tls), verify=tls, trust_env=False, timeout=PATIENCE_S) as client:
        answer = client.send(call.request("https://h1.sim.test"))
    assert answer.content == call.answer_of(answer)
    assert tickets(stage.proxy) == before + 1
    assert held_by(stage.settled(), "agent='agent-8'")


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


def test_upstream_mode_schedules_and_goes_through_the_other_proxy(stage, key):
    call, before, seen = Call(key, stream=True), tickets(stage.proxy), stage.providers.h2.connections()
    tls = ssl.create_default_context(cafile=str(stage.proxy.ca))
    with httpx.Client(proxy=stage.upstream, verify=tls, trust_env=False, timeout=PATIENCE_S) as client:
        answer = client.send(call.request(f"https://localhost:{stage.providers.h2.port}"))
    assert answer.content == call.answer_of(answer)
    assert tickets(stage.proxy) == before + 1
    (new,) = [
        one for one in stage.providers.h2.connections() if one.number > max((old.number for old in seen), default=0)
    ]
    assert new.sni == "localhost"
    stage.settled()


def test_all_modes_share_one_scheduler(stage, key):
    before = tickets(stage.proxy)
    tls = ssl.create_default_context(cafile=str(stage.proxy.ca))
    call = Call(key)

    def ask(proxy, url):
        with httpx.Client(proxy=proxy, verify=tls, trust_env=False, timeout=PATIENCE_S) as client:
            return client.send(call.request(url))

    ways = [
        (stage.proxy.url(), "https://h1.sim.test"),
        (stage.proxy.url(), "https://h2.sim.test"),
        (None, stage.reverse),
        (None, stage.reverse_h2),
        (stage.upstream, f"https://localhost:{stage.providers.h1.port}"),
    ]
    with ThreadPoolExecutor(len(ways)) as threads:
        answers = list(threads.map(lambda way: ask(*way), ways))
    assert [answer.content == call.answer_of(answer) for answer in answers] == [True] * len(ways)
    assert tickets(stage.proxy) == before + len(ways)
    stage.settled()


# Reverse and plain forward mode ---------------------------------------------------------------------------------------


@pytest.fixture
def origin():
    with running_origin() as origin:
        origin.open()
        yield origin


def profiles(folder, **texts):
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return ("--set", f"hivemind_profiles={folder}")


def pool_hosts(state):
    return [pool["key"].split("/")[0] for pool in state["snapshot"]["pools"]]


def held_by(state, word):
    return [event for event in state["events"] if event.startswith("Submitted") and word in event]


def test_plain_http_through_the_forward_proxy_is_scheduled_too(tmp_path, origin):
    arguments = profiles(tmp_path / "profiles", lan=f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\n")
    with running(tmp_path / "conf", *arguments) as proxy, proxy.client("agent-7") as client:
        answer = client.post(f"{origin.url}/v1/messages", content=body(), headers=HEADERS | {"x-api-key": "k"})
        assert answer.content == PLAIN
        state = proxy.state()
        assert pool_hosts(state) == [f"127.0.0.1:{origin.port}"]
        assert held_by(state, "agent='agent-7'")


def test_plain_http_in_a_tunnel_is_scheduled_also_behind_tls_to_the_proxy(tmp_path, origin):
    arguments = profiles(tmp_path / "profiles", lan=f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\n")
    with running(tmp_path / "conf", *arguments) as proxy:
        with proxy.client() as client:
            client.get("http://probe.test/state")  # mitmproxy has made its CA by then
        tls = ssl.create_default_context(cafile=str(proxy.ca))
        with closing(socket.create_connection(("127.0.0.1", proxy.port))) as wire:
            connection = HTTPConnection("127.0.0.1", origin.port, timeout=PATIENCE_S)
            connection.sock = tls.wrap_socket(wire, server_hostname="localhost")
            connection.sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % origin.port)
            assert connection.sock.recv(1000).startswith(b"HTTP/1.1 200")
            connection.request("POST", "/v1/messages", body(), HEADERS | {"x-api-key": "k"})
            assert connection.getresponse().read() == PLAIN
        assert pool_hosts(proxy.state()) == [f"127.0.0.1:{origin.port}"]


def test_an_unknown_anthropic_shaped_server_just_works_in_reverse_mode(tmp_path, origin):
    with running(tmp_path, modes=("regular", f"reverse:{origin.url}")) as proxy:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{proxy.ports[1]}", trust_env=False, verify=NO_TLS, timeout=PATIENCE_S
        ) as client:
            assert (
                client.post("/v1/messages?beta=true", content=body(), headers=HEADERS | {"x-api-key": "k"}).content
                == PLAIN
            )
            assert (
                client.post(
                    "/v1/chat/completions", content=body(), headers=HEADERS | {"authorization": "Bearer k"}
                ).content
                == PLAIN
            )
            assert client.post("/v1/elsewhere", content=body(), headers=HEADERS).text == "/v1/elsewhere"
            assert client.get("/v1/messages").text == "/v1/messages"
        state = proxy.state()
        assert state["snapshot"]["counters"]["tickets"] == state["snapshot"]["counters"]["delivered"] == 2
        assert state["guard_trips"] == 0


def test_a_reverse_upstream_has_the_profile_that_the_option_names(tmp_path, origin):
    arguments = profiles(tmp_path / "profiles", odd="extends: anthropic\nhosts: []\npaths: ['/odd/*']\n")
    modes = ("regular", f"reverse:{origin.url}")
    with running(tmp_path / "conf", *arguments, "--set", "hivemind_reverse_profile=odd", modes=modes) as proxy:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{proxy.ports[1]}", trust_env=False, verify=NO_TLS, timeout=PATIENCE_S
        ) as client:
            assert client.post("/odd/messages", content=body(), headers=HEADERS).content == PLAIN
            assert client.post("/v1/messages", content=body(), headers=HEADERS).content == PLAIN
        assert tickets(proxy) == 1


def test_a_reverse_upstream_has_the_profile_that_claims_its_host_before_one_of_its_path(tmp_path, origin):
    texts = {
        "mine": f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\nrefusal: {{status: 418}}\nconcurrency: {{initial: 1, maximum: 1}}\n"
    }
    modes = ("regular", f"reverse:{origin.url}")
    with running(tmp_path / "conf", *profiles(tmp_path / "profiles", **texts), modes=modes) as proxy:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{proxy.ports[1]}", trust_env=False, verify=NO_TLS, timeout=PATIENCE_S
        ) as client:
            assert client.post("/v1/messages", content=body(), headers=HEADERS).content == PLAIN
        (pool,) = proxy.state()["snapshot"]["pools"]
        assert pool["limit"] == 1


# Whom it intercepts ---------------------------------------------------------------------------------------------------


def tunnel(proxy, host, port, sni, trusted):
    """A TLS connection through the proxy that trusts one authority only; SSLCertVerificationError when it is another's."""
    connection = socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S)
    connection.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    context = ssl.create_default_context(cafile=trusted)
    if sni is None:
        context.check_hostname = False
    return context.wrap_socket(connection, server_hostname=sni)


@pytest.fixture(scope="module")
def authority_file(authority, tmp_path_factory):
    file = tmp_path_factory.mktemp("authority") / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    return str(file)


@pytest.fixture(scope="module")
def own(tmp_path_factory, stranger, authority_file):
    """A proxy whose profiles claim two names of this machine, and no address of it."""
    folder = tmp_path_factory.mktemp("own")
    arguments = profiles(folder / "profiles", two="extends: anthropic\nhosts: [localhost, claimed.test]\n")
    trusted = ("--set", f"ssl_verify_upstream_trusted_ca={authority_file}")
    redirect = ("--set", f"hivemind_redirect=claimed.test=127.0.0.1:{stranger.port}")
    with running(folder / "conf", *arguments, *trusted, *redirect) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("host", "sni"),
    [
        pytest.param("127.0.0.1", "127.0.0.1", id="address of claimed names"),
        pytest.param("127.0.0.1", "stranger.test", id="SNI of nobody"),
        pytest.param("localhost", "stranger.test", id="SNI of nobody at a claimed CONNECT host"),
        pytest.param("127.0.0.1", None, id="no SNI"),
    ],
)
def test_hosts_that_no_profile_names_are_not_intercepted(own, stranger, authority_file, host, sni):
    with closing(tunnel(own, host, stranger.port, sni, authority_file)) as tls:
        tls.sendall(b"GET /hello HTTP/1.1\r\nHost: stranger.test\r\nconnection: close\r\n\r\n")
        assert b"".join(iter(lambda: tls.recv(4096), b"")).endswith(b"/hello")


@pytest.mark.parametrize(
    ("host", "sni"),
    [
        pytest.param("127.0.0.1", "claimed.test", id="claimed SNI at an address"),
        pytest.param("stranger.test", "localhost", id="claimed SNI at a CONNECT host of nobody"),
        pytest.param("localhost", None, id="claimed CONNECT host, no SNI"),
        pytest.param("CLAIMED.TEST.", "claimed.test", id="another spelling"),
    ],
)
def test_hosts_that_a_profile_names_are_intercepted(own, stranger, authority_file, host, sni):
    tunnel(own, host, stranger.port, sni, str(own.ca)).close()
    with pytest.raises(ssl.SSLCertVerificationError):
        tunnel(own, host, stranger.port, sni, authority_file)


# Redirects ------------------------------------------------------------------------------------------------------------


def new_connections(server, before):
    last = max((one.number for one in before), default=0)
    return [one for one in server.connections() if one.number > last]


@pytest.mark.parametrize("version", ["h1", "h2"])
def test_a_redirected_host_keeps_its_sni_its_certificate_check_and_its_host_header(stage, key, version):
    server = getattr(stage.providers, version)
    before = server.connections()
    with stage.proxy.client() as client:
        answer = client.send(Call(key).request(f"https://{version}.sim.test"))
    assert answer.status_code == 200
    (connection,) = new_connections(server, before)
    assert connection.sni == f"{version}.sim.test"
    assert connection.hosts == {f"{version}.sim.test"}
    stage.settled()


def test_a_redirected_host_whose_certificate_nobody_trusts_is_refused(stage, key):
    with stage.proxy.client() as client:
        answer = client.send(Call(key).request("https://other-ca.sim.test"))
    assert answer.status_code == 502
    assert "ertificate" in answer.text
    assert stage.providers.stranger.truth().attempts == 0
    stage.settled()


@pytest.mark.parametrize("version", ["h1", "h2"])
def test_twenty_requests_on_one_client_connection_reuse_one_upstream_connection(stage, key, version):
    server = getattr(stage.providers, version)
    before = server.connections()
    with stage.proxy.client(http2=version == "h2") as client:
        for number in range(20):
            call = Call(key, stream=number % 2 == 0)
            answer = client.send(call.request(f"https://{version}.sim.test"))
            assert answer.content == call.answer_of(answer)
    assert [connection.requests for connection in new_connections(server, before)] == [20]
    stage.settled()
