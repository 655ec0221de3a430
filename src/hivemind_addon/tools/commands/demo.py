"""`hivemind demo`: parse, call, print."""

import asyncio
import sys
from contextlib import closing

import click
from rich.console import Console

from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.mitmdump import MitmdumpNotStarted
from hivemind_addon.system.stop_signals import end_with_us
from hivemind_addon.tools.commands.printing import print_json


@click.command()
@click.option("--agents", type=click.IntRange(1, 500), help="How many agents share the key.")
@click.option("--turns", type=click.IntRange(1, 100), help="How many turns each conversation has.")
@click.option("--seed", type=int, help="Of the agents' wishes and the provider's faults.")
@click.option("--provider", type=click.Choice([kind.value for kind in LimitKind]), help="How its limits come back.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON; progress goes to stderr.")
def demo(agents: int | None, turns: int | None, seed: int | None, provider: str | None, *, as_json: bool) -> None:
    """A fleet against a strict and faulty simulated provider: first direct, then through the scheduler.

    Takes about a minute; nothing leaves this machine. The exit status is 1 when an agent was lost through the
    scheduler.

    \b
    Examples:
      hivemind demo
      hivemind demo --provider window --seed 7
      hivemind demo --agents 3 --turns 2 --json
    """
    from hivemind_addon.lab.sim import demo as demos  # noqa: PLC0415 - it takes a while to load

    usual = demos.DemoSettings()
    settings = demos.DemoSettings(
        agents=agents or usual.agents,
        turns=turns or usual.turns,
        seed=usual.seed if seed is None else seed,
        kind=LimitKind(provider) if provider else usual.kind,
    )
    console = Console(stderr=as_json, highlight=False)
    console.print(demos.introduction(settings))
    end_with_us()
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
