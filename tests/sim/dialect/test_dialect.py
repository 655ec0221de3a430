"""What the dialects have in common, each in its own shape."""

import json
from dataclasses import replace

from hivemind_addon.lab.sim import dialect as wire
from hivemind_addon.lab.sim.dialect import SimDialect
from tests.cases import over

from .samples import REPLY


@over(
    ("dialect", "words"),
    [
        (SimDialect.MESSAGES, "max_tokens"),
        (SimDialect.CHAT, "length"),
        (SimDialect.RESPONSES, "max_output_tokens"),
        (SimDialect.OLLAMA, "length"),
    ],
)
def test_a_truncated_answer_says_so(dialect, words):
    assert words in wire.whole_body(replace(REPLY, dialect=dialect, truncated=True)).decode()


def test_retry_after_is_never_too_early():
    assert wire.retry_after_headers(SimDialect.MESSAGES, 1.01) == (("retry-after", "2"),)
    assert wire.retry_after_headers(SimDialect.CHAT, 1.01) == (("retry-after", "2"), ("retry-after-ms", "1010"))


def test_errors_have_the_shape_of_their_dialect():
    messages = wire.error_body(
        SimDialect.MESSAGES, wire.error_object(SimDialect.MESSAGES, 529, message="m"), "req_000001"
    )
    chat = wire.error_body(SimDialect.CHAT, wire.error_object(SimDialect.CHAT, 503, message="m"), "req_000001")
    assert json.loads(messages) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "m"},
        "request_id": "req_000001",
    }
    assert json.loads(chat) == {
        "error": {
            "message": "m",
            "type": "service_unavailable_error",
            "param": None,
            "code": "server_is_overloaded",
        }
    }


def test_spent_credit_is_told_from_a_rate_limit_by_its_code():
    assert "enforced_spend_limit_reached" in str(wire.spent_credit(SimDialect.MESSAGES))
    assert wire.spent_credit(SimDialect.CHAT)["type"] == "insufficient_quota"


def test_an_error_event_of_messages_is_named_error():
    error = wire.error_object(SimDialect.MESSAGES, 529, message="m")
    assert wire.error_event(SimDialect.MESSAGES, error).data.startswith(b"event: error\ndata: ")
    assert wire.error_event(SimDialect.CHAT, error).data.startswith(b"data: ")


def test_each_dialect_lists_one_model():
    for dialect in SimDialect:
        listed = json.loads(wire.models_body(dialect))
        assert [model.get("id") or model["name"] for model in listed.get("data") or listed["models"]] == ["sim-1"]


def test_each_dialect_names_the_organisation_in_its_own_header():
    assert ("anthropic-organization-id", "org") in wire.identity_headers(SimDialect.MESSAGES, "r", "org")
    assert ("openai-organization", "org") in wire.identity_headers(SimDialect.CHAT, "r", "org")
