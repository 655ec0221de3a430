"""The stage of every scenario: a strict provider, an engine, machines, and agents before them."""

import asyncio
import statistics
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.agents import HOST
from hivemind_addon.sim.bound import Spent, lower_bound
from hivemind_addon.sim.exchange import pause
from hivemind_addon.sim.limits import Limit
from hivemind_addon.sim.live import profile_of_windows
from hivemind_addon.sim.provider import ProviderSettings
from lab.bench.machines.agents import MAX_TOKENS, Agents
from lab.fleets.proxy import FleetProxy, NotServing
from lab.fleets.stage import running_stage
from lab.fleets.tunnel import Tunnel
from tests.engine_server import EngineServer

CLUSTER = "bench"
BUDGET = 2_000_000_000
"""Tokens; nobody comes near."""
_TOGETHER_S = 30
_LOOK_EVERY_S = 0.25


@dataclass(frozen=True)
class Plan:
    """The sizes."""

    machines: int = 4
    agents: int = 50
    """Before each machine."""
    turns: int = 8
    """Of each agent, where the end is not another event's."""
    requests: int = 200
    """That the provider lets through in a window."""
    window_s: float = 10.0
    tokens: int = 150_000
    """Of input, likewise."""
    at_once: int = 24
    """Requests that `--max-concurrency` lets go at once; the provider lets go any number, and counts the most."""
    kills: int = 20
    outage_s: float = 30.0
    cut_s: float = 60.0
    pairs: int = 2_000
    """Of calls, of which each is made with and without an engine."""

    @property
    def provider(self):
        return ProviderSettings(
            limits=(
                Limit(Dimension.REQUESTS, self.requests, window_s=self.window_s),
                Limit(Dimension.INPUT_TOKENS, self.tokens, window_s=self.window_s),
            ),
            chunks=MAX_TOKENS // 4,
        )


@dataclass
class Seen:
    """The result of a run."""

    done: list
    """Every agent at the end."""
    truth: object
    """The provider's."""
    elapsed_s: float
    bound_s: float
    guard_trips: int

    @property
    def lost(self):
        return [one for one in self.done if one.lost]

    @property
    def refused(self):
        """Of all attempts."""
        return self.truth.refused / max(1, self.truth.attempts)

    def means_s(self):
        """When the agents of each machine were done."""
        machines = {one.machine for one in self.done}
        return [statistics.mean(one.ended_s for one in self.done if one.machine == machine) for machine in machines]

    @property
    def unfairness(self):
        """How much later the agents of the slowest machine were done than those of the fastest."""
        means_s = self.means_s()
        return max(means_s) / min(means_s) - 1

    @property
    def spread(self):
        """The last agent's end over the first's."""
        return max(one.ended_s for one in self.done) / max(0.01, min(one.ended_s for one in self.done))

    @property
    def tokens(self):
        """The provider's count: of complete answers, and of cut answers."""
        truth = self.truth
        complete = truth.input_tokens + truth.cached_tokens + truth.output_tokens
        return complete, truth.wasted_input_tokens + truth.wasted_output_tokens


class Stage:
    """A provider, some machines, and perhaps an engine."""

    def __init__(self, plan, server, engine, links, members, tell):
        self.plan = plan
        self.server = server
        self.engine = engine
        self.links = links
        """By machine, where there is an engine."""
        self.members = members
        self.tell = tell

    def load(self, *, per_machine=None, turns=None):
        return Agents(self.members, per_machine or self.plan.agents, turns=turns)

    async def run(self, agents):
        """Run all of them to the end; the result."""
        self.server.reset()
        elapsed_s = await agents.run()
        truth = self.server.truth()
        trips = sum(member.guard_trips for member in self.members)
        return Seen(agents.done, truth, elapsed_s, self._bound_s(agents, truth), trips)

    def arrivals(self):
        """When calls came to the provider; the newest 10,000."""
        return [one.at for one in self.server.requests() if one.method == "POST"]

    def longest_gap_s(self, from_at, to_at):
        """How long nothing came to the provider in this time."""
        came = [at for at in self.arrivals() if from_at <= at <= to_at]
        return max(later - earlier for earlier, later in zip([from_at, *came], [*came, to_at], strict=True))

    async def views(self):
        """Each machine's view of the cluster; None: the machine does not serve, or is in no cluster."""
        reports = await asyncio.gather(*(member.report() for member in self.members))
        return [report and report.cluster for report in reports]

    async def together(self, *, within_s=_TOGETHER_S, without=()):
        """Wait until all (but these) are members with the same coordinator; the seconds that this took, and the coordinator.

        Raises NotServing.
        """
        clock = asyncio.get_running_loop().time
        began_at = clock()
        views = []
        while clock() - began_at < within_s:
            views = await self.views()
            seen = [view for member, view in zip(self.members, views, strict=True) if member not in without]
            if is_one(seen):
                leader = next(
                    (
                        m
                        for m, view in zip(self.members, views, strict=True)
                        if view and view.me == view.coordinator and m not in without
                    ),
                    None,
                )
                if leader is not None:
                    return clock() - began_at, leader
            await pause(_LOOK_EVERY_S)
        told = "\n".join(f"{m.name}: {view}" for m, view in zip(self.members, views, strict=True))
        raise NotServing(f"they are not one after {within_s} s:\n{told}\n{self.members[0].last_words}")

    async def spent(self, member):
        """Tokens in the budget of all, as a machine reports them."""
        report = await member.when(lambda report: report.snapshot.budgets, "budget", within_s=_TOGETHER_S)
        (budget,) = report.snapshot.budgets
        return budget.spent.tokens, budget.reserved.tokens

    def _bound_s(self, agents, truth):
        turns_s = []
        for one in agents.done:
            latencies_s = agents.latencies_s(one.name.partition("-")[2])
            turns_s.append([(0.0, next(latencies_s)) for _ in range(one.turns)])
        service_s = [sum(service_s for _, service_s in turns) for turns in turns_s]
        spent = Spent(
            {Dimension.REQUESTS: truth.completed, Dimension.INPUT_TOKENS: truth.input_tokens},
            max(service_s),
            sum(service_s),
            turns_s,
        )
        return lower_bound(spent, self.plan.provider.limits, concurrency=self.plan.at_once).bound_s


def is_one(views):
    """Whether they name the same coordinator and epoch, and that coordinator knows all of them."""
    if not views or None in views:
        return False
    named = {(view.coordinator, view.epoch) for view in views}
    leaders = [view for view in views if view.role == "coordinator"]
    return (
        len(named) == len(leaders) == 1
        and all(view.role in ("member", "coordinator") for view in views)
        and len(leaders[0].members) >= len(views)
    )


@asynccontextmanager
async def staged(plan, folder, tell, *, machines=None, cluster=True, linked=False, provider=(), more=()):
    """A stage, until the block ends. `linked`: each machine's way to the engine can be cut; `provider`: settings that lead
    to another provider than the stage's; `more`: settings of the proxies. Raises NotServing.
    """
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(running_stage(folder, {HOST: plan.provider}, seed=1))
        (stage.profiles / "anthropic.yaml").write_text(profile_of_windows(plan.window_s))
        members = [_member(folder, n + 1) for n in range(plan.machines if machines is None else machines)]
        settings = [*(provider or stage.proxy_settings), f"hivemind_max_concurrency={plan.at_once}", *more]
        engine, links = None, []
        if cluster:
            engine = await asyncio.to_thread(EngineServer().start)
            stack.callback(engine.stop)
            links = [await stack.enter_async_context(Tunnel(engine.port)) for _ in members] if linked else []
            ports = [link.port for link in links] or [engine.port] * len(members)
        else:
            ports = [None] * len(members)
        async with asyncio.TaskGroup() as group:
            for member, port in zip(members, ports, strict=True):
                stack.push_async_callback(member.stop)
                group.create_task(member.start(*settings, *(clustered(port) if port else ())))
        whole = Stage(plan, stage.servers[HOST], engine, links, members, tell)
        if cluster:
            await whole.together()
        yield whole


def _member(folder, number):
    place = folder / f"m{number}"
    place.mkdir()
    return FleetProxy(place, f"machine-{number}")


def clustered(port):
    """A member's settings."""
    return f"hivemind_cluster=redis://127.0.0.1:{port}/0", f"hivemind_cluster_name={CLUSTER}"


def smaller(plan):
    """Enough to see whether anything is broken."""
    return replace(
        plan, machines=2, agents=10, turns=6, requests=40, window_s=4.0, kills=3, outage_s=8, cut_s=12, pairs=100
    )
