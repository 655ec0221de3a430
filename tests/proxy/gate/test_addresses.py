from types import SimpleNamespace

import pytest
from mitmproxy import http
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test import tflow

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.proxy.gate.addresses import (
    OwnAddresses,
    Upstream,
    hang_up,
    is_on_loopback,
    parse_upstream,
    upstream_by_path,
)

OWN = OwnAddresses((("127.0.0.1", 8080), ("127.0.0.1", 8081)))
WIDE = OwnAddresses((("0.0.0.0", 8080), ("", 8081), ("some-name", 8082)))


def test_an_own_address_is_known_before_it_is_connected_to():
    for host in ("127.0.0.1", "localhost", "LocalHost.", "0.0.0.0", "::ffff:127.0.0.1", "[::ffff:127.0.0.1]", "::"):
        assert OWN.are_asked((host, 8080)), host
        assert OWN.are_asked((host, 8081)), host
        assert not OWN.are_asked((host, 11434)), host


def test_another_address_is_not():
    cases = ("example.com", "10.0.0.1", "127.0.0.2", "", "fe80::1%eth0")
    assert [host for host in cases if OWN.are_asked((host, 8080))] == []


def test_a_name_is_seen_through_once_it_is_connected():
    assert OWN.are_reached(("127.0.0.1", 8080), ("127.0.0.1", 50000))
    assert OWN.are_reached(("::ffff:127.0.0.1", 8081, 0, 0), None)
    assert not OWN.are_reached(("93.184.216.34", 8080), ("10.0.0.5", 50000))
    assert not OWN.are_reached(("127.0.0.1", 11434), ("127.0.0.1", 50000))


def test_a_wide_listener_is_reached_by_every_address_of_this_machine():
    for port in (8080, 8081, 8082):
        assert WIDE.are_reached(("10.0.0.5", port), ("10.0.0.5", 50000)), port
        assert WIDE.are_reached(("::1", port), ("::1", 50000)), port
        assert not WIDE.are_reached(("10.0.0.6", port), ("10.0.0.5", 50000)), port


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


def test_what_is_on_loopback():
    cases = ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]")
    assert [host for host in cases if not (is_on_loopback(host))] == []


def test_what_is_not():
    cases = ("10.0.0.5", "name.test", "::2", "")
    assert [host for host in cases if is_on_loopback(host)] == []


def test_a_client_that_has_gone_meanwhile_needs_no_hanging_up():
    data = ServerConnectionHookData(server=tflow.tserver_conn(), client=tflow.tclient_conn())
    hang_up(SimpleNamespace(connections={}), data, "because")


PROFILES = load_profiles(None)


def test_an_address_is_read():
    cases = (
        ("https://api.anthropic.com", Upstream("https", "api.anthropic.com", 443)),
        ("http://LOCALHOST:8000/base/", Upstream("http", "localhost", 8000, "/base")),
        ("http://[::1]:8000", Upstream("http", "::1", 8000)),
    )
    assert [(url, upstream) for url, upstream in cases if parse_upstream(url) != upstream] == []


def test_what_is_no_address_is_refused():
    for url in ("", "host:80", "ftp://host", "http://", "http://user:x@host", "http://host?a=1", "http://h:x"):
        with pytest.raises(ValueError, match=r"^"):
            parse_upstream(url)


def test_a_path_tells_the_provider():
    for path, url in (
        ("/v1/messages?beta=true", "https://api.anthropic.com/v1/messages?beta=true"),
        ("/v1/messages/count_tokens", "https://api.anthropic.com/v1/messages/count_tokens"),
        ("/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("/v1/responses/compact", "https://api.openai.com/v1/responses/compact"),
        ("/backend-api/codex/responses", "https://chatgpt.com/backend-api/codex/responses"),
        ("/api/chat", "http://localhost:11434/api/chat"),
        ("/openai/v1/chat/completions", "https://api.groq.com/openai/v1/chat/completions"),
        (
            "/v1beta/models/m:generateContent",
            "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent",
        ),
    ):
        request = http.Request.make("POST", f"http://127.0.0.1:8080{path}")
        upstream = upstream_by_path(PROFILES, path)
        upstream.receive(request)
        assert request.url == url, path


def test_a_path_of_no_model_call_tells_nothing():
    cases = ("/", "/v1", "/v1/models", "/favicon.ico", "//")
    assert [path for path in cases if upstream_by_path(PROFILES, path) is not None] == []


def test_a_path_that_several_providers_have_is_nobody_s_but_a_user_s(tmp_path):
    assert upstream_by_path(PROFILES, "/chat/completions") is None
    (tmp_path / "mine.yaml").write_text("extends: openai-compatible\nhosts: [mine.test]")
    assert upstream_by_path(load_profiles(tmp_path), "/chat/completions") == Upstream("https", "mine.test", 443)


def test_the_host_names_the_port_only_where_it_is_not_the_usual_one():
    request = http.Request.make("POST", "http://127.0.0.1:8080/v1/x")
    parse_upstream("http://[::1]:8000").receive(request)
    assert request.headers["host"] == "[::1]:8000"
