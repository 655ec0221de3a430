"""`hivemind lease run | lead`: a command that holds names while it runs."""

import os
import sys
from threading import Event

import click

from hivemind_addon.system.clock import SystemClock
from hivemind_addon.tools.commands.lease_options import (
    NOT_GRANTED,
    agent_option,
    at_most_option,
    names_argument,
    no_wait_option,
    one_line,
    open_store,
    refused,
    ttl_option,
    value_option,
    variables,
    wait_in_line,
    wait_option,
    watched_holder,
)
from hivemind_addon.tools.launch.become import become, insist
from hivemind_addon.tools.locks.keeping import WatchedProcess, keep, start_keeper
from hivemind_addon.tools.locks.model import NotGranted, Request

_keep_going = click.option(
    "--keep-going", is_flag=True, help="Only say so when the lease is lost, and let the command go on."
)


class RunsCommand(click.Command):
    """What stands behind `--` is a command, and not one of the names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The command is the parameter `command`."""
        here, there = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        rest = super().parse_args(ctx, here)
        if not there and not ctx.resilient_parsing:  # a shell asks what could come next
            raise click.UsageError("say what to run: NAME -- COMMAND", ctx)
        ctx.params["command"] = tuple(there)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """With the command."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


@click.command(cls=RunsCommand)
@names_argument
@ttl_option
@wait_option
@no_wait_option
@at_most_option
@value_option
@agent_option
@_keep_going
@one_line
def run(
    names: tuple[str, ...],
    ttl_s: float,
    wait_s: float | None,
    capacity: int,
    value: str,
    agent: str | None,
    command: tuple[str, ...],
    *,
    keep_going: bool,
) -> None:
    """Run a command that holds the names while it runs; its exit status is the command's.

    The lease is renewed until the command ends. Should it be lost before (the machine stood still for longer than its
    time, somebody released it), the command gets SIGTERM. HIVEMIND_LEASE_TOKEN and HIVEMIND_LEASE_ID are set for it.

    \b
    Examples:
      hivemind lease run build -- make -j4
      hivemind lease run left-fork right-fork -- ./eat.sh
      hivemind lease run phase-2 --at-most 3 --wait 10m -- pytest
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    insist(command)
    request = Request(names, watched_holder(agent, os.getpid(), command[0]), ttl_s, capacity, value)
    _run(request, wait_s, command, keep_going=keep_going)


@click.command(cls=RunsCommand)
@click.argument("name")
@ttl_option
@wait_option
@no_wait_option
@value_option
@agent_option
@_keep_going
@one_line
def lead(
    name: str,
    ttl_s: float,
    wait_s: float | None,
    value: str,
    agent: str | None,
    command: tuple[str, ...],
    *,
    keep_going: bool,
) -> None:
    """Wait until nobody else leads, then run a command that leads while it runs.

    `hivemind lease list NAME` shows who leads and its value. A leader that is no more (its process ended, or it did
    not renew in time) is followed by the one that has waited longest; it gets SIGTERM itself, should it still run.

    \b
    Examples:
      hivemind lease lead planner --value http://127.0.0.1:7000 -- ./planner --port 7000
      hivemind lease list planner
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    insist(command)
    request = Request((name,), watched_holder(agent, os.getpid(), command[0]), ttl_s, 1, value)
    _run(request, wait_s, command, keep_going=keep_going)


def _run(request: Request, wait_s: float | None, command: tuple[str, ...], *, keep_going: bool) -> None:
    with open_store() as store:
        held = wait_in_line(store, request, wait_s)
    if isinstance(held, NotGranted):
        click.echo(refused(held), err=True)
        sys.exit(NOT_GRANTED)
    process = WatchedProcess(request.holder, pause=Event().wait)

    def lost(why: str) -> None:
        then = "it goes on without" if keep_going else f"{command[0]} is asked to end"
        click.echo(f"hivemind: {why}; {then}", err=True)
        if not keep_going:
            process.terminate()

    def work() -> None:
        with open_store() as store:
            keep(store, held, process, ttl_s=request.ttl_s, clock=SystemClock(), lost=lost)

    start_keeper(process, work)
    # The command takes our place, so that the lease's holder is the command itself.
    become(command, {**os.environ, **variables(held)})


COMMANDS = (run, lead)
