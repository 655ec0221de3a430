import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.proxy.core.learned import (
    LearnedMeter,
    LearnedPool,
    MeterKind,
    Saved,
    UnreadableError,
    read_pool,
    read_saved,
)
from hivemind_addon.proxy.core.limiter_models import HiddenLimit
from tests.core.samples import POOL

METER = LearnedMeter(
    name="requests",
    dimension=Dimension.REQUESTS,
    kind=MeterKind.WINDOW,
    limit=50,
    window_s=60,
    failures_are_free=True,
    stale_s=2.5,
)
LEARNED = LearnedPool(
    key=POOL,
    throttles=HiddenLimit(measure=2, amount=30, window_s=60, is_bucket=True),
    overloads=HiddenLimit(measure=0, amount=8),
    meters=(METER, replace(METER, name="other")),
)
COMMON = replace(LEARNED, common=("concurrency", "rate"), meters=(replace(METER, is_common=True),))


def test_it_survives_a_trip_through_json():
    for learned in (LEARNED, COMMON):
        assert read_pool(json.loads(json.dumps(learned.to_json()))) == learned


def test_what_is_not_known_stays_unknown():
    unknown = LearnedPool(key=POOL, throttles=None, overloads=None, meters=())
    assert read_pool(json.loads(json.dumps(unknown.to_json()))) == unknown


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.sampled_from([*LEARNED.to_json(), "surplus"]), ANYTHING)
def test_whatever_stands_in_the_file_is_read_or_refused(name, value):
    saved = {**LEARNED.to_json(), name: value}
    try:
        read = read_pool(saved)
    except UnreadableError:
        return
    assert read_pool(read.to_json()) == read


@given(st.sampled_from(["version", "pools", "accounts", "same_account"]), ANYTHING)
def test_so_is_whatever_stands_in_the_whole_file(name, value):
    whole = Saved(pools=(LEARNED,), account_by_name={("h", "org"): "key-1"}, same_account={"key-2": "key-1"})
    assert read_saved(json.loads(json.dumps(whole.to_json()))) == whole
    try:
        read = read_saved({**whole.to_json(), name: value})
    except UnreadableError:
        return
    assert read_saved(read.to_json()) == read


@given(ANYTHING)
def test_anything_else_is_refused(saved):
    with pytest.raises(UnreadableError):
        read_pool(saved)


def test_what_was_saved_before_limits_could_be_common_is_read():
    old = LEARNED.to_json()
    del old["common"]
    for meter in old["meters"]:
        del meter["is_common"]
    read = read_pool(old)
    assert read.common == ()
    assert not any(meter.is_common for meter in read.meters)


def test_a_limit_of_all_models_says_so():
    common = replace(LEARNED, common=("concurrency",))
    assert [view.text for view in common.views] == [
        "30 total tokens per minute, 30 at once",
        "8 at a time, all models together",
    ]
