"""The promises of docs/cluster.md, each tried with some seeds; `CLUSTER_SEEDS=1000` tries more of them.

A broken one names its seed: `python -m lab.cluster --only 'is killed' --from 17 --seeds 1` runs it alone.
"""

import functools
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hivemind_addon.plugins.cluster import lease, node, outbox
from hivemind_addon.plugins.cluster.coordinator import Coordinator
from hivemind_addon.plugins.cluster.node import ClusterNode, Timing
from lab.cluster.__main__ import simulate
from lab.cluster.scenarios import SCENARIOS

SEEDS = int(os.environ.get("CLUSTER_SEEDS", "10"))
PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_promised_holds(name):
    broken = [run for seed in range(SEEDS) if (run := simulate(seed, BY_NAME[name])).broken]
    assert not broken, "\n".join([*map(str, broken), broken[0].trace(40)])


def test_each_row_of_the_page_is_a_scenario():
    promises = PAGE.read_text().partition("<!-- promises -->")[2].partition("<!-- /promises -->")[0]
    rows = re.findall(r"^\| ([^|]+) \|", promises, re.MULTILINE)
    assert [row[0].lower() + row[1:] for row in rows[2:]] == list(BY_NAME)


def test_one_seed_is_one_run_whatever_the_hashes():
    code = (
        "from lab.cluster.__main__ import simulate\n"
        "from lab.cluster.scenarios import SCENARIOS\n"
        "print(*(simulate(seed, SCENARIOS[-1]).trace() for seed in range(6)), sep='\\n')"
    )
    traces = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert len(traces[0].splitlines()) > 300


@pytest.mark.parametrize(
    "fault", ["counts nothing", "knows no end of its lease", "sends nothing again", "reads any epoch"]
)
def test_a_fault_is_found(fault, monkeypatch):
    """The promises are checked indeed: each of these breaks one."""
    match fault:
        case "counts nothing":
            name = "the coordinator is killed"
            monkeypatch.setattr(Coordinator, "_count", lambda *_: None)
        case "knows no end of its lease":
            name = "the coordinator stands still, and goes on"
            monkeypatch.setattr(lease, "_MARGIN_S", -20.0)
        case "sends nothing again":
            name = "messages are late, lost, doubled or out of order"
            monkeypatch.setattr(node, "Timing", functools.partial(Timing, resend_s=math.inf))
        case _:
            name = "the coordinator is cut off"
            monkeypatch.setattr(ClusterNode, "_receive_of_coordinator", _read_anything)
    assert any(simulate(seed, BY_NAME[name]).broken for seed in range(SEEDS))


def _read_anything(self, envelope, now):
    """As `ClusterNode._receive_of_coordinator`, without a look at who sends it, and in which epoch."""
    for message in map(outbox._read_of_coordinator, envelope.messages):
        if message is not None:
            self._member.hear(message, 0.0, now)
