"""Nodes of one cluster, with an engine that answers at once: what becomes of the whole from one to the next."""

import random

import msgspec
from msgspec.structs import replace

from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import SetPriority
from hivemind_addon.kernel.values.decision import Admitted
from hivemind_addon.kernel.values.spend import AccountState, Budget, Period, Scope, Spend
from hivemind_addon.kernel.values.ticket import AttemptResult, Job, Outcome, OutcomeKind, Priority, Usage
from hivemind_addon.plugins.cluster.messages import VERSION, EngineFailed, Fetch, Packet, Publish
from hivemind_addon.plugins.cluster.node import ClusterNode, Role
from lab.cluster.network import SimEngine
from tests.kernel.samples import ticket

STEP_S = 0.1
HOURLY = Budget(Scope.EVERYONE, "", tokens=1_000, per=Period.HOUR)


class Cluster:
    """Nodes by name, on one clock; who is not in `nodes` any more hears nothing."""

    def __init__(self) -> None:
        self.now = 0.0
        self.engine = SimEngine()
        self.engine_is_up = True
        self.fails: type | None = None
        """Requests of this kind get no answer."""
        self.newer: set[str] = set()
        """Those whose protocol is another version than the others'."""
        self.nodes: dict[str, ClusterNode] = {}
        self.decisions: list = []

    def add(self, name: str) -> ClusterNode:
        self.nodes[name] = ClusterNode(
            me=name, rng=random.Random(name), make_scheduler=lambda: Scheduler(rng=random.Random(name))
        )
        return self.nodes[name]

    def run(self, seconds: float) -> None:
        """Everybody's turns, for so long."""
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            for name, node in list(self.nodes.items()):
                self.decisions += node.poll(self.now)
                for request in node.drain_outbox(self.now):
                    self._carry(name, request)

    def spend(self, node: ClusterNode, tokens: int) -> None:
        """One call, that everybody's budget of an hour pays."""
        asked = replace(ticket(f"t-{self.now}", at=self.now), budgets=(HOURLY,))
        node.submit(asked, PoolSettings(), self.now)
        self.run(0.5)
        (attempt,) = [
            one.attempt for one in self.decisions if isinstance(one, Admitted) and one.attempt.ticket == asked
        ]
        success = Outcome(OutcomeKind.SUCCESS, "200", status=200)
        node.settle(attempt, AttemptResult(success, usage=Usage(input_tokens=tokens, reported=True)), self.now)
        self.run(2.0)

    def _carry(self, name: str, request: object) -> None:
        node = self.nodes[name]
        if isinstance(request, Publish):
            if self.engine_is_up and request.to in self.nodes:
                packet = msgspec.msgpack.decode(request.data, type=Packet)
                packet = replace(packet, version=VERSION + ((name in self.newer) != (request.to in self.newer)))
                self.nodes[request.to].receive(msgspec.msgpack.encode(packet), self.now)
        elif not self.engine_is_up or type(request) is self.fails:
            node.answered(EngineFailed(request, "is gone"), self.now)
        elif (answer := self.engine.carry_out(request, name, self.now)) is not None:
            node.answered(answer, self.now)


def spent(node: ClusterNode, now: float) -> tuple[int, float]:
    """Tokens of the hour's budget, and how long its period goes on."""
    (view,) = node.snapshot(now).budgets
    return view.spent.tokens, view.renews_in_s


def test_an_hour_s_budget_goes_on_where_its_coordinator_had_stopped_and_ends_with_its_hour():
    cluster = Cluster()
    first = cluster.add("first")
    cluster.run(3.0)
    cluster.spend(first, 700)
    first.command(SetPriority("*", Priority.HIGH, for_s=2000.0), cluster.now)
    cluster.run(2.0)
    began_at = cluster.now
    assert spent(first, cluster.now)[0] == 700
    del cluster.nodes["first"]
    cluster.now += 1500.0
    second = cluster.add("second")
    cluster.run(3.0)
    assert second.role is Role.COORDINATOR
    tokens, ends_in_s = spent(second, cluster.now)
    assert tokens == 700
    assert abs(ends_in_s - (3600 - (cluster.now - began_at))) < 10
    (order,) = second.snapshot(cluster.now).priorities
    assert abs(order.ends_in_s - (2000 - (cluster.now - began_at))) < 10
    del cluster.nodes["second"]
    cluster.now += 2500.0
    third = cluster.add("third")
    cluster.run(3.0)
    assert third.role is Role.COORDINATOR
    assert not third.snapshot(cluster.now).priorities
    assert not [view for view in third.snapshot(cluster.now).budgets if view.spent.tokens]


def test_a_member_s_job_is_reserved_at_the_coordinator_and_booked_once_whoever_coordinates_at_its_end():
    cluster = Cluster()
    first = cluster.add("first")
    cluster.run(3.0)
    second = cluster.add("second")
    cluster.run(3.0)
    assert [first.role, second.role] == [Role.COORDINATOR, Role.MEMBER]
    success = Outcome(OutcomeKind.SUCCESS, "200", status=200)
    for name in ("a", "b", "c"):
        asked = replace(ticket(name, at=cluster.now), budgets=(HOURLY,), expected=Spend(tokens=100))
        second.submit(asked, PoolSettings(), cluster.now)
        cluster.run(0.5)
        (attempt,) = [
            one.attempt for one in cluster.decisions if isinstance(one, Admitted) and one.attempt.ticket == asked
        ]
        going = AttemptResult(success, Usage(reported=True), job=Job(f"host/{name}", 60.0 if name == "c" else 1e4))
        second.settle(attempt, going, cluster.now)
        cluster.run(1.0)
    ends = AttemptResult(success, Usage(input_tokens=30, reported=True))

    def standing(node):
        (view,) = node.snapshot(cluster.now).budgets
        return view.spent.tokens, view.reserved.tokens

    assert standing(first) == (0, 300)
    for _ in range(2):
        second.end_job("host/a", ends, cluster.now)
        cluster.run(1.0)
    assert standing(first) == (30, 200)
    cluster.run(60.0)
    assert standing(first) == (130, 100), "what was expected of the one that has expired, once"
    del cluster.nodes["first"]
    cluster.run(60.0)
    assert second.role is Role.COORDINATOR
    spent_before, _ = standing(second)
    second.end_job("host/b", ends, cluster.now)
    cluster.run(2.0)
    assert standing(second)[0] == spent_before + 30


def test_what_its_own_files_kept_has_grown_older_when_the_engine_comes_at_last():
    cluster = Cluster()
    cluster.engine_is_up = False
    node = cluster.add("first")
    node.restore_budgets([AccountState(HOURLY, age_s=600.0, spent=Spend(tokens=400), added=Spend())], cluster.now)
    cluster.run(5.0)
    assert node.role is Role.ALONE
    assert spent(node, cluster.now)[0] == 400
    cluster.run(1200.0)
    cluster.engine_is_up = True
    cluster.run(3.0)
    assert node.role is Role.COORDINATOR
    tokens, ends_in_s = spent(node, cluster.now)
    assert tokens == 400
    assert abs(ends_in_s - (3000 - cluster.now)) < 10


def test_orders_are_told_to_its_own_files_by_this_machine_s_clock():
    cluster = Cluster()
    wall_at = 1_800_000_000.0
    first, second = cluster.add("first"), cluster.add("second")
    cluster.run(4.0)
    leader, member = (first, second) if first.role is Role.COORDINATOR else (second, first)
    leader.command(SetPriority("*", Priority.HIGH, for_s=100.0), cluster.now)
    cluster.run(5.0)
    told = [node.export_overrides(cluster.now, wall_at)["priorities"] for node in (leader, member)]
    untils = [orders[0][2]["until"] for orders in told]
    assert all(abs(until - (wall_at + 95.0)) < 0.5 for until in untils), untils


def test_who_cannot_read_what_is_kept_does_not_write_over_it():
    cluster = Cluster()
    first = cluster.add("first")
    cluster.run(3.0)
    cluster.spend(first, 700)
    del cluster.nodes["first"]
    cluster.fails = Fetch
    second = cluster.add("second")
    cluster.run(10.0)
    assert second.role is Role.ALONE, "it does not wait for ever, either"
    cluster.fails = None
    cluster.run(3.0)
    assert second.role is Role.COORDINATOR
    assert spent(second, cluster.now)[0] == 700


def test_where_the_protocol_differs_each_release_goes_on_and_the_newer_takes_over_when_the_older_has_gone():
    cluster = Cluster()
    older = [cluster.add("old-1"), cluster.add("old-2")]
    cluster.run(3.0)
    cluster.newer = {"new-1", "new-2"}
    newer = [cluster.add("new-1"), cluster.add("new-2")]
    cluster.run(60.0)
    assert {node.role for node in older} == {Role.COORDINATOR, Role.MEMBER}
    assert {node.role for node in newer} <= {Role.ALONE, Role.JOINING}, "it tries again from time to time"
    for node in (*newer, *older):
        node.submit(ticket(f"of-{node.me}", at=cluster.now), PoolSettings(), cluster.now)
    cluster.run(4.0)
    assert len([one for one in cluster.decisions if isinstance(one, Admitted)]) == 4
    for name in ("old-1", "old-2"):
        cluster.nodes.pop(name).leave(cluster.now)
    cluster.run(5.0)
    assert {node.role for node in newer} == {Role.COORDINATOR, Role.MEMBER}
