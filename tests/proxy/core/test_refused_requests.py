"""Requests that are refused for good beside others that are answered: whose trouble a refusal is."""

from msgspec.structs import replace

from hivemind_addon.api.ticket import Attempt, Demand
from hivemind_addon.proxy.core.refused_requests import RefusedRequests
from tests.proxy.core.samples import THROTTLED, Bench, ticket


class Refusals:
    """Attempts in the order in which they were admitted, by the request that they are of."""

    def __init__(self) -> None:
        self.requests = RefusedRequests()
        self.stamp = 0

    def attempt(self, name: str) -> Attempt:
        self.stamp += 1
        made = replace(ticket(f"{name}{self.stamp}", request_hash=name), agent="a")
        return Attempt(ticket=made, number=1, admitted_at=0.0, demand=Demand(), stamp=self.stamp)

    def tells(self, name: str) -> bool:
        """It is refused: whether that tells of a limit."""
        return self.requests.refused(self.attempt(name))

    def passes(self, name: str) -> None:
        self.requests.passed(self.attempt(name))


def test_one_request_is_one_witness_until_another_one_is_refused():
    refusals = Refusals()
    assert [refusals.tells("x") for _ in range(4)] == [True, False, False, False]
    assert refusals.tells("y")
    assert refusals.tells("x"), "the limit stands, for all that is known"
    assert [refusals.tells(name) for name in "yxyxy"] == [False] * 5, "neither is news of the other"


def test_what_passed_between_two_refusals_of_a_request_shows_that_they_are_its_own():
    refusals = Refusals()
    assert refusals.tells("x")
    assert refusals.tells("y")
    refusals.passes("healthy")
    assert not refusals.tells("x")
    assert not refusals.tells("y")


def test_what_was_sent_before_a_refused_attempt_and_is_answered_later_proves_nothing():
    refusals = Refusals()
    early = refusals.attempt("healthy")
    assert refusals.tells("x")
    assert refusals.tells("y")
    refusals.requests.passed(early)
    assert refusals.tells("x")


def test_a_request_that_passes_is_like_any_other_again():
    refusals = Refusals()
    refusals.tells("x")
    assert refusals.attempt("x").ticket in refusals.requests
    refusals.passes("x")
    assert refusals.attempt("x").ticket not in refusals.requests
    assert refusals.tells("x")


def test_no_more_than_some_hundred_are_remembered():
    refusals = Refusals()
    for number in range(1000):
        refusals.tells(f"{number}")
    assert len(refusals.requests) == 256
    assert refusals.attempt("999").ticket in refusals.requests


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
