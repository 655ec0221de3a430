"""AgentRM's schedulers: who is next, how many lanes there are, and who is reaped."""

import pickle
import random
from dataclasses import replace

import pytest

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.ticket import Demand, PoolKey, Priority, Ticket
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.queue_admission import ArrivalOrder
from hivemind_addon.sim.workload import Crowd, Scenario
from hivemind_addon.sim.world import World, run
from lab.papers import queues
from lab.papers.queues import AGENTRM, ClassOrder, FeedbackOrder, RoundRobinOrder
from tests.cases import each

POOL = PoolKey("api.sim", "key", "sim-1")


def ticket(name: str, *, priority: Priority = Priority.NORMAL) -> Ticket:
    """Of the agent that the first letter names."""
    return Ticket(
        id=name,
        pool=POOL,
        agent=name[0],
        session=name[0],
        model="sim-1",
        demand=Demand(),
        arrived_at=0,
        deadline_at=600,
        shed_at=590,
        priority=priority,
    )


def taken(order, *names: str) -> list[str]:
    """The order in which they go that come in this one."""
    for name in names:
        order.put(ticket(name))
    return [order.take().id for _ in range(len(order))]


def test_agents_take_turns_however_many_calls_each_has():
    assert taken(RoundRobinOrder(), "a1", "a2", "a3", "b1", "c1", "b2") == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_the_highest_class_goes_first_and_within_it_who_came_first():
    order = ClassOrder()
    for name, priority in (("a", Priority.LOW), ("b", Priority.NORMAL), ("c", Priority.HIGH), ("d", Priority.NORMAL)):
        order.put(ticket(name, priority=priority))
    assert [order.take().id for _ in range(4)] == ["c", "b", "d", "a"]


def test_who_has_had_its_quantum_goes_behind_those_who_have_not():
    order = FeedbackOrder()
    assert taken(order, "a1") == ["a1"]  # one call at the first level
    assert taken(order, "a2", "b1") == ["b1", "a2"]  # a has one of two at the second, and b comes down
    assert taken(order, "a3", "b2") == ["a3", "b2"]  # a has had both
    assert taken(order, "a4", "b3") == ["b3", "a4"]


def test_the_longest_at_work_stays_at_the_last_level_until_all_are_raised():
    order = FeedbackOrder()
    for number in range(1, 99):
        assert taken(order, f"a{number}") == [f"a{number}"]
    assert taken(order, "a99", "b99") == ["b99", "a99"]  # the hundredth call raises a
    assert taken(order, "a100", "c100") == ["a100", "c100"]


def test_who_waits_below_at_the_boost_waits_on_top_then():
    order = FeedbackOrder()
    for number in range(99):
        taken(order, f"a{number}")
    order.put(ticket("a100"))
    order.put(ticket("b100"))
    assert order.take().id == "b100"
    order.put(ticket("c101"))
    assert [order.take().id for _ in range(2)] == ["a100", "c101"]


@each("order", [ArrivalOrder, RoundRobinOrder, ClassOrder, FeedbackOrder])
def test_whose_client_goes_is_never_next(order):
    waiting = order()
    for name in ("a1", "a2", "b1"):
        waiting.put(ticket(name))
    assert waiting.remove("a1").id == "a1"
    assert waiting.remove("a1") is None
    assert waiting.remove("b1").id == "b1"
    assert [waiting.take().id for _ in range(len(waiting))] == ["a2"]


@each("policy", AGENTRM)
def test_a_call_holds_a_lane_and_there_are_five_or_as_many_as_the_settings_allow(policy):
    def most(settings: PoolSettings) -> int:
        admission = policy.admission(random.Random(0))
        for letter in "abcdefgh":
            admission.submit(ticket(letter), settings, 0.0)
        return len(admission.poll(0.0))

    assert most(PoolSettings()) == 5
    assert most(PoolSettings(concurrency=ConcurrencySettings(1, 2))) == 2


# In the world ---------------------------------------------------------------------------------------------------------


HANGING = Scenario(
    "hanging",
    (Crowd("agent", 4, 3, latency_s=5, timeout_s=7200),),
    ProviderSettings(faults={"hang": 0.3}, hang_s=500),
    scheduler=PoolSettings(concurrency=ConcurrencySettings(2, 2)),
)


def test_what_hangs_holds_its_lane_to_the_end_unless_it_is_reaped():
    held, reaped = run(HANGING, seed=1, policy=queues.AGENTRM_FIFO), run(HANGING, seed=1, policy=queues.MLFQ)
    assert (held.turns_done, reaped.turns_done) == (12, 12)
    assert held.zombies > 0
    assert held.wasted_lane_s == pytest.approx(500 * held.zombies, abs=1)
    assert (held.attempts, held.amplification) == (12, 1.0)
    assert reaped.zombies == 0
    assert reaped.wasted_lane_s < 0.2 * held.wasted_lane_s


def test_the_reaper_waits_as_long_as_the_scenario_says():
    patient = replace(HANGING, silent_s=200)
    soon, late = run(HANGING, seed=1, policy=queues.MLFQ), run(patient, seed=1, policy=queues.MLFQ)
    assert min(soon.attempts, late.attempts) > 12
    assert soon.wasted_lane_s == pytest.approx(30 * (soon.attempts - 12), abs=1)
    assert late.wasted_lane_s == pytest.approx(200 * (late.attempts - 12), abs=1)


@each("policy", AGENTRM)
def test_every_call_ends_and_nothing_stays_open(policy):
    for name in ("stress", "mixed-providers"):
        world = World(cases()[name].scenario, seed=2, policy=policy)
        world.run()
        assert world.scheduler.is_idle
        assert world.provider.truth().in_flight == 0


def test_its_cascade_keeps_the_papers_order():
    scenario = cases()["agentrm-cascade"].scenario
    fifo, mlfq, ours = (run(scenario, seed=0, policy=policy) for policy in (AGENTRM[0], AGENTRM[-1], Policy.HIVEMIND))
    assert [one.turns_done for one in (fifo, mlfq, ours)] == [149, 149, 149]
    assert (mlfq.zombies, ours.zombies) == (0, 0)
    assert fifo.zombies > 20
    for one in (mlfq, ours):
        assert one.latency_s(0.95) < 0.2 * fifo.latency_s(0.95)
        assert one.wasted_lane_s < 0.1 * fifo.wasted_lane_s
        assert one.turns_a_minute > 3 * fifo.turns_a_minute


@each("policy", AGENTRM)
def test_a_policy_travels_by_its_name(policy):
    assert pickle.loads(pickle.dumps(policy)) == policy
