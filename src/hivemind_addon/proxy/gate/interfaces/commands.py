"""What a person types into mitmweb's or the console's command bar. Each says what it did, in a line each."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - mitmproxy reads these annotations
from typing import TYPE_CHECKING

from mitmproxy import command, exceptions, flow

from hivemind_addon.kernel.values.command import (
    Cancel,
    MoveToFront,
    Pause,
    Resume,
    SchedulerCommand,
    SetLimit,
    SetPriority,
)
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.api.pool_words import pool_line

if TYPE_CHECKING:
    from hivemind_addon.proxy.gate.proxy import Proxy

PRIORITIES = [*(priority.name.lower() for priority in Priority), "auto"]
"""`auto`: what the agent itself asks for."""


class Commands:
    """An addon of the addon: mitmproxy finds its commands, and no hook."""

    name = "hivemind_commands"

    def __init__(self) -> None:
        self.proxy: Proxy | None = None

    @command.command("hivemind.status")
    def status(self) -> Sequence[str]:
        """Show what each pool does: one line a pool."""
        return [pool_line(pool) for pool in self._running().driver.snapshot().pools] or ["no requests so far"]

    @command.command("hivemind.pause")
    def pause(self, pool: str = "*") -> str:
        """Send nothing more of the pools whose name (host/account/model) matches; what runs goes on."""
        return self._do(Pause(pool=pool))

    @command.command("hivemind.resume")
    def resume(self, pool: str = "*") -> str:
        """Send again what a person has paused."""
        return self._do(Resume(pool=pool))

    @command.command("hivemind.limit")
    def limit(self, limit: str, pool: str = "*") -> str:
        """Let at most so many requests of a pool run at once; `auto` leaves it to the scheduler again."""
        if limit != "auto" and not (limit.isascii() and limit.isdigit() and int(limit) > 0):
            raise exceptions.CommandError(f"limit: {limit!r} is neither a number from 1 on nor `auto`")
        return self._do(SetLimit(limit=None if limit == "auto" else int(limit), pool=pool))

    @command.command("hivemind.priority")
    def priority(self, agent: str, priority: str) -> str:
        """Serve the agents whose name matches as `critical`, `high`, `normal`, `low`, or as they ask for (`auto`)."""
        # No mitmproxy.types.Choice: whoever mistypes would read "Invalid choice." and nothing more.
        if priority not in PRIORITIES:
            raise exceptions.CommandError(f"priority: {priority!r} is none of {', '.join(PRIORITIES)}")
        wanted = None if priority == "auto" else Priority[priority.upper()]
        return self._do(SetPriority(agent=agent, priority=wanted))

    @command.command("hivemind.front")
    def front(self, flows: Sequence[flow.Flow]) -> Sequence[str]:
        """Serve held flows next; no limit is broken for them."""
        # The last one that is moved is the first one then.
        return [self._do(MoveToFront(ticket_id=one)) for one in reversed(self._tickets(flows))][::-1]

    @command.command("hivemind.cancel")
    def cancel(self, flows: Sequence[flow.Flow]) -> Sequence[str]:
        """End held and running flows: their clients get an error that they do not retry."""
        return [self._do(Cancel(ticket_id=one)) for one in self._tickets(flows)]

    def _running(self) -> Proxy:
        if self.proxy is None:
            raise exceptions.CommandError("hivemind did not start; its log line says why")
        return self.proxy

    def _do(self, wanted: SchedulerCommand) -> str:
        proxy = self._running()
        said = proxy.driver.command(wanted)
        if not said.done:
            raise exceptions.CommandError(said.text)
        if proxy.membership is not None and not proxy.membership.decides_here:
            return "passed on to the cluster's coordinator; `hivemind status` shows what became of it"
        return said.text

    def _tickets(self, flows: Sequence[flow.Flow]) -> list[str]:
        wanted = {one.id for one in flows}
        live = self._running().live.values()
        ids = [one.ticket.id for one in live if (one.shown_on or one.flow).id in wanted]
        if not ids:
            raise exceptions.CommandError("none of these flows is held or running")
        return ids
