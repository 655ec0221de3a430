import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.profile.model import Profile
from hivemind_addon.formats.wire.error import ErrorFacts
from hivemind_addon.formats.wire.hints import read_hints
from hivemind_addon.formats.wire.outcome import judge_answer, judge_stream_error
from hivemind_addon.formats.wire.waits import LONGEST_S, wait_in
from hivemind_addon.kernel.values.ticket import Hints, Outcome, OutcomeKind

NOW = datetime(2026, 11, 28, 9, 0, tzinfo=UTC).timestamp()
PACKAGED = load_profiles(None).by_name
THROTTLED, OVERLOADED, IGNORED = OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED, OutcomeKind.IGNORED
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


def until(*instant: int) -> float:
    """Seconds until an instant in UTC that was told in whole seconds."""
    return datetime(*instant, tzinfo=UTC).timestamp() + 1 - NOW


def judge(body: object, status: int = 429, headers: dict[str, str] | None = None, name: str = "") -> Outcome:
    profile, headers = PACKAGED[name] if name else Profile(), headers or {}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    hints = read_hints(profile, headers, NOW)
    return judge_answer(profile, status, headers, data, hints, NOW, places=profile.format.error)


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("Please try again in 3 hours 20 minutes.", 12_000),
        ("You can retry in about an hour", HOUR),
        ("Your quota will reset after 3h55m12s.", 3 * HOUR + 55 * MINUTE + 12),
        ("Please wait 52220 seconds before retrying.", 52_220),
        ("Resets in 16 days.", 16 * DAY),
        ("come back in one week", 7 * DAY),
        ("Limit resets in 03:20:00", 12_000),
        ("Time until reset: 3h 20m", 12_000),
        ("2h 5m remaining", 2 * HOUR + 5 * MINUTE),
        ("retry-after: 2 minutes", 120),
        ("retry after 30", 30),
        ("try again in 500 milliseconds", 0.5),
        ("It will reset at 2026-11-29 03:59:59 +0800 CST. We recommend", until(2026, 11, 28, 19, 59, 59)),
        ("Your limit will reset at 2026-12-20 14:30:00", until(2026, 12, 20, 6, 30)),
        ("You will regain access on 2026-12-01 at 00:00 UTC.", until(2026, 12, 1)),
        ("Usage resets 2026/12/05 08:00 UTC+8", until(2026, 12, 5)),
        ("next reset: 2026-11-28T18:00:00Z", until(2026, 11, 28, 18)),
        ("resets Thu, 3 Dec 2026 10:00:00 GMT", until(2026, 12, 3, 10)),
        ("try again at Dec 1st, 2026 3:15 PM.", until(2026, 12, 1, 15, 15)),
        ("available again on Dec 1", until(2026, 12, 1)),
        ("You can use it again from 1 January 2027", until(2027, 1, 1)),
        ("Resets Jan 3, 9pm", until(2027, 1, 3, 21)),
        ("resets 3pm (America/New_York)", until(2026, 11, 28, 20)),
        ("reset at 6:30 p.m. ET", until(2026, 11, 28, 23, 30)),
        ("Quota resets at midnight Pacific time", until(2026, 11, 29, 8)),
        ("limit resets Mon 9:00 AM PST", until(2026, 11, 30, 17)),
        ("try again tomorrow", until(2026, 11, 29)),
        ("Resets on the first day of next month", until(2026, 12, 1)),
        ("Claude AI usage limit reached|1795900000", 1_795_900_000 + 1 - NOW),
        ("It will reset at 2026-11-27 03:59:59 +0800 CST", None),
        ("Resets Oct 7, 9pm", None),
        ("Resets on 2026-02-31 10:00", None),
        ("Rate limit of 50 per 86400s exceeded", None),
        ("Too many requests in 60 seconds", None),
        ("It resets every 5 hours", None),
        ("Available tokens: 500, needed: 600", None),
        ("You've hit your 5-hour limit", None),
        ("Try again in 5 moons, or later", None),
        ("gpt-5-2027-01-01 is full", None),
    ],
)
def test_a_sentence_names_the_end_of_a_wait(text, wait_s):
    assert wait_in(text, NOW) == wait_s


@given(st.text(st.characters(codec="utf-8"), max_size=60), st.floats(0, 1e12))
@pytest.mark.parametrize("start", ["", "try again in ", "resets at ", "wait "])
def test_any_sentence_is_a_wait_within_bounds_or_none(start, text, wall_now):
    wait_s = wait_in(start + text, wall_now)
    assert wait_s is None or 0 <= wait_s <= LONGEST_S


MONTHLY = "This request would exceed your account's monthly spend limit. Please try again later."
FIVE_HOURS = (
    "You have exceeded the 5-hour usage quota. It will reset at 2026-11-28 23:59:59 +0800 CST. We recommend upgrading."
)


@pytest.mark.parametrize(
    ("error", "headers", "end_s"),
    [
        ({"type": "rate_limit_error", "message": MONTHLY}, {"retry-after": "274579", "retry-after-ms": "274579000"}, 274_579),
        ({"code": "AccountQuotaExceeded", "message": FIVE_HOURS}, {}, until(2026, 11, 28, 15, 59, 59)),
        ({"type": "SubscriptionUsageLimitError", "message": "Monthly usage limit reached. Resets in 16 days."}, {}, 16 * DAY),
        ({"message": "Your organization has reached its daily quota."}, {}, 0),
        ({"message": "Your team's weekly limit (all models) resets Mon 9:00 UTC"}, {}, until(2026, 11, 30, 9)),
        ({"message": "Your plan's session limit is reached", "resets_at": NOW + 7200}, {}, 7201),
        ({"message": "Plan limit reached", "resetsInSeconds": 9000, "resetsAt": int(NOW) + 1800}, {}, 9000),
        ({"message": "Workspace billing cycle quota exceeded"}, {"x-ratelimit-reset": str(int(NOW + DAY) * 1000)}, DAY),
        ({"message": "Account limit: 200 requests per day", "metadata": {"headers": {"X-RateLimit-Reset": str(int(NOW + DAY))}}}, {}, DAY + 1),
        ({"message": "The project's limit of 50 per 86400s is spent"}, {"retry-after": "Sun, 29 Nov 2026 09:00:00 GMT"}, DAY + 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["", "anthropic", "openai", "openai-compatible", "deepseek"])
def test_a_long_wait_of_the_account_blocks_it_until_its_end(error, headers, end_s, name):
    outcome = judge({"error": error}, headers=headers, name=name)
    assert (outcome.kind, outcome.retryable, outcome.account_block_s) == (IGNORED, False, end_s)
    assert outcome.of_account


@pytest.mark.parametrize(
    ("error", "headers", "after_s"),
    [
        ({"code": "user_global_rate_limited:pro", "message": "Sorry, you've exceeded your 5 hour session limits. Please retry after 2733 seconds."}, {}, 2733),
        ({"message": "Weekly limit reached."}, {"retry-after": "183600"}, 183_600),
        ({"message": "You've hit your usage limit. Try again at Dec 1st, 2026 3:15 PM."}, {}, until(2026, 12, 1, 15, 15)),
        ({"message": "5-hour limit reached ∙ resets 3pm (America/New_York)"}, {"retry-after": "60"}, until(2026, 11, 28, 20)),
        ({"message": "Key limit exceeded (daily limit)", "retry_after_ms": 7_200_000}, {}, 7200),
        ({"code": "rate_limit_exceeded", "message": "Rate limit exceeded."}, {"retry-after": "7200"}, 7200),
        ({"message": "Slow down", "details": [{"quotaResetDelay": "3h55m"}]}, {}, 3 * HOUR + 55 * MINUTE),
    ],
)  # fmt: skip
def test_a_long_wait_of_nobody_knows_what_is_a_delay_that_the_kernel_confirms(error, headers, after_s):
    outcome = judge({"error": error}, headers=headers)
    assert (outcome.kind, outcome.retryable, outcome.account_block_s) == (THROTTLED, True, None)
    assert outcome.retry_after_s == after_s


@pytest.mark.parametrize(
    ("error", "after_s"),
    [
        ({"message": "You've reached your weekly Opus limit. Resets in 3 days."}, 3 * DAY),
        ({"message": "Daily limit for this model is spent, switch to another model."}, None),
        ({"code": "RateLimitReached", "message": "Rate limit of 50 per 86400s exceeded for UserByModelByDay."}, None),
        ({"message": "Daily tokens of gpt-oss-120b in organization org-1 are spent. Try again in 2h15m"}, 8100),
        ({"message": "Fast mode is not part of your monthly plan"}, None),
        ({"message": "Your end user has used the daily quota"}, None),
        ({"message": "Daily limit reached."}, None),
    ],
)
def test_a_long_wait_of_a_part_or_without_an_end_refuses_its_request_alone(error, after_s):
    outcome = judge({"error": error})
    assert outcome == Outcome(IGNORED, outcome.reason, 429, retry_after_s=after_s, words=error["message"])


@pytest.mark.parametrize(
    ("message", "headers", "after_s"),
    [
        ("Rate limit reached for gpt-4o in organization org-x on requests per day (RPD): Limit 200. Please try again in 7m12s.", {}, 432),
        ("Your account org-1 reached organization max RPM: 20, please try again after 1 seconds", {}, 1),
        ("Token usage limit per minute exceeded", {}, None),
        ("This request would exceed your account's rate limit. Please try again later.", {}, None),
        ("Rate limit exceeded. See https://example.com/account/daily-limits", {}, None),
        ("You exceeded your current quota, please check your plan and billing details. Please retry in 34.07s.", {}, 34.07),
        ("5-hour limit reached", {"retry-after": "300"}, 300),
    ],
)  # fmt: skip
def test_a_short_wait_is_a_limit_s_like_any(message, headers, after_s):
    outcome = judge({"error": {"message": message}}, headers=headers)
    assert (outcome.kind, outcome.retryable, outcome.retry_after_s) == (THROTTLED, True, after_s)
    assert outcome.account_block_s is None


def test_a_full_service_that_tells_of_hours_is_full():
    assert judge({"error": {"message": "Overloaded"}}, 529, {"retry-after": "7200"}).kind is OVERLOADED
    assert judge({"error": {"message": "High demand"}}, 429, {"retry-after": "7200"}, "azure").kind is OVERLOADED


UNIFIED = "anthropic-ratelimit-unified"


@pytest.mark.parametrize(
    ("headers", "block_s"),
    [
        ({"status": "rejected", "reset": str(int(NOW) + 60)}, 61),
        ({"status": "blocked"}, 0),
        ({"5h-status": "rejected", "5h-reset": str(int(NOW) + 60)}, 61),
        ({"status": "rejected", "representative-claim": "seven_day_opus", "reset": str(int(NOW) + 60)}, None),
        ({"7d_oi-status": "rejected", "status": "allowed"}, None),
    ],
)
def test_a_spent_window_of_a_subscription_is_the_account_s_unless_its_claim_names_a_model(headers, block_s):
    told = {f"{UNIFIED}-{name}": value for name, value in headers.items()}
    outcome = judge({"error": {"type": "rate_limit_error"}}, headers=told, name="anthropic")
    assert (outcome.kind, outcome.retryable, outcome.account_block_s) == (IGNORED, False, block_s)
    assert judge({"error": {"type": "overloaded_error"}}, 529, told, "anthropic").account_block_s is None


def test_a_window_that_is_spent_is_told_in_a_stream_as_well():
    facts = ErrorFacts(type="rate_limit_error", message="Your plan's weekly limit is reached, resets in 2 days")
    outcome = judge_stream_error(PACKAGED["anthropic"], facts, Hints(), NOW)
    assert (outcome.kind, outcome.retryable, outcome.account_block_s) == (IGNORED, False, 2 * DAY)


def page(title: str, text: str = "") -> bytes:
    return f"<!DOCTYPE html>\n<html><head><title>{title}</title></head><body>{text}</body></html>".encode()


CHALLENGE = page("Just a moment...", "Enable JavaScript and cookies to continue")
NGINX = b"<html>\r\n<head><title>{}</title></head>\r\n<body><center><h1>{}</h1></center><hr><center>nginx</center></body></html>"
VERCEL = page("Vercel Security Checkpoint")
LIMITED = page("Access denied | x.ai used Cloudflare to restrict access", "Error 1015: You are being rate limited")


@pytest.mark.parametrize(
    ("status", "body", "headers", "reason", "retryable"),
    [
        (403, CHALLENGE, {}, "403 from the edge: Just a moment...", True),
        (503, CHALLENGE, {}, "503 from the edge: Just a moment...", True),
        (403, b"{}", {"cf-mitigated": "challenge"}, "403 from the edge: cf-mitigated", True),
        (202, b"", {"x-amzn-waf-action": "challenge"}, "202 from the edge: x-amzn-waf-action", True),
        (429, VERCEL, {"x-vercel-mitigated": "challenge"}, "429 from the edge: x-vercel-mitigated", True),
        (403, page("Access Denied", "Reference #18.2f"), {"server": "AkamaiGHost"}, "403 from the edge: Access Denied", True),
        (403, page("ERROR: The request could not be satisfied", "Request blocked."), {}, "403 from the edge", True),
        (403, NGINX, {}, "403 from the edge: {}", True),
        (429, LIMITED, {}, "429 from the edge", True),
        (429, b"error code: 1015", {}, "429 from the edge", True),
        (403, b"error code: 1020", {}, "403 from the edge", False),
        (403, page("Attention Required!", "Sorry, you have been blocked"), {}, "403 from the edge: Attention Required!", False),
        (429, b'{"title": "Error 1015", "cloudflare_error": true, "retry_after": 30}', {}, "429 from the edge", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["", "anthropic", "openai-compatible"])
def test_the_edge_is_told_from_the_provider(status, body, headers, reason, retryable, name):
    outcome = judge(body, status, headers, name)
    assert (outcome.of_edge, outcome.kind, outcome.retryable) == (True, OVERLOADED, retryable)
    assert outcome.reason == reason
    assert outcome.account_block_s is None


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 520, 522, 530])
def test_a_page_of_a_server_that_fails_is_the_server_s(status):
    for body in (NGINX, page(f"{status}: Web server is down", "Cloudflare Ray ID")):
        outcome = judge(body, status)
        assert not outcome.of_edge
        assert outcome.retryable


def test_what_a_model_s_api_says_itself_is_not_of_the_edge():
    assert not judge({"error": {"message": "access denied: captcha"}}, 403).of_edge
    assert not judge(b"", 403, {"server": "cloudflare"}).of_edge
    assert judge(CHALLENGE, 403, name="plain" if "plain" in PACKAGED else "").of_edge is ("plain" not in PACKAGED)
