"""Scenarios that run faster, on the socket and in virtual time.

    scaled(scenario, factor) ──► virtual(…)  the scheduler alone, in virtual time (sim/world.py)
                             └─► live(…)     real connections through a real mitmdump, in real time (sim/live.py)

A factor divides all times of a scenario: the windows of limits, latencies, think times and the clients' patience. The
scheduler's own times stay. So both runs have the same scale, and are compared with each other only (lab/agreement.py).
"""

import dataclasses
import random

from msgspec import structs

from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.ticket import Attempt, Hints
from hivemind_addon.sim.live import window_of
from hivemind_addon.sim.result import Result
from hivemind_addon.sim.workload import Scenario
from hivemind_addon.sim.world import World


def scaled(scenario: Scenario, factor: float) -> Scenario:
    """The same scenario with all times divided by `factor`."""

    def shorter(times_s: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(time_s / factor for time_s in times_s)

    crowds = tuple(
        dataclasses.replace(
            crowd,
            starts_s=shorter(crowd.starts_s),
            think_s=shorter(crowd.think_s),
            latency_s=crowd.latency_s / factor,
            tokens_per_s=crowd.tokens_per_s * factor,
            timeout_s=crowd.timeout_s / factor,
        )
        for crowd in scenario.crowds
    )
    limits = tuple(dataclasses.replace(limit, window_s=limit.window_s / factor) for limit in scenario.provider.limits)
    provider = dataclasses.replace(scenario.provider, limits=limits, cache_ttl_s=scenario.provider.cache_ttl_s / factor)
    return dataclasses.replace(scenario, crowds=crowds, provider=provider, way_s=scenario.way_s / factor)


class _ScaledScheduler(Scheduler):
    """Reads limits for another window, as stated in the profile of the live run."""

    def __init__(self, *, rng: random.Random, window_s: float) -> None:
        super().__init__(rng=rng)
        self._window_s = window_s

    def observe(self, attempt: Attempt, hints: Hints, now: float, *, answered: bool = True) -> None:
        readings = tuple(structs.replace(reading, window_s=self._window_s) for reading in hints.readings)
        super().observe(attempt, structs.replace(hints, readings=readings), now, answered=answered)


def virtual(scenario: Scenario, *, seed: int) -> Result:
    """Run a scaled scenario in virtual time."""
    world = World(scenario, seed=seed)
    world.scheduler = _ScaledScheduler(rng=random.Random(f"{seed} scheduler"), window_s=window_of(scenario))
    return world.run()
