"""Side by side on real sockets: a small scenario, straight and through a real mitmdump."""

import dataclasses

import pytest

from hivemind_addon.lab.evaluate import sockets
from hivemind_addon.lab.sim.library import cases

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("live")]


def test_the_scheduler_keeps_agents_alive_that_die_on_their_own(monkeypatch):
    case = cases()["replay-11"]
    (crowd,) = case.scenario.crowds
    # Three turns each: 33 calls at a cap of 5, a seventh of which fails.
    small = dataclasses.replace(
        case, scenario=dataclasses.replace(case.scenario, crowds=(dataclasses.replace(crowd, turns=3),))
    )
    monkeypatch.setattr(sockets, "_FACTORS", {"replay-11": 5})
    monkeypatch.setattr(sockets, "cases", lambda: {"replay-11": small})
    told = []
    runs = sockets.run_on_sockets(peer=False, names=("replay-11",), done=told.append)
    assert [(run.way, run.kind.value) for run in runs] == [
        ("direct", "bucket"),
        ("hivemind", "bucket"),
        ("direct", "window"),
        ("hivemind", "window"),
    ]
    assert len(told) == sockets.socket_setups(("replay-11",)) == 1
    for direct, ours in (runs[:2], runs[2:]):
        assert ours.figures.lost == 0, ours.deaths
        assert ours.figures.turns_done == 33
        assert direct.figures.lost > 0.2
        assert direct.deaths
