"""One machine that serves several models: how many it holds, what a change costs, and that nobody waits for ever."""

import random

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.limits.machine import MachineSettings
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import MoveToFront, Pause
from hivemind_addon.kernel.values.decision import Admitted
from hivemind_addon.kernel.values.ticket import AttemptResult, Hints, PoolKey, Priority
from hivemind_addon.sim.agenda import Agenda
from hivemind_addon.sim.limits import SimMachine
from tests.kernel.samples import POOL, SUCCESS, Bench, ticket


class Gpu:
    """Agents on a simulated machine, each of which calls again as soon as it is answered, after a pause."""

    def __init__(self, *, holds: int, load_s: float, slots: int = 1, service_s: float = 0.3, pause_s: float = 0.0):
        self.scheduler = Scheduler(rng=random.Random(0))
        self.settings = PoolSettings(concurrency=ConcurrencySettings(1, slots), machine=MachineSettings())
        self.agenda, self.rng = Agenda(), random.Random(0)
        self.machine = SimMachine(holds, load_s)
        self.service_s, self.pause_s = service_s, pause_s
        self.answered_before = 0
        self.order: list[str] = []
        """The models of the calls, as they went."""
        self.waits_s: dict[str, list[float]] = {}
        """By agent."""
        self.asked: dict[str, tuple[str, str, float, int]] = {}

    def ask(self, agent: str, model: str, calls: int, priority: Priority = Priority.NORMAL) -> None:
        name = f"{agent} {calls}"
        asked = ticket(name, session=agent, at=self.agenda.now, pool=PoolKey("gpu", "", model), patience_s=9e9)
        self.asked[name] = (agent, model, self.agenda.now, calls)
        self.scheduler.submit(replace(asked, priority=priority), self.settings, self.agenda.now)

    def run(self) -> float:
        while self.agenda.step(self.scheduler.next_wakeup(), until=1e6):
            for decision in self.scheduler.poll(self.agenda.now):
                assert isinstance(decision, Admitted)
                agent, model, asked_at, _ = self.asked[decision.attempt.ticket.id]
                self.order.append(model)
                self.waits_s.setdefault(agent, []).append(self.agenda.now - asked_at)
                head_s = self.machine.waits_s(model, self.service_s, self.agenda.now) + self.service_s / 3
                self.agenda.after(head_s, self.hears, decision.attempt)
        assert self.scheduler.is_idle
        return self.agenda.now

    def shrink(self) -> None:
        """From now on the machine holds one model."""
        self.answered_before = len(self.order)
        self.machine = SimMachine(1, 2.0)

    def hears(self, attempt) -> None:
        self.scheduler.observe(attempt, Hints(), self.agenda.now)
        self.agenda.after(self.service_s * 2 / 3, self.ends, attempt)

    def ends(self, attempt) -> None:
        self.scheduler.settle(attempt, AttemptResult(SUCCESS), self.agenda.now)
        agent, model, _, calls = self.asked[attempt.ticket.id]
        if calls > 1:
            self.agenda.after(self.rng.uniform(0, self.pause_s), self.ask, agent, model, calls - 1)


def agents(gpu: Gpu, models: str, each: int, calls: int) -> None:
    for number in range(each):
        for model in models:
            gpu.agenda.at(0.01 * number, gpu.ask, f"{model}-{number}", model, calls)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("pause_s", [0.0, 0.5])
@pytest.mark.parametrize("load_s", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("calls", [3, 20])
def test_models_that_replace_each_other_take_turns(slots, pause_s, load_s, calls):
    gpu = Gpu(holds=1, load_s=load_s, slots=slots, pause_s=pause_s)
    agents(gpu, "abc", 2, calls)
    bound_s = 6 * calls * 0.3 + 3 * load_s
    assert gpu.run() <= (1.3 if load_s > 0.5 and not pause_s else 1.45) * bound_s
    assert len(gpu.order) == 6 * calls


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("holds", [2, 3])
def test_models_that_are_held_together_soon_run_beside_each_other(holds, slots):
    gpu = Gpu(holds=holds, load_s=2.0, slots=slots)
    agents(gpu, "abc"[:holds], 2, 60)
    alone = Gpu(holds=holds, load_s=2.0)
    agents(alone, "a", 2, 60)
    assert gpu.run() <= alone.run() + 6 * 2.0, "found within some loads"
    for waits_s in gpu.waits_s.values():
        assert max(waits_s[30:]) <= 0.31, "for the other agent of the model, and no other"


def test_what_a_machine_holds_is_learned_anew():
    gpu = Gpu(holds=3, load_s=2.0)
    agents(gpu, "abc", 2, 200)
    gpu.agenda.at(40.0, gpu.shrink)
    took_s = gpu.run()
    assert took_s <= 40.0 + 1.45 * 0.3 * (1200 - gpu.answered_before)


@pytest.mark.parametrize("load_s", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("holds", [1, 3])
def test_nobody_waits_out_of_proportion(holds, load_s):
    gpu = Gpu(holds=holds, load_s=load_s)
    agents(gpu, "a", 20, 30)
    gpu.agenda.at(5.0, gpu.ask, "other", "b", 5)
    gpu.agenda.at(load_s + 30.0, gpu.ask, "hurry", "c", 1, Priority.CRITICAL)
    gpu.run()
    assert max(gpu.waits_s["other"]) <= 10 * load_s + 20 * 0.3 + 1.0, (
        "two turns at most, the loads, and each other agent once"
    )
    assert max(gpu.waits_s["hurry"]) <= load_s + 0.7


def test_a_paused_model_holds_no_slot_of_the_others():
    slots, paused = ConcurrencySettings(4, 4), replace(POOL, model_group="paused")
    bench = Bench(settings=PoolSettings(concurrency=slots, machine=MachineSettings()))
    bench.submit("a")
    bench.scheduler.command(Pause("*/paused"), bench.now)
    bench.submit("held", pool=paused)
    bench.scheduler.command(MoveToFront("held"), bench.now)
    assert bench.submit("b", "c", "d") == ["b", "c", "d"]
