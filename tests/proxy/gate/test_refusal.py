import json
from dataclasses import replace
from pathlib import Path

import pytest
from mitmproxy import http
from msgspec import structs

from hivemind_addon.formats.profile.load import format_for, load_profiles
from hivemind_addon.formats.profile.model import ProfileKind
from hivemind_addon.formats.wire.dialect import dialect_of
from hivemind_addon.formats.wire.hints import read_hints
from hivemind_addon.formats.wire.outcome import judge_answer
from hivemind_addon.kernel.values.command import Cancel
from hivemind_addon.kernel.values.decision import ActiveBlock, Refused, Shed
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Shortage
from hivemind_addon.kernel.values.ticket import Outcome, OutcomeKind, Reason
from hivemind_addon.proxy.gate.refusal import (
    come_back_s,
    make_refusal,
    make_refused,
    make_upgrade_refusal,
    refusal_text,
    refused_error,
    refused_text,
    soften,
)
from tests.kernel.samples import ticket

PROFILES = load_profiles(None).by_name
FILE = Path("/etc/agents.yaml")


class Noon:
    """A clock that stands."""

    def monotonic(self):
        return 1000.0

    def wall(self):
        return 1795176000.0  # 2026-11-20T12:00:00Z


CLOCK = Noon()
CLOSURE = ActiveBlock("429 usage_limit_reached", 1000.0 + 7384)


def shed(reason=Reason.DEADLINE, come_back_s=2.2):
    return Shed(ticket(), reason, come_back_s)


def refused(*, spent=5_100_000, needed=200_000, name="agent-7", scope=Scope.AGENT, per=Period.RUN, renews_in_s=None):
    budget = Budget(scope, name, per, micro_usd=5_000_000)
    return Refused(ticket(), Shortage(budget, "micro_usd", 5_000_000, spent, 0, needed, renews_in_s))


def test_a_refusal_is_in_the_providers_own_shape_and_says_when_to_come_back():
    for name, status, error in (
        ("anthropic", 429, "rate_limit_error"),
        ("openai", 503, "server_is_overloaded"),
        ("openai-compatible", 503, "server_is_overloaded"),
    ):
        profile = PROFILES[name]
        answer = make_refusal(profile, dialect_of(profile.format), shed())
        assert answer.status_code == status, name
        assert answer.headers["retry-after"] == "3", name
        assert answer.headers["x-should-retry"] == "true", name
        assert answer.headers["content-type"] == "application/json", name
        body = json.loads(answer.content)
        assert body["error"]["type"] == error, name
        assert "client about to give up" in body["error"]["message"], name
        assert (body.get("type") == "error") is (name == "anthropic"), name


def test_the_time_is_whole_seconds_that_the_sdks_obey():
    cases = ((0, 1), (0.2, 1), (1.01, 2), (29.5, 30), (31, 30), (1e9, 30))
    assert [
        (come_back, seconds)
        for come_back, seconds in cases
        if come_back_s(PROFILES["anthropic"], shed(come_back_s=come_back)) != seconds
    ] == []


def test_what_a_person_cancelled_is_final_in_the_providers_own_shape():
    for name in ("anthropic", "openai", "openai-compatible", "ollama"):
        profile = PROFILES[name]
        told = Refused(ticket(), Cancel("t1"))
        answer = make_refused(profile, dialect_of(profile.format), told, None, CLOCK)
        assert answer.status_code == 400, name
        assert answer.headers["x-should-retry"] == "false", name
        assert "retry-after" not in answer.headers, name
        error = json.loads(answer.content)["error"]
        assert refused_text(told, None, CLOCK) == (error["message"] if isinstance(error, dict) else error), name
        if isinstance(error, dict):
            assert error["type"] == refused_error(profile, dialect_of(profile.format), told) == "invalid_request_error"


def test_a_stopping_proxy_says_so():
    assert "stopping" in refusal_text(shed(Reason.STOPPING))
    assert "keeps its turn" not in refusal_text(shed(Reason.STOPPING))


def test_a_spent_budget_says_who_how_much_and_how_to_raise_it():
    assert refused_text(refused(), FILE, CLOCK) == (
        "hivemind: the budget of agent agent-7 is spent: $5.10 of $5.00 for this run. "
        "To go on now, a person runs: hivemind budget add agent-7 --per run --usd 2.00; "
        "to raise it for good: agents: agent-7: budgets in /etc/agents.yaml."
    )


def test_one_that_renews_says_when():
    text = refused_text(refused(per=Period.DAY, renews_in_s=4000.0, scope=Scope.EVERYONE, name=""), FILE, CLOCK)
    assert "$5.10 of $5.00 per day. A new one begins in 1 h 7 min. To go on now, a person runs: hivemind " in text
    assert "budget add --everyone --per day --usd 2.00; to raise it for good: everyone: budgets in" in text


def test_one_with_too_little_left_says_what_is_needed():
    text = refused_text(refused(spent=4_900_000), FILE, CLOCK)
    assert "has too little left: $4.90 of $5.00 for this run is spent, and this request needs about $0.2000" in text


def test_a_model_without_a_price_is_named_with_the_cure():
    short = structs.replace(refused().cause, unpriced="claude-opus-9")
    text = refused_text(Refused(ticket(), short), FILE, CLOCK)
    assert "the price of claude-opus-9 is not known, and the budget of agent agent-7 is $5.00" in text
    assert "write its price under `prices` of a profile" in text


@pytest.mark.parametrize(
    ("name", "error"), [("anthropic", "invalid_request_error"), ("openai", "billing_hard_limit_reached")]
)
def test_the_refusal_is_one_that_clients_do_not_retry(name, error):
    profile = PROFILES[name]
    answer = make_refused(profile, dialect_of(profile.format), refused(), FILE, CLOCK)
    assert answer.status_code == 400
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    body = json.loads(answer.content)
    assert body["error"]["type"] == error
    assert "budget of agent agent-7" in body["error"]["message"]


def test_a_spent_account_is_refused_with_its_end_and_for_good():
    for name, path, error in (
        ("anthropic", "/v1/messages", "rate_limit_error"),
        ("codex", "/backend-api/codex/responses", "usage_limit_reached"),
        ("openai-compatible", "/v1/chat/completions", "usage_limit_reached"),
        ("ollama", "/api/chat", None),
    ):
        profile = PROFILES[name]
        answer = make_refused(profile, dialect_of(format_for(profile, path)), Refused(ticket(), CLOSURE), FILE, CLOCK)
        assert answer.status_code == 429, name
        assert answer.headers["x-should-retry"] == "false", name
        assert answer.headers["retry-after"] == "30", name  # no SDK sleeps until the end
        told = json.loads(answer.content)["error"]
        message = told if error is None else told["message"]
        assert message == (
            "hivemind: the provider refuses this account until 2026-11-20T14:03:04Z (in 2 h 4 min): "
            "429 usage_limit_reached. `hivemind resume` tries it at once."
        )
        assert error is None or told["type"] == error, name


def test_claude_code_and_codex_find_the_end_where_they_look_for_it():
    anthropic, codex = PROFILES["anthropic"], PROFILES["codex"]
    walled = Refused(ticket(), CLOSURE)
    answer = make_refused(anthropic, dialect_of(anthropic.format), walled, FILE, CLOCK)
    assert answer.headers["anthropic-ratelimit-unified-status"] == "rejected"
    assert answer.headers["anthropic-ratelimit-unified-reset"] == "1795183384"
    answer = make_refused(codex, dialect_of(codex.format), walled, FILE, CLOCK)
    assert json.loads(answer.content)["error"]["resets_at"] == 1795183384


def test_an_end_that_has_come_is_a_second_away():
    answer = make_refused(
        PROFILES["codex"], dialect_of(PROFILES["codex"].format), Refused(ticket(), ActiveBlock("x", 0.0)), None, CLOCK
    )
    assert answer.headers["retry-after"] == "1"


LONG = Outcome(OutcomeKind.IGNORED, "429", 429, account_block_s=16 * 86_400.0)


@pytest.mark.parametrize(
    ("outcome", "headers", "softened"),
    [
        (LONG, {"Retry-After": "1382400"}, {"x-should-retry": "false", "retry-after": "30"}),
        (
            LONG,
            {"retry-after-ms": "9", "retry-after": "Sat, 12 Dec 2026 09:00:00 GMT", "x-should-retry": "true"},
            {"x-should-retry": "false", "retry-after": "30"},
        ),
        (LONG, {"x-a": "b"}, {"x-a": "b", "x-should-retry": "false"}),
        (structs.replace(LONG, account_block_s=0.0), {"retry-after": "9"}, {"retry-after": "9", "x-should-retry": "false"}),
        (
            Outcome(OutcomeKind.THROTTLED, "429", 429, retryable=True, retry_after_s=7200.0),
            {"retry-after": "7200"},
            {"x-should-retry": "false", "retry-after": "30"},
        ),
        (
            Outcome(OutcomeKind.THROTTLED, "429", 429, retryable=True, retry_after_s=60.0),
            {"retry-after": "60", "x-should-retry": "true"},
            {"retry-after": "60", "x-should-retry": "true"},
        ),
        (Outcome(OutcomeKind.IGNORED, "400", 400), {}, {}),
    ],
)  # fmt: skip
def test_the_provider_s_own_refusal_makes_no_client_sleep_for_days_or_retry_at_once(outcome, headers, softened):
    answer = http.Response.make(429, b"No.", headers)
    length = {"content-length": "3"}
    soften(answer.headers, PROFILES["anthropic"], outcome)
    assert {name.lower(): value for name, value in answer.headers.items()} == softened | length
    plain = http.Response.make(429, b"No.", headers)
    soften(plain.headers, replace(PROFILES["anthropic"], kind=ProfileKind.PLAIN), outcome)
    assert plain.headers == http.Response.make(429, b"No.", headers).headers


def test_a_websocket_is_asked_to_become_plain_requests():
    answer = make_upgrade_refusal(dialect_of(PROFILES["openai"].format))
    assert answer.status_code == 426
    assert "plain requests" in json.loads(answer.content)["error"]["message"]


def test_a_refusal_names_the_conversation_that_was_kept():
    told = refused_text(refused(), FILE, CLOCK, "c0ffee0001")
    assert told.endswith(" Its conversation is kept: hivemind context show c0ffee0001.")
    assert "context" not in refused_text(refused(), FILE, CLOCK)
    profile = PROFILES["anthropic"]
    answer = make_refused(profile, dialect_of(profile.format), refused(), FILE, CLOCK, kept_as="c0ffee0001")
    assert json.loads(answer.content)["error"]["message"] == told


def test_the_commands_that_a_refusal_names_reach_this_proxy():
    told = refused_text(refused(), None, CLOCK, "c0ffee0001", port=18080)
    assert told.count(" -p 18080.") == 2
    assert " -p " not in refused_text(refused(), None, CLOCK, "c0ffee0001", port=0)


def formats_of(profile):
    """Path and format of each of its paths."""
    for path in (one.replace("*", "x") for one in profile.paths):
        yield path, format_for(profile, f"/{path.lstrip('/')}")


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_reads_its_own_refusals_as_what_they_mean(name):
    profile = PROFILES[name]
    for path, form in formats_of(profile):
        dialect = dialect_of(form)
        for answer, kind, retry_after_s in (
            (make_refusal(profile, dialect, shed()), None, 3),
            (make_refused(profile, dialect, refused(), FILE, CLOCK), OutcomeKind.IGNORED, None),
        ):
            headers = {one.lower(): value for one, value in answer.headers.items()}
            hints = read_hints(profile, headers, CLOCK.wall())
            outcome = judge_answer(
                profile, answer.status_code, headers, answer.content, hints, CLOCK.wall(), places=form.error
            )
            assert outcome.retryable is (kind is None), path
            assert kind is None or outcome.kind is kind, path
            assert outcome.retry_after_s == retry_after_s, path
            assert outcome.account_block_s is None, path


def test_gemini_cli_and_boto3_find_the_delay_where_they_look_for_it():
    gemini, bedrock = PROFILES["gemini"], PROFILES["bedrock"]
    (told,) = json.loads(make_refusal(gemini, dialect_of(gemini.format), shed()).content)["error"]["details"]
    assert told["@type"].endswith("google.rpc.RetryInfo")
    assert told["retryDelay"] == "3s"
    answer = make_refused(gemini, dialect_of(gemini.format), Refused(ticket(), CLOSURE), FILE, CLOCK)
    (told,) = json.loads(answer.content)["error"]["details"]
    assert told["retryDelay"] == "7384s"  # above 300 s it stops
    headers = make_refusal(bedrock, dialect_of(bedrock.format), shed()).headers
    assert (headers["x-amzn-errortype"], headers["x-amz-retry-after"]) == ("ThrottlingException", "3000")
