from dataclasses import replace

import pytest

from hivemind_addon.formats.profile.load import Profiles
from tests.proxy.gate.samples import make_flow, make_proxy


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


@pytest.mark.parametrize("use", ["packaged", "turns", "refuse", "tunnel"])
async def test_what_becomes_of_a_websocket_is_its_profiles_choice(tmp_path, use):
    if use != "packaged":
        for name in ("openai", "codex"):
            (tmp_path / f"{name}.yaml").write_text(f"extends: {name}\nwebsocket: {use}\n")
    proxy = make_proxy(tmp_path)
    scheduled = ("https://api.openai.com/v1/responses?x=1", "https://chatgpt.com/backend-api/codex/responses")
    without_turns = "https://api.openai.com/v1/chat/completions"
    others = (
        "https://api.openai.com/v1/realtime",
        "https://api.anthropic.com/v1/messages",
        "https://example.test/v1/responses",
    )
    for url in (*scheduled, without_turns, *others):
        upgrade = make_flow(url, method="GET", content=b"", upgrade="WebSocket", connection="Upgrade")
        answer = proxy.claims.upgrade_refusal(upgrade)
        refuses = url not in others and (use == "refuse" or (url == without_turns and use != "tunnel"))
        assert (answer is not None and answer.status_code) == (refuses and 426), url
        has_turns = url in scheduled and use in ("packaged", "turns")
        assert (proxy.claims.profile_of_turns(upgrade) is not None) is has_turns, url
        assert proxy.claims.upgrade_refusal(make_flow(url, method="GET", content=b"")) is None, url


async def test_a_connection_is_refused_where_requests_may_go_to_several_endpoints(tmp_path, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "sk-2")
    (tmp_path / "openai.yaml").write_text(
        "extends: openai\nupstreams:\n  - {name: one}\n  - {name: two, url: 'https://two.test', key: {env: OTHER_KEY}}\n"
    )
    proxy = make_proxy(tmp_path)
    upgrade = make_flow("https://api.openai.com/v1/responses", method="GET", content=b"", upgrade="websocket")
    assert proxy.claims.upgrade_refusal(upgrade).status_code == 426
    assert proxy.claims.profile_of_turns(upgrade) is None
