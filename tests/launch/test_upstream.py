import pytest

from hivemind_addon.tools.launch.proxy_command import UpstreamUnusable, upstream_of


@pytest.mark.parametrize(
    ("value", "mode", "auth"),
    [
        ("http://proxy.corp:3128", "upstream:http://proxy.corp:3128", ""),
        ("proxy.corp", "upstream:http://proxy.corp:80", ""),
        ("https://proxy.corp/", "upstream:https://proxy.corp:443", ""),
        ("http://me:p%40ss@proxy.corp:1", "upstream:http://proxy.corp:1", "me:p@ss"),
        ("http://[2001:db8::1]:3128", "upstream:http://[2001:db8::1]:3128", ""),
    ],
)
def test_the_environments_proxy_becomes_ours(value, mode, auth):
    for name in ("HTTPS_PROXY", "https_proxy", "all_proxy"):
        found = upstream_of({name: value}, 8080)
        assert (found.mode, found.auth) == (mode, auth)
        assert found.options == (["--upstream-auth", auth] if auth else [])


def test_the_https_one_counts_first():
    both = {"http_proxy": "http://a:1", "HTTPS_PROXY": "http://b:2", "ALL_PROXY": "http://c:3"}
    assert upstream_of(both, 8080).url == "http://b:2"


@pytest.mark.parametrize("value", ["", "http://agent:x@127.0.0.1:8080", "http://localhost:8080"])
def test_none_and_ourselves_are_no_upstream(value):
    assert upstream_of({"HTTPS_PROXY": value}, 8080) is None


def test_another_proxy_of_this_machine_is_one():
    assert upstream_of({"HTTPS_PROXY": "http://127.0.0.1:3128"}, 8080).url == "http://127.0.0.1:3128"


@pytest.mark.parametrize("value", ["socks5://proxy.corp:1080", "http://proxy.corp:port", "http://"])
def test_what_mitmproxy_cannot_go_through_is_one_line(value):
    with pytest.raises(UpstreamUnusable, match=r"HTTPS_PROXY.*unset it"):
        upstream_of({"HTTPS_PROXY": value}, 8080)
