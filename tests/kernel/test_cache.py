import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hivemind_addon.kernel.order.cache import CacheSettings, Lifetime, PromptCache
from hivemind_addon.kernel.values.ticket import Ticket, Usage
from tests.kernel.samples import ticket

COLD = float("-inf")


def with_prefix(ticket_id: str, prefix: str = "p", tokens: int = 20_000) -> Ticket:
    return replace(ticket(ticket_id, session=ticket_id), prefix=prefix, prefix_tokens=tokens)


def warm_until(cache: PromptCache, reader: Ticket, now: float) -> float:
    return cache.lapses_at(reader, cache.entry(reader), now)


@pytest.fixture
def cache() -> PromptCache:
    return PromptCache(CacheSettings())


def test_a_prefix_is_warm_from_the_first_answer_and_lapses_a_time_after_its_request_began(cache):
    cache.sent(with_prefix("a"), 10)
    assert warm_until(cache, with_prefix("b"), 11) == COLD
    cache.began(with_prefix("a"), sent_at=10, now=14)
    assert warm_until(cache, with_prefix("b"), 14) == 310
    assert warm_until(cache, with_prefix("b"), 310) == COLD
    assert warm_until(cache, with_prefix("c", prefix="q"), 14) == COLD


def test_a_conversation_has_an_entry_of_its_own_beside_its_prefix(cache):
    going_on = replace(with_prefix("a"), cached_tokens=50_000)
    assert cache.began(with_prefix("a"), sent_at=10, now=14) == ["session a", "p"]
    assert warm_until(cache, going_on, 14) == 310
    assert cache.began(with_prefix("b"), sent_at=200, now=201) == ["session b"]
    assert warm_until(cache, with_prefix("c"), 201) == 500
    assert warm_until(cache, going_on, 311) == COLD


def test_each_use_makes_it_live_longer_and_an_old_one_never_shorter(cache):
    cache.began(with_prefix("a"), sent_at=100, now=101)
    cache.began(with_prefix("b"), sent_at=50, now=102)
    assert warm_until(cache, with_prefix("c"), 102) == 400


def test_the_first_one_sent_leads_and_the_others_follow_for_a_few_seconds_after_that(cache):
    assert cache.opens_at(with_prefix("b"), 0) == COLD
    cache.sent(with_prefix("a"), 0)
    assert cache.opens_at(with_prefix("b"), 1) == 5
    cache.sent(with_prefix("b"), 2)
    assert cache.opens_at(with_prefix("c"), 4.9) == 5
    assert cache.opens_at(with_prefix("c"), 5) == COLD


def test_nobody_follows_once_the_answer_has_begun(cache):
    cache.sent(with_prefix("a"), 0)
    cache.began(with_prefix("a"), sent_at=0, now=1)
    assert cache.opens_at(with_prefix("b"), 1) == COLD
    cache.sent(with_prefix("b"), 1)
    assert cache.opens_at(with_prefix("c"), 1) == COLD


def test_a_leader_without_an_answer_hands_over(cache):
    cache.sent(with_prefix("a"), 0)
    assert not cache.ended(with_prefix("b"), answered=False)
    assert cache.ended(with_prefix("a"), answered=True)
    assert cache.opens_at(with_prefix("b"), 0) == COLD
    cache.sent(with_prefix("b"), 1)
    assert cache.opens_at(with_prefix("c"), 1) == 6


def test_what_began_and_proved_a_refusal_leaves_the_prefix_as_it_was(cache):
    cache.began(with_prefix("a"), sent_at=0, now=1)
    cache.ended(with_prefix("a"), answered=False)
    assert warm_until(cache, with_prefix("b"), 1) == COLD
    cache.began(with_prefix("a"), sent_at=0, now=1)
    cache.ended(with_prefix("a"), answered=True)
    cache.began(with_prefix("b"), sent_at=50, now=51)
    cache.ended(with_prefix("b"), answered=False)
    assert warm_until(cache, with_prefix("c"), 51) == 300


def test_small_prefixes_are_not_cached(cache):
    cache.sent(with_prefix("a", tokens=1000), 0)
    assert cache.opens_at(with_prefix("b", tokens=1000), 0) == COLD
    cache.began(with_prefix("a", tokens=1000), sent_at=0, now=1)
    assert warm_until(cache, with_prefix("b", tokens=1000), 1) == COLD


def test_without_a_prefix_a_session_has_its_own(cache):
    turn = replace(ticket("a", session="s"), cached_tokens=9000)
    cache.began(turn, sent_at=0, now=1)
    assert warm_until(cache, replace(turn, id="b"), 2) == 300
    assert warm_until(cache, replace(turn, session="other"), 2) == COLD
    cache.sent(turn, 400)
    assert cache.opens_at(replace(turn, id="b"), 400) == COLD


def test_what_was_unused_for_hours_is_forgotten(cache):
    for number in range(1000):
        cache.began(with_prefix("a", prefix=f"p{number}"), sent_at=100 * number, now=100 * number)
    assert len(pickle.dumps(cache)) < 20_000


WARM = ((3, 1.0), (10, 1.0), (50, 1.0)) * 3


@pytest.mark.parametrize(
    ("answers", "ends_s", "at_s", "share"),
    [
        pytest.param((), (300, 300), 299, (1, 1), id="no answer: the profile counts"),
        pytest.param((*WARM, (70, 0.0)), (50, 75), 100, (0, 0.4), id="a minute, after one answer"),
        pytest.param((*WARM, *((100, 1.0),) * 9, (100, 0.0)), (300, 300), 100, (0.8, 1), id="one contrary among many"),
        pytest.param((*WARM, (10, 0.0)), (300, 300), 100, (0.8, 1), id="one contrary below warmer ones"),
        pytest.param(((3, 1.0), (6, 0.0), (8, 0.0)), (3, 6), 10, (0, 0.3), id="five seconds"),
        pytest.param(((1000, 1.0),) * 2, (1000, 1260), 900, (0.5, 1), id="an hour"),
        pytest.param(((5, 0.0), (50, 0.0), (200, 0.0)) * 3, (0, 4800), 6, (0, 0.2), id="no cache at all"),
        pytest.param(((5, 0.5), (50, 0.5), (200, 0.5)) * 5, (0, 300), 6, (0.4, 0.6), id="half of the prefix"),
        pytest.param(((100, 1.0),) * 30 + ((100, 0.0),) * 8, (0, 100), 100, (0, 0.5), id="suddenly shorter"),
        pytest.param(((100, 0.0),) * 30 + ((100, 1.0),) * 8, (100, 300), 100, (0.5, 1), id="suddenly longer"),
        pytest.param((*WARM, *((100, 1.0), (100, 0.0)) * 9), (0, 300), 100, (0.3, 0.7), id="evicts half of them"),
    ],
)
def test_the_lifetime_is_learned_from_answers(answers, ends_s, at_s, share):
    lifetime = Lifetime()
    for age_s, read in answers:
        lifetime.learn(age_s / 300, read)
    assert ends_s[0] - 1e-6 <= 300 * lifetime.ends <= ends_s[1] + 1e-6
    assert share[0] <= lifetime.share(at_s / 300) <= share[1]


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1)), max_size=60))
def test_whatever_answers_say_older_entries_are_no_warmer_and_all_lapse(answers):
    lifetime = Lifetime()
    for age, read in answers:
        lifetime.learn(age, read)
    shares = [lifetime.share(age / 100) for age in range(2000)]
    assert all(0 <= later <= sooner + 1e-9 <= 1 + 2e-9 for sooner, later in pairwise(shares))
    assert 0 <= lifetime.proven <= lifetime.ends <= 16


def test_only_reported_usage_of_a_continued_conversation_teaches(cache):
    first, going_on = with_prefix("a"), replace(with_prefix("a"), id="a2", cached_tokens=20_000)
    cold = Usage(input_tokens=20_000, reported=True)
    cache.began(first, sent_at=0, now=1)
    assert not cache.learn(first, cold)  # what a new conversation reads depends on its marks
    cache.ended(first, answered=True)
    cache.began(going_on, sent_at=100, now=101)
    assert not cache.learn(going_on, replace(cold, reported=False))
    assert cache.warm_tokens(going_on, 200) == 20_000
    assert cache.learn(going_on, cold)
    assert cache.warm_tokens(going_on, 200) < 10_000
    assert cache.warm_tokens(going_on, 120) == 20_000
    assert cache.warm_tokens(replace(going_on, cache_s=3600.0), 200) == 20_000  # an hour's mark lives longer


def test_without_a_cache_nobody_waits_for_a_leader(cache):
    for _ in range(3):
        cache.lifetime.learn(0.001, 0.0)
    cache.sent(with_prefix("a"), 0)
    assert cache.opens_at(with_prefix("b"), 1) == COLD
