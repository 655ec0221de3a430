from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.kernel.budget import cost_of
from hivemind_addon.kernel.values.spend import Budget, Period, Price, Scope, Shortage, Spend
from hivemind_addon.kernel.values.ticket import Usage
from hivemind_addon.proxy.api.words import amount

PRICE = Price(input=3_000_000, cache_write=3_750_000, cache_read=300_000, output=15_000_000)


def cost(input_tokens=0, cache_write_tokens=0, cache_read_tokens=0, output_tokens=0, price=PRICE, **more):
    return cost_of(Usage(input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, **more), price)


def test_a_million_tokens_cost_their_price():
    assert cost(1_000_000) == 3_000_000
    assert cost(cache_write_tokens=1_000_000) == 3_750_000
    assert cost(cache_read_tokens=1_000_000) == 300_000
    assert cost(output_tokens=1_000_000) == 15_000_000


def test_a_fraction_of_a_micro_dollar_is_rounded_up_once():
    assert cost(cache_read_tokens=1) == 1
    assert cost(cache_read_tokens=4) == 2
    assert cost(cache_read_tokens=1, cache_write_tokens=1) == 5


@given(st.tuples(*[st.integers(0, 10**9)] * 4), st.tuples(*[st.integers(0, 10**9)] * 4))
def test_calls_one_by_one_cost_what_they_cost_together_or_one_micro_dollar_more(first, second):
    together = cost(*(a + b for a, b in zip(first, second, strict=True)))
    assert together <= cost(*first) + cost(*second) <= together + 1


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_spends_add_and_subtract_exactly(tokens, micro_usd):
    one = Spend(tokens, micro_usd)
    assert one + one - one == one


def test_amounts_are_written_for_people():
    assert amount("tokens", 1_200_000) == "1,200,000 tokens"
    assert amount("micro_usd", 4_250_000) == "$4.25"
    assert amount("micro_usd", 3_100) == "$0.0031"
    assert amount("micro_usd", 0) == "$0.00"


def test_a_holder_has_a_name():
    assert Budget(Scope.AGENT, "agent-7").holder == "agent agent-7"
    assert Budget(Scope.EVERYONE, "").holder == "everyone"


def test_periods_have_lengths():
    assert Period.RUN.length_s == float("inf")
    assert Period.HOUR.length_s * 24 == Period.DAY.length_s == 86_400


def test_a_shortage_passes_when_only_reservations_are_in_the_way():
    def short(spent, reserved, needed):
        budget = Budget(Scope.AGENT, "a", tokens=100)
        return Shortage(budget, "tokens", 100, spent, reserved, needed, None)

    assert short(50, 40, 20).may_pass
    assert not short(90, 5, 20).may_pass
    assert not short(100, 0, 0).may_pass
