"""What refusals tell of whose limit it is, and what follows of it for the pools of one account."""

import itertools
import random

import pytest

from hivemind_addon.kernel.limits.sharing import Sharing
from hivemind_addon.kernel.values.command import SetLimit
from hivemind_addon.sim.limits import LimitKind
from tests.kernel.gateway import MODELS, Gateway
from tests.kernel.samples import OVERLOADED


def busy(key: Gateway, rounds: int, *, every_s: float = 1.0, each: int = 1) -> None:
    """Every model asks all the time; answers take a second."""
    for _ in range(rounds):
        for model in MODELS:
            for _ in range(each):
                key.submit(model, agent=f"agent of {model}")
                key.answer_refused()
        key.advance(every_s)
        key.answer_all()


def drain(key: Gateway) -> None:
    for _ in range(500):
        if key.scheduler.is_idle:
            break
        key.answer_all()
        key.advance(30.0)
    assert key.scheduler.is_idle
    assert set(key.ended.values()) == {1}
    assert len(key.ended) == key.tickets


def test_a_cap_of_the_key_is_found_and_kept_by_all_its_models_together():
    key = Gateway(amount=10_000, cap=2, tells=False)
    busy(key, 20)
    assert len(key.shares) == 1
    assert 2 <= key.shares[0].overloads.limit.amount < 3
    before, sent = len(key.refused), len(key.order)
    busy(key, 60)
    assert len(key.refused) - before <= 0.08 * (len(key.order) - sent), "probes of the cap"
    assert {view.learned[0].text for view in key.scheduler.snapshot(key.now).pools} == {"2 at a time"}
    drain(key)


def test_chance_overloads_beside_a_cap_of_the_key_separate_nobody():
    separated = 0
    for seed in range(20):
        key, rng = Gateway(amount=10_000, cap=2, tells=False, seed=seed), random.Random(seed)
        for _ in range(60):
            key.submit(rng.choice(MODELS), agent=f"agent {rng.randrange(9)}")
            key.answer_refused()
            key.advance(0.4)
            if key.running and rng.random() < 0.7:
                name = rng.choice(list(key.running))
                if rng.random() < 0.08:
                    key.meets[name] = OVERLOADED
                key.answer(name)
        separated += len(key.shares) > 1
    assert separated <= 1


def test_caps_of_each_model_are_left_apart():
    key = Gateway(amount=10_000, cap=2, tells=False, is_shared=False)
    busy(key, 60, each=3)
    assert len(key.shares) == 3
    words = [view.sharing for view in key.scheduler.snapshot(key.now).pools]
    assert sum("calls of other models were admitted" in told for told in words) >= 2
    before, sent = len(key.refused), len(key.order)
    busy(key, 40, each=3)
    assert len(key.order) - sent - len(key.refused) + before >= 238, "two of each model in each round"
    assert len(key.refused) - before <= 0.1 * (len(key.order) - sent)
    drain(key)


@pytest.mark.parametrize("kind", list(LimitKind))
def test_a_rate_of_the_key_is_found_without_headers(kind):
    key = Gateway(amount=5, window_s=10.0, tells=False, kind=kind)
    busy(key, 40, every_s=5.0)
    assert len(key.shares) == 1
    before, sent = len(key.refused), len(key.order)
    busy(key, 40, every_s=5.0)
    assert len(key.refused) - before <= 0.1 * (len(key.order) - sent)
    drain(key)


def test_rates_of_each_model_are_left_apart():
    key = Gateway(amount=5, window_s=10.0, tells=False, kind=LimitKind.BUCKET, is_shared=False)
    busy(key, 60, every_s=5.0, each=3)
    assert len(key.shares) >= 2
    drain(key)


def test_a_persons_cap_is_the_pools_own_also_where_the_limit_is_all_pools():
    key = Gateway(amount=10_000, cap=8, tells=False)
    busy(key, 30, each=3)
    key.scheduler.command(SetLimit(1, "*/a"), key.now)
    key.answer_all()
    assert sum(name[0] == "a" for name in key.running) == 1
    assert sum(name[0] == "b" for name in key.running) > 1


def test_equal_agents_of_all_models_wait_alike():
    key = Gateway(amount=4, window_s=10.0)
    asked: dict[str, float] = {}
    waits: dict[str, list[float]] = {}
    agents = [f"{model}-{number}" for model, many in (("a", 6), ("b", 2), ("c", 1)) for number in range(many)]
    for agent in agents:
        asked[key.submit(agent[0], agent=agent)] = key.now
    names = dict(zip(asked, agents, strict=True))
    for _ in range(400):
        key.advance(1.0)
        for name in list(key.running):
            succeeded = key.meets[name].status == 200
            key.answer(name)
            if succeeded:
                agent = names[name]
                waits.setdefault(agent, []).append(key.now - asked[name])
                again = key.submit(agent[0], agent=agent)
                names[again], asked[again] = agent, key.now
    means = {agent: sum(of) / len(of) for agent, of in waits.items()}
    mean = sum(means.values()) / len(means)
    assert max(means.values()) <= 1.2 * mean
    assert max(max(of[2:]) for of in waits.values()) <= 2 * mean


def test_what_refusals_told_outlives_the_process():
    old = Gateway(amount=10_000, cap=2, tells=False)
    busy(old, 20)
    key = Gateway(amount=10_000, cap=2, tells=False)
    key.scheduler.restore(old.scheduler.export(), key.now)
    for model in MODELS * 2:
        key.submit(model)
    assert len(key.running) <= 3
    assert len(key.shares) == 1


def test_a_rate_that_was_all_pools_is_all_pools_after_a_restart():
    for kind in LimitKind:
        old = Gateway(amount=5, window_s=10.0, tells=False, kind=kind)
        busy(old, 40, every_s=5.0)
        key = Gateway(amount=5, window_s=10.0, tells=False, kind=kind)
        key.scheduler.restore(old.scheduler.export(), key.now)
        for model in MODELS * 5:
            key.submit(model)
        assert len(key.running) <= 7, f"{kind}: what all of them may send, and a probe"
        for view in key.scheduler.snapshot(key.now).pools:
            limit = view.learned[0].meter
            assert 0.4 <= limit.limit / limit.window_s <= 0.65, kind


def test_an_outage_leaves_the_cap_of_all_pools_as_it_was():
    key = Gateway(amount=10_000, cap=6, tells=False)
    busy(key, 40, each=3)
    assert [share.overloads.limit.amount for share in key.shares] == [6.5]
    key.cap = 0
    for number in range(40):
        for model in MODELS:
            key.submit(model, agent=f"{number} of {model}")
        key.advance(0.1)
        key.answer_all()
        key.advance(0.5)
    assert "closed" not in {view.breaker for view in key.scheduler.snapshot(key.now).pools}
    assert [int(share.overloads.limit.amount) for share in key.shares] == [6]
    key.cap, before = 6, len(key.refused)
    for _ in range(60):
        key.advance(1.0)
        key.answer_all()
    assert key.scheduler.is_idle
    assert len(key.refused) - before <= 6, "probes"


def test_stamps_of_two_accounts_are_of_one_count():
    stamps = itertools.count(1)
    one, other = Sharing(stamps), Sharing(stamps)
    assert [one.next_stamp(), other.next_stamp(), one.next_stamp()] == [1, 2, 3]
