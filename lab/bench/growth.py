"""How the price of a request grows with the agents that the scheduler knows."""

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from lab.bench import decisions
from lab.bench.plan import SMALL_BYTES, Cell
from lab.bench.rounds import Row, sample
from lab.bench.starts import run
from lab.bench.watched import fetch

CONNECTIONS = 20
QUEUED = 10_000
"""Tickets of the decision that is timed."""
_TIMES = 4
"""Each way, in turns."""
_FETCHES = 3


@dataclass(frozen=True)
class Grown:
    """Beside so many agents."""

    agents: int
    row: Row
    """Requests of them all in turn, bare and ours."""
    decision_s: float
    head_s: float
    page_s: float
    status_s: float
    rss_bytes: int


def measure(stack, plan, tell):
    """A proxy, whose scheduler knows more and more agents."""
    proxy = stack.start_addon("grown", slots=256)
    stack.proxies["addon"] = proxy
    grown = []
    for agents in plan.agents:
        tell(f"{agents:,} agents")
        cell = Cell(SMALL_BYTES, True, CONNECTIONS, plan.growth_requests)
        sample(stack, cell, "addon", requests=agents, sessions=agents)
        sample(stack, cell, "bare", requests=CONNECTIONS)
        rounds = []
        for number in range(_TIMES):
            order = ("bare", "addon") if number % 2 == 0 else ("addon", "bare")
            rounds.append({variant: sample(stack, cell, variant, sessions=agents) for variant in order})
        core = decisions.time_calls(QUEUED, plan.decisions, sessions=agents, agents=agents)
        status = (Path(sys.executable).parent / "hivemind", "status", "-p", proxy.reverse_port)
        grown.append(
            Grown(
                agents,
                Row(cell, tuple(rounds)),
                core.decision.mean_s,
                core.head.mean_s,
                median(_fetch_s(proxy.forward_port) for _ in range(_FETCHES)),
                median(run(stack, status)[0] for _ in range(_FETCHES)),
                proxy.rss_bytes(),
            )
        )
    return grown


def _fetch_s(port):
    began = perf_counter()
    fetch(port, "/report.json")
    return perf_counter() - began
