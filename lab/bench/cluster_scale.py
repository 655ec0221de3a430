"""`python -m lab.bench.cluster_scale [--write]`: the cost of an admission for the coordinator of a cluster of many members.

A coordinator, 100 members, and more and more agents, each of which has a request: nodes in the same process that hand
each other their envelopes in turn, encoded as they go through the engine. Time is virtual, at
the pace of the goal; only the coordinator's work is timed, by the thread's processor time. `--write` puts the
section anew into docs/bench.md.
"""

import argparse
import gc
import itertools
import random
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from time import thread_time

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted
from hivemind_addon.kernel.values.ticket import (
    AttemptResult,
    Demand,
    Dimension,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Reading,
    Ticket,
)
from hivemind_addon.plugins.cluster.messages import Publish
from hivemind_addon.plugins.cluster.node import ClusterNode, Role
from lab.bench.plan import FULL
from lab.cluster.engine import SimEngine
from lab.markdown import markdown_filled, markdown_table

GOAL_PER_S = 2_000
_PAGE = Path(__file__).parents[2] / "docs" / "bench.md"
_SLOTS = 200
_POOL = PoolKey("api.anthropic.com", "key-1", "claude-sonnet-4*")
_SETTINGS = PoolSettings(profile="bench", concurrency=ConcurrencySettings(initial=_SLOTS, maximum=_SLOTS))
_SUCCESS = AttemptResult(Outcome(OutcomeKind.SUCCESS, "200", status=200))
_JOINS_WITHIN_S = 10.0
_LONG_S = 1e6
FIRST = "host0"
"""Make the first member the coordinator."""
HEAD = Hints(
    readings=tuple(
        Reading(dimension.value, dimension, 60.0, limit=1e9, remaining=1e9, reset_in_s=1.0) for dimension in Dimension
    )
)
"""Four meters that are never near."""


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
        self.coordinator_s = self.member_s = 0.0
        self.bytes_in = self.bytes_out = self.envelopes = 0
        self.engine = SimEngine()
        self.flights = deque()
        self.admitted = 0
        self._posts = deque()
        self._nodes = {}
        self._numbers = itertools.count()
        self._add(FIRST)
        self._run(1.0)
        for number in range(1, members + 1):
            self._add(f"host{number}")
        self._run(_JOINS_WITHIN_S)
        roles = [node.role for node in self._nodes.values()]
        assert roles == [Role.COORDINATOR, *[Role.MEMBER] * members], roles
        self.members = list(self._nodes)[1:]

    def _add(self, me):
        seed = len(self._nodes)
        self._nodes[me] = ClusterNode(
            me=me,
            rng=random.Random(seed),
            make_scheduler=lambda: Scheduler(rng=random.Random(seed)),
        )
        self._turn(me)
        return me

    def submit(self, me, agent):
        """An agent asks at a member."""
        ticket = Ticket(
            id=f"{agent}.{next(self._numbers)}",
            pool=_POOL,
            agent=agent,
            session=agent,
            model="claude-sonnet-4-5",
            demand=Demand(input_tokens=2_000, total_tokens=2_500),
            arrived_at=self.now,
            deadline_at=self.now + _LONG_S,
            shed_at=self.now + _LONG_S,
        )
        self._do(me, lambda node: node.submit(ticket, _SETTINGS, self.now))

    def head(self, me, attempt):
        """An answer's head is there."""
        self._do(me, lambda node: node.observe(attempt, HEAD, self.now))

    def end(self, me, attempt):
        """An answer is complete."""
        self._do(me, lambda node: node.settle(attempt, _SUCCESS, self.now))

    def step(self, seconds):
        """Time passes; all that is due is done."""
        self.now += seconds
        for me, node in self._nodes.items():
            wakeup_at = node.next_wakeup()
            if wakeup_at is not None and wakeup_at <= self.now:
                self._turn(me)
        self._deliver()

    def _run(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.step(0.05)

    def _do(self, me, deed):
        began = thread_time()
        deed(self._nodes[me])
        self._count(me, began)
        self._turn(me)
        self._deliver()

    def _deliver(self):
        while self._posts:
            me, data = self._posts.popleft()
            self._do_quietly(me, data)

    def _do_quietly(self, me, data):
        began = thread_time()
        self._nodes[me].receive(data, self.now)
        self._count(me, began)
        if me == FIRST:
            self.envelopes += 1
            self.bytes_in += len(data)
        self._turn(me)

    def _turn(self, me):
        node = self._nodes[me]
        while True:
            began = thread_time()
            decisions = node.poll(self.now)
            requests = node.drain_outbox(self.now)
            node.drain_events()
            self._count(me, began)
            for decision in decisions:
                assert isinstance(decision, Admitted), decision
                self.flights.append((me, decision.attempt))
                self.admitted += 1
            for request in requests:
                if isinstance(request, Publish):
                    if me == FIRST:
                        self.bytes_out += len(request.data)
                    if request.to in self._nodes:
                        self._posts.append((request.to, request.data))
                elif (answer := self.engine.carry_out(request, me, self.now)) is not None:
                    node.answered(answer, self.now)
            if not requests and not decisions:
                return

    def _count(self, me, began):
        spent = thread_time() - began
        if me == FIRST:
            self.coordinator_s += spent
        else:
            self.member_s += spent


def measure(plan):
    """The curve over the agents."""
    return [_measure(agents, plan.cluster_members, plan.cluster_admissions) for agents in plan.cluster_agents]


def _measure(agents, members, admissions):
    """The cost of an admission with so many agents, each of which has a request all the time."""
    cluster = Cluster(members)
    home = {f"agent-{number}": cluster.members[number % members] for number in range(agents)}
    for agent, me in home.items():
        cluster.submit(me, agent)
    cluster.step(0.01)
    assert len(cluster.flights) == min(agents, _SLOTS), len(cluster.flights)
    gc.collect()
    cluster.coordinator_s = cluster.member_s = 0.0
    cluster.envelopes = cluster.bytes_in = cluster.bytes_out = cluster.admitted = 0
    while cluster.admitted < admissions:
        me, attempt = cluster.flights.popleft()
        cluster.head(me, attempt)
        cluster.end(me, attempt)
        cluster.submit(me, attempt.ticket.agent)
        cluster.step(1 / GOAL_PER_S)
    done = cluster.admitted
    return Scale(
        agents,
        members,
        done / cluster.coordinator_s,
        cluster.envelopes / done,
        cluster.bytes_in / done,
        cluster.bytes_out / done,
        cluster.member_s / done,
    )


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


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m lab.bench.cluster_scale", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/bench.md")
    options = parser.parse_args(arguments)
    text = table(measure(FULL))
    print(text)
    if options.write:
        _PAGE.write_text(markdown_filled(_PAGE.read_text(), {"cluster": text}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
