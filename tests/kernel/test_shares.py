"""Fair shares of one resource, alone; agents, trees and tickets are in test_lanes.py and test_fair_queue.py."""

import math
import pickle
import random

import pytest

from hivemind_addon.kernel.order.shares import Share, Shares

CREDIT_S = 4.0


class Contest:
    """Shares that are served one after the other, by one server that works all the time."""

    def __init__(self) -> None:
        self.shares: Shares[Share] = Shares(credit_s=CREDIT_S)
        self.now = 0.0
        self.served: dict[str, float] = {}
        self.order: list[str] = []

    def share(self, name: str) -> Share:
        share = self.shares.by_name.get(name)
        if share is None:
            share = Share(name, self.shares.floor_s())
            self.shares.add(share)
        return share

    def wait(self, *names: str, bonus_s: float = 0, weight: float = 1) -> None:
        for name in names:
            self.shares.wait(self.share(name), self.now, bonus_s=bonus_s, weight=weight)

    def serve(self, cost_s: float, *, weight: float = 1, stays: bool = True, took_s: float | None = None) -> str:
        first = self.shares.waiting.first
        assert first is not None
        share = first
        took_s = cost_s if took_s is None else took_s
        self.shares.serve(share, cost_s, weight=weight)
        if not stays:
            self.shares.rest(share, self.now)
        self.now += took_s
        self.shares.settle(share, took_s - cost_s, weight=weight)
        if stays:
            self.shares.wait(share, self.now, weight=weight)
        else:
            self.shares.rest(share, self.now)
        self.served[share.name] = self.served.get(share.name, 0.0) + took_s
        self.order.append(share.name)
        return share.name


def test_two_that_wait_all_the_time_take_turns_by_what_they_take():
    contest = Contest()
    contest.wait("small", "large")
    for _ in range(400):
        first = contest.shares.waiting.first
        contest.serve(10 if first.name == "large" else 1)
    assert contest.served["small"] == pytest.approx(contest.served["large"], abs=11)


def test_twice_the_weight_takes_twice_as_much():
    contest = Contest()
    contest.wait("one")
    contest.wait("two", weight=2)
    for _ in range(300):
        contest.serve(1, weight=2 if contest.shares.waiting.first.name == "two" else 1)
    assert contest.served["two"] == pytest.approx(2 * contest.served["one"], abs=3)


@pytest.mark.parametrize("estimate_s", [0.1, 1.0, 10.0])
def test_what_was_really_taken_counts_and_no_estimate(estimate_s):
    contest = Contest()
    contest.wait("honest", "liar")
    for _ in range(1000):
        liar = contest.shares.waiting.first.name == "liar"
        contest.serve(estimate_s if liar else 1, took_s=1)
    assert contest.served["liar"] == pytest.approx(contest.served["honest"], abs=20)
    starts = [contest.share(name).start_s for name in ("honest", "liar")]
    assert starts == pytest.approx([contest.served[name] - CREDIT_S for name in ("honest", "liar")])


def test_who_rested_gets_its_credit_back_and_no_more():
    contest = Contest()
    contest.wait("a", "b")
    for _ in range(100):
        contest.serve(1)
    contest.wait("rested")
    turns = [contest.serve(1) for _ in range(20)]
    assert turns[:3] == ["rested"] * 3
    assert 4 <= turns.count("rested") <= 4 + CREDIT_S + 6


def test_what_nobody_waited_for_is_nobodys_debt():
    contest = Contest()
    contest.wait("busy")
    for _ in range(50):
        contest.serve(1)
    contest.shares.rest(contest.share("busy"), contest.now)
    contest.now += 1000
    contest.wait("busy", "fresh")
    turns = [contest.serve(1) for _ in range(20)]
    assert turns.count("busy") >= 10 - CREDIT_S


def test_an_endless_row_of_newcomers_keeps_nobody_waiting_for_ever():
    contest = Contest()
    contest.wait("veteran", "other")
    for _ in range(60):
        contest.serve(1)
    contest.shares.rest(contest.share("other"), contest.now)
    contest.shares.charge_too(contest.share("veteran"), 20)
    contest.wait("veteran")
    for number in range(120):
        contest.wait(f"new{number}")
        if contest.serve(1, stays=False) == "veteran":
            break
    assert contest.order[-1] == "veteran"


def test_a_bonus_is_a_lead_and_no_larger_share():
    contest = Contest()
    contest.wait("plain")
    contest.wait("ahead", bonus_s=30)
    for _ in range(500):
        name = contest.serve(1, stays=True)
        contest.wait(name, bonus_s=30 if name == "ahead" else 0)
    assert contest.order[:30] == ["ahead"] * 30
    assert contest.served["ahead"] - contest.served["plain"] == pytest.approx(30, abs=2)


def test_who_rests_long_enough_is_forgotten():
    contest = Contest()
    contest.wait("a", "b")
    for number in range(2000):
        contest.wait(f"once{number}")
        for _ in range(2):
            contest.serve(1, stays=contest.shares.waiting.first.name in "ab")
    assert len(pickle.dumps(contest.shares)) < 5000


def test_to_be_served_at_once_is_to_wait_to_be_served_and_to_rest():
    rng = random.Random(1)
    by_steps, at_once = Shares[Share](credit_s=4.0), Shares[Share](credit_s=4.0)
    now = 0.0
    for _ in range(500):
        now += (took_s := rng.expovariate(1.0))
        name, cost_s, weight, rested = rng.randrange(9), rng.random() * 3, rng.choice([1.0, 2.0]), rng.random() < 0.8
        floor_s = rng.choice([math.inf, by_steps.now_s - 5])
        starts = []
        for shares in (by_steps, at_once):
            share = shares.by_name.get(name)
            if share is None:
                shares.add(share := Share(name, shares.floor_s()))
            if shares is at_once:
                starts.append(
                    shares.serve_at_once(share, cost_s, since=now - took_s / 2, now=now, weight=weight, floor_s=floor_s)
                )
            else:
                shares.wait(share, now - took_s / 2, weight=weight, floor_s=floor_s)
                starts.append(share.start_s)
                shares.serve(share, cost_s, weight=weight)
                shares.rest(share, now)
            if rested:
                shares.settle(share, -cost_s / 2, weight=weight)
                shares.rest(share, now)
        assert starts[0] == starts[1]
        assert by_steps.now_s == at_once.now_s
        assert [by_steps.start_of(one) for one in range(9)] == [at_once.start_of(one) for one in range(9)]


def max_min(capacity: float, wants: list[float]) -> list[float]:
    """The fairest split: nobody gets more than it wants, and who gets less gets as much as anybody."""
    got = [0.0] * len(wants)
    while capacity > 1e-9:
        hungry = [i for i, want in enumerate(wants) if want - got[i] > 1e-9]
        if not hungry:
            break
        step = min(capacity / len(hungry), *(wants[i] - got[i] for i in hungry))
        for i in hungry:
            got[i] += step
        capacity -= step * len(hungry)
    return got


def test_the_split_is_max_min_fair_within_two_costs(subtests):
    for seed in range(30):
        with subtests.test(seed=seed):
            compare_with_max_min(random.Random(seed))


def compare_with_max_min(rng: random.Random) -> None:
    contest = Contest()
    costs = {f"s{i}": rng.uniform(0.1, 8) for i in range(rng.randint(2, 12))}
    wants = {name: rng.choice([rng.uniform(5, 50), 1e9]) for name in costs}
    contest.wait(*costs)
    capacity = 40.0 * len(costs)
    while sum(contest.served.values()) < capacity and (first := contest.shares.waiting.first):
        name = first.name
        contest.serve(costs[name], stays=contest.served.get(name, 0.0) + costs[name] < wants[name])
    whole = [math.ceil(wants[name] / cost) * cost for name, cost in costs.items()]
    fair = max_min(sum(contest.served.values()), whole)
    for (name, cost), due in zip(costs.items(), fair, strict=True):
        assert contest.served.get(name, 0.0) == pytest.approx(due, abs=cost + max(costs.values()))
