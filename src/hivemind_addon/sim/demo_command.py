"""`hivemind demo`: parse, call, print."""

import asyncio
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import click
from rich.console import Console

from hivemind_addon.proxy.api.control import control_socket
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.stop_signals import end_with_us
from hivemind_addon.proxy.system.terminal import is_screen
from hivemind_addon.sim.exchange import pause
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.mitmdump import MitmdumpNotStarted
from hivemind_addon.tools.commands.printing import print_json

if TYPE_CHECKING:
    from hivemind_addon.sim.demo import DemoSettings
    from hivemind_addon.sim.live import LiveFleet, LiveStage

_LINE_EVERY_S = 5.0


@click.command()
@click.option("--agents", type=click.IntRange(1, 500), help="How many agents share the key.")
@click.option("--turns", type=click.IntRange(1, 100), help="How many turns each conversation has.")
@click.option("--seed", type=int, help="Of the agents' wishes and the provider's faults.")
@click.option("--provider", type=click.Choice([kind.value for kind in LimitKind]), help="How its limits come back.")
@click.option("--watch", is_flag=True, help="Go on until you have seen enough: `top` here, mitmweb and page beside it.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON; progress goes to stderr.")
def demo(
    agents: int | None, turns: int | None, seed: int | None, provider: str | None, *, watch: bool, as_json: bool
) -> None:
    """A fleet against a strict and faulty simulated provider: first direct, then through the scheduler.

    Takes about a minute; nothing leaves this machine. The exit status is 1 when an agent was lost through the
    scheduler.

    \b
    Examples:
      hivemind demo
      hivemind demo --watch
      hivemind demo --provider window --seed 7
      hivemind demo --agents 3 --turns 2 --json
    """
    from hivemind_addon.sim import demo as demos  # noqa: PLC0415 - it takes a while to load

    usual = demos.DemoSettings()
    settings = demos.DemoSettings(
        agents=agents or usual.agents,
        turns=turns or usual.turns,
        seed=usual.seed if seed is None else seed,
        kind=LimitKind(provider) if provider else usual.kind,
    )
    if watch and as_json:
        raise click.UsageError("--watch has no results; leave one of --watch and --json out")
    console = Console(stderr=as_json, highlight=False)
    console.print(demos.introduction(settings))
    end_with_us()
    if watch:
        _watch(settings)
        return
    try:
        with closing(demos.DemoScreen(console, settings)) as screen:
            result = asyncio.run(demos.run_demo(settings, screen))
    except MitmdumpNotStarted as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json(result.figures())
    else:
        console.print(demos.closing(result))
        console.print(demos.NEXT_STEP, soft_wrap=True)
    if not result.kept_its_promise:
        sys.exit(1)


def _watch(settings: "DemoSettings") -> None:
    from hivemind_addon.sim.demo import go_on  # noqa: PLC0415 - it takes a while to load

    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(go_on(settings, _on_screen if is_screen() else _in_lines))
    except MitmdumpNotStarted as error:
        raise click.ClickException(str(error)) from error


def _addresses(stage: "LiveStage") -> str:
    assert stage.mitmdump is not None, "it is staged by a proxy"
    return f"page:    http://127.0.0.1:{stage.mitmdump.port}/\nmitmweb: {stage.mitmdump.web_url}"


async def _on_screen(stage: "LiveStage", fleet: "LiveFleet") -> None:
    """`hivemind top`, until it is left."""
    from hivemind_addon.tools.dash.feed import Feed  # noqa: PLC0415 - only where it is drawn, as the next
    from hivemind_addon.tools.dash.live import Top  # noqa: PLC0415

    assert stage.mitmdump is not None, "it is staged by a proxy"
    feed = Feed(control_socket(stage.mitmdump.port))
    await Top(feed, clock=SystemClock(), note=_addresses(stage)).run_async()
    click.echo(_told(stage, fleet))


async def _in_lines(stage: "LiveStage", fleet: "LiveFleet") -> None:
    """A line now and then, for ever."""
    click.echo(_addresses(stage))
    while True:
        await pause(_LINE_EVERY_S)
        click.echo(_told(stage, fleet))


def _told(stage: "LiveStage", fleet: "LiveFleet") -> str:
    counts = fleet.counts(stage.server.truth())
    return (
        f"{counts.attempts} calls upstream, {counts.refused} refused; agents: {counts.requests} requests, "
        f"{counts.failed} failed, {fleet.died} lost"
    )
