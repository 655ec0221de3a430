"""Proxies of one cluster in this process, with a real server between them: what one is asked, the coordinator does."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import AddBudget, Pause, SetBudget, SetLimit
from hivemind_addon.kernel.values.decision import Admitted
from hivemind_addon.kernel.values.events import OddityNoted
from hivemind_addon.kernel.values.spend import Scope
from hivemind_addon.kernel.values.ticket import AttemptResult
from hivemind_addon.plugins.cluster import asks, journal_questions
from hivemind_addon.plugins.cluster.membership import Membership, name_of_process
from hivemind_addon.plugins.cluster.node import ClusterNode, Role
from hivemind_addon.proxy.api.cluster_words import cluster_line
from hivemind_addon.proxy.journal.questions import Unanswered
from hivemind_addon.proxy.run.driver import Driver
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.engine_url import read_cluster
from tests.kernel.samples import POOL, SUCCESS, ticket

PATIENCE_S = 60


class OneProxy:
    """Of a proxy what is in a cluster."""

    def __init__(self, url: str, name: str = "", identity: str = "") -> None:
        self.turn = asyncio.Event()
        clock = SystemClock()
        self.node = ClusterNode(
            me=name or name_of_process(8080),
            cluster="team",
            identity=identity,
            rng=random.Random(1),
            make_scheduler=lambda: Scheduler(rng=random.Random(1)),
        )
        self.driver = Driver(scheduler=self.node, clock=clock)
        self.membership = Membership(
            node=self.node, driver=self.driver, settings=read_cluster(url, "team", environment={})
        )
        self.membership.start(answer=None)

    async def until(self, is_so) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                await self.membership.refresh()
                await asyncio.sleep(0.01)  # noqa: TID251 - the engine's and both nodes' clocks are real


@asynccontextmanager
async def pair(engine):
    engine.send("SET hivemind:{team}:epoch 1")  # it has forgotten nothing: a coordinator need not wait
    first = OneProxy(engine.url, "first")
    await first.until(lambda: first.node.role is Role.COORDINATOR)
    second = OneProxy(engine.url, "second")
    try:
        await second.until(lambda: second.node.role is Role.MEMBER)
        yield first, second
    finally:
        for one in (second, first):
            await one.membership.close()


async def test_a_member_that_hashes_accounts_otherwise_is_told_of(engine):
    """One key would be two accounts, each with the whole limit."""
    async with pair(engine) as (first, _):
        heard = []
        first.driver.listen(heard.append)
        other = OneProxy(engine.url, "other", identity="joined 1f0c")
        try:
            await first.until(lambda: any(isinstance(event, OddityNoted) for event in heard))
        finally:
            await other.membership.close()
    (oddity,) = [event for event in heard if isinstance(event, OddityNoted)]
    assert oddity.what.startswith("cluster: other tells agents or accounts apart in another way")
    assert "HIVEMIND_CLUSTER_SECRET" in oddity.what


async def test_a_member_has_the_whole_told_and_steers_it(engine):
    async with pair(engine) as (first, second):
        assert first.membership.decides_here
        assert not second.membership.decides_here
        now = first.driver.clock.monotonic()
        first.driver.submit(ticket("a", at=now), PoolSettings())
        admitted = await asyncio.wait_for(first.driver.wait("a"), PATIENCE_S)
        assert isinstance(admitted, Admitted)

        await second.until(lambda: second.driver.snapshot().pools)
        assert [(view.key, view.in_flight) for view in second.driver.snapshot().pools] == [(POOL, 1)]
        now = second.driver.clock.monotonic()
        stats = second.membership.stats(now)
        assert [(one.key, one.admitted) for one in stats.pools] == [(POOL, 1)]
        view = second.membership.view(now)
        assert [(one.name, one.waiting, one.in_flight) for one in view.members] == [("first", 0, 1), ("second", 0, 0)]
        assert cluster_line(view).startswith("cluster team: 2 members, first coordinates (epoch ")

        await second.membership.refresh()
        said = await second.membership.command(SetLimit(limit=3))
        assert said.done, said.text
        assert first.driver.snapshot().pools[0].cap == 3
        await second.membership.refresh()
        assert second.driver.snapshot().pools[0].cap == 3
        said = await second.membership.command(AddBudget(scope=Scope.AGENT, name="nobody", tokens=5))
        assert not said.done
        assert "nobody" in said.text
        said = await second.membership.command(SetBudget(scope=Scope.AGENT, name="ann", tokens=5))
        assert said.done
        assert "counted in" not in said.text

        first.driver.settle(admitted.attempt, AttemptResult(SUCCESS))
        assert (await second.membership.command(Pause())).done
        now = second.driver.clock.monotonic()
        second.driver.submit(ticket("b", at=now), PoolSettings())
        await second.until(lambda: [(one.waiting) for one in second.membership.view(now).members] == [0, 1])
        await second.until(lambda: second.driver.snapshot().pools[0].queued == 1)


async def test_who_reads_at_a_coordinator_sees_all_of_it(engine):
    async with pair(engine) as (first, second):
        now = second.driver.clock.monotonic()
        second.driver.submit(ticket("b", at=now), PoolSettings())
        admitted = await asyncio.wait_for(second.driver.wait("b"), PATIENCE_S)
        second.driver.settle(admitted.attempt, AttemptResult(SUCCESS))
        await first.until(lambda: [one.delivered for one in first.membership.stats(now).pools] == [1])
        assert [one.agent for one in first.membership.stats(now).sessions]


async def test_a_command_that_nobody_answers_says_so(engine, monkeypatch):
    monkeypatch.setattr(asks, "ANSWER_S", 0.05)
    async with pair(engine) as (first, second):
        first.membership._engine._running.cancel()
        await asyncio.wait([first.membership._engine._running])
        said = await second.membership.command(Pause())
        assert not said.done
        assert "no coordinator of the cluster answers" in said.text


async def test_every_proxy_answers_for_its_own_journal(engine, monkeypatch):
    monkeypatch.setattr(journal_questions, "ANSWERS_S", 0.3)

    async def refuse(question: str) -> str:
        raise Unanswered(f"no journal for {question}")

    async def echo(question: str) -> str:
        return f"first has heard {question}"

    async with pair(engine) as (first, second):
        first.membership.beside.answer = echo
        said = await second.membership.ask_members("how are you")
        assert said.text == "1 of 2 members answered", "one of another version does not"
        second.membership.beside.answer = refuse
        said = await second.membership.ask_members("how are you")
    assert said.text == "2 of 2 members answered"
    assert said.value == [
        {"member": "first", "answer": "first has heard how are you", "problem": ""},
        {"member": "second", "answer": "", "problem": "no journal for how are you"},
    ]
    assert not (await second.membership.ask_members("gone?")).done


async def test_what_the_log_says_of_a_cluster(engine, caplog):
    caplog.set_level("INFO", logger="hivemind")
    async with pair(engine) as (first, second):
        first.driver.close()
        await second.until(lambda: second.node.role is Role.COORDINATOR)
        await first.until(lambda: first.node.role is Role.MEMBER)
    lines = [record.getMessage().partition(" (epoch")[0] for record in caplog.records if record.name == "hivemind"]
    assert lines == [
        "hivemind: cluster team: this proxy coordinates",
        "hivemind: cluster team: a member, and first coordinates",
        "hivemind: cluster team: this proxy coordinates",
        "hivemind: cluster team: a member, and second coordinates",
    ]


@pytest.mark.parametrize("port", [8080])
def test_names_are_told_apart(port):
    assert name_of_process(port) != name_of_process(port)
    assert f"-{port}-" in name_of_process(port)
