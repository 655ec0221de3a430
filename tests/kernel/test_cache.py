import pickle

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.order.cache import CacheSettings, PromptCache
from hivemind_addon.kernel.values.ticket import Ticket
from tests.kernel.samples import ticket

COLD = float("-inf")


def with_prefix(ticket_id: str, prefix: str = "p", tokens: int = 20_000) -> Ticket:
    return replace(ticket(ticket_id, session=ticket_id), prefix=prefix, prefix_tokens=tokens)


@pytest.fixture
def cache() -> PromptCache:
    return PromptCache(CacheSettings())


def test_a_prefix_is_warm_from_the_first_answer_and_lapses_a_time_after_its_request_began(cache):
    cache.sent(with_prefix("a"), 10)
    assert cache.warm_until(with_prefix("b"), 11) == COLD
    cache.began(with_prefix("a"), sent_at=10, now=14)
    assert cache.warm_until(with_prefix("b"), 14) == 310
    assert cache.warm_until(with_prefix("b"), 310) == COLD
    assert cache.warm_until(with_prefix("c", prefix="q"), 14) == COLD


def test_a_conversation_has_an_entry_of_its_own_beside_its_prefix(cache):
    going_on = replace(with_prefix("a"), cached_tokens=50_000)
    assert cache.began(with_prefix("a"), sent_at=10, now=14) == ["session a", "p"]
    assert cache.warm_until(going_on, 14) == 310
    assert cache.began(with_prefix("b"), sent_at=200, now=201) == ["session b"]
    assert cache.warm_until(with_prefix("c"), 201) == 500
    assert cache.warm_until(going_on, 311) == COLD


def test_each_use_makes_it_live_longer_and_an_old_one_never_shorter(cache):
    cache.began(with_prefix("a"), sent_at=100, now=101)
    cache.began(with_prefix("b"), sent_at=50, now=102)
    assert cache.warm_until(with_prefix("c"), 102) == 400


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
    assert cache.warm_until(with_prefix("b"), 1) == COLD
    cache.began(with_prefix("a"), sent_at=0, now=1)
    cache.ended(with_prefix("a"), answered=True)
    cache.began(with_prefix("b"), sent_at=50, now=51)
    cache.ended(with_prefix("b"), answered=False)
    assert cache.warm_until(with_prefix("c"), 51) == 300


def test_small_prefixes_are_not_cached(cache):
    cache.sent(with_prefix("a", tokens=1000), 0)
    assert cache.opens_at(with_prefix("b", tokens=1000), 0) == COLD
    cache.began(with_prefix("a", tokens=1000), sent_at=0, now=1)
    assert cache.warm_until(with_prefix("b", tokens=1000), 1) == COLD


def test_without_a_prefix_a_session_has_its_own(cache):
    turn = replace(ticket("a", session="s"), cached_tokens=9000)
    cache.began(turn, sent_at=0, now=1)
    assert cache.warm_until(replace(turn, id="b"), 2) == 300
    assert cache.warm_until(replace(turn, session="other"), 2) == COLD
    cache.sent(turn, 400)
    assert cache.opens_at(replace(turn, id="b"), 400) == COLD


def test_what_has_lapsed_is_forgotten(cache):
    for number in range(1000):
        cache.began(with_prefix("a", prefix=f"p{number}"), sent_at=number, now=number)
    assert len(pickle.dumps(cache)) < 20_000
