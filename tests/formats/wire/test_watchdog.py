import pytest

from hivemind_addon.formats.profile.model import Watchdog
from hivemind_addon.formats.wire.watchdog import Durations, may_be_silent_s
from hivemind_addon.kernel.values.ticket import PoolKey

POOL = PoolKey(host="api.test", account="key-1", model_group="m")
STREAM, WHOLE = {"streamed": True}, {"streamed": False}
BEGUN = {"streamed": True, "begun": True}


@pytest.mark.parametrize(
    ("case", "expected_s"),
    [
        # Before the head of a stream: our own bound, and what is learned.
        (STREAM, 120),
        (STREAM | {"usual_s": 2}, 120),
        (STREAM | {"usual_s": 30}, 300),
        (STREAM | {"patience_s": 3600}, 120),
        (STREAM | {"stalls": 1}, 240),
        (STREAM | {"usual_s": 30, "stalls": 2}, 1200),
        # A whole answer is silent to its end: as a stream once enough are known, until then as long as its client waits.
        (WHOLE, 900),
        (WHOLE | {"patience_s": 3600}, 3600),
        (WHOLE | {"patience_s": 30}, 900),
        (WHOLE | {"patience_s": 3600, "usual_s": 5}, 120),
        (WHOLE | {"usual_s": 60, "stalls": 1}, 1200),
        # What has begun is its client's to give up.
        (BEGUN, 900),
        (BEGUN | {"patience_s": 3600}, 3600),
        (BEGUN | {"patience_s": 30}, 900),
        (BEGUN | {"usual_s": 5}, 900),
        (BEGUN | {"usual_s": 500}, 5000),
        (BEGUN | {"stalls": 1}, 1800),
        (BEGUN | {"streamed": False, "usual_s": 5}, 900),
    ],
)
def test_how_long_an_attempt_may_be_silent(case, expected_s):
    known = {"begun": False, "usual_s": 0, "patience_s": 600, "stalls": 0} | case
    assert may_be_silent_s(Watchdog(), **known) == expected_s


@pytest.mark.parametrize("streamed", [True, False])
def test_what_a_profile_states_stands_whatever_a_client_says(streamed):
    stated, known = Watchdog(silent_s=900, begun_s=60), {"usual_s": 0, "patience_s": 3600, "stalls": 0}
    assert may_be_silent_s(stated, streamed=streamed, begun=False, **known) == 900
    quick = Watchdog(silent_s=10, begun_s=60)
    assert may_be_silent_s(quick, streamed=streamed, begun=True, **known) == 60


def after(*seconds):
    durations = Durations()
    for one in seconds:
        durations.note(POOL, one)
    return durations


@pytest.mark.parametrize(
    ("seconds", "p99_s"),
    [
        ((), 0),
        ([60.0] * 19, 0),
        ([60.0] * 20, 60),
        ([2.0] * 99 + [500.0], 2),
        ([2.0] * 98 + [500.0] * 2, 500),
        ([60.0] * 100 + [1.0] * 200, 1),
    ],
    ids=["nothing", "few say nothing", "twenty", "one of a hundred does not count", "two do", "old ones are forgotten"],
)
def test_what_99_of_100_take(seconds, p99_s):
    assert after(*seconds).p99_s(POOL) == p99_s


def test_pools_do_not_learn_from_each_other():
    assert after(*[60.0] * 100).p99_s(PoolKey(host="other.test", account="key-1", model_group="m")) == 0


@pytest.mark.parametrize("still_used", [False, True])
def test_of_many_pools_those_are_forgotten_that_are_used_no_longer(still_used):
    durations = after(*[60.0] * 100)
    for index in range(300):
        durations.note(PoolKey(host=f"h{index}", account="a", model_group="m"), 1.0)
        if still_used:
            durations.note(POOL, 60.0)
    assert durations.p99_s(POOL) == (60 if still_used else 0)
