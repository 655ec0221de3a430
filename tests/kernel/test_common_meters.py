"""Limits that several pools are told of alike: one meter where they are one, and each its own where they are not."""

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.values.ticket import PoolKey
from hivemind_addon.sim.limits import LimitKind
from tests.kernel.gateway import MODELS, Gateway, pool_of
from tests.kernel.samples import hints, requests_reading

KINDS = pytest.mark.parametrize("kind", list(LimitKind))


def learned(**gateway) -> Gateway:
    """Each model has been answered twice."""
    key = Gateway(**gateway)
    for _ in range(2):
        for model in MODELS:
            key.submit(model)
            key.advance(0.1)
            key.answer_all()
    return key


@KINDS
def test_what_one_model_takes_is_gone_for_the_others(kind):
    key = learned(amount=20, kind=kind)
    before = {model: level for model, (level, _) in key.meters().items()}
    assert len(set(before.values())) == 1
    key.submit("a")
    assert {model: level for model, (level, _) in key.meters().items()} == {
        model: pytest.approx(level - 1) for model, level in before.items()
    }
    assert {shared for _, shared in key.meters().values()} == {MODELS}


@KINDS
def test_limits_that_are_told_alike_and_are_each_models_own_stay_apart(kind):
    key = learned(amount=20, kind=kind, is_shared=False)
    assert {shared for _, shared in key.meters().values()} == {()}
    before = {model: level for model, (level, _) in key.meters().items()}
    key.submit("a")
    after = {model: level for model, (level, _) in key.meters().items()}
    assert after == before | {"a": pytest.approx(before["a"] - 1)}


@KINDS
def test_nobody_is_refused_once_it_is_known(kind):
    key = learned(amount=5, kind=kind)
    known_at = key.now
    for _ in range(30):
        for model in MODELS:
            key.submit(model)
        key.advance(3.0)
        key.answer_all()
    assert [at for at, _ in key.refused if at >= known_at] == []
    key.advance(600.0)
    while key.running:
        key.answer_all()
        key.advance(60.0)
    assert set(key.ended.values()) == {1}
    assert len(key.ended) == key.tickets


@KINDS
def test_it_is_unlearned_when_headers_speak_against_it(kind):
    key = learned(amount=20, kind=kind)
    assert {shared for _, shared in key.meters().values()} == {MODELS}
    key.is_shared = False
    for _ in range(5):
        for model in MODELS:
            key.submit(model)
            key.advance(0.1)
            key.answer_all()
    assert {shared for _, shared in key.meters().values()} == {()}


def test_who_waits_for_a_common_limit_goes_at_once_when_it_proves_to_be_its_own():
    key = learned(amount=8)
    key.is_shared = False
    first, second = key.submit("a"), key.submit("a")
    waits = key.submit("b")
    assert waits not in key.running
    key.answer(first)
    key.answer(second)
    assert waits in key.running


def test_a_model_that_comes_later_joins_with_what_it_has_in_flight():
    key = Gateway(amount=20)
    for model in "ababab":
        key.submit(model)
        key.answer_all()
    assert key.meters()["a"][1] == ("a", "b")
    first, second = key.submit("c"), key.submit("c")
    key.answer(first)
    level, shared = key.meters()["c"]
    assert shared == MODELS
    assert level == pytest.approx(12)
    key.answer(second)
    assert key.meters()["a"][0] == pytest.approx(12)


def test_a_limit_with_other_numbers_is_another_one():
    key = Gateway(amount=20)
    for model in "abab":
        key.submit(model)
        key.answer_all()
    name = key.submit("c")
    attempt = key.running[name]
    told = requests_reading(limit=7, remaining=6, reset_in_s=20, window_s=20)
    key.scheduler.observe(attempt, hints(told), key.now)
    assert key.meters()["c"] == (6, ())
    assert key.meters()["a"][1] == ("a", "b")


def test_a_common_limit_outlives_the_process():
    old = learned(amount=20)
    key = Gateway(amount=20)
    key.scheduler.restore(old.scheduler.export(), key.now)
    for model in MODELS:
        key.submit(model)
    assert {level for level, _ in key.meters().values()} == {19}, "one by one, until a header tells the level"
    key.answer_all()
    assert {shared for _, shared in key.meters().values()} == {MODELS}
    assert {level for level, _ in key.meters().values()} == {17}


def test_a_pool_whose_account_proves_to_be_another_one_leaves_what_it_shared():
    key = learned(amount=20)
    other = PoolKey(host=pool_of("a").host, account="key-2", model_group="a")
    name = key.submit("a")
    key.scheduler.observe(key.running[name], hints(account="org"), key.now)
    key.scheduler.submit(replace(key.running[name].ticket, id="x", pool=other), key.settings, key.now)
    key.poll()
    key.scheduler.observe(key.running["x"], hints(account="org"), key.now)
    assert key.scheduler.snapshot(key.now).pools[0].in_flight == 2
    assert {level for level, _ in key.meters().values()} == {12}
    key.answer_all()
    assert key.scheduler.is_idle


def test_a_pool_that_comes_later_is_not_sent_more_than_the_others_have_left():
    old = learned(amount=4, window_s=20.0, kind=LimitKind.BUCKET)
    key = Gateway(amount=4, window_s=20.0, kind=LimitKind.BUCKET)
    key.scheduler.restore(old.scheduler.export(), key.now)
    key.answer(key.submit("c"))  # tells the level
    key.advance(20)
    for _ in range(4):
        key.submit("c")
    second = list(key.running)[1]
    key.answer(second)
    key.advance(0.5)
    key.submit("b")
    key.submit("a")
    assert not key.refused
    key.answer(next(iter(key.running)))
    assert not key.refused, "an older header tells the common meter nothing new"
