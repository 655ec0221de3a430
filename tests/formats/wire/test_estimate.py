import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.profile.model import Charge, InputCharge, OutputCharge, Profile, Tokens
from hivemind_addon.formats.wire.estimate import _CONVERSATIONS, _MODELS, _SESSIONS, Estimator
from hivemind_addon.formats.wire.request import read_request, text_of
from hivemind_addon.formats.wire.tokenizer import Tokenizer
from hivemind_addon.kernel.values.ticket import Demand, Usage
from tests.cpu_time import least_cpu_s
from tests.dialects import ANTHROPIC, CHAT, RESPONSES

TOKENIZER = Tokenizer()
TOKENIZER.load()
ALL = Profile(name="all", charge=Charge(InputCharge.ALL, OutputCharge.MAX_TOKENS, default_output_tokens=1000))
UNCACHED = Profile(
    name="uncached",
    charge=Charge(InputCharge.UNCACHED, OutputCharge.ACTUAL, default_output_tokens=1000),
    tokens=Tokens(scale=1.5),
)
WORDS = "the quick brown fox jumps over the lazy dog "


def user(text, **mark):
    return {"role": "user", "content": [{"type": "text", "text": text, **mark}]}


def assistant(text):
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def request(*messages, model="m", dialect=ANTHROPIC, **keys):
    return read_request(json.dumps({"model": model, "messages": messages, **keys}).encode(), dialect.plan)


def usage(total, output=100, *, read=0, write=0):
    return Usage(total - read - write, read, write, output, reported=True)


def demand_of(estimator, profile, facts, session, **how):
    return estimator.estimate(profile, facts, session, **how).demand


def usage_of(estimator, profile, facts, session):
    return estimator.estimate(profile, facts, session).expected


def learn(estimator, profile, facts, session, used):
    """As an answer does it: what the request was estimated at is known, its text is not."""
    estimate = estimator.estimate(profile, facts, session, rough=True)
    estimator.learn(profile, facts.without_text(), session, used, estimate)


@pytest.fixture
def estimator():
    return Estimator(TOKENIZER)


def test_a_short_new_conversation_is_counted_and_scaled(estimator):
    facts = request(user(WORDS * 100), system=WORDS)
    counted = TOKENIZER.count(WORDS * 101)
    plain = demand_of(estimator, ALL, facts, "s").input_tokens
    assert counted <= plain <= counted * 1.05
    assert demand_of(estimator, UNCACHED, facts, "s").input_tokens == pytest.approx(1.5 * plain, rel=0.01)


class CountingTokenizer(Tokenizer):
    def __init__(self):
        super().__init__()
        self.load()
        self.texts = []

    def count(self, text):
        self.texts.append(text)
        return super().count(text)


def test_the_text_of_a_request_is_counted_once_for_its_estimates_and_its_lesson():
    tokenizer = CountingTokenizer()
    estimator = Estimator(tokenizer)
    facts = request(user(WORDS * 50), system=WORDS)
    assert demand_of(estimator, ALL, facts, "s") == demand_of(estimator, ALL, facts, "s")
    learn(estimator, ALL, facts, "s", usage(900))
    assert len(tokenizer.texts) == 1


def test_until_there_is_a_vocabulary_bytes_tell_and_it_is_asked_for_once():
    tokenizer, asked = Tokenizer(), []
    tokenizer.wanted = lambda: asked.append("load")
    estimator = Estimator(tokenizer)
    told = [estimator.estimate(ALL, request(user(WORDS * 50), system=WORDS), "s") for _ in range(2)]
    assert (told[0].is_rough, told[1], asked) == (False, told[0], ["load"])
    tokenizer.load()
    counted = TOKENIZER.count(WORDS * 51)
    assert (
        counted
        <= demand_of(estimator, ALL, request(user(WORDS * 50), system=WORDS), "s").input_tokens
        <= 1.05 * counted
    )


def test_a_long_new_conversation_is_estimated_by_its_bytes(estimator):
    facts = request(user(WORDS * 10_000))
    assert demand_of(estimator, ALL, facts, "s").input_tokens == round(facts.prompt_bytes / 4)


def test_a_request_is_one_request_and_its_total_is_the_sum(estimator):
    demand = demand_of(estimator, ALL, request(user(WORDS), max_tokens=500), "s")
    assert demand.requests == 1
    assert demand.output_tokens == 500
    assert demand.total_tokens == demand.input_tokens + 500


def test_an_empty_body_still_takes_a_token(estimator):
    assert demand_of(estimator, ALL, read_request(b"", CHAT.plan), "s") == Demand(1, 1, 1000, 1001)


def test_the_same_conversation_is_anchored_on_its_last_real_usage(estimator):
    first = [user(WORDS * 5000)]
    learn(estimator, ALL, request(*first), "s", usage(77_777, 600))
    again = request(*first, assistant(WORDS * 30), user("and then?"))
    expected = 77_777 + 600 + TOKENIZER.count("and then?")
    assert demand_of(estimator, ALL, again, "s").input_tokens == pytest.approx(expected, abs=15)


def test_thinking_that_stays_behind_is_not_taken_for_input(estimator):
    first = [user(WORDS * 5000)]
    learn(estimator, ALL, request(*first), "s", usage(50_000, 20_000))
    again = request(*first, assistant("yes"), user("and then?"))
    assert demand_of(estimator, ALL, again, "s").input_tokens < 50_100


def test_a_repeated_request_is_estimated_as_it_was_billed(estimator):
    facts = request(user(WORDS * 5000))
    learn(estimator, ALL, facts, "s", usage(61_234))
    assert demand_of(estimator, ALL, facts, "s").input_tokens == 61_234


def test_moved_cache_marks_do_not_hide_a_conversation(estimator):
    mark = {"cache_control": {"type": "ephemeral"}}
    learn(estimator, ALL, request(user(WORDS * 3000, **mark)), "s", usage(40_000, 10))
    again = request(user(WORDS * 3000), assistant("yes"), user("go on", **mark))
    assert demand_of(estimator, ALL, again, "s").input_tokens == pytest.approx(40_020, abs=30)


def test_another_session_model_or_conversation_is_not_anchored_there(estimator):
    facts = request(user(WORDS * 5000))
    learn(estimator, ALL, facts, "s", usage(facts.prompt_bytes // 5))
    for other, session in (
        (facts, "t"),
        (request(user(WORDS * 5000), model="n"), "s"),
        (request(user(WORDS * 2000)), "s"),
        (request(user(WORDS * 9000)), "s"),
        (request(user(WORDS * 5000), system=WORDS * 100), "s"),
    ):
        assert demand_of(estimator, ALL, other, session).input_tokens != facts.prompt_bytes // 5


def test_a_session_may_have_several_conversations_at_once(estimator):
    main, title = request(user(WORDS * 5000)), request(user(WORDS * 500))
    learn(estimator, ALL, main, "s", usage(60_000))
    learn(estimator, ALL, title, "s", usage(7_000))
    assert demand_of(estimator, ALL, main, "s").input_tokens == 60_000
    assert demand_of(estimator, ALL, title, "s").input_tokens == 7_000


def test_cached_input_is_expected_to_be_free_where_it_is(estimator):
    facts = request(user(WORDS * 5000))
    learn(estimator, UNCACHED, facts, "s", usage(60_000, 10, write=59_000))
    again = request(user(WORDS * 5000), assistant("yes"), user(WORDS * 100))
    assert demand_of(estimator, UNCACHED, again, "s").input_tokens < 3000
    assert demand_of(estimator, ALL, again, "s").input_tokens > 60_000


def test_without_a_sign_of_caching_all_of_it_is_charged_again(estimator):
    facts = request(user(WORDS * 5000))
    learn(estimator, UNCACHED, facts, "s", usage(60_000))
    assert demand_of(estimator, UNCACHED, facts, "s").input_tokens == 60_000


def test_a_request_that_names_an_earlier_answer_adds_to_it(estimator):
    dialect = RESPONSES
    first = read_request(json.dumps({"model": "m", "input": "x"}).encode(), dialect.plan)
    learn(estimator, ALL, first, "s", usage(30_000, 500))
    then = json.dumps({"model": "m", "input": "go on", "previous_response_id": "r"}).encode()
    assert demand_of(estimator, ALL, read_request(then, dialect.plan), "s").input_tokens == pytest.approx(
        30_500, abs=10
    )


def test_pictures_cost_by_their_number(estimator):
    picture = {"type": "image", "source": {"type": "base64", "data": "A" * 400_000}}
    facts = request({"role": "user", "content": [picture, picture]})
    assert demand_of(estimator, ALL, facts, "s").input_tokens == pytest.approx(3000, abs=50)


def test_the_ratio_of_a_model_is_learned_from_counted_text(estimator):
    for turn in range(40):
        facts = request(user(WORDS * 100 + str(turn)))
        real = round(TOKENIZER.count(WORDS * 100) * 2)
        learn(estimator, UNCACHED, facts, f"s{turn}", usage(real))
    facts = request(user(WORDS * 200))
    assert demand_of(estimator, UNCACHED, facts, "new").input_tokens == pytest.approx(
        4 * TOKENIZER.count(WORDS * 50) * 2, rel=0.1
    )


def test_the_bytes_of_a_token_are_learned_from_long_bodies(estimator):
    facts = request(user(WORDS * 10_000))
    for turn in range(40):
        learn(estimator, ALL, facts, f"s{turn}", usage(facts.prompt_bytes // 5))
    assert demand_of(estimator, ALL, facts, "new").input_tokens == pytest.approx(facts.prompt_bytes / 5, rel=0.02)


def test_what_is_learned_of_one_model_is_not_believed_of_another(estimator):
    facts = request(user(WORDS * 10_000))
    for turn in range(40):
        learn(estimator, ALL, facts, f"s{turn}", usage(facts.prompt_bytes // 5))
    other = request(user(WORDS * 10_000), model="other")
    assert demand_of(estimator, ALL, other, "new").input_tokens == round(other.prompt_bytes / 4)


@pytest.mark.parametrize("absurd", [1, 10**12])
def test_absurd_usage_moves_no_ratio_out_of_its_bounds(estimator, absurd):
    small, large = request(user(WORDS * 100)), request(user(WORDS * 10_000))
    for turn in range(60):
        learn(estimator, ALL, small, f"s{turn}", usage(absurd))
        learn(estimator, ALL, large, f"t{turn}", usage(absurd))
    assert 400 < demand_of(estimator, ALL, small, "new").input_tokens < 3100
    assert large.prompt_bytes / 8.1 < demand_of(estimator, ALL, large, "new").input_tokens <= large.prompt_bytes


def test_usage_that_was_counted_here_teaches_how_long_answers_are_and_nothing_of_the_input(estimator):
    facts = request(user(WORDS * 5000))
    before = demand_of(estimator, UNCACHED, facts, "s")
    for _ in range(20):
        learn(estimator, UNCACHED, facts, "s", Usage(input_tokens=5, output_tokens=5))
    after = demand_of(estimator, UNCACHED, facts, "s")
    assert (after.input_tokens, after.output_tokens) == (before.input_tokens, 5)
    assert usage_of(estimator, UNCACHED, facts, "s").output_tokens == 5
    learn(estimator, UNCACHED, facts, "s", Usage(output_tokens=900))  # nothing is known of such an answer
    assert demand_of(estimator, UNCACHED, facts, "s") == after


def test_actual_output_is_the_default_until_somebody_answered(estimator):
    assert demand_of(estimator, UNCACHED, request(user("x"), max_tokens=64_000), "s").output_tokens == 1000
    assert demand_of(estimator, UNCACHED, request(user("x"), max_tokens=10), "s").output_tokens == 10


def test_actual_output_is_then_the_sessions_own_else_the_models(estimator):
    facts = request(user("x"))
    for _ in range(50):
        learn(estimator, UNCACHED, facts, "talker", usage(500, 3000))
    for _ in range(50):
        learn(estimator, UNCACHED, facts, "quiet", usage(500, 20))
    assert 3000 <= demand_of(estimator, UNCACHED, facts, "talker").output_tokens < 3100
    assert 20 <= demand_of(estimator, UNCACHED, facts, "quiet").output_tokens < 30
    assert demand_of(estimator, UNCACHED, facts, "new").output_tokens < 1000


def test_expected_output_is_rarely_exceeded(estimator):
    facts = request(user("x"))
    sizes = [100, 120, 90, 400, 110, 95, 380, 105, 100, 130] * 20
    exceeded = 0
    for size in sizes:
        exceeded += size > demand_of(estimator, UNCACHED, facts, "s").output_tokens
        learn(estimator, UNCACHED, facts, "s", usage(500, size))
    assert exceeded / len(sizes) <= 0.2
    assert demand_of(estimator, UNCACHED, facts, "s").output_tokens < 600


def test_output_is_never_expected_above_the_requests_maximum(estimator):
    learn(estimator, UNCACHED, request(user("x")), "s", usage(500, 3000))
    assert demand_of(estimator, UNCACHED, request(user("x"), max_tokens=50), "s").output_tokens == 50


@pytest.mark.parametrize(("maximum", "expected"), [(50, 50), (None, 1000), (0, 0)])
def test_reserved_output_is_the_maximum_else_the_default(estimator, maximum, expected):
    assert demand_of(estimator, ALL, request(user("x"), max_tokens=maximum), "s").output_tokens == expected


def test_charged_is_what_the_provider_counts(estimator):
    spent = Usage(100, 2000, 30, 7, reported=True)
    facts = request(user("x"), max_tokens=500)
    assert estimator.charged(UNCACHED, facts, spent) == Demand(1, 130, 7, 137)
    assert estimator.charged(ALL, facts, spent) == Demand(1, 2130, 500, 2630)
    unnamed = request(user("x"))
    assert estimator.charged(ALL, unnamed, spent).output_tokens == 1000
    assert estimator.charged(ALL, unnamed, Usage(output_tokens=5000)).output_tokens == 5000


def test_answers_are_counted_where_nobody_else_does(estimator):
    assert estimator.count(WORDS) == TOKENIZER.count(WORDS)
    assert estimator.count("") == 0
    assert estimator.count("x" * 1_000_000) == 250_000
    assert estimator.count("é" * 10_000) == 5000


def test_memory_is_bounded(estimator):
    facts = request(user("x"))
    for number in range(_SESSIONS + 50):
        learn(estimator, ALL, facts, f"s{number}", usage(500))
    for number in range(_MODELS + 50):
        demand_of(estimator, ALL, request(user("x"), model=f"m{number}"), "s")
    for number in range(_CONVERSATIONS + 5):
        learn(estimator, ALL, request(user("x" * 2000 * number)), "last", usage(500))
    assert (len(estimator._sessions), len(estimator._models)) == (_SESSIONS, _MODELS)
    assert len(estimator._sessions["last"].anchors) == _CONVERSATIONS


def test_the_session_that_was_used_last_is_forgotten_last(estimator):
    facts = request(user(WORDS * 5000))
    learn(estimator, ALL, facts, "old", usage(60_000))
    for number in range(_SESSIONS - 1):
        learn(estimator, ALL, facts, f"s{number}", usage(500))
    learn(estimator, ALL, facts, "old", usage(60_000))
    learn(estimator, ALL, facts, "one more", usage(500))
    assert demand_of(estimator, ALL, facts, "old").input_tokens == 60_000


def test_a_body_of_1_mb_is_estimated_in_about_two_milliseconds(estimator):
    long = [user(WORDS * 60) for _ in range(400)]
    learn(estimator, ALL, request(*long), "s", usage(250_000))
    facts = request(*long, assistant("yes"), user("x y z " * 1900))
    # The goal is 2 ms; slow machines get ten.
    assert least_cpu_s(lambda: demand_of(estimator, ALL, facts, "s"), tries=11) < 0.010


numbers = st.integers(0, 10**9)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 300), st.booleans(), numbers, numbers, numbers, numbers), max_size=6
    ),
    st.sampled_from([ALL, UNCACHED]),
)
def test_any_history_gives_a_demand_that_is_positive_and_adds_up(history, profile):
    estimator = Estimator(TOKENIZER)
    for turns, words, maximum, fresh, read, write, output in history:
        facts = request(*[user(WORDS * words)] * turns, **({"max_tokens": 100} if maximum else {}))
        demand = demand_of(estimator, profile, facts, "s")
        assert demand.input_tokens >= 1
        assert demand.output_tokens >= 0
        assert demand.total_tokens == demand.input_tokens + demand.output_tokens
        learn(estimator, profile, facts, "s", Usage(fresh, read, write, output, reported=True))


# Rough estimates -----------------------------------------------------------------------------------------------------------

PROSE = "The error comes from the import at its top, because the package was renamed; nothing else refers to it. "
CODE = "    for index, value in enumerate(self._values[1:]):\n        total += weights.get(value.name, 0.5) * index\n"
OUTPUT = '{"file": "src/main.py", "line": 17, "passed": false, "seconds": 0.0312},\n'
TEXTS = (PROSE, CODE, OUTPUT, WORDS)


def conversation(number):
    """Of a tenth of a KB to 12 KB, of all kinds of text."""
    texts = [TEXTS[(number + turn) % len(TEXTS)] * (1 + (number * 7 + turn * 3) % 9) for turn in range(1 + number % 4)]
    return request(*[user(text) for text in texts], system=PROSE * (1 + number % 5))


def told_tokens(facts):
    """What a provider with a tokenizer of its own says that a prompt has: a fifth more than ours, and its overhead."""
    return 20 + round(1.2 * TOKENIZER.count("\n".join(map(text_of, (*facts.preamble, *facts.messages)))))


@pytest.fixture
def taught(estimator):
    """An estimator that a provider has told its count of fifty conversations."""
    for number in range(50):
        facts = conversation(number)
        learn(estimator, ALL, facts, f"s{number}", usage(told_tokens(facts)))
    return estimator


def test_a_rough_estimate_counts_nothing_and_says_so():
    tokenizer = CountingTokenizer()
    estimator = Estimator(tokenizer)
    for number in range(20):
        facts = conversation(number)
        learn(estimator, ALL, facts, f"s{number}", usage(told_tokens(facts)))
    tokenizer.texts.clear()
    rough = estimator.estimate(ALL, conversation(77), "new", rough=True)
    assert (rough.is_rough, tokenizer.texts) == (True, [])
    counted = estimator.estimate(ALL, conversation(77), "new")
    assert (counted.is_rough, len(tokenizer.texts)) == (False, 1)


def test_tokens_are_counted_until_a_provider_has_told_enough():
    tokenizer = CountingTokenizer()
    estimator = Estimator(tokenizer)
    facts = conversation(3)
    for number in range(10):
        assert not estimator.estimate(ALL, conversation(3), f"s{number}", rough=True).is_rough
        learn(estimator, ALL, facts, f"s{number}", usage(told_tokens(facts)))
    assert estimator.estimate(ALL, conversation(3), "new", rough=True).is_rough
    assert not estimator.estimate(UNCACHED, conversation(3), "new", rough=True).is_rough, "that is another provider"


def test_what_is_counted_already_is_no_longer_rough(taught):
    facts = conversation(5)
    counted = taught.estimate(ALL, facts, "new")
    assert taught.estimate(ALL, facts, "new", rough=True) == counted


def test_a_rough_estimate_of_new_conversations_is_true_on_average_and_never_far_off(taught):
    off = []
    for number in range(100, 160):
        facts = conversation(number)
        off.append(taught.estimate(ALL, facts, "new", rough=True).demand.input_tokens / told_tokens(facts))
    assert sum(off) / len(off) == pytest.approx(1, abs=0.1)
    assert 0.7 < min(off) < max(off) < 1.4


def test_a_rough_estimate_of_a_conversation_that_goes_on_is_off_by_its_new_text_alone(taught):
    first = [user(WORDS * 5000)]
    learn(taught, ALL, request(*first), "s", usage(60_000, 100))
    again = request(*first, assistant(PROSE * 4), user(CODE * 20))
    rough, counted = (taught.estimate(ALL, again, "s", rough=rough).demand.input_tokens for rough in (True, False))
    assert rough == pytest.approx(counted, rel=0.01)
    assert rough > 60_300


def test_the_ratio_goes_on_learning_while_estimates_are_rough(taught):
    """The provider changes its tokenizer: from now on everything is half as much again."""
    for number in range(400):
        facts = conversation(number)
        taught.estimate(ALL, facts, f"t{number}", rough=True)
        learn(taught, ALL, facts, f"t{number}", usage(round(1.5 * told_tokens(facts))))
    off = [
        taught.estimate(ALL, facts, "new", rough=rough).demand.input_tokens / (1.5 * told_tokens(facts))
        for facts in map(conversation, range(100, 140))
        for rough in (False, True)
    ]
    assert sum(off) / len(off) == pytest.approx(1, abs=0.1)


# What is expected, for budgets ---------------------------------------------------------------------------------------------


def test_a_new_conversation_is_expected_to_be_read_uncached_and_answered_as_usual(estimator):
    facts = request(user(WORDS * 100))
    expected = usage_of(estimator, ALL, facts, "s")
    assert expected == Usage(input_tokens=demand_of(estimator, ALL, facts, "s").input_tokens, output_tokens=1000)
    assert not expected.reported


def test_the_likely_output_is_expected_where_limits_count_the_largest(estimator):
    facts = request(user(WORDS * 100), max_tokens=64_000)
    assert demand_of(estimator, ALL, facts, "s").output_tokens == 64_000
    assert usage_of(estimator, ALL, facts, "s").output_tokens == 1000
    assert usage_of(estimator, ALL, request(user(WORDS), max_tokens=50), "s").output_tokens == 50
    for _ in range(20):
        learn(estimator, ALL, facts, "s", usage(1000, 300))
    assert usage_of(estimator, ALL, facts, "s").output_tokens < 600


def test_a_cached_conversation_is_expected_to_be_read_from_the_cache_and_the_rest_written(estimator):
    first = request(user(WORDS * 100))
    learn(estimator, UNCACHED, first, "s", usage(1000, 100, write=900))
    expected = usage_of(estimator, UNCACHED, request(user(WORDS * 100), assistant("ok"), user(WORDS * 20)), "s")
    assert expected.cache_read_tokens == 1000
    assert expected.input_tokens == 0
    assert 0 < expected.cache_write_tokens < 600
