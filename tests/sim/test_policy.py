"""Policies by name, in this process and in another."""

import pickle
import random

import pytest

from hivemind_addon.lab.sim.ablation import Primitive
from hivemind_addon.lab.sim.policy import COMPARED, Policy, UnknownPolicy, only, policy_named, without
from tests.cases import over


@over(
    "policy",
    [*COMPARED, *map(without, Primitive), *map(only, Primitive), only(), without(Primitive.RETRY, Primitive.METERS)],
)
def test_every_policy_is_known_by_its_name_and_travels_by_it(policy):
    assert policy_named(policy.name) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert policy.about


def test_two_primitives_have_one_name_whatever_their_order():
    one, other = Primitive.METERS, Primitive.RETRY
    assert without(one, other) == without(other, one) == policy_named("hivemind-without-retry+meters")
    assert without(one, other).name == "hivemind-without-meters+retry"


def test_who_admits_calls_is_scheduled():
    assert [policy.name for policy in COMPARED if policy.is_scheduled] == ["aimd-pause", "fifo", "hivemind"]
    assert repr(Policy.AIMD_PAUSE.admission(random.Random(0))) == "<AimdPause 0 tickets in 0 pools>"


@over(
    ("name", "words"),
    [
        ("best", "no policy 'best'; there are direct, sdk-retry"),
        ("only-magic", "no primitive 'magic'; there are meters, hidden-limits"),
        ("hivemind-without-", "no primitive ''"),
    ],
)
def test_an_unknown_name_is_told_with_those_that_there_are(name, words):
    with pytest.raises(UnknownPolicy, match=words):
        policy_named(name)
