"""Requests that are refused for good beside others that are answered: whose trouble a refusal is."""

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.limits.owner import Owner
from hivemind_addon.kernel.limits.refused_requests import RefusedRequests
from hivemind_addon.kernel.values.decision import Backoff, GiveUp
from hivemind_addon.kernel.values.ticket import Attempt, Demand, Reason
from tests.kernel.samples import CUT, OVERLOADED, POOL, THROTTLED, Bench, ticket


class Refusals:
    """Attempts in the order in which they were admitted, by the request that they are of."""

    def __init__(self) -> None:
        self.requests = RefusedRequests()
        self.stamp = 0

    def sent(self, name: str, tokens: int = 100, *, at: float = 0.0, in_flight: int = 1) -> Attempt:
        self.stamp += 1
        made = replace(ticket(f"{name}{self.stamp}", request_hash=name), agent="a")
        demand = Demand(input_tokens=tokens, total_tokens=tokens)
        return Attempt(ticket=made, number=1, admitted_at=at, demand=demand, stamp=self.stamp, in_flight=in_flight)

    def tells(self, name: str, tokens: int = 100) -> bool:
        """It is sent and refused: whether that tells of a limit."""
        return self.requests.refused(self.sent(name, tokens), 0.0)[0] is Owner.LIMIT

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


def test_a_request_far_larger_than_all_that_passed_is_one_witness_until_another_is_refused():
    refusals = Refusals()
    refusals.passes("small", tokens=99)
    assert [refusals.tells("x", tokens=1000) for _ in range(4)] == [True, False, False, False]
    assert refusals.tells("y")
    assert refusals.tells("x", tokens=1000)


def test_once_another_one_has_passed_between_them_none_of_its_refusals_told_of_a_limit():
    refusals = Refusals()
    refusals.tells("x")
    refusals.tells("y")
    refusals.tells("x")
    refusals.passes("healthy")
    assert refusals.requests.refused(refusals.sent("x"), 0.0) == (Owner.UNKNOWN, [1, 3])
    assert refusals.requests.refused(refusals.sent("x"), 0.0) == (Owner.UNKNOWN, []), "neither does any later one"
    assert refusals.requests.refused(refusals.sent("y"), 0.0) == (Owner.UNKNOWN, [2])


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("tokens", "at", "in_flight", "disproves"),
    [
        ((100,), 1.5, 2, True),
        ((50,), 1.5, 2, False),
        ((50, 50), 1.5, 2, True),
        ((100,), 2.5, 2, False),  # after the refusal: the limit may have opened
        ((100,), 1.5, 1, False),  # a slot may have got free
    ],
)
def test_who_passes_beside_a_refused_request_disproves_the_refusal(tokens, at, in_flight, disproves, is_first):
    refusals = Refusals()
    early = refusals.sent("early", at=1.0, in_flight=9)
    refused = refusals.sent("x", at=1.0, in_flight=2)
    others = [early, *(refusals.sent("other", count, at=at, in_flight=in_flight) for count in tokens)]
    if is_first:
        refusals.requests.refused(refused, 2.0)
    for other in others:
        refusals.requests.passed(other)
    if not is_first:
        owner, _ = refusals.requests.refused(refused, 2.0)
        assert owner is (Owner.UNKNOWN if disproves else Owner.LIMIT)
    assert refusals.requests.are_chance is disproves
    assert refusals.tells("y") is not disproves
    while not refusals.tells("z"):
        assert disproves, "a row that chance hardly ever brings ends that"


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
    requests.refused(one, 0.0)
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


@pytest.mark.parametrize(
    ("refusals", "passed", "seconds", "by_chance", "owner"),
    [
        (3, 3, 61, 0, Owner.REQUEST),
        (2, 3, 61, 0, Owner.UNKNOWN),
        (3, 2, 61, 0, Owner.UNKNOWN),
        (3, 3, 20, 0, Owner.UNKNOWN),  # a limit of its agent alone would show the same for a minute
        (5, 9, 61, 10, Owner.UNKNOWN),  # where others are refused by chance, more is needed
        (20, 19, 61, 10, Owner.REQUEST),
    ],
)
def test_a_request_is_at_fault_after_three_refusals_while_three_as_large_pass(
    refusals, passed, seconds, by_chance, owner
):
    bench = Refusals()
    for number in range(by_chance):
        bench.tells(f"chance{number}")
        bench.passes(f"chance{number}")
    turns = refusals - 1
    for turn in range(turns):
        bench.tells("x")
        for number in range(passed * turn // turns, passed * (turn + 1) // turns):
            bench.passes(f"other{number}")
    assert bench.requests.refused(bench.sent("x"), seconds)[0] is owner
    assert bench.tells("y"), "of another request each refusal tells"


OLD = replace(POOL, model_group="old")
GIVEN_UP = dict.fromkeys(("doomed1", "doomed2"), GiveUp(Reason.NOT_RETRYABLE))


@pytest.mark.parametrize(
    ("refusal", "pool", "tokens", "ends"),
    [
        (THROTTLED, POOL, 3000, GIVEN_UP),
        (OVERLOADED, POOL, 3000, {}),
        (THROTTLED, OLD, 8100, GIVEN_UP),  # no answer has corrected the estimate
        (OVERLOADED, OLD, 8100, {}),
    ],
)
def test_doomed_requests_beside_healthy_ones_get_their_own_answer_and_nothing_is_learned(refusal, pool, tokens, ends):
    bench = Bench(slots=8)
    size, large = (Demand(input_tokens=count, total_tokens=count) for count in (3000, tokens))
    ended: dict[str, object] = {}
    answered = 0
    for second in range(100):
        bench.submit(f"healthy{second}", demand=size)
        if second == 5:
            bench.submit("doomed1", "doomed2", pool=pool, demand=large)
        for name in list(bench.running):
            if name.startswith("doomed"):
                ended[name] = bench.settle(name, refusal)
            else:
                bench.settle(name)
                answered += 1
        bench.advance(1)
    assert answered >= 90
    assert {name: verdict for name, verdict in ended.items() if not isinstance(verdict, Backoff)} == ends
    assert bench.scheduler.snapshot(bench.now).pools[0].learned == ()


@pytest.mark.parametrize(("pool", "agents"), [(OLD, 6), (POOL, 1)])
@pytest.mark.parametrize("spent_s", [0, 11, 31, 55])
def test_no_request_is_given_up_for_a_limit_of_its_model_or_agent(pool, agents, spent_s):
    """Two of six calls a minute pass, an answer takes a second; a call that the limit does not count always passes."""
    bench = Bench(slots=8)
    passed_at = [spent_s - 60.0] * 2
    taken: list[str] = []
    for number in range(6):
        bench.submit(f"busy{number}", session=f"agent{number % agents}", pool=pool)
    for second in range(300):
        bench.submit(f"free{second}")
        for name in list(bench.running):
            session = bench.running[name].ticket.session
            if name.startswith("free") or name in taken:
                bench.settle(name)
                if name in taken:
                    bench.submit(f"{name}+", session=session, pool=pool)
            elif bench.now - passed_at[-2] < 60:
                assert isinstance(bench.settle(name, THROTTLED), Backoff)
            else:
                passed_at.append(bench.now)
                taken.append(name)
        bench.advance(1)
    assert len(taken) >= 8


def test_where_answers_always_lack_their_end_only_the_first_request_is_repeated():
    bench, endless = Bench(), replace(CUT, lacks_end=True)
    calls = []
    for name in ("a", "b", "c"):
        bench.submit(name)
        calls.append(1)
        while isinstance(bench.settle(name, endless), Backoff):
            calls[-1] += 1
            while not bench.running:
                bench.advance_to_wakeup()
    assert calls == [2, 1, 1]
    bench.scheduler.submit(replace(ticket("whole"), streamed=True), bench.settings, bench.now)
    bench.poll()
    bench.settle("whole")
    bench.submit("d")
    assert isinstance(bench.settle("d", endless), Backoff)


def test_what_the_edge_refuses_goes_with_fewer_at_once_and_three_times_at_most():
    bench, edge = Bench(slots=8), replace(OVERLOADED, status=403, of_edge=True)
    bench.submit(*"abcdef")
    for name in "def":
        assert isinstance(bench.settle(name, edge), Backoff)
    assert bench.pool.limit == 5
    for _ in range(2):
        while "d" not in bench.running:
            for name in list(bench.running):
                bench.settle(name)
            if "d" not in bench.running:
                bench.advance_to_wakeup()
        verdict = bench.settle("d", edge)
    assert verdict == GiveUp(Reason.SPENT_ATTEMPTS)
    assert bench.pool.breaker == "closed"
