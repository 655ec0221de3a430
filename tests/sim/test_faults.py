import random
from collections import Counter

import pytest

from hivemind_addon.lab.sim.faults import NAMED, OK, ErrorStatus, Fault, FaultMix, Script, Slow, name_of
from tests.cases import over


def test_every_named_fault_is_found_by_its_value():
    assert {name: name_of(fault) for name, fault in NAMED.items()} == {name: name for name in NAMED}


def test_a_fault_without_a_name_is_called_by_its_fields():
    assert name_of(Slow(0.25)) == "Slow(extra_s=0.25)"


def test_a_mix_draws_by_its_rates():
    mix, rng = FaultMix({"500": 0.2, "529": 0.1}), random.Random(7)
    drawn = Counter(name_of(mix.draw(rng)) for _ in range(10_000))
    assert drawn["500"] == pytest.approx(2000, rel=0.1)
    assert drawn["529"] == pytest.approx(1000, rel=0.1)
    assert drawn["ok"] == 10_000 - drawn["500"] - drawn["529"]


def test_the_same_seed_draws_the_same_faults():
    def draws(seed: int) -> list[Fault]:
        rng = random.Random(seed)
        return [FaultMix({"500": 0.5}).draw(rng) for _ in range(50)]

    assert draws(3) == draws(3)
    assert draws(3) != draws(4)


def test_rates_that_fill_everything_leave_no_success():
    mix, rng = FaultMix({"500": 1.0}), random.Random(1)
    assert {mix.draw(rng) for _ in range(100)} == {ErrorStatus(500)}


def test_an_empty_mix_draws_nothing_from_the_rng():
    rng = random.Random(1)
    before = rng.getstate()
    assert FaultMix({}).draw(rng) is OK
    assert rng.getstate() == before


@over(
    ("rates", "words"),
    [
        ({"521": 0.1}, "unknown fault '521'"),
        ({"500": -0.1}, "negative"),
        ({"500": 0.6, "502": 0.6}, "1 at most"),
        ({"500": float("nan")}, "negative"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused(rates, words):
    with pytest.raises(ValueError, match=words):
        FaultMix(rates)


def test_a_script_is_followed_in_order_and_then_for_ever():
    script = Script([ErrorStatus(500), OK], then=ErrorStatus(529))
    assert [script.draw() for _ in range(4)] == [ErrorStatus(500), OK, ErrorStatus(529), ErrorStatus(529)]
