"""Answers of providers whose errors stand elsewhere: documented or captured ones, judged by rules as profiles write
them.
"""

import json

import pytest

from hivemind_addon.formats.profile.format import ErrorPlaces
from hivemind_addon.formats.profile.formats import packaged_formats
from hivemind_addon.formats.profile.model import OutcomeRule, Profile
from hivemind_addon.formats.wire.dialect import dialect_named
from hivemind_addon.formats.wire.hints import read_hints
from hivemind_addon.formats.wire.outcome import judge_answer, judge_stream_error
from hivemind_addon.formats.wire.sse import SseEvent
from hivemind_addon.kernel.values.ticket import Hints, OutcomeKind

THROTTLED, OVERLOADED = OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED
FAILED, IGNORED, SUCCESS = OutcomeKind.FAILED, OutcomeKind.IGNORED, OutcomeKind.SUCCESS
NOW = 1_795_176_000.0
"""2026-11-20T12:00:00Z."""
WALL = {"kind": IGNORED, "retry": False, "account_block": True}

GOOGLE = Profile(
    outcomes=(
        OutcomeRule(IGNORED, retry=False, status=(429,), message=r"limit: 0\b"),
        OutcomeRule(**WALL, body={"/error/details/*/violations/*/quotaId": "PerDay|Daily"}),
        OutcomeRule(**WALL, error=("QUOTA_EXHAUSTED", "INSUFFICIENT_G1_CREDITS_BALANCE")),
        OutcomeRule(**WALL, body={"/error/details/*/retryDelay": r"^([3-9]\d\d|\d{4,})(\.\d+)?s$"}),
        OutcomeRule(OVERLOADED, retry=True, error=("MODEL_CAPACITY_EXHAUSTED", "MODEL_CAPACITY_EXCEEDED")),
        OutcomeRule(THROTTLED, retry=True, status=(429,), body={"/error/details/*/@type": "RetryInfo|QuotaFailure"}),
        OutcomeRule(OVERLOADED, retry=True, status=(429,)),
    )
)
OPENROUTER = Profile(
    outcomes=(
        OutcomeRule(OVERLOADED, retry=True, status=(402,), error=("openrouter_in_flight_budget",)),
        OutcomeRule(**WALL, body={"/error/metadata/limit_source": "^openrouter_free_tier_daily$"}),
        OutcomeRule(OVERLOADED, retry=True, status=(429,), body={"/error/metadata/limit_source": "shared_pool"}),
    )
)
OPENROUTER_PLACES = ErrorPlaces(names=("/error/metadata/limit_source", "/error/metadata/error_type"))
MINIMAX = Profile(
    outcomes=(
        OutcomeRule(THROTTLED, retry=True, error=("1002", "1039")),
        OutcomeRule(IGNORED, retry=False, error=("1004", "1008")),
    )
)
MINIMAX_PLACES = ErrorPlaces(
    at=("/base_resp/status_code",),
    unless={"/base_resp/status_code": "^0$"},
    names=("/base_resp/status_code",),
    message=("/base_resp/status_msg",),
)
BEDROCK = Profile(
    outcomes=(
        OutcomeRule(**WALL, error=("ThrottlingException",), message="per day"),
        OutcomeRule(THROTTLED, retry=True, error=("ThrottlingException",)),
        OutcomeRule(OVERLOADED, retry=True, error=("ModelNotReadyException",)),
    )
)


def google(*details: dict[str, object], message: str = "Resource exhausted.", status: str = "RESOURCE_EXHAUSTED"):
    kinds = {"violations": "QuotaFailure", "retryDelay": "RetryInfo", "reason": "ErrorInfo"}
    told = [{"@type": f"type.googleapis.com/google.rpc.{kinds[next(iter(one))]}", **one} for one in details]
    return {"error": {"code": 429, "status": status, "message": message, "details": told}}


def judge(profile: Profile, status: int, body: object, places: ErrorPlaces, **headers: str):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    hints = read_hints(profile, named, NOW)
    return judge_answer(profile, status, named, json.dumps(body).encode(), hints, NOW, places=places)


@pytest.mark.parametrize(
    ("body", "kind", "retryable", "retry_after_s", "account_block_s"),
    [
        (google({"retryDelay": "38s"}), THROTTLED, True, 38, None),
        (google({"retryDelay": "900ms"}), THROTTLED, True, 0.9, None),
        (google({"retryDelay": "34.07s"}, {"reason": "RATE_LIMIT_EXCEEDED"}), THROTTLED, True, 34.07, None),
        (
            google({"violations": [{"quotaId": "X-PerMinute"}]}, message="Please retry in 38.2s."),
            THROTTLED,
            True,
            38.2,
            None,
        ),
        (
            google({"violations": [{"quotaId": "X-PerMinute"}, {"quotaId": "RequestsPerDay"}]}),
            IGNORED,
            False,
            None,
            0,
        ),
        (google({"violations": [{"quotaId": "PerDay"}]}, {"retryDelay": "7200s"}), IGNORED, False, None, 7200),
        (google({"retryDelay": "1200s"}), IGNORED, False, None, 1200),
        (google({"reason": "QUOTA_EXHAUSTED"}), IGNORED, False, None, 0),
        (google({"reason": "MODEL_CAPACITY_EXHAUSTED"}), OVERLOADED, True, None, None),
        (google(), OVERLOADED, True, None, None),
        (google(message="Quota exceeded for metric: requests, limit: 0, model: pro"), IGNORED, False, None, None),
    ],
)
def test_google_s_details_tell_minutes_from_days(body, kind, retryable, retry_after_s, account_block_s):
    for one in (body, [body]):  # its OpenAI-compatible endpoint wraps them in a list
        outcome = judge(GOOGLE, 429, one, packaged_formats()["gemini"].error)
        assert (outcome.kind, outcome.retryable) == (kind, retryable)
        assert (outcome.retry_after_s, outcome.account_block_s) == (retry_after_s, account_block_s)


def test_google_s_bare_error_in_a_stream_is_judged_by_the_same_rules():
    dialect = dialect_named("gemini")
    for details, kind, retry_after_s, block_s in [
        (({"retryDelay": "2s"},), OVERLOADED, 2, None),  # the status is 200: rules for 429 are not meant
        (({"violations": [{"quotaId": "PerDay"}]}, {"retryDelay": "7200s"}), IGNORED, None, 7200),
    ]:
        body = google(*details, status="UNAVAILABLE") | {}
        body["error"]["code"] = 503
        facts = dialect.error_of(SseEvent("error", json.dumps(body).encode()))
        assert facts is not None
        outcome = judge_stream_error(GOOGLE, facts, Hints(), NOW)
        assert (outcome.kind, outcome.retry_after_s, outcome.account_block_s) == (kind, retry_after_s, block_s)


@pytest.mark.parametrize(
    ("status", "metadata", "code", "kind", "account_block_s"),
    [
        (402, {"limit_source": "openrouter_in_flight_budget"}, 402, OVERLOADED, None),
        (402, {"limit_source": "openrouter_credits"}, 402, IGNORED, None),
        (429, {"limit_source": "upstream_provider_shared_pool"}, 429, OVERLOADED, None),
        (
            429,
            {"limit_source": "openrouter_free_tier_daily", "headers": {"X-RateLimit-Reset": "1795219200000"}},
            429,
            IGNORED,
            43_200,
        ),
        (200, {"error_type": "provider_overloaded"}, 503, OVERLOADED, None),
    ],
)
def test_openrouter_tells_in_the_body_what_its_status_hides(status, metadata, code, kind, account_block_s):
    body = {"error": {"code": code, "message": "No.", "metadata": metadata}}
    outcome = judge(OPENROUTER, status, body, OPENROUTER_PLACES)
    assert (outcome.kind, outcome.account_block_s) == (kind, account_block_s)


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [(0, SUCCESS, False), (1002, THROTTLED, True), (1008, IGNORED, False), (1000, FAILED, True)],
)
def test_minimax_s_errors_come_with_the_status_200(code, kind, retryable):
    body = {"id": "x", "choices": None, "base_resp": {"status_code": code, "status_msg": "as it is"}}
    outcome = judge(MINIMAX, 200, body, MINIMAX_PLACES, content_type="application/json")
    assert (outcome.kind, outcome.retryable) == (kind, retryable)


@pytest.mark.parametrize(
    ("status", "name", "message", "kind", "account_block_s"),
    [
        (429, "ThrottlingException", "Too many requests, please wait before trying again.", THROTTLED, None),
        (429, "ThrottlingException:http://internal.amazon.com/coral/", "Too many tokens per day, …", IGNORED, 0),
        (429, "ModelNotReadyException", "Wait.", OVERLOADED, None),
        (503, "", "Unavailable.", OVERLOADED, None),
    ],
)
def test_amazon_s_errors_are_named_by_a_header(status, name, message, kind, account_block_s):
    places = packaged_formats()["bedrock-converse"].error
    outcome = judge(BEDROCK, status, {"message": message}, places, **({"x_amzn_errortype": name} if name else {}))
    assert (outcome.kind, outcome.account_block_s) == (kind, account_block_s)
    assert outcome.reason == " ".join(filter(None, [str(status), name.partition(":")[0]]))


def test_a_named_error_needs_no_body():
    outcome = judge_answer(
        BEDROCK,
        429,
        {"x-amzn-errortype": "ThrottlingException"},
        b"",
        Hints(),
        NOW,
        places=packaged_formats()["bedrock-invoke"].error,
    )
    assert outcome.kind is THROTTLED


def test_amazon_s_own_delay_is_in_milliseconds():
    outcome = judge(BEDROCK, 429, {"message": "No."}, ErrorPlaces(), x_amz_retry_after="1500")
    assert outcome.retry_after_s == 1.5


def test_nim_s_problem_has_a_title_alone():
    profile = Profile(outcomes=(OutcomeRule(OVERLOADED, retry=True, message="too many"),))
    assert judge(profile, 429, {"status": 429, "title": "Too Many Requests"}, ErrorPlaces()).kind is OVERLOADED


def test_a_rule_for_the_body_says_nothing_of_a_good_answer():
    profile = Profile(outcomes=(OutcomeRule(IGNORED, retry=False, body={"/id": "x"}),))
    assert judge(profile, 200, {"id": "x"}, ErrorPlaces()).kind is SUCCESS
    assert judge(profile, 500, {"id": "x"}, ErrorPlaces()).kind is IGNORED
    assert judge(profile, 500, {"id": "y"}, ErrorPlaces()).kind is FAILED
