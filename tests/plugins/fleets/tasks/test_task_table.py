"""The table in virtual time: what it promises, whatever tasks do."""

import heapq
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hivemind_addon.plugins.fleets.tasks.dispatch import LIFT_S
from hivemind_addon.plugins.fleets.tasks.model import MAX_DEPTH, NotTaken, State, TaskSpec
from hivemind_addon.plugins.fleets.tasks.task_table import FleetRules, TaskTable, TryEnding, WaitOver
from tests.cases import each

DONE, FAILED = TryEnding(0, ""), TryEnding(3, "exit status 3")
DIED = TryEnding(137, "killed by SIGKILL", is_transient=True)


def spec(name="", depends_on=(), **more):
    return TaskSpec(command=("true",), name=name, depends_on=tuple(depends_on), **more)


def table(*specs, at_most=10, start_every_s=0.0, **more):
    made = TaskTable(FleetRules(at_most, start_every_s=start_every_s, **more), rng=Random(1))
    made.add(specs, 0.0)
    return made


def started(table, now=0.0):
    return [one.name for one in table.poll(now) if not isinstance(one, WaitOver)]


def states(table):
    return {name: task.state.value for name, task in table.tasks.items()}


def test_a_task_starts_when_what_it_depends_on_is_done():
    fleet = table(spec("c", ["a", "b"]), spec("a"), spec("b"))
    assert started(fleet) == ["a", "b"]
    assert fleet.tasks["c"].reason == "waits for a, b"
    fleet.ended("a", DONE, 1)
    assert (started(fleet, 1), fleet.tasks["c"].reason) == ([], "waits for b")
    fleet.ended("b", DONE, 2)
    assert started(fleet, 2) == ["c"]


def test_all_that_depends_on_a_failed_task_is_skipped_and_told_why():
    fleet = table(spec("a"), spec("b", ["a"]), spec("c", ["b"]), spec("other"))
    started(fleet)
    fleet.ended("a", FAILED, 1)
    assert states(fleet) == {"a": "failed", "b": "skipped", "c": "skipped", "other": "running"}
    assert fleet.tasks["c"].reason == "a failed: exit status 3"
    fleet.add([spec("late", ["c"])], 2)
    assert fleet.tasks["late"].state is State.SKIPPED


def test_a_chain_of_thousands_is_no_recursion():
    fleet = table(*(spec(f"t{n}", [f"t{n - 1}"] if n else []) for n in range(5000)))
    started(fleet)
    fleet.ended("t0", FAILED, 1)
    assert fleet.is_over


def test_what_looks_transient_is_tried_again_later_each_time_and_not_for_ever():
    fleet = table(spec("a", retries=2), spec("b", ["a"]))
    gaps, now = [], 0.0
    for _ in range(3):
        assert started(fleet, now) == ["a"]
        fleet.ended("a", DIED, now)
        if fleet.tasks["a"].state is State.WAITING:
            assert started(fleet, now) == []
            gaps.append(fleet.next_wakeup(now) - now)
            now += gaps[-1]
    assert 0.5 <= gaps[0] <= 1.5 <= 2 * gaps[1] / 1 <= 6
    assert (fleet.tasks["a"].state, fleet.tasks["a"].reason) == (State.FAILED, "killed by SIGKILL (3 times)")
    assert fleet.tasks["b"].state is State.SKIPPED


def test_a_waiting_task_lends_its_place_and_gets_one_back_before_anything_new_starts():
    fleet = table(spec("parent"), spec("other"), at_most=1)
    assert started(fleet) == ["parent"]
    (child,) = fleet.add([spec()], 1, parent="parent")
    assert (child, started(fleet, 1)) == ("parent-1", [])
    number = fleet.wait([child], waiter="parent")
    assert fleet.tasks["parent"].state is State.LENDING
    assert started(fleet, 1) == [child]
    fleet.ended(child, DONE, 2)
    assert next(fleet.poll(2)) == WaitOver(number)
    assert (fleet.tasks["parent"].state, started(fleet, 2)) == (State.RUNNING, [])
    fleet.ended("parent", DONE, 3)
    assert started(fleet, 3) == ["other"]


def test_one_that_waits_twice_at_once_has_its_place_back_when_both_are_over():
    """An agent's parallel tool calls: it is blocked until all have answered."""
    fleet = table(spec("parent"), at_most=1)
    started(fleet)
    one, two = fleet.add([spec(), spec()], 0, parent="parent")
    first, second = fleet.wait([one], waiter="parent"), fleet.wait([two], waiter="parent")
    assert started(fleet) == [one]
    fleet.ended(one, DONE, 1)
    assert [*fleet.poll(1)][:1] == [WaitOver(first)]
    assert fleet.tasks["parent"].state is State.LENDING
    fleet.ended(two, DONE, 2)
    assert list(fleet.poll(2)) == [WaitOver(second)]
    assert fleet.tasks["parent"].state is State.RUNNING


def test_a_waiter_that_dies_takes_its_loan_and_its_children_with_it():
    fleet = table(spec("parent", retries=0), spec("other"), at_most=1)
    started(fleet)
    fleet.add([spec("running"), spec("waiting")], 0, parent="parent")
    fleet.wait(["running", "waiting"], waiter="parent")
    assert started(fleet) == ["running"]
    assert fleet.ended("parent", DIED, 1) == ["running"]
    assert states(fleet) == {"parent": "failed", "other": "waiting", "running": "running", "waiting": "cancelled"}
    assert started(fleet, 1) == []  # the child still has the place
    fleet.ended("running", TryEnding(143, ""), 2)
    assert started(fleet, 2) == ["other"]
    assert fleet.tasks["running"].reason == "parent, which submitted it, has ended"


def test_one_that_stops_waiting_counts_again_at_once():
    fleet = table(spec("parent"), spec("other"), at_most=1)
    started(fleet)
    (child,) = fleet.add([spec()], 0, parent="parent")
    number = fleet.wait([child], waiter="parent")
    started(fleet)
    fleet.leave(number)
    fleet.ended(child, DONE, 1)
    assert (fleet.tasks["parent"].state, started(fleet, 1)) == (State.RUNNING, [])


def test_waits_from_outside_are_answered_each_once_and_lend_nothing():
    fleet = table(spec("a"), spec("b"))
    numbers = [fleet.wait(names) for names in (["a"], ["a", "b"], [], ["b"])]
    assert len(set(numbers)) == 4
    assert [one for one in fleet.poll(0) if isinstance(one, WaitOver)] == [WaitOver(numbers[2])]
    fleet.leave(numbers[3])
    assert states(fleet) == {"a": "running", "b": "running"}
    fleet.ended("a", DONE, 1)
    assert list(fleet.poll(1)) == [WaitOver(numbers[0])]
    fleet.ended("b", DONE, 2)
    assert list(fleet.poll(2)) == [WaitOver(numbers[1])]
    assert fleet.wait(["a"]) not in numbers


def test_children_of_one_that_succeeds_go_on():
    fleet = table(spec("parent"))
    started(fleet)
    (child,) = fleet.add([spec()], 0, parent="parent")
    assert fleet.ended("parent", DONE, 1) == []
    assert started(fleet, 1) == [child]


def test_waiting_in_a_circle_is_refused():
    fleet = table(spec("a"), spec("b"))
    started(fleet)
    (child,) = fleet.add([spec("child", ["b"])], 0, parent="a")
    fleet.wait([child], waiter="a")
    with pytest.raises(NotTaken, match="b would wait for itself: b → a → child → b"):
        fleet.wait(["a"], waiter="b")
    with pytest.raises(NotTaken, match="b would wait for itself"):
        fleet.wait(["b"], waiter="b")
    with pytest.raises(NotTaken, match="'c' is no task that runs here"):
        fleet.wait(["a"], waiter="c")


def test_the_deepest_level_is_clear():
    fleet = table(spec("t"), at_most=1)
    name = "t"
    for depth in range(MAX_DEPTH + 1):
        assert started(fleet) == [name]
        if depth == MAX_DEPTH:
            break
        parent, (name,) = name, fleet.add([spec()], 0, parent=name)
        fleet.wait([name], waiter=parent)
    with pytest.raises(NotTaken, match="8 levels deep: deeper ones are refused"):
        fleet.add([spec()], 0, parent=name)


@each(
    ("specs", "parent", "says"),
    [
        ([spec("x", ["y"]), spec("y", ["x"])], "", "in a circle: x → y → x"),
        ([spec("x", ["nobody"])], "", "depends on 'nobody', and there is no such task; there are fine, x, a"),
        ([spec("x"), spec("x")], "", "two tasks are named 'x'"),
        ([spec("x")], "nobody", "'nobody' is no task that runs here"),
        ([spec("x", group="painters")], "", "no worker group 'painters'; there are reviewers"),
    ],
)
def test_what_cannot_be_is_refused_as_a_whole(specs, parent, says):
    fleet = table(spec("a"), at_most=2, groups={"reviewers": 1})
    before = dict(fleet.tasks)
    with pytest.raises(NotTaken, match=says):
        fleet.add([spec("fine"), *specs], 0, parent=parent)
    assert fleet.tasks == before


def test_a_task_that_nothing_would_run_is_refused():
    fleet = table(spec("a", group="reviewers"), at_most=2, groups={"reviewers": 2})
    with pytest.raises(NotTaken, match="the worker groups have all 2 places"):
        fleet.add([spec("x")], 0)
    started(fleet)
    assert fleet.add([spec("y")], 0, parent="a") == ["y"]  # its parent's group is its own


def test_names_that_are_taken_get_a_number_and_those_beside_mean_it():
    fleet = table(spec("review"))
    assert fleet.add([spec("review"), spec("after", ["review"])], 0) == ["review-1", "after"]
    assert fleet.tasks["after"].spec.depends_on == ("review-1",)
    assert fleet.add([spec(), spec()], 0) == ["true-1", "true-2"]
    assert fleet.add([TaskSpec(command=("/usr/bin/größe.sh",))], 0) == ["gre-1"]


def test_cancelling_ends_what_runs_and_skips_what_depends_on_it():
    fleet = table(spec("a"), spec("b", ["a"]), spec("c"))
    started(fleet)
    assert fleet.cancel("a", 1) == ["a"]
    assert fleet.tasks["a"].state is State.RUNNING  # until its process has ended
    fleet.ended("a", TryEnding(0, ""), 2)
    assert states(fleet) == {"a": "cancelled", "b": "skipped", "c": "running"}
    with pytest.raises(NotTaken, match="a is over: cancelled"):
        fleet.cancel("a", 3)


def test_starts_are_staggered():
    fleet = table(spec("a"), spec("b"), start_every_s=10.0)
    assert started(fleet) == ["a"]
    wakeup = fleet.next_wakeup(0)
    assert 5 <= wakeup <= 15
    assert started(fleet, wakeup - 0.01) == []
    assert started(fleet, wakeup) == ["b"]
    assert fleet.next_wakeup(wakeup) is None


def test_nobody_starves_whoever_keeps_coming():
    """One place, and every ten seconds a short and critical task comes that takes ten seconds."""
    fleet = table(spec("patient", priority="low", estimated_tokens=10**6), at_most=1)
    now = 0.0
    fleet.add([spec("first", priority="critical", estimated_tokens=1)], now)
    (running,) = started(fleet)
    while running != "patient":
        fleet.add([spec(priority="critical", estimated_tokens=1)], now)
        now += 10
        fleet.ended(running, DONE, now)
        (running,) = started(fleet, now)
        assert now <= 5 * LIFT_S


class World:
    """Tasks that take their time, spawn children and wait for them, die and come back; all by one seed."""

    def __init__(self, seed, rules, tasks):
        self.rng = Random(seed)
        self.table = TaskTable(rules, rng=Random(seed))
        self.now = 0.0
        self.order = count()
        self.events = []
        self.lives = {}
        self.waiters = {}
        self.table.add(tasks, 0.0)

    def at(self, seconds, what, name):
        heapq.heappush(self.events, (self.now + seconds, next(self.order), what, name, self.lives.get(name)))

    def poll(self):
        for one in self.table.poll(self.now):
            if isinstance(one, WaitOver):
                self.at(self.rng.uniform(0, 3), "step", self.waiters.pop(one.wait))
            else:
                self.check_start(one.name)
                self.lives[one.name] = next(self.order)
                self.at(self.rng.uniform(0, 9), "step", one.name)
        assert self.busy() <= self.table.rules.at_most

    def busy(self):
        return sum(task.state is State.RUNNING for task in self.table.tasks.values())

    def check_start(self, name):
        task = self.table.tasks[name]
        assert all(self.table.tasks[one].state is State.DONE for one in task.spec.depends_on)
        assert task.state is State.RUNNING

    def step(self, name):
        """A task spawns children and waits for them, or ends."""
        luck = self.rng.random()
        task = self.table.tasks[name]
        if luck < 0.35 and task.depth < MAX_DEPTH and not task.cancelled:
            children = self.table.add([spec() for _ in range(self.rng.randint(1, 3))], self.now, parent=name)
            self.waiters[self.table.wait(children, waiter=name)] = name
        else:
            how = DIED if luck < 0.45 else FAILED if luck < 0.5 else DONE
            for one in self.table.ended(name, how, self.now):
                self.lives[one] = next(self.order)
                self.at(0.5, "killed", one)

    def run(self):
        for _ in range(20_000):
            self.poll()
            if self.table.is_over:
                return
            wakeup = self.table.next_wakeup(self.now)
            if self.events and (wakeup is None or self.events[0][0] <= wakeup):
                at, _, what, name, life = heapq.heappop(self.events)
                self.now = max(self.now, at)
                if life == self.lives.get(name) and self.table.tasks[name].is_alive:
                    self.step(name) if what == "step" else self.table.ended(name, DIED, self.now)
            else:
                assert wakeup is not None, f"nothing will ever happen: {states(self.table)}"
                assert wakeup > self.now, "a wakeup that is now would spin"
                self.now = wakeup
        raise AssertionError("no end")


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    at_most=st.integers(1, 4),
    steal_above=st.one_of(st.none(), st.integers(0, 3)),
    group=st.booleans(),
    shape=st.lists(st.tuples(st.sets(st.integers(1, 4)), st.sampled_from(["critical", "normal", "low"])), max_size=12),
)
def test_never_more_than_n_always_in_order_and_never_at_a_standstill(seed, at_most, steal_above, group, shape):
    groups = {"g": 1} if group and at_most > 1 else {}
    tasks = [
        spec(
            f"t{n}",
            sorted({f"t{n - back}" for back in backs if n - back >= 0}),
            priority=priority,
            group="g" if groups and n % 3 == 0 else "",
        )
        for n, (backs, priority) in enumerate(shape)
    ]
    World(seed, FleetRules(at_most, groups, steal_above=steal_above, start_every_s=0.1), tasks).run()


@each("parents", [1, 5, 30])
def test_parents_that_wait_for_a_child_each_finish_with_one_place(parents):
    fleet = table(*(spec(f"p{n}") for n in range(parents)), at_most=1)
    alive_most = 0
    while not fleet.is_over:
        for one in list(fleet.poll(0)):
            if isinstance(one, WaitOver):
                fleet.ended(next(name for name, task in fleet.tasks.items() if task.state is State.RUNNING), DONE, 0)
            elif fleet.tasks[one.name].parent:
                fleet.ended(one.name, DONE, 0)
            else:
                (child,) = fleet.add([spec()], 0, parent=one.name)
                fleet.wait([child], waiter=one.name)
        alive_most = max(alive_most, sum(task.is_alive for task in fleet.tasks.values()))
    assert all(task.state is State.DONE for task in fleet.tasks.values())
    assert alive_most <= 2  # a child goes before the next parent
