import pytest

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim.bound import Ideal, input_cost
from hivemind_addon.lab.sim.workload import Crowd

CROWD = Crowd("c", 2, shared_tokens=1000, caches=True)


def test_the_shared_instructions_are_written_once_and_a_conversation_is_read_from_then_on():
    ideal = Ideal()
    taken = [
        ideal.book(CROWD, prompt_tokens=tokens, marked=marked, output_tokens=10)[Dimension.INPUT_TOKENS]
        for tokens, marked in ((1500, 0), (1600, 0), (1700, 1500))
    ]
    assert taken == [1500, 600, 200]
    assert ideal.cost == pytest.approx((1500 + 600 + 200) * 1.25 + (1000 + 1500) * 0.1)


def test_each_crowd_has_instructions_of_its_own():
    ideal = Ideal()
    other = Crowd("other", 1, shared_tokens=1000, caches=True)
    for crowd in (CROWD, other):
        assert ideal.book(crowd, prompt_tokens=1500, marked=0, output_tokens=1)[Dimension.INPUT_TOKENS] == 1500


def test_who_does_not_cache_pays_for_all_of_it():
    ideal = Ideal()
    taken = ideal.book(Crowd("plain", 1, shared_tokens=1000), prompt_tokens=1500, marked=1200, output_tokens=10)
    assert taken == {
        Dimension.REQUESTS: 1,
        Dimension.INPUT_TOKENS: 1500,
        Dimension.OUTPUT_TOKENS: 10,
        Dimension.TOTAL_TOKENS: 1510,
    }
    assert ideal.cost == 1500


def test_what_is_read_from_a_cache_costs_a_tenth_and_what_is_written_a_quarter_more():
    assert input_cost(uncached_tokens=100, written_tokens=100, cached_tokens=100) == pytest.approx(100 + 125 + 10)
