import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.proxy.wire.error import ErrorFacts, error_in_body, unreadable_error, word

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


def test_a_spent_plan_says_when_it_comes_back():
    body = {"error": {"type": "usage_limit_reached", "resets_at": 1795177800, "resets_in_seconds": "9000"}}
    facts = error_in_body(json.dumps(body).encode())
    assert facts == ErrorFacts(type="usage_limit_reached", resets_at=1795177800.0, resets_in_s=9000.0)
    body["error"] |= {"resets_at": "soon", "resets_in_seconds": None}
    assert error_in_body(json.dumps(body).encode()) == ErrorFacts(type="usage_limit_reached")


def test_an_error_may_be_a_text_alone():
    assert error_in_body(b'{"error": "server busy"}') == ErrorFacts(message="server busy")
    assert error_in_body(b'{"error": null, "message": {}}') is None


@given(st.binary())
def test_any_bytes_of_an_unreadable_error_are_its_message(data):
    assert len(unreadable_error(data).message) <= 200


def test_words_are_texts_and_whole_numbers():
    assert [word(raw) for raw in (b'"a"', b"7", b"true", b"1.5", b"null")] == ["a", "7", "", "", ""]
