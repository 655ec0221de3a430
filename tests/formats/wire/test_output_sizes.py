import random

import pytest

from hivemind_addon.formats.wire.estimate import ENOUGH, OutputSizes


def learned(*sizes, window=40):
    outputs = OutputSizes(window=window)
    for size in sizes:
        outputs.learn(size)
    return outputs


def test_nothing_is_known_at_first():
    outputs = learned()
    assert not outputs.known
    assert outputs.likely_tokens == 0
    assert outputs.p95_tokens is None


def test_there_is_no_p95_of_a_few():
    assert learned(*range(ENOUGH - 1)).p95_tokens is None
    assert learned(*range(ENOUGH)).p95_tokens == ENOUGH - 1, "of twenty the largest"


def test_the_p95_is_of_the_newest_only():
    assert learned(*[9000] * 100, *[100] * 40).p95_tokens == 100
    assert learned(*[9000] * 100, *[100] * 40, window=200).p95_tokens == 9000


def test_the_p95_knows_no_order():
    assert learned(*range(1, 41)).p95_tokens == learned(*range(40, 0, -1)).p95_tokens == 39


@pytest.mark.parametrize("window", [40, 200])
def test_one_in_twenty_is_longer(window):
    rng = random.Random(4)
    outputs = OutputSizes(window=window)
    longer = 0
    for number in range(20_000 + window):
        size = round(rng.lognormvariate(6, 1.2))
        if number >= window:
            longer += size > outputs.p95_tokens
        outputs.learn(size)
    assert 0.04 < longer / 20_000 < 0.06
