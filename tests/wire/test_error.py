import json

from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.proxy.wire.error import ErrorFacts, error_in_body, unreadable_error, word


def test_names_go_from_special_to_general():
    assert ErrorFacts(type="a", code="b", details_code="c").names == ("c", "b", "a")
    assert ErrorFacts().names == ()


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
