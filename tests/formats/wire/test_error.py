import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.profile.format import ErrorPlaces
from hivemind_addon.formats.profile.formats import packaged_formats
from hivemind_addon.formats.wire.error import (
    ErrorFacts,
    error_in_body,
    error_members,
    failure,
    unreadable_error,
    word,
)

DATA = Path(__file__).parent / "data"


def test_names_go_from_special_to_general():
    assert ErrorFacts(type="a", code="b", details_code="c").names == ("c", "b", "a")
    assert ErrorFacts().names == ()


def test_errors_of_whole_answers_are_read_in_any_shape(subtests):
    cases = [
        (
            "anthropic/spend_cap",
            ErrorFacts(
                type="rate_limit_error",
                message="You have reached your monthly spend limit.",
                details_code="enforced_spend_limit_reached",
            ),
        ),
        ("ollama/busy", ErrorFacts(message="server busy, please try again.  maximum pending requests exceeded")),
        ("llama-cpp/loading", ErrorFacts(type="unavailable_error", code="503", message="Loading model")),
        ("mistral/rate_limit", ErrorFacts(type="rate_limited", code="1300", message="Requests rate limit exceeded")),
        ("openai/response_failed", ErrorFacts(code="server_error", message="The model failed to generate a response.")),
        ("openai/response", None),
        ("anthropic/message", None),
        ("anthropic/bad_gateway", None),
    ]
    for path, facts in cases:
        with subtests.test(path=path, facts=facts):
            body = json.loads((DATA / f"{path}.json").read_text())["body"]
            assert error_in_body(body.encode() if isinstance(body, str) else json.dumps(body).encode()) == facts


def test_an_error_wrapped_in_a_list_is_read():
    body = json.loads((DATA / "gemini/daily.json").read_text())["body"]
    facts = error_in_body(json.dumps(body).encode())
    assert facts is not None
    assert facts.code == "429"


def test_one_unreadable_member_does_not_hide_the_others():
    facts = error_in_body(b'{"error": {"type": "t", "code": 1e999, "message": ["no text"]}}')
    assert facts == ErrorFacts(type="t")


def test_long_messages_are_cut():
    facts = error_in_body(json.dumps({"error": {"message": "m" * 9999, "type": "t" * 9999}}).encode())
    assert facts == ErrorFacts(message="m" * 2000, type="t" * 200)


def test_the_members_of_an_error_are_its_texts_and_those_around_it_are_not():
    error = {"a": "1", "b": [{"c": 2}, {"d": {"e": True, "f": None}}], "g": "x" * 70_000}
    facts = error_in_body(json.dumps({"error": error, "output": "no"}).encode())
    assert facts is not None
    assert list(facts.texts()) == [("a", "1"), ("c", "2"), ("e", "true")]
    facts = failure({"detail": b'"Not now"', "retry_after": b"7"})
    assert list(facts.texts()) == [("detail", "Not now"), ("retry_after", "7")]


def test_an_error_may_be_a_text_alone():
    assert error_in_body(b'{"error": "server busy"}') == ErrorFacts(message="server busy")
    assert error_in_body(b'{"error": null, "message": {}}') is None


@given(st.binary())
def test_any_bytes_of_an_unreadable_error_are_its_message(data):
    assert len(unreadable_error(data).message) <= 200


def test_words_are_texts_and_whole_numbers():
    assert [word(raw) for raw in (b'"a"', b"7", b"true", b"1.5", b"null")] == ["a", "7", "", "", ""]


# Places of a format's own. The samples are documented or captured ones, shortened.

QUOTA = {
    "error": {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "message": "You exceeded your current quota. Please retry in 38.2s.",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                "violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "quotaValue": "10"}],
            },
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "38s"},
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "RATE_LIMIT_EXCEEDED",
                "domain": "cloudcode-pa.googleapis.com",
            },
        ],
    }
}
FREE_DAY = {
    "error": {
        "code": 429,
        "message": "Rate limit exceeded: free-models-per-day",
        "metadata": {
            "limit_source": "openrouter_free_tier_daily",
            "headers": {"X-RateLimit-Limit": "50", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1795219200000"},
        },
    }
}
MINIMAX = {"id": "1", "choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}}
PLACES = {
    "gemini": packaged_formats()["gemini"].error,
    "openrouter": ErrorPlaces(names=("/error/metadata/limit_source", "/error/metadata/reason")),
    "minimax": ErrorPlaces(
        at=("/base_resp/status_code",),
        unless={"/base_resp/status_code": "^0$"},
        names=("/base_resp/status_code",),
        message=("/base_resp/status_msg",),
    ),
    "xai": ErrorPlaces(names=("/code",)),
}


@pytest.mark.parametrize(
    ("format_name", "body", "facts"),
    [
        (
            "gemini",
            QUOTA,
            ErrorFacts(
                own_names=("RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED"),
                code="429",
                message="You exceeded your current quota. Please retry in 38.2s.",
            ),
        ),
        (
            "openrouter",
            FREE_DAY,
            ErrorFacts(
                own_names=("openrouter_free_tier_daily",),
                code="429",
                message="Rate limit exceeded: free-models-per-day",
            ),
        ),
        ("minimax", MINIMAX, ErrorFacts(own_names=("1002",), message="rate limit")),
        ("minimax", {**MINIMAX, "base_resp": {"status_code": 0, "status_msg": "success"}}, None),
        ("minimax", {"choices": [], "base_resp": None}, None),
        (
            "xai",
            {"code": "The service is currently unavailable", "error": "The model is at capacity."},
            ErrorFacts(own_names=("The service is currently unavailable",), message="The model is at capacity."),
        ),
    ],
)
def test_a_format_s_own_places_are_read_beside_the_usual_ones(format_name, body, facts):
    assert error_in_body(json.dumps(body).encode(), PLACES[format_name]) == facts
    if facts is not None:
        assert error_in_body(json.dumps([body]).encode(), PLACES[format_name]) == facts


def test_own_names_come_first():
    facts = error_in_body(json.dumps(FREE_DAY).encode(), PLACES["openrouter"])
    assert facts is not None
    assert facts.names == ("openrouter_free_tier_daily", "429")


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"status": 429, "title": "Too Many Requests"}, "429", "Too Many Requests"),
        ({"status": 429, "title": "Too Many Requests", "detail": "Slow down."}, "429", "Slow down."),
        ({"message": "Too many tokens, please wait."}, "", "Too many tokens, please wait."),
        ({}, "", ""),
    ],
)
def test_what_failed_by_its_status_needs_no_error_object(body, code, message):
    top = error_members(json.dumps(body).encode())
    assert top is not None
    assert failure(top) == ErrorFacts(code=code, message=message)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"text": "[DONE]", "error_code": "Hub.81101.429", "error_msg": "Too many."}, "Hub.81101.429"),
        ({"error": {"error_code": "Hub.81101.429", "error_msg": "Too many."}, "text": ""}, "Hub.81101.429"),
        ({"error_code": 17, "error_msg": "Too many."}, "17"),
        ({"errcode": 45009, "errmsg": "Too many."}, "45009"),
        ({"errorCode": "Throttling", "errorMessage": "Too many.", "requestId": "r"}, "Throttling"),
        ({"code": "Throttling.RateQuota", "message": "Too many.", "request_id": "r"}, "Throttling.RateQuota"),
        ({"code": 503, "msg": "Too many.", "success": False}, "503"),
        ({"detail": "Too many."}, None),
    ],
)
def test_a_good_status_does_not_hide_an_error_with_names_of_its_own(body, name):
    facts = error_in_body(json.dumps(body).encode())
    assert facts is not None
    assert (next(iter(facts.names), None), facts.message) == (name, "Too many.")


@pytest.mark.parametrize(
    "body",
    [
        {"error_code": 0, "error_msg": "", "result": "yes"},
        {"errcode": 0, "errmsg": "ok"},
        {"code": 200, "message": "success", "data": {"choices": []}},
        {"code": 0, "msg": "ok"},
        {"message": "Hello."},
        {"message": {"role": "assistant", "content": "Hello."}, "status": "done"},
        {"detail": "low", "choices": []},
        {"type": "message_stop"},
        {"status": "completed", "code": "x", "output": []},
    ],
)
def test_what_has_a_code_or_a_message_is_not_an_error_for_that(body):
    assert error_in_body(json.dumps(body).encode()) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
        lambda one: (
            st.lists(one)
            | st.dictionaries(st.sampled_from(["error", "details", "@type", "retryDelay", "status", "base_resp"]), one)
        ),
    )
)
def test_no_json_upsets_a_format_s_places(value):
    for places in PLACES.values():
        facts = error_in_body(json.dumps({"error": value, "base_resp": value}).encode(), places)
        assert facts is None or all(isinstance(name, str) for name in facts.names)
