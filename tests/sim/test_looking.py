"""To look changes nothing: who is watched every two seconds is served as who is not."""

import math
from typing import override

import pytest

from hivemind_addon.kernel.values.command import ForeseeWait
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.world import World

BUCKET, WINDOW = LimitKind.BUCKET, LimitKind.WINDOW


class Watched(World):
    """Somebody looks at everything, every two seconds, and an agent asks when its call would go."""

    looks = 0

    @override
    def _let_pass(self, instant):
        at = 2.0 * math.floor(self.now / 2.0) + 2.0
        while at < instant < math.inf:
            self.scheduler.snapshot(at, most_queued=None if self.looks % 2 else 3)
            self.scheduler.command(ForeseeWait(agent="stranger"), at)
            self.looks += 1
            at += 2.0
        super()._let_pass(instant)


def decided(kind, scenario):
    told = []
    world = kind(scenario, seed=0, listen=told.append)
    world.run()
    return told, world


@pytest.mark.parametrize(
    ("name", "limits", "headers"),
    [
        ("output-bucket", None, True),
        ("big-contexts", None, True),
        ("latency-spike", BUCKET, True),
        ("micro-20", BUCKET, False),
        ("micro-20", WINDOW, True),
        ("micro-20", WINDOW, False),
        ("two-endpoints", BUCKET, True),
        ("separate-limits", None, True),
    ],
)
def test_to_look_changes_nothing(name, limits, headers):
    scenario = cases()[name].at(limits, headers=headers)
    alone, _ = decided(World, scenario)
    watched, world = decided(Watched, scenario)
    assert world.looks > 10
    assert watched == alone
