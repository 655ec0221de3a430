from dataclasses import replace

import pytest

from hivemind_addon.proxy.profile.load import Profiles
from tests.proxy.mitm.samples import make_flow, make_proxy


@pytest.fixture
async def proxy():
    return make_proxy()


async def test_only_model_calls_of_claimed_hosts_are_scheduled(proxy):
    for url, method, claimed in (
        ("https://api.anthropic.com/v1/messages", "POST", True),
        ("https://API.Anthropic.com./v1/messages?beta=true", "POST", True),
        ("https://api.anthropic.com/v1/messages", "GET", False),
        ("https://api.anthropic.com/v1/messages/count_tokens", "POST", False),
        ("https://api.anthropic.com/v1/models", "GET", False),
        ("https://api.anthropic.com/api/event_logging/batch", "POST", False),
        ("https://api.openai.com/v1/chat/completions", "POST", True),
        ("https://example.test/v1/messages", "POST", False),
    ):
        flow = make_flow(url, method=method)
        assert proxy.is_ours(flow) is claimed, url
        assert (proxy.make_exchange(flow) is not None) is claimed, url
        assert (flow.id in proxy.live) is claimed, url


async def test_what_is_claimed_changes_with_the_settings(proxy):
    flow = make_flow("https://api.anthropic.com/v1/messages")
    before = proxy.settings.current
    assert proxy.claims.profile_for(flow) is before.profiles.by_name["anthropic"]
    proxy.settings.current = replace(before, profiles=before.profiles.capped(1))
    assert proxy.claims.profile_for(flow) is proxy.settings.current.profiles.by_name["anthropic"]
    proxy.settings.current = replace(before, profiles=Profiles({}))
    assert not proxy.is_ours(flow)


async def test_any_spelling_of_a_path_is_scheduled_and_goes_on_as_it_came(proxy):
    for path in (
        "/v1/%6dessages",
        "//v1/messages",
        "/v1/./messages",
        "/v1/messages;x",
        "/v1/messages/",
        "/V1/Messages?beta=true",
    ):
        flow = make_flow(f"https://api.anthropic.com{path}")
        assert proxy.make_exchange(flow) is not None, path
        assert flow.request.path == path, path


async def test_the_sni_says_whom_the_client_means(proxy):
    assert proxy.is_ours(make_flow("https://127.0.0.1/v1/messages", sni="api.anthropic.com"))
    assert not proxy.is_ours(make_flow("https://api.anthropic.com/v1/messages", sni="other.test"))


async def test_an_unknown_reverse_upstream_has_the_profile_of_the_path(proxy):
    for path, name in (
        ("/v1/messages", "anthropic"),
        ("/v1/chat/completions", "openai-compatible"),
        ("/v1/responses", "openai-compatible"),
    ):
        assert (
            proxy.claims.profile_for(make_flow(f"http://127.0.0.1:9{path}", mode="reverse:http://127.0.0.1:9")).name
            == name
        )
        assert proxy.claims.profile_for(make_flow(f"http://127.0.0.1:9{path}")) is None, path


async def test_the_option_names_the_profile_of_a_reverse_upstream():
    proxy = make_proxy(reverse_profile="openai")
    assert (
        proxy.claims.profile_for(
            make_flow("http://127.0.0.1:9/v1/chat/completions", mode="reverse:http://127.0.0.1:9")
        ).name
        == "openai"
    )
    assert (
        proxy.claims.profile_for(make_flow("http://127.0.0.1:9/v1/messages", mode="reverse:http://127.0.0.1:9")) is None
    )


# WebSockets -------------------------------------------------------------------------------------------------------------


async def test_a_websocket_on_a_scheduled_path_is_refused_where_the_profile_says_so(proxy):
    for url, refused in (
        ("https://api.openai.com/v1/responses", True),
        ("https://api.openai.com/v1/responses?x=1", True),
        ("https://chatgpt.com/backend-api/codex/responses", True),
        ("https://api.openai.com/v1/realtime", False),
        ("https://api.anthropic.com/v1/messages", False),
        ("https://example.test/v1/responses", False),
    ):
        upgrade = make_flow(url, method="GET", content=b"", upgrade="WebSocket", connection="Upgrade")
        answer = proxy.claims.upgrade_refusal(upgrade)
        assert (answer is not None) is refused, url
        assert answer is None or answer.status_code == 426, url
        assert proxy.claims.upgrade_refusal(make_flow(url, method="GET", content=b"")) is None, url


async def test_a_profile_may_let_websockets_pass(tmp_path):
    (tmp_path / "openai.yaml").write_text("extends: openai\nwebsocket: tunnel\n")
    proxy = make_proxy(tmp_path)
    url = "https://api.openai.com/v1/responses"
    assert proxy.claims.upgrade_refusal(make_flow(url, method="GET", content=b"", upgrade="websocket")) is None
