import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mitmproxy import flow as mflow
from mitmproxy import http
from mitmproxy.test import tflow

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.profile.model import Profile, RequestPlace
from hivemind_addon.plugins.captures.flow_file import dump
from hivemind_addon.plugins.captures.redact import FlowRedactor, PlainHeaders
from tests.plugins.captures.captured import STREAM, answered, make_redactor
from tests.proxy.gate.samples import make_flow

KEY = "sk-ant-api03-" + "Ab1" * 9
PLACES = {
    "x-api-key": lambda flow, secret: flow.request.headers.__setitem__("x-api-key", secret),
    "authorization": lambda flow, secret: flow.request.headers.__setitem__("authorization", f"Bearer {secret}"),
    "google": lambda flow, secret: flow.request.headers.__setitem__("x-goog-api-key", secret),
    "proxy": lambda flow, secret: flow.request.headers.__setitem__("proxy-authorization", f"Basic {secret}"),
    "unheard of": lambda flow, secret: flow.request.headers.__setitem__("x-brand-new-token", secret),
    "cookie": lambda flow, secret: flow.request.headers.__setitem__("cookie", f"session={secret}; a=b"),
    "set-cookie": lambda flow, secret: flow.response.headers.__setitem__("set-cookie", f"s={secret}; Path=/"),
    "organisation": lambda flow, secret: flow.response.headers.__setitem__("anthropic-organization-id", secret),
    "account": lambda flow, secret: flow.request.headers.__setitem__("chatgpt-account-id", secret),
    "query": lambda flow, secret: setattr(flow.request, "path", f"/v1/messages?beta=true&key={secret}"),
    "bare query": lambda flow, secret: setattr(flow.request, "path", f"/v1/messages?{secret}"),
    "turn metadata": lambda flow, secret: flow.request.headers.__setitem__(
        "x-codex-turn-metadata", json.dumps({"session_id": "s", "workspaces": {secret: 1}, "remote": secret})
    ),
    "body": lambda flow, secret: flow.request.set_content(json.dumps({"system": f"KEY is {KEY}"}).encode()),
    "gzipped body": lambda flow, secret: (
        flow.request.headers.__setitem__("content-encoding", "gzip"),
        setattr(flow.request, "raw_content", gzip.compress(f'{{"messages": ["{KEY}"]}}'.encode())),
    ),
    "answer": lambda flow, secret: setattr(flow.response, "raw_content", STREAM + f"data: {KEY}\n\n".encode()),
    "trailers": lambda flow, secret: setattr(flow.response, "trailers", http.Headers([(b"x-t", secret.encode())])),
    "error": lambda flow, secret: setattr(flow, "error", mflow.Error(f"refused {KEY}")),
    "comment": lambda flow, secret: setattr(flow, "comment", f"look at {KEY}"),
    "proxyauth": lambda flow, secret: flow.metadata.__setitem__("proxyauth", ["ann", KEY]),
    "alpn": lambda flow, secret: setattr(flow.client_conn, "error", KEY),
}


def raw(flow, *, content=True):
    return dump(make_redactor(content=content).clean_state(flow.get_state()))


@settings(max_examples=60)
@given(
    st.sets(st.sampled_from(sorted(PLACES)), min_size=1),
    st.text("abcdefXYZ0123456789", min_size=12, max_size=30),
    st.booleans(),
)
def test_no_secret_reaches_the_file_wherever_it_is_planted(places, plain, content):
    flow = answered(make_flow())
    flow.request.headers["x-note"] = plain
    for place in places:
        PLACES[place](flow, plain)
    # Also a known credential that is repeated where nothing tells what it is.
    if {"x-api-key", "authorization"} & places and "body" in places:
        flow.request.content = json.dumps({"system": f"use {plain}"}).encode()
    data = raw(flow, content=content)
    assert plain.encode() not in data
    assert KEY.encode() not in data


def test_a_secret_that_is_streamed_out_in_pieces_cannot_be_put_together_again():
    deltas = [f"the key is {KEY[:9]}", KEY[9:20], f"{KEY[20:]} and more"]
    events = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}} for text in deltas
    ]
    stream = b"".join(b"event: content_block_delta\ndata: %s\n\n" % json.dumps(event).encode() for event in events)
    state = make_redactor().clean_state(answered(make_flow(), stream).get_state())
    told = [json.loads(line[5:]) for line in state["response"]["content"].splitlines() if line.startswith(b"data:")]
    text = "".join(event["delta"]["text"] for event in told)
    assert text.startswith("the key is redacted-")
    assert text.endswith(" and more")
    assert KEY[9:20] not in state["response"]["content"].decode()


def test_a_secret_of_the_query_is_known_in_the_bodies_and_the_answer():
    flow = answered(make_flow(content=json.dumps({"system": "use plain/word12"}).encode()), b"data: plain%2Fword12\n\n")
    flow.request.path = "/v1/messages?token=plain%2Fword12"
    state = make_redactor().clean_state(flow.get_state())
    assert b"word12" not in state["request"]["path"] + state["request"]["content"] + state["response"]["content"]


def test_identity_by_credential_still_groups():
    redactor = make_redactor()
    one, two, other = make_flow(x_api_key="k-one"), make_flow(x_api_key="k-one"), make_flow(x_api_key="k-two")
    states = [redactor.clean_state(flow.get_state()) for flow in (one, two, other)]
    first, second, third = (dict(state["request"]["headers"])[b"x-api-key"] for state in states)
    assert first == second != third


def test_what_tells_who_and_how_is_kept():
    flow = answered(
        make_flow(x_claude_code_session_id="s-1", anthropic_beta="b", user_agent="claude-cli/2"), retry_after="3"
    )
    flow.request.headers["x-codex-turn-metadata"] = '{"session_id": "s-2", "cwd": "/home/ann"}'
    state = make_redactor().clean_state(flow.get_state())
    sent, got = dict(state["request"]["headers"]), dict(state["response"]["headers"])
    assert sent[b"x-claude-code-session-id"] == b"s-1"
    assert sent[b"user-agent"] == b"claude-cli/2"
    assert sent[b"x-codex-turn-metadata"] == b'{"session_id":"s-2"}'
    assert got[b"retry-after"] == b"3"


def test_certificates_are_left_out():
    flow = answered(make_flow())
    state = make_redactor().clean_state(flow.get_state())
    assert state["client_conn"]["certificate_list"] == state["server_conn"]["certificate_list"] == []
    assert "mitmcert" not in state["server_conn"]


def test_a_decoded_body_fits_its_headers():
    flow = make_flow()
    flow.request.headers["content-encoding"] = "gzip"
    flow.request.raw_content = gzip.compress(b'{"messages": []}')
    state = make_redactor().clean_state(flow.get_state())
    assert state["request"]["content"] == b'{"messages": []}'
    assert b"content-encoding" not in dict(state["request"]["headers"])


def test_a_body_that_lies_about_its_coding_is_not_kept():
    flow = make_flow(content_encoding="gzip", content=b"")
    flow.request.raw_content = b"no gzip at all " + KEY.encode()
    state = make_redactor().clean_state(flow.get_state())
    assert b"could not be decoded" in state["request"]["content"]


def test_the_living_flow_is_not_changed():
    flow = answered(make_flow(x_api_key=KEY))
    before = flow.get_state()
    raw(flow)
    assert flow.get_state() == before


def test_a_flow_without_an_answer_is_kept_as_well():
    flow = tflow.tflow(err=True)
    flow.response = None
    assert raw(flow)


DEEP = [b"[" * depth + b"]" * depth for depth in (300, 700, 990, 5000)]
ODD = [b"\xff\xfe", b'"\xff"', b'"\\ud83d"', b'{"\xff": 1}', b"NaN", b'{"type": [], "text": "a"}', *DEEP]


@pytest.mark.parametrize("content", [True, False])
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{odd[:8]} of {len(odd)}")
def test_no_call_is_lost_for_what_a_body_holds(odd, content):
    body = b'{"messages": [{"role": "user", "content": "%b"}], "x": %b}' % (KEY.encode(), odd)
    event = b'data: {"choices": [{"delta": {"content": "%b"}}], "x": %b}\n\n'
    flow = answered(make_flow(), event % (KEY[:20].encode(), odd) + event % (KEY[20:].encode(), b"1"))
    flow.request.raw_content = body
    flow.request.headers["x-codex-turn-metadata"] = '{"session_id": "\udcff"}'
    written = raw(flow, content=content)
    assert KEY.encode() not in written
    assert (KEY[20:].encode() in written) == (
        odd in (ODD[0], DEEP[-1]) and content
    )  # no event, of which a model's text is no part


PROFILES = load_profiles(None).by_name.values()


def test_only_what_is_known_to_hold_no_secret_is_written():
    cases = (
        ("anthropic-version", b"v"),
        ("x-claude-code-session-id", b"v"),
        ("x-stainless-timeout", b"v"),
        ("authorization", None),
        ("x-api-key", None),
        ("cookie", None),
        ("openai-organization", None),
        ("x-of-nobody-knows-what", None),
    )
    assert [(name, written) for name, written in cases if PlainHeaders(PROFILES).written(name, b"v") != written] == []


def test_of_a_header_that_holds_an_object_only_the_texts_are_written_that_a_profile_reads():
    plain = PlainHeaders(PROFILES)
    told = b'{"session_id": "s-1", "installation_id": "secret", "thread_id": 7}'
    assert plain.written("x-codex-turn-metadata", told) == b'{"session_id":"s-1"}'
    assert plain.written("x-codex-turn-metadata", b"no JSON") == b"{}"
    assert PlainHeaders(()).written("x-codex-turn-metadata", told) is None


def test_accounts_of_the_path_and_of_the_body_are_secrets_as_those_of_headers_are():
    profile = Profile(
        account=(RequestPlace(path="/projects/([^/]+)/locations/([^/]+)/"), RequestPlace(body="request.project")),
    )
    flow = answered(make_flow())
    flow.request.path = "/v1/projects/acme-prod/locations/us-central1/publishers/google/models/m:generateContent"
    flow.request.content = b'{"request": {"project": "acme-lab"}, "note": "acme-prod in us-central1"}'
    for content in (True, False):
        written = dump(FlowRedactor([profile], content=content).clean_state(flow.get_state()))
        assert b"acme" not in written
        assert b"/locations/us-central1/" in written
