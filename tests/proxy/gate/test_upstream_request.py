"""What is sent to an endpoint of one's own, and what never is."""

import gzip
import json

import pytest
from mitmproxy import http

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.profile.upstreams import EqualUpstream, KeySource, UpstreamKey
from hivemind_addon.kernel.values.events import OddityNoted
from hivemind_addon.kernel.values.ticket import CallKind
from hivemind_addon.proxy.gate.addresses import Upstream
from hivemind_addon.proxy.gate.settings import Settings, read_profiles
from hivemind_addon.proxy.gate.upstream_request import is_bound, outgoing, why_without_key
from hivemind_addon.proxy.host.port import Next
from tests.proxy.gate.samples import make_flow, make_proxy

OPENAI = load_profiles(None).by_name["openai"]
KEYS = {("openai", "east"): UpstreamKey("sk-ours")}
GIVEN = KeySource(env="X")
BODY = b'{"model": "gpt-5",  "messages": [{"role": "user", "content": "\\u00e4"}], "n": 1.0}'


def request(path="/v1/chat/completions?x=1", body=BODY, **headers):
    made = http.Request.make("POST", f"https://api.openai.com{path}", body)
    made.headers["host"] = "api.openai.com"
    for name, value in ({"authorization": "Bearer sk-clients", "cookie": "a=b"} | headers).items():
        made.headers[name.replace("_", "-")] = value
    return made


def sent(upstream, asked=None, *, model="gpt-5", profile=OPENAI):
    made = outgoing(request() if asked is None else asked, profile, upstream, KEYS, model)
    assert made is not None
    return made.request


def test_host_scheme_port_and_key_are_replaced_and_nothing_else():
    asked = request(openai_organization="org-clients")
    before = asked.copy()
    made = sent(EqualUpstream("east", "http://10.0.0.1:8000", GIVEN), asked)
    assert made.url == "http://10.0.0.1:8000/v1/chat/completions?x=1"
    assert made.headers["host"] == "10.0.0.1:8000"
    assert made.headers["authorization"] == "Bearer sk-ours"
    assert "cookie" not in made.headers
    assert made.raw_content == BODY
    assert asked.headers == before.headers
    assert (asked.url, asked.raw_content) == (before.url, before.raw_content)


def test_the_authority_of_http2_is_the_endpoints():
    asked = request()
    asked.http_version, asked.authority = "HTTP/2.0", "api.openai.com"
    assert sent(EqualUpstream("east", "https://e.test", GIVEN), asked).authority == "e.test"
    assert asked.authority == "api.openai.com"


def test_the_clients_key_never_goes_to_another_host():
    made = sent(EqualUpstream("local", "http://127.0.0.1:8000"))
    assert "sk-clients" not in str(made.headers)


def test_the_key_stands_in_the_header_that_is_named():
    made = sent(
        EqualUpstream("east", "https://e.openai.azure.com", GIVEN, header="api-key", paths={"/v1": "/openai/v1"})
    )
    assert made.url == "https://e.openai.azure.com/openai/v1/chat/completions?x=1"
    assert made.headers["api-key"] == "sk-ours"
    assert "authorization" not in made.headers


def test_a_key_in_the_query_is_the_clients_too():
    asked = request("/v1/chat/completions?key=sk-clients&alt=sse")
    assert sent(EqualUpstream("east", "https://e.test", GIVEN), asked).path == "/v1/chat/completions?alt=sse"


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_another_name_of_the_model_changes_nothing_else_of_the_body(encoding):
    asked = request(
        body=gzip.compress(BODY) if encoding else BODY, **({"content_encoding": encoding} if encoding else {})
    )
    asked.headers["content-length"] = str(len(asked.raw_content))
    made = sent(EqualUpstream("east", "https://e.test", GIVEN, models={"gpt-*": "mine"}), asked)
    assert json.loads(made.raw_content) == json.loads(BODY) | {"model": "mine"}
    assert b'"n":1.0' in made.raw_content.replace(b" ", b"")
    assert made.headers["content-length"] == str(len(made.raw_content))
    assert "content-encoding" not in made.headers


def test_a_deployment_in_the_path_is_renamed():
    from dataclasses import replace

    azure = replace(OPENAI, model_paths=("/openai/deployments/{model}/*",))
    asked = request("/openai/deployments/gpt-5/chat/completions?api-version=1", body=b"{}")
    made = sent(EqualUpstream("east", "https://e.test", GIVEN, models={"gpt-5": "mine"}), asked, profile=azure)
    assert made.path == "/openai/deployments/mine/chat/completions?api-version=1"


def test_ones_own_goes_as_it_came():
    assert outgoing(request(), OPENAI, EqualUpstream("own"), KEYS, "gpt-5") is None


def test_an_endpoint_may_be_for_some_models_and_calls_only():
    local = EqualUpstream("local", "http://127.0.0.1:8000", serves=("gpt-5-mini*",), calls=(CallKind.AUXILIARY,))
    assert local.takes("gpt-5-mini", CallKind.AUXILIARY)
    assert not local.takes("gpt-5", CallKind.AUXILIARY)
    assert not local.takes("gpt-5-mini", CallKind.TURN)


@pytest.mark.parametrize(
    ("authorization", "path", "bound"),
    [
        ("AWS4-HMAC-SHA256 Credential=x", "/model/x/invoke", True),
        ("", "/model/x/invoke?X-Amz-Signature=ab", True),
        ("Bearer sk-ant-oat01-x", "/v1/messages", True),
        ("Bearer eyJhbGciOiJSUzI1NiJ9.e30.x", "/v1/responses", True),
        ("bearer sk-proj-1", "/v1/responses", False),
        ("", "/v1/responses", False),
    ],
)
def test_what_is_signed_or_brings_a_login_is_never_moved(authorization, path, bound):
    assert is_bound({"authorization": authorization} if authorization else {}, path) is bound


HELD = EqualUpstream("second", key=GIVEN)
CALL = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("url", "how", "hosts", "why"),
    [
        ("https://api.openai.com", {}, (), ""),
        ("https://api.openai.com:443", {"sni": "API.openai.com."}, (), ""),
        ("https://192.0.2.1", {"sni": "api.openai.com", "mode": "transparent"}, (), ""),
        ("http://api.openai.com", {}, (), "by https only, not to http://api.openai.com:80"),
        ("http://api.openai.com:443", {}, (), "by https only, not to http://api.openai.com:443"),
        ("https://api.openai.com:9999", {}, (), "to api.openai.com:443 only, not to https://api.openai.com:9999"),
        ("https://api.openai.com", {}, ("api.openai.com:8443",), "to api.openai.com:8443 only"),
        ("https://api.openai.com:8443", {}, ("api.openai.com:8443",), ""),
        ("https://api.openai.com", {"sni": "evil.test"}, (), "only, not to https://evil.test:443"),
        ("http://127.0.0.1:8000", {}, ("127.0.0.1:8000",), ""),
        ("http://localhost:8000", {}, ("localhost:8000",), ""),
        ("http://[::1]:8000", {}, ("[::1]:8000",), ""),
        ("http://127.0.0.1:8001", {}, ("127.0.0.1:8000",), "to 127.0.0.1:8000 only"),
        ("http://127.0.0.1:8001", {}, ("127.0.0.1",), "to 127.0.0.1:80 only"),
        ("https://gateway.test:8443", {"mode": "reverse:https://gateway.test:8443", "sni": "evil.test"}, (), ""),
        ("http://gateway.test:80", {"mode": "reverse:http://gateway.test:80"}, (), "by https only"),
        ("https://told.test:8443", {}, (), ""),
        ("http://told.test:8443", {}, (), "by https only"),
    ],
)
def test_a_key_of_the_proxys_goes_by_https_or_on_this_machine_to_an_address_of_the_profile(url, how, hosts, why):
    from dataclasses import replace

    profile = replace(OPENAI, hosts=hosts) if hosts else OPENAI
    settings = Settings(profiles=load_profiles(None), upstream=Upstream("https", "told.test", 8443))
    told = why_without_key(make_flow(url + CALL, **how), profile, HELD, settings)
    assert told.startswith("second's key goes ") is bool(why)
    assert why in told
    assert why_without_key(make_flow(url + CALL, **how), profile, EqualUpstream("own"), settings) == ""


def test_a_key_of_the_proxys_goes_to_no_other_proxy_in_clear_text_nor_with_a_path_that_names_a_host():
    settings, local = Settings(profiles=load_profiles(None)), EqualUpstream("local", "http://127.0.0.1:8000", GIVEN)
    flow = make_flow("https://api.openai.com" + CALL)
    assert why_without_key(flow, OPENAI, local, settings) == ""
    flow.request.path = "http://evil.test" + CALL
    assert "a path that begins with /" in why_without_key(flow, OPENAI, HELD, settings)
    assert "a path that begins with /" in why_without_key(flow, OPENAI, local, settings)
    flow.server_conn.via = ("http", ("proxy.test", 3128))
    assert "by https only" in why_without_key(flow, OPENAI, local, settings)


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2.0"])
def test_with_a_key_of_the_proxys_goes_the_name_of_its_host(version):
    asked = request()
    asked.http_version, asked.headers["host"], asked.authority = version, "evil.test", "evil.test"
    made = outgoing(asked, OPENAI, HELD, {("openai", "second"): UpstreamKey("sk-ours")}, "gpt-5").request
    assert made.headers["authorization"] == "Bearer sk-ours"
    assert (made.headers["host"], made.authority) == ("api.openai.com", "api.openai.com")
    asked = make_flow("http://[::1]:8000" + CALL).request
    assert outgoing(asked, OPENAI, HELD, {}, "gpt-5").request.host_header == "[::1]:8000"


@pytest.mark.parametrize(
    "other", ["", "  - {name: own}\n", "  - {name: local, url: 'http://127.0.0.1:1', serves: [x]}\n"]
)
async def test_who_asks_elsewhere_is_refused_in_words_or_served_by_another_endpoint(tmp_path, monkeypatch, other):
    """And never sent on silently with a key of its own that nobody knows."""
    monkeypatch.setenv("SECOND_KEY", "sk-ours")
    (tmp_path / "openai.yaml").write_text(
        f"extends: openai\nupstreams:\n  - {{name: second, key: {{env: SECOND_KEY}}}}\n{other}"
    )
    proxy = make_proxy()
    proxy.settings.current = Settings(profiles=read_profiles(tmp_path, "", None))
    good = proxy.make_exchange(make_flow("https://api.openai.com" + CALL, content=BODY, host="evil.test"))
    assert good.enter()
    if not other:
        assert good.outgoing.request.headers["x-api-key"] == "sk-ours"
        assert good.outgoing.request.headers["host"] == "api.openai.com"
    bad = proxy.make_exchange(make_flow("http://api.openai.com:9999" + CALL, content=BODY))
    assert bad.enter()
    assert bad.outgoing is None
    if "own" in other:
        assert bad.next is Next.SEND
        return
    assert (bad.next, bad.refusal.status_code, bad.over) == (Next.REFUSE, 400, True)
    told = json.loads(bad.refusal.content)["error"]["message"]
    assert (
        told
        == "hivemind: second's key goes by https only, not to http://api.openai.com:9999; ask for https://api.openai.com."
    )
    assert [event.what for event in proxy.heard if isinstance(event, OddityNoted)] == [f"refused: {told[10:-1]}"]
    assert bad.flow.id not in proxy.live
