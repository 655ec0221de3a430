import gzip

import pytest

from hivemind_addon.proxy.mitm.request import destination, patience_of, plain_body
from hivemind_addon.proxy.profile.load import load_profiles
from tests.mitm.samples import make_flow


@pytest.mark.parametrize(
    ("url", "sni", "meant"),
    [
        ("https://127.0.0.1/v1/messages", "api.anthropic.com", ("api.anthropic.com", 443)),
        ("https://api.anthropic.com/v1/messages", None, ("api.anthropic.com", 443)),
        ("http://api.anthropic.com:81/v1/messages", "other.test", ("api.anthropic.com", 81)),
    ],
)
def test_where_a_request_goes_is_its_sni_else_its_host(url, sni, meant):
    assert destination(make_flow(url, sni=sni)) == meant


@pytest.mark.parametrize(
    ("body", "coding", "plain"),
    [
        (b"{}", "", b"{}"),
        (gzip.compress(b"{}", mtime=0), "gzip", b"{}"),
        (b"{}", "gzip", b"{}"),
        (b"{}", "unknown", b"{}"),
    ],
)
def test_a_body_without_its_coding_or_as_it_came(body, coding, plain):
    request = make_flow().request
    request.headers["content-encoding"], request.raw_content = coding, body
    assert plain_body(request) == plain


def test_patience_is_announced_or_known_of_the_client_or_the_profiles():
    profile = load_profiles(None).by_name["openai"]
    name = profile.patience.headers[0]
    assert patience_of({name: "77", "user-agent": "codex_cli"}, profile) == 77
    for nonsense in ("soon", "-1", "1e9"):
        assert patience_of({name: nonsense}, profile) == profile.patience.default_s
    assert patience_of({"user-agent": "codex_cli"}, profile) == profile.patience.clients["codex*"]
