"""`hivemind demo --watch`: a provider, a proxy and a fleet that go on until somebody has seen enough."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

from hivemind_addon.sim.demo import DemoSettings
from hivemind_addon.sim.live import LiveFleet, LiveStage, through_proxy

type Watching = Callable[[LiveStage, LiveFleet], Awaitable[None]]
"""Looks on; the fleet ends when it returns."""


async def go_on(settings: DemoSettings, watching: Watching) -> None:
    """A demo's fleet through a real mitmweb, conversation after conversation. Raises MitmdumpNotStarted."""
    async with through_proxy(settings.scenario, settings.seed, web=True) as stage, AsyncExitStack() as stack:
        fleet = LiveFleet(settings.scenario, settings.seed)
        clients = await asyncio.gather(*(agent.connected(stage.route, stack) for agent in fleet.agents))
        working = asyncio.create_task(fleet.keep_on(clients))
        watched = asyncio.ensure_future(watching(stage, fleet))
        try:
            await asyncio.wait((working, watched), return_when=asyncio.FIRST_COMPLETED)
            if working.done():  # it never ends by itself
                working.result()
        finally:
            for task in (working, watched):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
