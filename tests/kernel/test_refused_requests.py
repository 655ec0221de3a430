"""Requests that are refused for good beside others that are answered: whose trouble a refusal is."""

from msgspec.structs import replace

from hivemind_addon.kernel.limits.refused_requests import RefusedRequests
from hivemind_addon.kernel.values.ticket import Attempt, Demand
from tests.kernel.samples import THROTTLED, Bench, ticket


class Refusals:
    """Attempts in the order in which they were admitted, by the request that they are of."""

    def __init__(self) -> None:
        self.requests = RefusedRequests()
        self.stamp = 0

    def sent(self, name: str, tokens: int = 100) -> Attempt:
        self.stamp += 1
        made = replace(ticket(f"{name}{self.stamp}", request_hash=name), agent="a")
        demand = Demand(input_tokens=tokens, total_tokens=tokens)
        return Attempt(ticket=made, number=1, admitted_at=0.0, demand=demand, stamp=self.stamp)

    def tells(self, name: str, tokens: int = 100) -> bool:
        """It is sent and refused: whether that tells of a limit."""
        return self.requests.refused(self.sent(name, tokens))[0]

    def passes(self, name: str, tokens: int = 100) -> None:
        self.requests.passed(self.sent(name, tokens))


def test_a_request_is_one_witness_while_others_pass_and_none_is_refused():
    refusals = Refusals()
    assert refusals.tells("x", tokens=1000)
    for other in "abc":
        refusals.passes(other)
        assert not refusals.tells("x", tokens=1000)
    refusals.passes("d")
    assert refusals.tells("y")
    assert refusals.tells("x", tokens=1000), "the limit stands, for all that is known"


def test_where_nobody_else_passes_each_refusal_tells():
    """An agent alone has to learn its limit by what it sends."""
    refusals = Refusals()
    assert [refusals.tells("x") for _ in range(4)] == [True] * 4


def test_once_another_one_has_passed_between_them_none_of_its_refusals_told_of_a_limit():
    refusals = Refusals()
    refusals.tells("x")
    refusals.tells("y")
    refusals.tells("x")
    refusals.passes("healthy")
    assert refusals.requests.refused(refusals.sent("x")) == (False, [1, 3])
    assert refusals.requests.refused(refusals.sent("x")) == (False, []), "neither does any later one"
    assert refusals.requests.refused(refusals.sent("y")) == (False, [2])


def test_a_smaller_one_that_passes_shows_nothing():
    """A bucket of tokens that is nearly empty refuses the large ones."""
    refusals = Refusals()
    refusals.tells("large", tokens=1000)
    refusals.passes("small")
    refusals.tells("y")
    assert refusals.tells("large", tokens=1000)


def test_what_was_sent_before_a_refused_attempt_and_is_answered_later_shows_nothing():
    refusals = Refusals()
    early = refusals.sent("healthy")
    refusals.tells("x")
    refusals.requests.passed(early)
    refusals.tells("y")
    assert refusals.tells("x")


def test_a_request_that_passes_is_like_any_other_again():
    refusals = Refusals()
    refusals.tells("x")
    assert refusals.sent("x").ticket in refusals.requests
    refusals.passes("x")
    assert refusals.sent("x").ticket not in refusals.requests
    assert refusals.tells("x")


def test_no_more_than_some_dozens_are_remembered():
    refusals = Refusals()
    for number in range(1000):
        refusals.tells(f"{number}")
    assert len(refusals.requests) == 64
    assert refusals.sent("999").ticket in refusals.requests


def test_a_request_without_a_hash_is_known_by_its_ticket():
    requests = RefusedRequests()
    one, other = (
        Attempt(ticket=ticket(name), number=1, admitted_at=0.0, demand=Demand(), stamp=1) for name in ("t1", "t2")
    )
    requests.refused(one)
    assert one.ticket in requests
    assert other.ticket not in requests


def test_who_goes_to_see_whether_a_limit_stands_was_not_refused():
    """Some have passed, a while apart; then three are refused, and nobody knows whether that is chance or a limit."""
    bench = Bench(slots=4)
    for number in range(6):
        bench.submit(f"t{number}")
        bench.settle(f"t{number}")
        bench.advance(5)
    bench.submit("refused1", "refused2", "refused3")
    for name in ("refused1", "refused2", "refused3"):
        bench.settle(name, THROTTLED)
    bench.submit("fresh")
    while not bench.running:
        bench.advance_to_wakeup()
    assert set(bench.running) == {"fresh"}
