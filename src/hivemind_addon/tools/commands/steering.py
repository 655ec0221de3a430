"""`hivemind pause | resume | cap | priority | cancel | front`: what a person tells a running proxy."""

import click

from hivemind_addon.kernel.values.command import Cancel, MoveToFront, Pause, Resume, SetLimit, SetPriority
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.tools.commands.names import agent_names, pool_names, ticket_ids
from hivemind_addon.tools.commands.options import json_option, port_option
from hivemind_addon.tools.commands.proxy import tell
from hivemind_addon.tools.commands.times import SOME_TIME

_AUTO = "auto"

_pool = click.argument("pool", default="*", shell_complete=pool_names)
_ticket = click.argument("ticket", shell_complete=ticket_ids)


@click.command()
@_pool
@port_option
@json_option
def pause(pool: str, port: int, *, as_json: bool) -> None:
    """Send nothing more upstream; what runs goes on, and who waits keeps its place.

    POOL is a name as `hivemind status` shows it, a host, or a glob of either; all pools without one.

    \b
    Examples:
      hivemind pause
      hivemind pause api.anthropic.com
      hivemind pause '*/claude-opus*'
    """
    tell(Pause(pool=pool), port, as_json=as_json)


@click.command()
@_pool
@port_option
@json_option
def resume(pool: str, port: int, *, as_json: bool) -> None:
    """End a pause, or an account block: what was refused for long is tried again at once.

    \b
    Examples:
      hivemind resume
      hivemind resume api.anthropic.com
    """
    tell(Resume(pool=pool), port, as_json=as_json)


@click.command()
@click.argument("limit", metavar="N|auto")
@_pool
@port_option
@json_option
def cap(limit: str, pool: str, port: int, *, as_json: bool) -> None:
    """Let at most so many requests run at once; `auto`: as many as the provider takes.

    \b
    Examples:
      hivemind cap 4
      hivemind cap 1 api.openai.com
      hivemind cap auto
    """
    if limit != _AUTO and not limit.isdecimal():
        raise click.BadParameter(f"{limit!r} is no number and not `{_AUTO}`", param_hint="LIMIT")
    tell(SetLimit(limit=None if limit == _AUTO else int(limit), pool=pool), port, as_json=as_json)


@click.command()
@click.argument("agent", shell_complete=agent_names)
@click.argument("level", type=click.Choice([*(one.name.lower() for one in Priority), _AUTO], case_sensitive=False))
@click.option("--for", "for_s", type=SOME_TIME, help="Not for good: 90s, 30m, 2h.")
@port_option
@json_option
def priority(agent: str, level: str, for_s: float | None, port: int, *, as_json: bool) -> None:
    """Serve an agent before or after others, whatever it asks for; `auto`: as it asks.

    AGENT is a name as `hivemind status` shows it, or a glob. With `--for` the order ends by itself, and what was
    ordered before counts again.

    \b
    Examples:
      hivemind priority reviewer-1 high
      hivemind priority 'nightly-*' low --for 1h
      hivemind priority '*' auto
    """
    tell(SetPriority(agent, None if level == _AUTO else Priority[level.upper()], for_s), port, as_json=as_json)


@click.command()
@_ticket
@port_option
@json_option
def cancel(ticket: str, port: int, *, as_json: bool) -> None:
    """End a request that waits or runs: its agent gets an error and does not send it again.

    TICKET is an id as `hivemind status` and the log show it.

    \b
    Examples:
      hivemind cancel 3f9c01ab2e
    """
    tell(Cancel(ticket), port, as_json=as_json)


@click.command()
@_ticket
@port_option
@json_option
def front(ticket: str, port: int, *, as_json: bool) -> None:
    """Serve a request that waits next; no limit is broken for it.

    \b
    Examples:
      hivemind front 3f9c01ab2e
    """
    tell(MoveToFront(ticket), port, as_json=as_json)
