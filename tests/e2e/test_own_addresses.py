"""What listens in the proxy's own process is not reached through it, under any name; what else is local is."""

import socket
from contextlib import closing

import pytest

from tests.e2e.origin import running_origin
from tests.e2e.proxy import MITMDUMP, PATIENCE_S, PROBE, ROOT, free_port, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("own_addresses")]

PASSWORD = "open-sesame"
NAMES = (
    "127.0.0.1",
    "localhost",
    "LOCALHOST",
    "127.1",
    "0.0.0.0",
    "2130706433",
    "[::ffff:127.0.0.1]",
    "rebound.leads-here.test",
)
SCRIPTS = (ROOT / "hivemind_addon", PROBE, ROOT / "tests/e2e/resolver.py")


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    """A mitmweb, and the port of its page."""
    port = free_port()
    with running(
        tmp_path_factory.mktemp("own"),
        *("--no-web-open-browser", "--web-port", str(port), "--set", f"web_password={PASSWORD}"),
        executable=MITMDUMP.with_name("mitmweb"),
        scripts=SCRIPTS,
    ) as proxy:
        yield proxy, port
        assert "Traceback" not in proxy.log, proxy.log


@pytest.fixture(scope="module")
def origin():
    with running_origin() as made:
        yield made


def asked(proxy, host, port, path="/"):
    """What a plain request through the proxy gets."""
    target = f"http://{host}:{port}{path}"
    return _talk(proxy, f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n")


def tunnelled(proxy, host, port, path="/"):
    """What a request in a CONNECT tunnel gets."""
    inner = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    return _talk(proxy, f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n", inner)


def _talk(proxy, *parts):
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S)) as connection:
        answer = b""
        for part in parts:
            connection.sendall(part.encode())
            while chunk := connection.recv(65536):
                answer += chunk
                if part is not parts[-1]:
                    break
        return answer


@pytest.mark.parametrize("ask", [asked, tunnelled])
@pytest.mark.parametrize("host", NAMES)
def test_mitmwebs_page_is_out_of_reach(web, ask, host):
    proxy, port = web
    answer = ask(proxy, host, port, f"/flows?token={PASSWORD}")
    assert b"x-xss-protection" not in answer.lower()  # which mitmweb always sends


@pytest.mark.parametrize("ask", [asked, tunnelled])
@pytest.mark.parametrize("host", NAMES)
def test_the_proxy_does_not_talk_to_itself(web, ask, host):
    proxy, _ = web
    proxy.state()
    before = proxy.log.count("client connect")
    assert b" 200 OK" not in ask(proxy, host, proxy.port, "/nowhere")
    proxy.state()
    # A connection of its own to each: the loop would have made a third, or a hundred; it is closed before it says a word.
    assert 2 <= proxy.log.count("client connect") - before <= 3


@pytest.mark.parametrize("ask", [asked, tunnelled])
@pytest.mark.parametrize("host", NAMES)
def test_a_model_server_on_loopback_is_reached(web, origin, ask, host):
    assert b" 200 OK" in ask(web[0], host, origin.port)


def test_who_asked_by_a_misleading_name_is_in_the_log(web):
    proxy, port = web
    asked(proxy, "another.leads-here.test", port)
    assert f"another.leads-here.test:{port}, which is the proxy itself: closed" in proxy.log


def test_a_redirect_to_another_port_of_loopback_works(tmp_path, origin):
    with running(tmp_path, "--set", f"hivemind_redirect=api.anthropic.com=127.0.0.1:{origin.port}") as proxy:
        assert b" 200 OK" in asked(proxy, "api.anthropic.com", 80)
