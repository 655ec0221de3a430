from dataclasses import fields
from pathlib import Path

import pytest

from hivemind_addon.formats.base.typed import DocumentError, convert
from hivemind_addon.formats.profile.grants import AgentRules
from hivemind_addon.formats.profile.model import Profile, RequestPlace
from hivemind_addon.formats.profile.rules import PROFILE_RULES

FILE = Path("profiles/my.yaml")


def test_what_breaks_a_rule_is_one_line_with_its_place_and_a_cure(subtests):
    cases = [
        ({"hosts": ["https://a.example"]}, "hosts[0]: no port"),
        ({"hosts": ["ok.example", "a.example/v1"]}, "hosts[1]: no host name"),
        ({"hosts": ["a.example:99999"]}, "hosts[0]: no port: '99999'"),
        ({"hosts": [""]}, "hosts[0]: no host name"),
        ({"paths": ["v1/messages"]}, "paths[0]: no path glob"),
        ({"paths": ["/v1/messages?beta=true"]}, "paths[0]: no path glob"),
        ({"formats": {"messages": {}}}, "formats.messages: no path glob"),
        ({"model_groups": [" "]}, "model_groups[0]: empty glob"),
        ({"session_headers": ["x session"]}, "session_headers[0]: no header name"),
        ({"refusal": {"status": 200}}, "refusal.status: 200 is no status of a refusal"),
        ({"peek": {"max_bytes": 0}}, "peek.max_bytes: 0 is not above zero"),
        ({"tokens": {"scale": 0}}, "tokens.scale: 0 is not above zero"),
        ({"concurrency": {"initial": 9, "maximum": 4}}, "concurrency.initial: 9 is above maximum, 4"),
        ({"breaker": {"first_probe_s": 60}}, "breaker.first_probe_s: 60 is above max_probe_s"),
        ({"retry": {"first_backoff_s": 60}}, "retry.first_backoff_s: 60 is above max_backoff_s"),
        (
            {"outcomes": [{"kind": "ignored", "retry": False, "message": "("}]},
            "outcomes[0].message: no regular expression",
        ),
        (
            {"outcomes": [{"kind": "ignored", "retry": False, "headers": {"x-a": "["}}]},
            "outcomes[0].headers.x-a: no regular expression",
        ),
        (
            {"outcomes": [{"kind": "ignored", "retry": False, "headers": {"x a": "b"}}]},
            "outcomes[0].headers.x a: no header name",
        ),
        (
            {"outcomes": [{"kind": "ignored", "retry": False, "status": [99]}]},
            "outcomes[0].status[0]: 99 is no HTTP status",
        ),
        ({"session_headers": ["body#"]}, "session_headers[0]: no member after #"),
        ({"parent_beside": {"x y": "body#a"}}, "parent_beside.x y: no header name"),
        ({"parent_beside": {"x-y": "body#"}}, "parent_beside.x-y: no member after #"),
        ({"windows": [{"window": "5h", "full": 0}]}, "windows[0].full: 0 is not above zero"),
        ({"windows": [{"window": "5h", "reset": "x y"}]}, "windows[0].reset: no header name"),
        ({"account_block_refusal": {"status": 200}}, "account_block_refusal.status: 200 is no status of a refusal"),
        ({"account_block_refusal": {"headers": {"x y": "1"}}}, "account_block_refusal.headers.x y: no header name"),
        ({"name": "other"}, "name: unknown key"),
        ({"account": ["x y"]}, "account[0]: no header name"),
        ({"account": ["query#"]}, "account[0]: no member after #"),
        ({"account": [{"match": "a"}]}, "account[0]: it names no place, or several"),
        ({"account": [{"header": "a", "query": "b"}]}, "account[0]: it names no place, or several"),
        ({"account": [{"body": "a", "member": "b"}]}, "account[0]: only a header has a member"),
        ({"account": [{"path": "a", "match": "b"}]}, "account[0]: a path is searched already"),
        ({"credentials": [{"path": "("}]}, "credentials[0].path: no regular expression"),
        ({"sign": {"valid_s": 60}}, "sign: header is missing"),
        ({"sign": {"header": "x-amz-date", "valid_s": 0}}, "sign.valid_s: 0 is not above zero"),
        (
            {"outcomes": [{"kind": "ignored", "retry": False, "body": {"error": "x"}}]},
            "outcomes[0].body.error: no JSON pointer",
        ),
        (
            {"outcomes": [{"kind": "ignored", "retry": False, "body": {"/error": "("}}]},
            "outcomes[0].body./error: no regular expression",
        ),
    ]
    for document, said in cases:
        with subtests.test(document=document, said=said):
            with pytest.raises(DocumentError) as caught:
                convert(Profile, document, FILE, rules=PROFILE_RULES)
            line = str(caught.value)
            assert line.startswith(f"profiles/my.yaml: {said}")
            assert "; " in line
            assert "\n" not in line


def test_header_names_are_lower_case_afterwards_as_they_are_looked_up():
    meter = {"meter": "m", "dimension": "requests", "limit": "X-Limit", "remaining": "X-Left", "reset": "X-Reset"}
    window = {"window": "5h", "used": "X-Used", "status": "X-Status", "reset": "X-Reset", "minutes": "X-Minutes"}
    document = {
        "session_headers": ["X-Session-Id"],
        "response_account_headers": ["X-Account"],
        "meters": [meter],
        "windows": [window],
    }
    profile = convert(Profile, document, FILE, rules=PROFILE_RULES)
    (meter,), (window,) = profile.meters, profile.windows
    assert (profile.session_headers, profile.response_account_headers) == (("x-session-id",), ("x-account",))
    assert (meter.limit, meter.remaining, meter.reset) == ("x-limit", "x-left", "x-reset")
    assert (window.used, window.status, window.reset, window.minutes) == ("x-used", "x-status", "x-reset", "x-minutes")


def test_the_agents_file_is_held_by_them_too():
    with pytest.raises(DocumentError, match=r"everyone\.weight: 0 is not above zero"):
        convert(AgentRules, {"everyone": {"weight": 0}}, FILE, rules=PROFILE_RULES)


def test_every_rule_is_about_a_field_that_exists():
    rules = PROFILE_RULES
    ruled = [*rules.values, *rules.keys]
    ruled += [(cls, name) for cls, pairs in rules.ordered.items() for pair in pairs for name in pair]
    ruled += [(cls, name) for cls, names in rules.unwritten.items() for name in names]
    assert len(ruled) > 50
    assert [(cls, name) for cls, name in ruled if name not in {f.name for f in fields(cls)}] == []


def test_a_place_in_a_request_may_be_a_text():
    made = convert(
        Profile, {"account": ["X-Org", "x-meta#org", "body#outer.project", "query#key"]}, FILE, rules=PROFILE_RULES
    )
    assert made.account == (
        RequestPlace(header="x-org"),
        RequestPlace(header="x-meta", member="org"),
        RequestPlace(body="outer.project"),
        RequestPlace(query="key"),
    )
