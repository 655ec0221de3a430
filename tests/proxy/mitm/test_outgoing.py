"""What is sent to an endpoint of one's own, and what never is."""

import gzip
import json

import pytest
from mitmproxy import http

from hivemind_addon.api.ticket import CallKind
from hivemind_addon.proxy.mitm.outgoing import is_bound, outgoing
from hivemind_addon.proxy.profile.load import load_profiles
from hivemind_addon.proxy.profile.upstreams import EqualUpstream, KeySource, UpstreamKey

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
