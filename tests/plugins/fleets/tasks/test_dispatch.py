from random import Random

from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.plugins.fleets.tasks import dispatch
from hivemind_addon.plugins.fleets.tasks.dispatch import LIFT_S, Candidate, Stagger, TaskStart, choose
from tests.cases import each


def candidate(name, *, group="", priority=Priority.NORMAL, tokens=100.0, ready_at=0.0, number=0, is_awaited=False):
    return Candidate(name, group, priority, tokens, ready_at, number, is_awaited)


def first(*ready, free=None, steal_above=None, now=0.0):
    return choose(ready, free or {"": 1}, steal_above=steal_above, now=now)


def test_priority_counts_first_then_the_estimate_then_age():
    low = candidate("low", priority=Priority.LOW, tokens=1)
    long = candidate("long", tokens=900)
    old, young = candidate("old", number=1), candidate("young", number=2)
    assert first(low, long, young, old).name == "old"
    assert first(low, long, young).name == "young"
    assert first(low, long).name == "long"


def test_five_minutes_are_worth_a_class():
    old = candidate("old", priority=Priority.NORMAL, tokens=900)
    new = candidate("new", priority=Priority.HIGH, ready_at=LIFT_S)
    assert first(old, new, now=LIFT_S - 1).name == "new"
    assert first(old, candidate("new", priority=Priority.NORMAL, ready_at=LIFT_S), now=LIFT_S).name == "old"
    assert first(old, new, now=2 * LIFT_S - 1).name == "new"  # the same class now, and it is shorter
    assert first(old, candidate("newer", priority=Priority.HIGH, ready_at=2 * LIFT_S), now=2 * LIFT_S).name == "old"


def test_what_a_waiting_task_waits_for_goes_before_anything_new():
    assert first(candidate("urgent", priority=Priority.CRITICAL), candidate("child", is_awaited=True)).name == "child"


def test_places_that_groups_leave_are_everybodys():
    assert dispatch.places(5, {"reviewers": 2}) == {"reviewers": 2, "": 3}
    assert dispatch.places(2, {"reviewers": 2}) == {"reviewers": 2, "": 0}


def test_a_groups_workers_serve_its_queue_and_no_other():
    review, build = candidate("review", group="reviewers"), candidate("build")
    assert first(review, build, free={"reviewers": 0, "": 1}) == TaskStart("build", "")
    assert first(review, free={"reviewers": 0, "": 1}) is None
    assert first(build, free={"reviewers": 1, "": 0}) is None


@each(("length", "helps"), [(1, False), (2, False), (3, True)])
def test_an_idle_worker_helps_a_queue_that_is_longer_than_the_threshold(length, helps):
    queue = [candidate(f"build-{n}", number=n) for n in range(length)]
    start = first(*queue, free={"reviewers": 1, "": 0}, steal_above=2)
    assert start == (TaskStart("build-0", "reviewers") if helps else None)


def test_a_worker_with_work_of_its_own_does_not_help():
    queue = [candidate(f"build-{n}", number=n, priority=Priority.CRITICAL) for n in range(9)]
    start = first(*queue, candidate("review", group="reviewers"), free={"reviewers": 1, "": 0}, steal_above=2)
    assert start == TaskStart("review", "reviewers")


def test_a_queues_own_worker_goes_before_one_that_helps():
    queue = [candidate(f"build-{n}", number=n) for n in range(9)]
    assert first(*queue, free={"reviewers": 1, "": 1}, steal_above=2) == TaskStart("build-0", "")


@given(st.integers(0, 2**32), st.floats(0.01, 60))
def test_gaps_between_starts_are_jittered_by_half(seed, every_s):
    stagger = Stagger(every_s, rng=Random(seed))
    stagger.started(100.0)
    assert 100 + every_s * 0.5 <= stagger.next_at <= 100 + every_s * 1.5


def test_without_an_estimate_the_mean_of_the_others_counts():
    assert dispatch.mean_tokens([100, 300]) == 200
    assert dispatch.mean_tokens([]) == 0
