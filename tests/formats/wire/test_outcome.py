import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.profile.model import OutcomeRule, Profile
from hivemind_addon.formats.wire.error import ErrorFacts
from hivemind_addon.formats.wire.hints import read_hints
from hivemind_addon.formats.wire.outcome import TransportTrouble, judge_answer, judge_stream_error, judge_transport
from hivemind_addon.kernel.values.ticket import Hints, Outcome, OutcomeKind, WindowReading

DATA = Path(__file__).parent / "data"
SUCCESS, THROTTLED, OVERLOADED = OutcomeKind.SUCCESS, OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED
FAILED, IGNORED = OutcomeKind.FAILED, OutcomeKind.IGNORED
NO_HINTS = Hints()


def judge_recorded(path: str, profile: Profile) -> Outcome:
    answer = json.loads((DATA / f"{path}.json").read_text())
    body = answer["body"].encode() if isinstance(answer["body"], str) else json.dumps(answer["body"]).encode()
    hints = read_hints(profile, answer["headers"], 0)
    return judge_answer(profile, answer["status"], answer["headers"], body, hints)


def judge(
    status: int, body: bytes | None = b"", profile: Profile | None = None, hints: Hints = NO_HINTS, **headers: str
) -> Outcome:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return judge_answer(profile or Profile(), status, named, body, hints)


def test_recorded_answers_are_judged_without_any_rule(subtests):
    cases = [
        ("anthropic/message", SUCCESS, False, "200", None),
        ("anthropic/rate_limit", THROTTLED, True, "429 rate_limit_error", 17),
        ("anthropic/overloaded", OVERLOADED, True, "529 overloaded_error", None),
        ("anthropic/api_error", FAILED, True, "500 api_error", None),
        ("anthropic/timeout", FAILED, True, "504 timeout_error", None),
        ("anthropic/authentication", IGNORED, False, "401 authentication_error", None),
        ("anthropic/billing", IGNORED, False, "402 billing_error", None),
        ("anthropic/user_spend_limit", IGNORED, False, "400 invalid_request_error", None),
        ("anthropic/too_large", IGNORED, False, "413", None),
        ("anthropic/bad_gateway", FAILED, True, "502", None),
        ("anthropic-subscription/throttled", THROTTLED, True, "429 rate_limit_error", None),
        ("openai/chat", SUCCESS, False, "200", None),
        ("openai/response", SUCCESS, False, "200", None),
        ("openai/response_failed", FAILED, True, "200 with server_error", None),
        ("openai/rate_limit", THROTTLED, True, "429 rate_limit_exceeded", 1.2),
        ("openai/overloaded", OVERLOADED, True, "503 server_is_overloaded", 3),
        ("openai/context_length", IGNORED, False, "400 context_length_exceeded", None),
        ("codex/overloaded", OVERLOADED, True, "503 server_is_overloaded", None),
        ("azure/rate_limit", THROTTLED, True, "429 RateLimitReached", 9.6),
        ("openrouter/rate_limit", THROTTLED, True, "429", None),
        ("deepseek/balance", IGNORED, False, "402 invalid_request_error", None),
        ("llama-cpp/loading", OVERLOADED, True, "503 unavailable_error", None),
        ("ollama/busy", OVERLOADED, True, "503", None),
        ("mistral/rate_limit", THROTTLED, True, "429 rate_limited", 1),
    ]
    for path, kind, retryable, reason, retry_after_s in cases:
        with subtests.test(path=path, kind=kind):
            outcome = judge_recorded(path, Profile())
            assert (outcome.kind, outcome.retryable, outcome.reason) == (kind, retryable, reason)
            assert outcome.retry_after_s == retry_after_s
            assert not outcome.ambiguous
            assert outcome.status == int(reason[:3])


def hard(**conditions: object) -> OutcomeRule:
    return OutcomeRule(IGNORED, retry=False, **conditions)


def test_a_rule_of_the_profile_decides_before_the_general_ones(subtests):
    usage = hard(error=("usage_limit_reached", "usage_not_included"))
    rejected = hard(status=(429,), headers={"Anthropic-Ratelimit-Unified-Status": "^Rejected$"})
    cases = [
        ("anthropic/spend_cap", hard(error=("enforced_spend_limit_reached",), retry_after=False)),
        ("anthropic/long_context", hard(status=(429,), message="extra usage is required")),
        ("anthropic-subscription/rejected", rejected),
        ("openai/insufficient_quota", hard(error=("insufficient_quota",))),
        ("openai/credit_balance_exhausted", hard(error=("insufficient_quota",))),
        ("codex/usage_limit", usage),
        ("codex/usage_not_included", usage),
        ("github-models/daily", hard(error=("RateLimitReached",), message="per 86400s")),
        ("gemini/daily", hard(status=(429,), message="current quota")),
        ("openai/slow_down", OutcomeRule(OVERLOADED, retry=True, error=("slow_down",))),
        ("ollama/busy", OutcomeRule(OVERLOADED, retry=True, message="pending requests exceeded")),
    ]
    never, late = OutcomeRule(SUCCESS, retry=True, status=(418,)), OutcomeRule(FAILED, retry=True)
    for path, rule in cases:
        with subtests.test(path):
            outcome = judge_recorded(path, Profile(outcomes=(never, rule, late)))
            assert (outcome.kind, outcome.retryable) == (rule.kind, rule.retry)


def test_every_condition_of_a_rule_must_hold(subtests):
    others = [
        hard(status=(400, 403)),
        hard(status=(429,), error=("another",)),
        hard(error=("rate_limit_error",), message="spend"),
        hard(retry_after=False),
        hard(headers={"x-missing": ""}),
    ]
    for rule in others:
        with subtests.test(rule=rule):
            assert judge_recorded("anthropic/rate_limit", Profile(outcomes=(rule,))).kind is THROTTLED


def test_a_rule_may_match_a_200_that_has_no_error():
    rules = (
        OutcomeRule(kind=IGNORED, retry=False, error=("overloaded_error",)),
        OutcomeRule(kind=IGNORED, retry=False, message="quota"),
        OutcomeRule(kind=IGNORED, retry=False, status=(429,)),
        OutcomeRule(kind=THROTTLED, retry=True, headers={"x-busy": "yes"}),
    )
    profile = Profile(outcomes=rules)
    assert judge(200, b"{}", profile, x_busy="yes").kind is THROTTLED
    assert judge(200, b"{}", profile, x_busy="no").kind is SUCCESS


def test_each_status_has_its_general_meaning(subtests):
    statuses = {
        (IGNORED, False): (301, 304, 400, 401, 402, 403, 404, 405, 413, 418, 422, 451, 999),
        (FAILED, True): (408, 409, 499, 500, 501, 502, 504, 520, 524, 599),
        (OVERLOADED, True): (503, 529),
        (THROTTLED, True): (429,),
        (SUCCESS, False): (201, 204),
    }
    meanings = {status: meaning for meaning, of in statuses.items() for status in of}
    for status, meaning in meanings.items():
        with subtests.test(status=status):
            outcome = judge(status)
            assert (outcome.kind, outcome.retryable) == meaning
            assert outcome.reason == str(status)


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_should_retry_false_ends_all_retrying(status):
    assert not judge(status, hints=Hints(should_retry=False)).retryable
    keen = Profile(outcomes=(OutcomeRule(THROTTLED, retry=True),))
    assert not judge(status, profile=keen, hints=Hints(should_retry=False)).retryable


def test_should_retry_true_softens_neither_a_hard_rule_nor_a_bad_request():
    hard = Profile(outcomes=(OutcomeRule(THROTTLED, retry=False, status=(429,)),))
    assert not judge(429, profile=hard, hints=Hints(should_retry=True)).retryable
    assert not judge(400, hints=Hints(should_retry=True)).retryable
    assert judge(500, hints=Hints(should_retry=True)).retryable


JSON = "application/json; charset=utf-8"


def test_a_200_that_is_no_answer_is_tried_again(subtests):
    cases = [
        (b"", JSON, "200 with an empty body"),
        (b" \n", "", "200 with an empty body"),
        (b"<html>", JSON, "200 with HTML"),
        (b"<html>", "text/html; charset=utf-8", "200 with HTML"),
        (b'{"choices": [', JSON, "200 with broken JSON"),
        (b"[" * 5000, "application/problem+json", "200 with broken JSON"),
        (b'{"error": {"message": "later", "type": "weird one"}}', JSON, "200 with error"),
        (b'{"error": "later"}', "", "200 with error"),
        (b'{"error": {"type": "api_error"}}', JSON, "200 with api_error"),
    ]
    for body, content_type, reason in cases:
        with subtests.test(body=body, content_type=content_type):
            outcome = judge(200, body, content_type=content_type)
            assert outcome == Outcome(FAILED, reason, 200, retryable=True)


def test_a_200_with_a_readable_or_unjudged_body_is_a_success(subtests):
    cases = [
        (b'{"error": null, "output": []}', JSON),
        (b'{"text": "half an emoji: \\ud83d."}', JSON),
        (b'[{"a": 1}]', JSON),
        (b"\xef\xbb\xbf{}", JSON),
        (b"data: x\n\n", "text/event-stream"),
        (b"no answer", "text/plain"),
        (b'{"done":false}\n{"done":true}\n', "application/x-ndjson"),
        (b'{"a": "' + b"x" * 9_000_000, JSON),
    ]
    for body, content_type in cases:
        with subtests.test(body=body, content_type=content_type):
            assert judge(200, body, content_type=content_type) == Outcome(SUCCESS, "200", 200)


def test_a_body_that_could_not_be_read_leaves_the_judgement_to_the_head():
    assert judge(200, None, content_type=JSON) == Outcome(SUCCESS, "200", 200)
    assert judge(429, None) == Outcome(THROTTLED, "429", 429, retryable=True)


def test_an_error_inside_a_200_keeps_its_meaning():
    body = json.dumps({"error": {"code": "context_length_exceeded", "message": "too long"}}).encode()
    assert judge(200, body, content_type=JSON) == Outcome(IGNORED, "200 with context_length_exceeded", 200)


@pytest.mark.parametrize(
    "body",
    [
        b"Too many concurrent connections",
        b'{"detail": "too many CONCURRENT connections"}',
        b'{"message": "concurrent"}',
    ],
)
def test_the_message_of_an_answer_without_error_object_is_what_it_says(body):
    profile = Profile(outcomes=(OutcomeRule(OVERLOADED, retry=True, status=(429,), message="concurrent"),))
    assert judge(429, body, profile).kind is OVERLOADED


def test_html_from_the_provider_is_judged_by_its_status_only():
    profile = Profile(outcomes=(OutcomeRule(IGNORED, retry=False, message="gateway"),))
    assert judge_recorded("anthropic/bad_gateway", profile).kind is FAILED


def test_a_delay_in_the_message_counts_where_no_header_tells_it(subtests):
    cases = [
        ("Please try again in 1.2s. Visit https://example.com.", 1.2),
        ("Please try again in 20ms.", 0.02),
        ("please try again in 6m0s.", 360),
        ("Try again in 7 seconds", 7),
        ("Please retry after 10 seconds.", 10),
        ("Please try again in 1.5 s", 1.5),
        ("try again in 2 minutes", 120),
        ("try again in 500 milliseconds", 0.5),
        ("Please retry in 34.07s.", 34.07),
        ("try again after 30.", 30),
        ("try again in 5 moons", None),
        ("try again later", None),
    ]
    for message, expected_s in cases:
        with subtests.test(message=message, expected_s=expected_s):
            body = json.dumps({"error": {"message": message}}).encode()
            assert judge(429, body).retry_after_s == pytest.approx(expected_s)
            assert judge(429, body, hints=Hints(retry_after_s=3.0)).retry_after_s == 3
            assert judge(400, body).retry_after_s is None


def test_an_error_in_a_stream_is_judged_by_its_name(subtests):
    cases = [
        (ErrorFacts(type="overloaded_error"), OVERLOADED, True, "stream overloaded_error"),
        (ErrorFacts(code="server_is_overloaded"), OVERLOADED, True, "stream server_is_overloaded"),
        (ErrorFacts(type="rate_limit_error", code="slow_down"), OVERLOADED, True, "stream slow_down"),
        (ErrorFacts(code="rate_limit_exceeded"), THROTTLED, True, "stream rate_limit_exceeded"),
        (ErrorFacts(type="api_error"), FAILED, True, "stream api_error"),
        (ErrorFacts(type="error", code="server_error"), FAILED, True, "stream server_error"),
        (ErrorFacts(code="502"), FAILED, True, "stream error"),
        (ErrorFacts(code="429"), THROTTLED, True, "stream error"),
        (ErrorFacts(code="400"), IGNORED, False, "stream error"),
        (ErrorFacts(type="invalid_request_error"), IGNORED, False, "stream invalid_request_error"),
        (
            ErrorFacts(type="invalid_request_error", message="Too many requests."),
            THROTTLED,
            True,
            "stream invalid_request_error",
        ),
        (ErrorFacts(type="authentication_error", message="Rate limit"), IGNORED, False, "stream authentication_error"),
        (ErrorFacts(code="ModelArts.81101.429"), THROTTLED, True, "stream ModelArts.81101.429"),
        (ErrorFacts(code="Throttling.RateQuota"), THROTTLED, True, "stream Throttling.RateQuota"),
        (ErrorFacts(message="The model is overloaded."), OVERLOADED, True, "stream error"),
        (ErrorFacts(type="insufficient_quota", code="x"), IGNORED, False, "stream x"),
        (ErrorFacts(own_names=("UNAVAILABLE",), code="503"), OVERLOADED, True, "stream UNAVAILABLE"),
        (ErrorFacts(own_names=("CANCELLED",), code="499"), FAILED, True, "stream CANCELLED"),
        (ErrorFacts(own_names=("throttlingException",)), THROTTLED, True, "stream throttlingException"),
        (ErrorFacts(code="image_parse_error"), IGNORED, False, "stream image_parse_error"),
        (ErrorFacts(), FAILED, True, "stream error"),
    ]
    for error, kind, retryable, reason in cases:
        with subtests.test(error=error, kind=kind):
            assert judge_stream_error(Profile(), error) == Outcome(kind, reason, 200, retryable=retryable)


def test_a_stream_error_has_status_200_for_rules_and_its_delay_from_its_message():
    for_429 = OutcomeRule(IGNORED, retry=False, status=(429,))
    for_any = OutcomeRule(THROTTLED, retry=True, error=("api_error",))
    outcome = judge_stream_error(
        Profile(outcomes=(for_429, for_any)), ErrorFacts(type="api_error", message="try again in 11 seconds")
    )
    assert outcome == Outcome(THROTTLED, "stream api_error", 200, retryable=True, retry_after_s=11)


def test_only_certificates_are_hard_and_only_sent_requests_are_ambiguous(subtests):
    for trouble in TransportTrouble:
        with subtests.test(trouble=trouble):
            outcome = judge_transport(trouble, "")
            hard = trouble is TransportTrouble.CERTIFICATE
            assert outcome.kind is (IGNORED if hard else FAILED)
            assert outcome.retryable is not hard
            assert outcome.ambiguous is (trouble.name in {"CLOSED_BEFORE_HEAD", "CUT", "STALLED", "INVALID"})
            assert outcome.unreached is (trouble.name in {"CONNECT_FAILED", "NAME_NOT_FOUND"})
            assert outcome.status is None
            assert outcome.reason == trouble.value


SAID = {
    TransportTrouble.CONNECT_FAILED: {
        "cannot connect: refused": (
            "[Errno 111] Connect call failed ('127.0.0.1', 1)",
            "Connection refused",
            "[WinError 1225] refused the net",
        ),
        "cannot connect: timed out": ("Connection timed out", "connect timeout"),
        "cannot connect: unreachable": ("Network is unreachable", "No route to host"),
        "cannot connect: no TLS": ("OpenSSL Error([('SSL routines', '', 'wrong')])",),
        "cannot connect": ("something new " * 50, ""),
    },
    TransportTrouble.CERTIFICATE: {
        "bad certificate: expired": ("certificate verify failed: has expired",),
        "bad certificate: another name's": (
            "Certificate verify failed: Hostname mismatch",
            "certificate verify failed: IP address mismatch",
        ),
        "bad certificate: signed by an authority that is not trusted": (
            "unable to get local issuer certificate",
            "self-signed certificate in certificate chain",
        ),
    },
    TransportTrouble.CUT: {
        "cut in the middle of the answer": (
            "[Errno 104] Connection reset by peer",
            "peer closed connection without sending complete message bo",
            "",
        ),
    },
    TransportTrouble.INVALID: {
        "invalid answer: larger than body_size_limit": ("larger than body_size_limit",),
        "invalid answer: its headers": ("invalid headers: Received header with …",),
    },
}


def test_one_cause_has_one_reason_in_our_words_whatever_a_library_calls_it():
    expected = {(trouble, text): why for trouble, whys in SAID.items() for why, said in whys.items() for text in said}
    assert {key: judge_transport(*key).reason for key in expected} == expected


rules = st.builds(
    OutcomeRule,
    kind=st.sampled_from(OutcomeKind),
    retry=st.booleans(),
    status=st.sampled_from([(), (429,), (200,)]),
    error=st.sampled_from([(), ("x",)]),
    message=st.sampled_from(["", "a+", "^$"]),
    headers=st.sampled_from([{}, {"X-A": "b"}]),
    retry_after=st.none() | st.booleans(),
)
bodies = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [b"", b"<", b"[" * 4000, b'{"error":{}}', b'{"error":{"code":1e999}}', b'{"error":[1]}', b'{"\xff":1}']
    ),
    st.text(max_size=20).map(
        lambda text: json.dumps({"error": {"type": text, "code": text, "message": text}}).encode()
    ),
)


@given(
    st.integers(-1, 1000),
    bodies,
    st.dictionaries(st.sampled_from(["content-type", "x-a"]), st.text(max_size=10)),
    st.lists(rules, max_size=3),
    st.sampled_from([None, True, False]),
)
def test_nothing_raises_on_hostile_answers(status, body, headers, outcomes, should_retry):
    profile = Profile(outcomes=tuple(outcomes))
    outcome = judge_answer(profile, status, headers, body, Hints(should_retry=should_retry))
    assert outcome.status == status
    assert outcome.reason.isprintable()
    assert len(outcome.reason) < 80
    assert not (outcome.retryable and should_retry is False)


@given(st.builds(ErrorFacts, *[st.text(max_size=30)] * 4))
def test_nothing_raises_on_hostile_stream_errors(error):
    outcome = judge_stream_error(Profile(), error)
    assert outcome.status == 200
    assert outcome.reason.startswith("stream ")


# The packaged rules ---------------------------------------------------------------------------------------------------

PACKAGED = load_profiles(None).by_name
SENT_AT = 1795168800.0
"""The recorded headers' date."""


def judge_packaged(path: str, name: str) -> Outcome:
    answer = json.loads((DATA / f"{path}.json").read_text())
    hints = read_hints(PACKAGED[name], answer["headers"], SENT_AT)
    body = json.dumps(answer["body"]).encode()
    return judge_answer(PACKAGED[name], answer["status"], answer["headers"], body, hints, SENT_AT)


def test_a_spent_window_blocks_the_account_until_its_end_and_nothing_else_does(subtests):
    cases = [
        ("anthropic-subscription/rejected", "anthropic", 2094.0),
        ("codex/usage_limit", "codex", 9000.0),
        ("codex/usage_limit", "openai", 9000.0),
        ("github-models/daily", "openai-compatible", 63214.0),
        ("anthropic-subscription/throttled", "anthropic", None),
        ("anthropic/rate_limit", "anthropic", None),
        ("anthropic/spend_cap", "anthropic", None),
        ("codex/usage_not_included", "codex", None),
        ("openai/insufficient_quota", "openai", None),
        ("openai/rate_limit", "openai", None),
    ]
    for path, name, account_block_s in cases:
        with subtests.test(path=path, name=name):
            outcome = judge_packaged(path, name)
            assert outcome.account_block_s == account_block_s
            assert account_block_s is None or (outcome.kind, outcome.retryable) == (IGNORED, False)


def utc(at):
    """An instant as messages name it, without its zone."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def test_the_end_of_an_account_block_is_told_by_the_surest_source(subtests):
    cases = [
        ({"resets_in_seconds": 60, "resets_at": SENT_AT + 60}, {}, 60),
        ({"resets_at": SENT_AT + 7}, {}, 8),  # it may be cut
        ({"resets_at": SENT_AT + 7.25}, {}, 7.25),
        ({"resets_at": SENT_AT - 7}, {"retry_after_s": 9}, 9),
        ({"message": "Please wait 52220 seconds before retrying."}, {}, 52220),
        (
            {},
            {"windows": (WindowReading("a", used=1.0, resets_in_s=5), WindowReading("b", used=0.2, resets_in_s=9))},
            5,
        ),
        ({}, {"windows": (WindowReading("a", status="rejected", resets_in_s=5),), "retry_after_s": 9}, 5),
        ({}, {"windows": (WindowReading("a", used=0.5, resets_in_s=5),)}, 0),
        ({}, {}, 0),
        ({"message": f"It will reset at {utc(SENT_AT + 90)} UTC."}, {}, 91),
        ({"message": f"quota. It will reset at {utc(SENT_AT + 90 + 8 * 3600)} +0800 CST. We"}, {}, 91),
        ({"message": f"Your limit will reset at {utc(SENT_AT + 90)}"}, {}, 91),
        ({"message": f"Your limit will reset at {utc(SENT_AT + 90 + 8 * 3600)}"}, {}, 91),
        ({"message": f"Your limit will reset at {utc(SENT_AT - 90)}"}, {}, 0),
        ({"message": "Your limit will reset at 2026-02-31 10:00:00"}, {}, 0),
    ]
    for error, hints, account_block_s in cases:
        with subtests.test(error=error, hints=hints):
            profile = Profile(outcomes=(OutcomeRule(IGNORED, retry=False, account_block=True),))
            body = json.dumps({"error": {"type": "usage_limit_reached"} | error}).encode()
            outcome = judge_answer(profile, 429, {}, body, Hints(**hints), SENT_AT)
            assert (outcome.account_block_s, outcome.words) == (account_block_s, error.get("message", ""))


def test_a_plan_may_end_in_the_middle_of_a_stream():
    facts = ErrorFacts(code="usage_limit_reached", message="The usage limit has been reached")
    hints = Hints(windows=(WindowReading("primary", used=1.0, resets_in_s=9000.0),))
    outcome = judge_stream_error(PACKAGED["codex"], facts, hints, SENT_AT)
    assert (outcome.kind, outcome.retryable, outcome.account_block_s) == (IGNORED, False, 9000.0)


def test_a_failed_response_is_judged_as_its_code_says(subtests):
    cases = [
        ("rate_limit_exceeded", "Rate limit reached. Please try again in 11.054s.", THROTTLED, True, 11.054),
        ("rate_limit_exceeded", "Please try again in 35 seconds", THROTTLED, True, 35),
        ("rate_limit_exceeded", "try again in 28ms", THROTTLED, True, 0.028),
        ("server_is_overloaded", "Busy", OVERLOADED, True, None),
        ("slow_down", "Slower", OVERLOADED, True, None),
        ("server_error", "Oops", FAILED, True, None),
        ("insufficient_quota", "Spent", IGNORED, False, None),
        ("usage_not_included", "Not yours", IGNORED, False, None),
        ("context_length_exceeded", "Too long", IGNORED, False, None),
        ("invalid_prompt", "No", IGNORED, False, None),
        ("cyber_policy", "No", IGNORED, False, None),
        ("image_too_large", "Smaller", IGNORED, False, None),
    ]
    for code, message, kind, retryable, retry_after_s in cases:
        for name in ["openai", "codex"]:
            with subtests.test(code=code, message=message):
                outcome = judge_stream_error(PACKAGED[name], ErrorFacts(code=code, message=message))
                assert (outcome.kind, outcome.retryable, outcome.retry_after_s) == (kind, retryable, retry_after_s)


@pytest.mark.parametrize(
    ("path", "kind", "retryable"),
    [
        ("ollama/chat", SUCCESS, False),
        ("ollama/busy", OVERLOADED, True),
        ("ollama/no_model", IGNORED, False),
        ("ollama/no_memory", IGNORED, False),
    ],
)
def test_answers_of_ollama_are_judged(path, kind, retryable):
    outcome = judge_packaged(path, "ollama")
    assert (outcome.kind, outcome.retryable) == (kind, retryable)


def test_a_model_that_breaks_while_it_streams_is_tried_again():
    outcome = judge_stream_error(
        PACKAGED["ollama"], ErrorFacts(message="an error was encountered while running the model")
    )
    assert (outcome.kind, outcome.retryable) == (FAILED, True)
