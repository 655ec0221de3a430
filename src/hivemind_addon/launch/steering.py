"""`hivemind pause | resume | limit | priority | cancel | front`: what a person tells a running proxy."""

import sys

import click
import msgspec

from hivemind_addon.core.command import Cancel, Command, MoveToFront, Pause, Resume, SetLimit, SetPriority
from hivemind_addon.core.ticket import Priority
from hivemind_addon.launch.proxy_command import DEFAULT_PORT
from hivemind_addon.runtime.control import NotSaid, control_socket, send_command
from hivemind_addon.runtime.folders import FolderNotPrivate

_AUTO = "auto"

port_option = click.option(
    "-p", "--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True, help="The proxy's port."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print what the proxy said as one line of JSON.")
_pool = click.argument("pool", default="*")
_ticket = click.argument("ticket")


def tell(command: Command, port: int, *, as_json: bool) -> None:
    """Send it and print what is said; the exit status is 1 when nothing was done."""
    try:
        said = send_command(control_socket(port), command)
    except (NotSaid, FolderNotPrivate, OSError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(msgspec.json.encode(said).decode())
    else:
        click.echo(said.text, err=not said.done)
    if not said.done:
        sys.exit(1)


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
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    tell(Pause(pool=pool), port, as_json=as_json)


@click.command()
@_pool
@port_option
@json_option
def resume(pool: str, port: int, *, as_json: bool) -> None:
    """End a pause.

    \b
    Examples:
      hivemind resume
      hivemind resume api.anthropic.com
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    tell(Resume(pool=pool), port, as_json=as_json)


@click.command()
@click.argument("limit")
@_pool
@port_option
@json_option
def limit(limit: str, pool: str, port: int, *, as_json: bool) -> None:
    """Let at most so many requests run at once; `auto`: as many as the provider takes.

    \b
    Examples:
      hivemind limit 4
      hivemind limit 1 api.openai.com
      hivemind limit auto
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    if limit != _AUTO and not limit.isdecimal():
        raise click.BadParameter(f"{limit!r} is no number and not `{_AUTO}`", param_hint="LIMIT")
    tell(SetLimit(limit=None if limit == _AUTO else int(limit), pool=pool), port, as_json=as_json)


@click.command()
@click.argument("agent")
@click.argument("level", type=click.Choice([*(one.name.lower() for one in Priority), _AUTO], case_sensitive=False))
@port_option
@json_option
def priority(agent: str, level: str, port: int, *, as_json: bool) -> None:
    """Serve an agent before or after others, whatever it asks for; `auto`: as it asks.

    AGENT is a name as `hivemind status` shows it, or a glob.

    \b
    Examples:
      hivemind priority reviewer-1 high
      hivemind priority 'nightly-*' low
      hivemind priority '*' auto
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    tell(SetPriority(agent, None if level == _AUTO else Priority[level.upper()]), port, as_json=as_json)


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
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
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
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    tell(MoveToFront(ticket), port, as_json=as_json)


COMMANDS = (pause, resume, limit, priority, cancel, front)
