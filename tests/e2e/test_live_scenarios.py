"""Small versions of the scenarios through a real mitmdump: it does what virtual time says at the same scale."""

import asyncio
import dataclasses

import pytest

from hivemind_addon.lab.sim.agreement import FACTOR, LIVE, compare
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.live import scaled

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("live")]

SIZES = {"replay-11": (11, 8), "stress": (10, 3), "fan-out": (12, 4)}
"""Agents and turns."""
LONGEST_S = 300
TIME_APART = 3.0
"""Share: other tests keep the machine busy. How much time it takes is for `hivemind prove --live` to say."""
TIMEOUT_S = 600
"""Of the agents, before it is scaled: what too little patience costs is for `hivemind prove --live` to say, too."""


def small(name):
    scenario = next(one for one in LIVE if one.name == name)
    agents, turns = SIZES[name]
    (crowd,) = scenario.crowds
    crowd = dataclasses.replace(crowd, agents=agents, turns=turns, timeout_s=TIMEOUT_S)
    return scaled(dataclasses.replace(scenario, crowds=(crowd,)), FACTOR)


CASES = [("replay-11", LimitKind.BUCKET), ("stress", LimitKind.WINDOW), ("fan-out", LimitKind.BUCKET)]
"""Each scenario once and each kind of limit; `hivemind prove --live` compares them all, at full size."""


@pytest.fixture(scope="module")
def compared():
    """All of them at the same time: they mostly wait for their limits."""

    async def run():
        async with asyncio.timeout(LONGEST_S), asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(compare(small(name), kind, seed=1)) for name, kind in CASES}
        return {name: task.result() for name, task in tasks.items()}

    return asyncio.run(run())


@pytest.mark.parametrize("name", SIZES)
def test_the_socket_agrees_with_virtual_time(compared, name):
    agents, turns = SIZES[name]
    one = compared[name]
    live, virtual = one.live, one.virtual
    assert (live.lost, live.agents, live.sheds, one.guard_trips) == (0, agents, 0, 0), live.deaths
    (crowd,) = live.crowds.values()
    assert crowd.turns_done == live.statuses[200] == agents * turns
    # Faults are drawn call by call, and every turn needs one call without: their number is the same to one.
    assert {status: live.statuses[status] for status in (0, 502)} == {
        status: virtual.statuses[status] for status in (0, 502)
    }
    assert abs(live.ideal_cost / virtual.ideal_cost - 1) < 0.01, "the agents wanted something else"
    assert list(one.disagreements(time_apart=TIME_APART)) == []
