"""What was learned outlives a run, and whatever stands in its file is read or refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hivemind_addon.kernel.inference.hidden_limits import HiddenLimits
from hivemind_addon.kernel.inference.hypotheses import OF_THROTTLES
from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.learned import MeterKind, UnreadableError, read_saved
from hivemind_addon.kernel.values.ticket import PoolKey
from tests.cases import each

RECORDED = json.loads((Path(__file__).with_name("data") / "learned-2.json").read_text(encoding="utf-8"))
"""Saved by the version of November 2026."""
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_what_an_earlier_version_saved_is_read():
    saved = read_saved(RECORDED)
    known, unknown = saved.pools
    assert known.key == PoolKey("api.test", "key-1", "m")
    assert known.throttles == HiddenLimit(measure=2, amount=30, window_s=60, is_bucket=True)
    assert known.overloads == HiddenLimit(measure=0, amount=8)
    assert [(meter.name, meter.kind, meter.is_separate) for meter in known.meters] == [
        ("requests", MeterKind.WINDOW, False),
        ("tokens", MeterKind.BUCKET, False),
    ]
    assert (unknown.throttles, unknown.overloads, unknown.meters) == (None, None, ())
    assert [(one.host, one.name, one.account) for one in saved.accounts] == [("api.test", "org", "key-1")]
    assert saved.same_account == {"key-2": "key-1"}
    assert read_saved(saved.to_json()) == saved


def test_a_circle_of_accounts_is_left_out():
    circle = {"a": "b", "b": "a", "c": "d"}
    assert read_saved(RECORDED | {"same_account": circle}).same_account == {"c": "d"}


@given(st.sampled_from([*RECORDED, *RECORDED["pools"][0], "surplus"]), ANYTHING)
def test_whatever_stands_in_the_file_is_read_or_refused(name, value):
    data = json.loads(json.dumps(RECORDED))
    (data if name in data else data["pools"][0])[name] = value
    try:
        read = read_saved(data)
    except UnreadableError:
        return
    assert read_saved(read.to_json()) == read


@given(ANYTHING)
def test_anything_else_is_refused(saved):
    with pytest.raises(UnreadableError):
        read_saved(saved)


@each(("is_bucket", "for_s", "left"), [(False, 4.0, 3.0), (False, 0.0, 0.0), (True, 5.0, 4.0)])
def test_a_resumed_limit_holds_what_it_held(is_bucket, for_s, left):
    limit = HiddenLimit(0, 8.0, 10.0, is_bucket=is_bucket)
    known = replace(read_saved(RECORDED).pools[0], throttles=limit, throttled_units=8.0 - left, throttled_for_s=for_s)
    hidden = HiddenLimits(OF_THROTTLES)
    hidden.resume(known.throttles, 100.0, held=known.held(100.0))
    view = hidden.view(100.0)
    assert (view.level, view.full_in_s) == (pytest.approx(left if for_s else 8.0), pytest.approx(for_s))
    assert hidden.view(100.0 + for_s).level == 8.0


@each(("age_s", "throttles", "is_old"), [(3_600, True, False), (90_000, True, True), (700_000, False, False)])
def test_limits_that_nobody_has_tested_for_long_are_trusted_less(age_s, throttles, is_old):
    pool = read_saved(RECORDED).pools[0].as_of(0.0, 1e9)
    aged = pool.aged(1e9 + age_s)
    assert (aged.throttles is not None, aged.is_old) == (throttles, is_old)
    assert bool(aged.meters) is throttles
