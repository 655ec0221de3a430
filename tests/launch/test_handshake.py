"""A proxy of a few lines: CONNECT, then TLS with a certificate of the test's own authority."""

import socket
import ssl
from contextlib import contextmanager, suppress
from threading import Thread

import pytest
import trustme

from hivemind_addon.tools.launch import doctor as handshake
from hivemind_addon.tools.launch.doctor import Handshake, shake_hands

DATE = "Date: Sun, 06 Nov 1994 08:49:37 GMT"
WHEN = 784111777.0


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(handshake, "_CONNECT_S", 120.0)
    monkeypatch.setattr(handshake, "_ANSWER_S", 120.0)


@pytest.fixture
def authority(tmp_path):
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return ca


@contextmanager
def proxy(authority, *, connect="HTTP/1.1 200 OK", answer="HTTP/1.1 404 Not Found"):
    """Serves one client; the list gets what it asked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("api.test").configure_cert(context)
    asked = []

    def serve():
        with suppress(OSError):
            client, _ = listener.accept()
            with client:
                client.settimeout(120)
                asked.append(client.recv(4096).decode())
                client.sendall(f"{connect}\r\n\r\n".encode())
                with context.wrap_socket(client, server_side=True) as secure:
                    asked.append(secure.recv(4096).decode())
                    secure.sendall(f"{answer}\r\n\r\n".encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Thread(target=serve, daemon=True)
        server.start()
        yield listener.getsockname()[1], asked
        server.join(120)


@pytest.mark.parametrize(
    ("answer", "date"),
    [
        (f"HTTP/1.1 404 Not Found\r\n{DATE}", WHEN),
        ("HTTP/1.1 200 OK", None),
        (f"HTTP/1.1 502 Bad Gateway\r\n{DATE}", None),
        ("HTTP/1.1 200 OK\r\nDate: yesterday", None),
        ("", None),
    ],
)
def test_tls_through_the_proxy_and_the_providers_clock(authority, tmp_path, answer, date):
    with proxy(authority, answer=answer) as (port, asked):
        assert shake_hands(port, "api.test", tmp_path / "ca.pem") == Handshake(date)
    assert asked[0].startswith("CONNECT api.test:443 HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic " in asked[0]
    assert asked[1].startswith("HEAD / HTTP/1.1\r\nHost: api.test\r\n")


def test_a_bundle_without_the_ca_is_told_apart(authority, tmp_path):
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    with proxy(authority) as (port, _):
        assert "CERTIFICATE_VERIFY_FAILED" in shake_hands(port, "api.test", tmp_path / "other.pem")


def test_a_proxy_that_refuses_and_one_that_is_not_there_say_so(authority, tmp_path):
    with proxy(authority, connect="HTTP/1.1 407 Proxy Authentication Required") as (port, _):
        assert "407" in shake_hands(port, "api.test", tmp_path / "ca.pem")
    with socket.socket() as deaf:  # nobody else has its port, and it does not listen
        deaf.bind(("127.0.0.1", 0))
        assert "refused" in shake_hands(deaf.getsockname()[1], "api.test", tmp_path / "ca.pem")


def test_a_bundle_that_is_no_file_of_certificates_says_so(tmp_path):
    (tmp_path / "empty.pem").write_text("nothing")
    assert isinstance(shake_hands(1, "api.test", tmp_path / "empty.pem"), str)
    assert "No such file" in shake_hands(1, "api.test", tmp_path / "missing.pem")
