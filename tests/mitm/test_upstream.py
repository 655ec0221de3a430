import pytest
from mitmproxy import http

from hivemind_addon.proxy.mitm.upstream import Upstream, parse_upstream, upstream_by_path
from hivemind_addon.proxy.profile.load import load_profiles

PROFILES = load_profiles(None)


@pytest.mark.parametrize(
    ("url", "upstream"),
    [
        ("https://api.anthropic.com", Upstream("https", "api.anthropic.com", 443)),
        ("http://LOCALHOST:8000/base/", Upstream("http", "localhost", 8000, "/base")),
        ("http://[::1]:8000", Upstream("http", "::1", 8000)),
    ],
)
def test_an_address_is_read(url, upstream):
    assert parse_upstream(url) == upstream


@pytest.mark.parametrize(
    "url", ["", "host:80", "ftp://host", "http://", "http://user:x@host", "http://host?a=1", "http://h:x"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match=r"^"):
        parse_upstream(url)


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/v1/messages?beta=true", "https://api.anthropic.com/v1/messages?beta=true"),
        ("/v1/messages/count_tokens", "https://api.anthropic.com/v1/messages/count_tokens"),
        ("/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("/v1/responses/compact", "https://api.openai.com/v1/responses/compact"),
        ("/backend-api/codex/responses", "https://chatgpt.com/backend-api/codex/responses"),
        ("/api/chat", "http://localhost:11434/api/chat"),
    ],
)
def test_a_path_tells_the_provider(path, url):
    request = http.Request.make("POST", f"http://127.0.0.1:8080{path}")
    upstream = upstream_by_path(PROFILES, path)
    upstream.receive(request)
    assert request.url == url


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/models", "/favicon.ico", "//"])
def test_a_path_of_no_model_call_tells_nothing(path):
    assert upstream_by_path(PROFILES, path) is None


def test_the_host_names_the_port_only_where_it_is_not_the_usual_one():
    request = http.Request.make("POST", "http://127.0.0.1:8080/v1/x")
    parse_upstream("http://[::1]:8000").receive(request)
    assert request.headers["host"] == "[::1]:8000"
