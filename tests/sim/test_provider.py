"""The simulated provider: its limits, faults, prompt cache, and the truth about it."""

import json
import math
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from hivemind_addon.kernel.values.ticket import ContractError, Demand, Dimension
from hivemind_addon.sim import faults
from hivemind_addon.sim.call import AnswerEnding, SimAnswer, SimRequestFacts, Truth, TruthPart, Witness
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.faults import (
    NAMED,
    OK,
    ErrorStatus,
    Fault,
    FaultCourse,
    FaultMix,
    FaultPoint,
    Slow,
    name_of,
)
from hivemind_addon.sim.limits import Limit, LimitKind, ModelScope, Prefix, RetryAfter, SimPromptCache
from hivemind_addon.sim.plan import Data, steps
from hivemind_addon.sim.provider import Latency, LimitScope, ProviderSettings, SimProvider, Storm
from tests.cases import each
from tests.sim.samples import REPLY

MESSAGES = SimRequestFacts(SimDialect.MESSAGES, "sk-sim-a", input_tokens=100, max_tokens=50)
CHAT = replace(MESSAGES, dialect=SimDialect.CHAT)
WALL = 1_800_000_000


def provider(seed: int = 0, **settings: object) -> SimProvider:
    return SimProvider(ProviderSettings(**settings), random.Random(seed), wall_offset_s=WALL)


def window(dimension: Dimension, amount: int) -> Limit:
    return Limit(dimension, amount, 60, LimitKind.WINDOW)


def bucket(dimension: Dimension, amount: int) -> Limit:
    return Limit(dimension, amount, 60, LimitKind.BUCKET)


def play(sim: SimProvider, now: float, request: SimRequestFacts = MESSAGES) -> SimAnswer:
    """A whole attempt that takes no time."""
    answer = sim.begin(now, request)
    tokens = sum(step.output_tokens for step in steps(answer, http2=False) if isinstance(step, Data))
    sim.end(now, answer, output_tokens=tokens)
    return answer


def adds_up(truth: Truth) -> bool:
    ends = truth.refused + truth.overloaded + truth.failed + truth.completed + truth.cut + truth.abandoned
    return (
        truth.attempts
        == ends + truth.in_flight
        == sum(truth.by_status.values())
        == sum(agent.attempts for agent in truth.agents.values())
    )


def test_a_request_window_lets_its_number_through_and_says_when_it_ends():
    sim = provider(limits=(window(Dimension.REQUESTS, 3),))
    assert [play(sim, now).status for now in (10, 11, 12, 13)] == [200, 200, 200, 429]
    refused = dict(play(sim, 20).headers)
    assert refused["retry-after"] == "50"
    assert refused["anthropic-ratelimit-requests-remaining"] == "0"
    assert refused["anthropic-ratelimit-requests-reset"] == "2027-01-15T08:01:10Z"
    assert play(sim, 70).status == 200


FAMILIES = (("big", "small"), ("old", "older"))


@each(
    ("scope", "passed"),
    [
        (ModelScope.KEY, {"big"}),
        (ModelScope.FAMILY, {"big", "old", "lone"}),
        (ModelScope.MODEL, {"big", "small", "old", "older", "lone"}),
    ],
)
def test_a_limit_counts_the_models_of_its_scope_together(scope, passed):
    sim = provider(limits=(replace(window(Dimension.REQUESTS, 1), scope=scope),), families=FAMILIES)
    models = ["big", "small", "old", "older", "lone"]
    answers = {model: play(sim, 1, replace(MESSAGES, model=model)) for model in models}
    assert {model for model, answer in answers.items() if answer.status == 200} == passed


@each(("scope", "passed"), [(ModelScope.KEY, 1), (ModelScope.FAMILY, 3), (ModelScope.MODEL, 5)])
def test_a_cap_counts_the_models_of_its_scope_together(scope, passed):
    sim = provider(concurrency=1, concurrency_scope=scope, families=FAMILIES)
    models = ["big", "small", "old", "older", "lone"]
    answers = [sim.begin(1, replace(MESSAGES, model=model)) for model in models]
    assert [answer.status for answer in answers].count(200) == passed == sim.settings.slots(models)
    for answer in answers:
        sim.end(2, answer)
    assert [sim.begin(3, replace(MESSAGES, model=model)).status for model in models].count(200) == passed


def test_a_queue_of_its_own_is_silent_and_in_the_order_of_arrival():
    sim = provider(serves_at_once=2)
    calls = [sim.begin(0.0, replace(MESSAGES, latency_s=2.0)) for _ in range(5)]
    assert [(call.status, call.latency_s, call.queued_s) for call in calls] == [
        (200, 2.0, 0.0),
        (200, 2.0, 0.0),
        (200, 4.0, 2.0),
        (200, 4.0, 2.0),
        (200, 6.0, 4.0),
    ]
    assert math.isinf(sim.serves_in_s(0.0, MESSAGES, Demand()))
    for call in calls[:4]:
        sim.end(call.latency_s, call)
    assert sim.begin(5.0, replace(MESSAGES, latency_s=2.0)).latency_s == 2.0


def test_beyond_a_number_of_calls_each_takes_longer_by_the_square():
    sim = provider(slows_beyond=2)
    took_s = [sim.begin(0.0, replace(MESSAGES, latency_s=1.0)).latency_s for _ in range(4)]
    assert took_s == [1.0, 1.0, 2.25, 4.0]


def test_headers_tell_the_limit_that_binds_first_of_those_that_count_a_model():
    key, own = window(Dimension.REQUESTS, 4), replace(window(Dimension.REQUESTS, 2), scope=ModelScope.MODEL)
    sim = provider(limits=(key, own))
    told = [
        {name: value for name, value in play(sim, 1, replace(MESSAGES, model=model)).headers if "requests" in name}
        for model in ("big", "small", "small")
    ]
    assert [headers["anthropic-ratelimit-requests-remaining"] for headers in told] == ["1", "1", "0"]
    assert [headers["anthropic-ratelimit-requests-limit"] for headers in told] == ["2", "2", "2"]


def test_a_retry_after_that_is_waited_for_is_always_enough():
    sim = provider(limits=(bucket(Dimension.INPUT_TOKENS, 700), bucket(Dimension.REQUESTS, 9)))
    now, admitted = 0.0, 0
    for _ in range(200):
        answer = play(sim, now)
        if answer.status == 429:
            now += int(dict(answer.headers)["retry-after"])
            assert play(sim, now).status == 200
        admitted += 1
    assert admitted == 200


def test_messages_counts_uncached_input_and_the_output_that_was_generated():
    sim = provider(limits=(window(Dimension.INPUT_TOKENS, 10_000), window(Dimension.OUTPUT_TOKENS, 10_000)))
    big = replace(MESSAGES, input_tokens=5_000, cached_tokens=3_000, max_tokens=9_999, chunks=3_000)
    first = play(sim, 0, big)
    second = play(sim, 1, big)
    assert dict(first.headers)["anthropic-ratelimit-input-tokens-remaining"] == "8000"
    assert dict(first.headers)["anthropic-ratelimit-output-tokens-remaining"] == "10000"
    assert dict(second.headers)["anthropic-ratelimit-input-tokens-remaining"] == "6000"
    assert dict(second.headers)["anthropic-ratelimit-output-tokens-remaining"] == "7000"


def test_messages_output_may_run_into_debt_that_refuses_what_follows():
    sim = provider(limits=(bucket(Dimension.OUTPUT_TOKENS, 60),))
    assert play(sim, 0, replace(MESSAGES, max_tokens=90, chunks=90)).status == 200
    assert dict(play(sim, 0).headers)["retry-after"] == "31"
    assert play(sim, 31).status == 200


def test_chat_counts_input_and_the_maximum_when_it_lets_a_call_through():
    sim = provider(limits=(window(Dimension.TOTAL_TOKENS, 400),))
    assert dict(sim.begin(0, CHAT).headers)["x-ratelimit-remaining-tokens"] == "250"
    assert dict(sim.begin(0, CHAT).headers)["x-ratelimit-remaining-tokens"] == "100"
    refused = sim.begin(6.5, CHAT)
    assert refused.status == 429
    assert dict(refused.headers)["retry-after-ms"] == "53500"
    assert dict(refused.headers)["x-ratelimit-reset-tokens"] == "53.5s"
    assert b"try again in 53.5s" in refused.body()


def test_a_request_wider_than_the_limit_is_refused_even_when_all_is_free():
    sim = provider(limits=(bucket(Dimension.INPUT_TOKENS, 99),))
    assert dict(play(sim, 0).headers)["retry-after"] == "60"


def test_refusals_say_nothing_about_waiting_where_the_setting_is_off():
    sim = provider(limits=(window(Dimension.REQUESTS, 1),), retry_after=RetryAfter.MISSING, rate_limit_headers=False)
    play(sim, 0)
    refused = play(sim, 0)
    assert refused.status == 429
    assert not [name for name, _ in refused.headers if "ratelimit" in name or "retry" in name]


@each(("charge", "seen"), [(False, [429, 200, 429, 200]), (True, [429, 429, 429, 200])])
def test_a_refused_call_counts_only_where_failures_are_charged(charge, seen):
    """One call fits every 6 s; where refusals count, each of them puts it off for as long again."""
    sim = provider(limits=(bucket(Dimension.REQUESTS, 10),), charge_failures=charge)
    for _ in range(10):
        play(sim, 0)
    assert [play(sim, now).status for now in (5, 6, 11, 17)] == seen


@each(("charge", "remaining"), [(False, "10"), (True, "9")])
def test_a_failed_call_counts_only_where_failures_are_charged(charge, remaining):
    sim = provider(limits=(window(Dimension.REQUESTS, 10),), charge_failures=charge)
    sim.script("sk-sim-a", [ErrorStatus(500), ErrorStatus(429)])
    play(sim, 0)
    last = dict(play(sim, 0).headers)["anthropic-ratelimit-requests-remaining"]
    assert int(last) == int(remaining) - (1 if charge else 0)


@each(("status", "words"), [(529, "overloaded_error"), (429, "Number of concurrent connections"), (503, "api_error")])
def test_a_call_beyond_the_concurrency_cap_is_refused_at_once(status, words):
    sim = provider(concurrency=2, concurrency_status=status)
    running = [sim.begin(0, MESSAGES), sim.begin(0, MESSAGES)]
    refused = play(sim, 0)
    assert refused.status == status
    assert words in refused.body().decode()
    sim.end(1, running[0])
    assert play(sim, 1).status == 200
    assert sim.truth().overloaded == 1
    assert sim.truth().peak_in_flight == 2


def test_the_concurrency_cap_can_move():
    sim = provider(concurrency=1)
    sim.begin(0, MESSAGES)
    sim.set_concurrency(2)
    assert sim.begin(0, MESSAGES).status == 200
    assert sim.begin(0, MESSAGES).status == 529


def test_credentials_share_limits_and_organisation_unless_the_scope_says_otherwise():
    other = replace(MESSAGES, credential="sk-sim-b")
    for scope, status in ((LimitScope.EVERYBODY, 429), (LimitScope.CREDENTIAL, 200)):
        sim = provider(limits=(window(Dimension.REQUESTS, 1),), scope=scope)
        first, second = play(sim, 0), play(sim, 0, other)
        assert second.status == status
        assert (first.account == second.account) == (scope is LimitScope.EVERYBODY)


def test_a_script_belongs_to_one_credential_and_a_refused_attempt_leaves_it_alone():
    sim = provider(limits=(window(Dimension.REQUESTS, 2),), scope=LimitScope.CREDENTIAL, charge_failures=True)
    sim.script("sk-sim-a", [ErrorStatus(500), ErrorStatus(502), ErrorStatus(503)])
    other = replace(MESSAGES, credential="sk-sim-b")
    seen = [play(sim, now, request).status for now, request in ((0, MESSAGES), (0, other), (0, MESSAGES))]
    assert seen == [500, 200, 502]
    assert play(sim, 0).status == 429
    assert play(sim, 60).status == 503


def test_the_answer_names_its_attempt():
    sim = provider()
    sim.script("sk-sim-a", [ErrorStatus(500)])
    failed, answer = play(sim, 0), play(sim, 0)
    assert ("x-sim-attempt", "1") in failed.headers
    assert ("x-sim-attempt", "2") in answer.headers
    assert f"{answer.request_id} attempt 2" in json.loads(answer.body())["content"][0]["text"]
    assert failed.request_id != answer.request_id


def test_output_ends_at_the_requests_maximum():
    sim = provider(chunks=8, tokens_per_chunk=10)
    play(sim, 0, replace(MESSAGES, max_tokens=35))
    assert sim.truth().output_tokens == 35


def test_an_unfit_request_is_answered_before_any_limit():
    sim = provider(limits=(window(Dimension.REQUESTS, 1),))
    unfit = replace(MESSAGES, unfit=ErrorStatus(400, message="no"))
    assert [play(sim, 0, unfit).status for _ in range(3)] == [400, 400, 400]
    assert play(sim, 0).status == 200


def test_latency_is_lognormal_with_spikes_and_a_request_may_set_its_own():
    sim = provider(latency=Latency(median_s=2, sigma=0.5, spike_rate=0.1, spike_s=100))
    drawn = sorted(sim.begin(0, MESSAGES).latency_s for _ in range(2001))
    assert drawn[1000] == pytest.approx(2, rel=0.15)
    assert sum(latency_s > 100 for latency_s in drawn) == pytest.approx(200, rel=0.3)
    assert sim.begin(0, replace(MESSAGES, latency_s=0.5)).latency_s in (0.5, 100.5)
    sim.script("sk-sim-a", [Slow(30)])
    assert sim.begin(0, replace(MESSAGES, latency_s=0.5)).latency_s == 30.5


def test_the_same_seed_gives_the_same_answers():
    def run(seed: int) -> list[SimAnswer]:
        sim = provider(seed, faults={"500": 0.3, "stream-close": 0.2}, latency=Latency(median_s=1, sigma=1))
        return [play(sim, now) for now in range(100)]

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_an_attempt_ends_exactly_once():
    sim = provider()
    answer = play(sim, 0)
    with pytest.raises(ContractError):
        sim.end(0, answer)


def test_the_clients_going_wastes_what_was_generated():
    sim = provider()
    answer = sim.begin(0, MESSAGES)
    sim.end(1, answer, output_tokens=3, ending=AnswerEnding.ABANDONED)
    truth = sim.truth()
    assert (truth.abandoned, truth.wasted_input_tokens, truth.wasted_output_tokens) == (1, 100, 3)
    assert (truth.completed, truth.output_tokens) == (0, 0)


def test_a_key_that_is_not_simulated_is_not_shown():
    sim = provider()
    play(sim, 0, replace(MESSAGES, credential="sk-ant-secret"))
    assert "secret" not in repr(sim.truth())


def test_the_instant_of_a_reset_is_the_walls():
    sim = provider(limits=(bucket(Dimension.REQUESTS, 60),))
    reset = dict(play(sim, 7).headers)["anthropic-ratelimit-requests-reset"]
    assert datetime.fromisoformat(reset) == datetime.fromtimestamp(WALL + 8, UTC)


def test_the_instant_of_a_reset_may_be_cut():
    sim = provider(limits=(bucket(Dimension.REQUESTS, 40),), cut_resets=True)
    reset = dict(play(sim, 7).headers)["anthropic-ratelimit-requests-reset"]
    assert datetime.fromisoformat(reset) == datetime.fromtimestamp(WALL + 8, UTC), "after 1.5 s"


@each("seed", range(4))
def test_the_truth_adds_up_whatever_happens(seed):
    rng = random.Random(seed)
    sim = provider(
        seed,
        limits=(bucket(Dimension.REQUESTS, 600), window(Dimension.INPUT_TOKENS, 60_000)),
        concurrency=6,
        faults={name: 0.7 / len(NAMED) for name in NAMED if name != "ok"},
    )
    now, running = 0.0, []
    for _ in range(600):
        now += rng.expovariate(5)
        agent = f"agent-{rng.randrange(4)}"
        request = replace(rng.choice([MESSAGES, CHAT]), agent=agent, stream=rng.random() < 0.5)
        running.append(sim.begin(now, request))
        while len(running) > 3 and rng.random() < 0.6:
            answer = running.pop(rng.randrange(len(running)))
            gone = AnswerEnding.ABANDONED if rng.random() < 0.1 else None
            sim.end(now, answer, output_tokens=rng.randrange(9), ending=gone)
        assert adds_up(sim.truth())
    for answer in running:
        sim.end(now, answer)
    truth = sim.truth()
    assert adds_up(truth)
    assert truth.in_flight == 0
    assert 0 < truth.peak_in_flight <= 6
    assert min(truth.refused + truth.overloaded, truth.failed, truth.completed, truth.cut, truth.abandoned) > 0
    assert sum(truth.faults.values()) <= truth.attempts - truth.refused - truth.overloaded


def test_a_fault_is_counted_by_its_name():
    sim = provider()
    sim.script("sk-sim-a", [NAMED["529"], OK, NAMED["529"]])
    for _ in range(3):
        play(sim, 0)
    assert sim.truth().faults == {"529": 2}


def test_in_a_storm_other_faults_are_met_than_before_and_after():
    storms = (Storm(10, 20, {"502": 1.0}), Storm(30, 40, {"503": 1.0}))
    sim = provider(faults={"500": 1.0}, storms=storms)
    statuses = {since_s: play(sim, 100.0 + since_s).status for since_s in (0, 9, 10, 19, 20, 30, 40)}
    assert statuses == {0: 500, 9: 500, 10: 502, 19: 502, 20: 500, 30: 503, 40: 500}


def test_rates_follow_their_course_from_point_to_point_and_begin_anew():
    course = FaultCourse((FaultPoint(0, {"502": 0.1}), FaultPoint(10, {"502": 0.5, "503": 0.2}), FaultPoint(20, {})))
    rates = {since_s: course.at(since_s) for since_s in (0, 5, 10, 15, 20, 99)}
    assert rates[5] == pytest.approx({"502": 0.3, "503": 0.1})
    assert rates[15] == pytest.approx({"502": 0.25, "503": 0.1})
    assert (rates[0], rates[10], rates[20], rates[99]) == ({"502": 0.1}, {"502": 0.5, "503": 0.2}, {}, {})
    again = replace(course, repeats=True)
    assert [again.at(since_s) for since_s in (25, 30)] == [pytest.approx(rates[5]), rates[10]]


def test_a_course_counts_from_the_first_call_and_a_storm_goes_before_it():
    course = FaultCourse((FaultPoint(10, {}), FaultPoint(10.001, {"502": 1.0})))
    sim = provider(fault_course=course, storms=(Storm(20, 30, {"503": 1.0}),))
    assert [play(sim, 100.0 + since_s).status for since_s in (0, 9, 11, 20, 30)] == [200, 200, 502, 503, 502]


def test_a_hang_lasts_as_long_as_the_provider_says_and_then_the_answer_comes():
    sim = provider(hang_s=40)
    sim.script("sk-sim-a", [NAMED["hang"]])
    answer = play(sim, 0)
    assert (answer.status, answer.latency_s) == (200, 40)
    assert sim.truth().faults == {"hang": 1}


# Limits ---------------------------------------------------------------------------------------------------------------


BUCKET = Limit(Dimension.INPUT_TOKENS, 600, 60, LimitKind.BUCKET)
WINDOW = Limit(Dimension.REQUESTS, 10, 60, LimitKind.WINDOW)


def test_a_late_charge_may_go_below_zero_and_a_refused_call_may_not():
    late, refused = BUCKET.allowance(0), BUCKET.allowance(0)
    late.take(700, 0)
    refused.take(590, 0)
    refused.exhaust(20, 0)
    assert late.level(0) == -100
    assert refused.level(0) == 0


def test_a_refused_call_does_not_forgive_a_debt():
    allowance = BUCKET.allowance(0)
    allowance.take(700, 0)
    allowance.exhaust(1, 0)
    assert allowance.level(0) == -100


def test_full_means_the_whole_limit_for_a_bucket_and_the_end_for_a_window():
    bucket, window = BUCKET.allowance(0), WINDOW.allowance(0)
    bucket.take(60, 0)
    assert bucket.full_in_s(0) == pytest.approx(6)
    assert window.full_in_s(45) == 15


# Prompt cache ---------------------------------------------------------------------------------------------------------


SHORT, LONG = Prefix("system", 1000), Prefix("system and history", 5000)


def test_nothing_is_read_before_the_writers_answer_has_begun():
    cache = SimPromptCache(300)
    cache.write([SHORT], 0.0, usable_at=2.0)
    assert cache.cached_tokens([SHORT], 1.9) == 0
    assert cache.cached_tokens([SHORT], 2.0) == 1000


def test_the_longest_known_beginning_counts():
    cache = SimPromptCache(300)
    cache.write([SHORT], 0.0, usable_at=0.0)
    assert cache.cached_tokens([SHORT, LONG], 1.0) == 1000
    cache.write([SHORT, LONG], 1.0, usable_at=2.0)
    assert cache.cached_tokens([SHORT, LONG], 3.0) == 5000


def test_an_entry_lives_from_the_start_of_the_last_call_that_used_it():
    cache = SimPromptCache(300)
    cache.write([SHORT], 0.0, usable_at=1.0)
    cache.write([SHORT], 200.0, usable_at=205.0)
    assert cache.cached_tokens([SHORT], 201.0) == 1000
    assert cache.cached_tokens([SHORT], 499.0) == 1000
    assert cache.cached_tokens([SHORT], 500.0) == 0


def test_an_expired_entry_is_written_again():
    cache = SimPromptCache(300)
    cache.write([SHORT], 0.0, usable_at=1.0)
    cache.write([SHORT], 400.0, usable_at=403.0)
    assert cache.cached_tokens([SHORT], 402.0) == 0
    assert cache.cached_tokens([SHORT], 403.0) == 1000


# Truth ----------------------------------------------------------------------------------------------------------------


def answer(*, status=200, ending=AnswerEnding.COMPLETED, agent="a", reply=REPLY, fault=faults.OK):
    return SimAnswer("req_1", 1, "org", agent, "sim-1", status, (), ending, reply=reply, fault=fault)


def test_what_completed_counts_for_its_agent_and_what_was_cut_is_waste():
    witness = Witness()
    for one, ending in ((answer(), AnswerEnding.COMPLETED), (answer(agent="b"), AnswerEnding.CUT)):
        witness.began(one, in_flight=1)
        witness.ended(one, output_tokens=5, ending=ending)
    truth = witness.truth(0)
    assert (truth.completed, truth.cut, truth.in_flight) == (1, 1, 0)
    assert (truth.input_tokens, truth.cached_tokens, truth.output_tokens) == (40, 10, 5)
    assert (truth.wasted_input_tokens, truth.wasted_output_tokens) == (40, 5)
    assert truth.agents == {
        "a": TruthPart(attempts=1, completed=1, input_tokens=40, cached_tokens=10, output_tokens=5),
        "b": TruthPart(attempts=1),
    }


def test_a_refused_call_is_over_as_it_begins():
    witness = Witness()
    witness.began(answer(status=429, ending=AnswerEnding.REFUSED, reply=None), in_flight=3)
    witness.began(answer(status=529, ending=AnswerEnding.OVERLOADED, reply=None), in_flight=2)
    truth = witness.truth(2)
    assert (truth.refused, truth.overloaded, truth.by_status) == (1, 1, {429: 1, 529: 1})
    assert truth.agents == {"a": TruthPart(attempts=2, refused=2)}
    assert (truth.in_flight, truth.peak_in_flight) == (2, 3)


def test_a_fault_is_counted_by_its_name_truth():
    witness = Witness()
    witness.began(answer(status=529, ending=AnswerEnding.FAILED, reply=None, fault=faults.NAMED["529"]), in_flight=1)
    assert witness.truth(1).faults == {"529": 1}
    assert witness.attempts == 1


# Faults ---------------------------------------------------------------------------------------------------------------


def test_every_named_fault_is_found_by_its_value():
    assert {name: name_of(fault) for name, fault in NAMED.items()} == {name: name for name in NAMED}


def test_a_fault_without_a_name_is_called_by_its_fields():
    assert name_of(Slow(0.25)) == "Slow(extra_s=0.25)"


def test_a_mix_draws_by_its_rates():
    mix, rng = FaultMix({"500": 0.2, "529": 0.1}), random.Random(7)
    drawn = Counter(name_of(mix.draw(rng)) for _ in range(10_000))
    assert drawn["500"] == pytest.approx(2000, rel=0.1)
    assert drawn["529"] == pytest.approx(1000, rel=0.1)
    assert drawn["ok"] == 10_000 - drawn["500"] - drawn["529"]


def test_the_same_seed_draws_the_same_faults():
    def draws(seed: int) -> list[Fault]:
        rng = random.Random(seed)
        return [FaultMix({"500": 0.5}).draw(rng) for _ in range(50)]

    assert draws(3) == draws(3)
    assert draws(3) != draws(4)


def test_rates_that_fill_everything_leave_no_success():
    mix, rng = FaultMix({"500": 1.0}), random.Random(1)
    assert {mix.draw(rng) for _ in range(100)} == {ErrorStatus(500)}


def test_an_empty_mix_draws_nothing_from_the_rng():
    rng = random.Random(1)
    before = rng.getstate()
    assert FaultMix({}).draw(rng) is OK
    assert rng.getstate() == before


@each(
    ("rates", "words"),
    [
        ({"521": 0.1}, "unknown fault '521'"),
        ({"500": -0.1}, "negative"),
        ({"500": 0.6, "502": 0.6}, "1 at most"),
        ({"500": float("nan")}, "negative"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused(rates, words):
    with pytest.raises(ValueError, match=words):
        FaultMix(rates)


def test_a_script_is_followed_in_order_and_then_for_ever():
    sim = SimProvider(ProviderSettings(), random.Random(0))
    sim.script("key", [ErrorStatus(500), OK], then=ErrorStatus(529))
    asked = SimRequestFacts(SimDialect.MESSAGES, "key")
    assert [sim.begin(now, asked).status for now in range(4)] == [500, 200, 529, 529]
