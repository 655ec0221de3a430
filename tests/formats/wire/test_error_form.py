"""Errors of ours, byte for byte: what clients of each format were seen to understand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hivemind_addon.formats.base.typed import DocumentError, convert
from hivemind_addon.formats.profile.format import ErrorForm, Framing, WireFormat
from hivemind_addon.formats.profile.rules import FORMAT_RULES
from hivemind_addon.formats.wire.aws_eventstream import EventStreamParser
from hivemind_addon.formats.wire.dialect import EventClass, dialect_named, dialect_of
from hivemind_addon.formats.wire.error import ErrorFacts
from hivemind_addon.formats.wire.error_form import error_body, error_event, error_headers
from hivemind_addon.formats.wire.sse import SseEvent, SseParser

GEMINI, CONVERSE, INVOKE = map(dialect_named, ("gemini", "bedrock-converse", "bedrock-invoke"))
GOOGLE = (
    b'{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED","details":'
    b'[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"7s"}]}}'
)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("anthropic", b'{"type":"error","error":{"type":"rate_limit_error","message":"m"}}'),
        (
            "openai-chat",
            b'{"error":{"message":"m","type":"rate_limit_exceeded","param":null,"code":"rate_limit_exceeded"}}',
        ),
        (
            "openai-responses",
            b'{"error":{"message":"m","type":"rate_limit_exceeded","param":null,"code":"rate_limit_exceeded"}}',
        ),
        ("ollama", b'{"error":"m"}'),
        ("gemini", GOOGLE),
        ("code-assist", GOOGLE),
        ("bedrock-converse", b'{"message":"m"}'),
        ("bedrock-invoke", b'{"message":"m"}'),
        ("cohere", b'{"message":"m"}'),
    ],
)
def test_a_refusal_has_its_provider_s_shape(name, body):
    assert dialect_named(name).error_body(429, "", "m", None, 6.2) == body


def test_without_a_delay_there_is_no_half_of_one():
    assert GEMINI.error_body(400, "", "m") == b'{"error":{"code":400,"message":"m","status":"INVALID_ARGUMENT"}}'
    assert CONVERSE.error_headers(400, "") == {"x-amzn-errortype": "ValidationException"}


def test_amazon_s_sdks_know_an_error_by_its_head():
    for dialect in (CONVERSE, INVOKE):
        assert dialect.error_headers(429, "", None, 6.2) == {
            "x-amzn-errortype": "ThrottlingException",
            "x-amz-retry-after": "7000",
        }


def test_google_s_errors_in_a_stream_are_bare_json_of_one_piece():
    written = GEMINI.error_event("RESOURCE_EXHAUSTED", "Wait.", 7.0)
    assert json.loads(written)["error"] | {"details": 1} == {
        "code": 429,
        "message": "Wait. Please try again in 7 s.",
        "status": "RESOURCE_EXHAUSTED",
        "details": 1,
    }
    assert b"data:" not in written
    assert b"domain" not in written
    (event,) = SseParser(bare_json=True).feed(written)
    assert GEMINI.classify(event) is EventClass.ERROR


def test_one_that_nothing_cures_does_not_look_as_if_it_did():
    assert json.loads(GEMINI.error_event("billing_hard_limit_reached", "Spent.", None))["error"]["code"] == 400
    assert json.loads(GEMINI.error_event("overloaded", "Busy.", 3.0))["error"]["code"] == 503


@pytest.mark.parametrize(
    ("dialect", "retry_after_s", "name"),
    [(CONVERSE, 7.0, "throttlingException"), (INVOKE, None, "internalServerException")],
)
def test_amazon_s_errors_in_a_stream_are_messages_with_checksums(dialect, retry_after_s, name):
    parser = EventStreamParser()
    (event,) = parser.feed(dialect.error_event("", "No.", retry_after_s))
    assert parser.broken is None
    assert json.loads(event.data)["error"]["type"] == name
    assert dialect.classify(event) is EventClass.ERROR


def test_cohere_s_end_may_say_that_it_failed():
    cohere = dialect_named("cohere")
    written = cohere.error_event("", "No.", None)
    assert written == (
        b'event: message-end\ndata: {"type":"message-end","delta":{"error":"No.","finish_reason":"ERROR"}}\n\n'
    )
    (event,) = SseParser().feed(written)
    assert cohere.error_of(event) == ErrorFacts(own_names=("ERROR",), message="No.")
    ended = SseEvent("message-end", b'{"type":"message-end","delta":{"finish_reason":"COMPLETE"}}')
    assert cohere.classify(ended) is EventClass.TERMINAL
    assert cohere.classify_after_content(ended) is EventClass.TERMINAL


def test_what_one_item_of_an_array_is_ends_the_array():
    form = ErrorForm(body={"error": "{message}"})
    begun = b'[{"a":1}\n'
    assert json.loads(begun + error_event(form, Framing.JSON_ARRAY, "", "No.", None)) == [{"a": 1}, {"error": "No."}]


def test_templates_are_filled_and_what_lacks_is_left_out():
    form = ErrorForm(
        body={
            "whole": "{status}",
            "part": "status {status}, {error}",
            "again": "{retry_after_s}",
            "deep": [{"a": {"b": "{resets_at}"}}, "{message}"],
            "gone": ["{resets_at}"],
            "none": None,
            "empty": [],
        }
    )
    assert json.loads(error_body(form, 429, "e", "{error}", None, None)) == {
        "whole": 429,
        "part": "status 429, e",
        "deep": ["{error}"],
        "none": None,
        "empty": [],
    }


def test_no_name_breaks_out_of_a_header():
    form = ErrorForm(headers={"x-error": "{error}"})
    assert error_headers(form, 429, "a\r\nset-cookie: b=ü", None, None) == {"x-error": "a set-cookie: b= "}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"error_form": {"body": {"a": ["{mesage}"]}}}, "error_form.body.a: nothing is known by the name {mesage}"),
        ({"error_form": {"event": {"a": {1: "x"}}}}, "error_form.event.a: 1 is no name of a member"),
        ({"error_form": {"event": {"a": float("inf")}}}, "error_form.event.a: inf is nothing that JSON has"),
        ({"error_form": {"headers": {"x y": "a"}}}, "error_form.headers.x y: no header name"),
        ({"error_form": {"usual": {"6xx": "a"}}}, "error_form.usual.6xx: '6xx' is no status of an error"),
        ({"error_form": {"event_name": "a\nb"}}, "error_form.event_name: 'a\\nb' is not one line"),
        ({"error": {"unless": {"a": "b"}}}, "error.unless.a: no JSON pointer"),
    ],
)
def test_what_cannot_be_filled_is_one_line_with_its_place_and_a_cure(document, said):
    with pytest.raises(DocumentError) as caught:
        convert(WireFormat, document, Path("formats/my.yaml"), rules=FORMAT_RULES)
    assert str(caught.value).startswith(f"formats/my.yaml: {said}")
    assert "; " in str(caught.value)


def test_a_form_of_one_s_own_needs_no_code():
    form = replace(
        WireFormat(), error_form=ErrorForm(body={"fault": {"why": "{error}", "text": "{message}"}}, event_name="fault")
    )
    assert dialect_of(form).error_event("full", "No.", None) == (
        b'event: fault\ndata: {"fault":{"why":"full","text":"No."}}\n\n'
    )
