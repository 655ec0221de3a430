"""A proxy's membership in its cluster: the node that its driver drives, and what serves that."""

import logging
import random
import secrets
import socket
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import SchedulerCommand
from hivemind_addon.plugins.cluster.asks import Asks, WholeStats
from hivemind_addon.plugins.cluster.engine import Engine
from hivemind_addon.plugins.cluster.journal_questions import Beside
from hivemind_addon.plugins.cluster.node import ClusterNode, Role
from hivemind_addon.proxy.api.command import CommandReply
from hivemind_addon.proxy.api.report import ClusterView, StatsView
from hivemind_addon.proxy.record.news import NOTICE
from hivemind_addon.proxy.run.driven import ClusterMembership, DrivenScheduler
from hivemind_addon.proxy.run.driver import Driver
from hivemind_addon.proxy.system.engine_url import ClusterSettings

logger = logging.getLogger("hivemind")


def make_node(settings: ClusterSettings, port: int, make_scheduler: Callable[[], Scheduler]) -> DrivenScheduler:
    """The node that a proxy's driver drives in place of a scheduler."""
    return ClusterNode(
        me=name_of_process(port),
        cluster=settings.name,
        identity=settings.identity,
        rng=random.Random(),  # noqa: S311 - jitter, no secret
        make_scheduler=make_scheduler,
    )


def name_of_process(port: int) -> str:
    """A name for a member that no other has, also over time, and that a person knows again."""
    return f"{socket.gethostname().partition('.')[0] or 'proxy'}-{port}-{secrets.token_hex(3)}"


class Membership(ClusterMembership):
    """From `start` to `close`; both on the running event loop."""

    def __init__(self, *, node: ClusterNode, driver: Driver, settings: ClusterSettings) -> None:
        self._node = node
        self._clock = driver.clock
        self._stats = WholeStats()
        self._asks = Asks(node=node, driver=driver, stats=self._stats)
        self.beside = Beside(me=node.me, say=lambda data, to: self._engine.say_beside(data, to=to))
        """What proxies ask each other's journals."""
        self._engine = Engine(
            node=node,
            driver=driver,
            address=settings.address,
            name=settings.name,
            after_turn=self._after_turn,
            hear_beside=self.beside.hear,
        )
        self._told: tuple[Role, str] | None = None
        """Role and coordinator that are in the log."""
        self._was_coordinator = False
        node.wake = self._engine.wake
        node.overhear = self._stats
        node.looked_at = self._asks.refresh_soon

    def start(self, answer: Callable[[str], Awaitable[str]]) -> None:
        """Connect, and go on trying. `answer` answers other proxies' questions to this proxy's journal."""
        self.beside.answer = answer
        self._engine.start()

    async def close(self) -> None:
        """Leave, and end; takes a second at most."""
        self._asks.close()
        self.beside.close()
        await self._engine.close()

    # What is asked of the whole --------------------------------------------------------------------------------------

    @property
    def decides_here(self) -> bool:
        """Whether commands are carried out in this process."""
        return self._node.role in (Role.COORDINATOR, Role.ALONE)

    def command(self, command: SchedulerCommand) -> Awaitable[CommandReply]:
        """Have the coordinator carry out a command."""
        return self._asks.command(command)

    async def refresh(self) -> None:
        """What the driver's snapshot and `stats` tell is of now; waits no longer than the coordinator may take."""
        await self._asks.refresh()

    async def ask_members(self, question: str) -> CommandReply:
        """Ask the journals of all proxies."""
        if not self._engine.is_connected:
            return CommandReply(
                done=False, text="the cluster's engine is not there just now, so no other proxy is asked"
            )
        expected = self._node.cluster_view(self._clock.monotonic()).known_members
        answers = await self.beside.ask_all(question, expected)
        text = f"{len(answers)} of {expected} members answered"
        return CommandReply(done=True, text=text, value=msgspec.to_builtins(answers))

    def stats(self, now: float) -> StatsView | None:
        """The stats of the whole; None: this proxy's own are all that is known."""
        if self._node.role is Role.COORDINATOR:
            return self._stats.view(now)
        told = self._asks.told
        return told.stats if told is not None and self._node.role is Role.MEMBER else None

    def view(self, now: float) -> ClusterView:
        """The cluster as this proxy sees it."""
        view, told = self._node.cluster_view(now), self._asks.told
        if view.role == Role.MEMBER.value and told is not None:
            view = replace(view, members=told.cluster.members, summed_s=told.cluster.since_s)
        elif view.role == Role.COORDINATOR.value:
            view = replace(view, summed_s=view.since_s)
        return view

    # What changes ----------------------------------------------------------------------------------------------------

    def _after_turn(self) -> None:
        self._asks.after_turn()
        role = self._node.role
        if self._was_coordinator and role is not Role.COORDINATOR:
            self._stats.begin()
        self._was_coordinator = role is Role.COORDINATOR
        if role is not Role.JOINING:
            self._tell_role(role)

    def _tell_role(self, role: Role) -> None:
        """One line for each change that a person should know of."""
        view = self._node.cluster_view(self._clock.monotonic())
        told, self._told = self._told, (role, view.coordinator)
        if self._told == told:
            return
        match role:
            case Role.ALONE:
                share = f"1/{round(1 / view.share)}"
                logger.warning(
                    "hivemind: cluster %s: no coordinator is heard of; this proxy goes on alone, with %s of the limits",
                    *(view.name, share),
                )
            case Role.COORDINATOR:
                logger.log(NOTICE, "hivemind: cluster %s: this proxy coordinates (epoch %d)", view.name, view.epoch)
            case Role.MEMBER:
                logger.log(
                    NOTICE,
                    "hivemind: cluster %s: a member, and %s coordinates (epoch %d)",
                    *(view.name, view.coordinator, view.epoch),
                )
