"""`python -m lab.bench.cluster_scale [--write]`: the cost of an admission for the coordinator of a cluster of many members.

A coordinator, 100 members, and more and more agents, each of which has a request: nodes in one process that hand
each other their envelopes in turn, encoded as they go through the engine. Time is virtual, at the pace of the goal; only
the nodes' work is timed, by the thread's processor time. `--write` puts the section anew into docs/bench.md.
"""

import gc
import itertools
import random
import sys
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from time import thread_time

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.ticket import AttemptResult, Demand, Ticket
from hivemind_addon.plugins.cluster.messages import Publish
from hivemind_addon.plugins.cluster.node import ClusterNode, Role
from lab.bench.decisions import HINTS, POOL, SUCCESS
from lab.bench.plan import FULL
from lab.cluster.network import SimEngine
from lab.markdown import markdown_filled, markdown_table

GOAL_PER_S = 2_000
_PAGE = Path(__file__).parents[2] / "docs" / "bench.md"
_SLOTS = 200
_SETTINGS = PoolSettings(profile="bench", concurrency=ConcurrencySettings(initial=_SLOTS, maximum=_SLOTS))
_JOINS_WITHIN_S = 10.0
_LONG_S = 1e6
_FIRST = "host0"
"""Becomes the coordinator."""


@dataclass(frozen=True)
class Scale:
    """With so many agents."""

    agents: int
    members: int
    admissions_per_s: float
    envelopes: float
    """That the coordinator took for an admission."""
    bytes_in: float
    """In these."""
    bytes_out: float
    member_s: float
    """Processor time of all members for an admission."""


class Cluster:
    """Nodes that hand each other their envelopes at once."""

    def __init__(self, members):
        self.now = 0.0
        self.engine = SimEngine()
        self.flights, self._posts = deque(), deque()
        self.counts = Counter()
        """Processor time of the `coordinator` and of the `members`, `envelopes`, bytes `in` and `out`, and `admitted`."""
        self._nodes, self._numbers = {}, itertools.count()
        self._add(_FIRST)
        self.run(1.0)
        self.members = [self._add(f"host{number}") for number in range(1, members + 1)]
        self.run(_JOINS_WITHIN_S)
        roles = Counter(node.role for node in self._nodes.values())
        assert roles == {Role.COORDINATOR: 1, Role.MEMBER: members}, roles

    def _add(self, me):
        seed = len(self._nodes)
        node = ClusterNode(me=me, rng=random.Random(seed), make_scheduler=lambda: Scheduler(rng=random.Random(seed)))
        self._nodes[me] = node
        self._turn(me)
        return me

    def submit(self, me, agent):
        """An agent asks at a member."""
        ticket = Ticket(
            id=f"{agent}.{next(self._numbers)}",
            pool=POOL,
            agent=agent,
            session=agent,
            model="claude-sonnet-4-5",
            demand=Demand(input_tokens=2_000, total_tokens=2_500),
            arrived_at=self.now,
            deadline_at=self.now + _LONG_S,
            shed_at=self.now + _LONG_S,
        )
        self._do(me, lambda node: node.submit(ticket, _SETTINGS, self.now))

    def answer(self, me, attempt):
        """The head and the end of an answer."""
        self._do(me, lambda node: node.observe(attempt, HINTS, self.now))
        self._do(me, lambda node: node.settle(attempt, AttemptResult(SUCCESS), self.now))

    def run(self, seconds, step_s=0.05):
        """Time passes; all that is due is done."""
        until = self.now + seconds
        while self.now < until:
            self.now += step_s
            for me, node in self._nodes.items():
                wakeup_at = node.next_wakeup()
                if wakeup_at is not None and wakeup_at <= self.now:
                    self._turn(me)
            self._deliver()

    def _do(self, me, deed):
        self._timed(me, deed)
        self._turn(me)
        self._deliver()

    def _deliver(self):
        while self._posts:
            me, data = self._posts.popleft()
            self._timed(me, lambda node, data=data: node.receive(data, self.now))
            if me == _FIRST:
                self.counts += Counter({"envelopes": 1, "in": len(data)})
            self._turn(me)

    def _turn(self, me):
        requests = decisions = True
        while requests or decisions:
            decisions, requests, _ = self._timed(
                me, lambda node: (node.poll(self.now), node.drain_outbox(self.now), node.drain_events())
            )
            self.flights += [(me, decision.attempt) for decision in decisions]
            self.counts["admitted"] += len(decisions)
            for request in requests:
                if isinstance(request, Publish):
                    self.counts["out"] += len(request.data) * (me == _FIRST)
                    if request.to in self._nodes:
                        self._posts.append((request.to, request.data))
                elif (answer := self.engine.carry_out(request, me, self.now)) is not None:
                    self._nodes[me].answered(answer, self.now)

    def _timed(self, me, deed):
        began = thread_time()
        done = deed(self._nodes[me])
        self.counts["coordinator" if me == _FIRST else "members"] += thread_time() - began
        return done


def measure(plan):
    """The curve over the agents."""
    return [_measure(agents, plan.cluster_members, plan.cluster_admissions) for agents in plan.cluster_agents]


def _measure(agents, members, admissions):
    """The cost of an admission with so many agents, each of which has a request all the time."""
    cluster = Cluster(members)
    for number in range(agents):
        cluster.submit(cluster.members[number % members], f"agent-{number}")
    cluster.run(0.01, 0.01)
    assert len(cluster.flights) == min(agents, _SLOTS), len(cluster.flights)
    gc.collect()
    counts = cluster.counts = Counter()
    while counts["admitted"] < admissions:
        me, attempt = cluster.flights.popleft()
        cluster.answer(me, attempt)
        cluster.submit(me, attempt.ticket.agent)
        cluster.run(1 / GOAL_PER_S, 1 / GOAL_PER_S)
    done = counts["admitted"]
    each = [counts[name] / done for name in ("envelopes", "in", "out", "members")]
    return Scale(agents, members, done / counts["coordinator"], *each)


def table(scales):
    """In Markdown."""
    lines = []
    for one in scales:
        mark = "**!** " if one.admissions_per_s < GOAL_PER_S else ""
        lines.append(
            f"{one.agents:,} | {mark}{one.admissions_per_s:,.0f} | {one.envelopes:.1f} "
            f"| {one.bytes_in:,.0f}, {one.bytes_out:,.0f} | {one.member_s * 1e6:.0f} µs"
        )
    members = scales[0].members
    titles = f"Agents, at {members} members | admissions a second | envelopes in | bytes in, out | members' time"
    return markdown_table(titles, lines)


if __name__ == "__main__":
    text = table(measure(FULL))
    print(text)
    if "--write" in sys.argv[1:]:
        _PAGE.write_text(markdown_filled(_PAGE.read_text(), {"cluster": text}))
