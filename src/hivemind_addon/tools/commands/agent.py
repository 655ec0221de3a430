"""`hivemind agent`: names and secrets of agents, in a file that a proxy asks by."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.proxy.api.agent_secrets import (
    SecretHash,
    check_name,
    hash_secret,
    new_secret,
    read_secrets,
    write_secrets,
)
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.file_lock import take_lock
from hivemind_addon.proxy.system.folders import state_folder
from hivemind_addon.tools.commands.group import ListGroup
from hivemind_addon.tools.commands.options import in_one_line, port_option
from hivemind_addon.tools.commands.printing import Format, format_option, print_json, print_rows
from hivemind_addon.tools.commands.times import iso
from hivemind_addon.tools.launch.environment import proxy_url

_one_line = in_one_line(DocumentError)
_LOCK_S = 10.0
_FILE_NAME = "agent-secrets.json"
_file_option = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The file of names and secrets.  [default: {_FILE_NAME} in your state folder]",
)
_host_option = click.option(
    "--host", default="127.0.0.1", show_default=True, help="The host of the address that is printed: the proxy's."
)
_json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON: name, secret and url.")


@click.group(cls=ListGroup)
def agent() -> None:
    """Names and secrets of agents: who may use a proxy, so that no agent takes another's name, budget or priority.

    Without a subcommand it lists them. A proxy asks by the file that `hivemind run --agent-secrets FILE` names, and
    reads it again when it changes. It has no secret in it, only hashes: a secret is printed once.

    \b
    Examples:
      hivemind agent add reviewer-1
      hivemind agent add ann --host proxy.local --file team.json
      hivemind agent rotate ann --file team.json
    """


@agent.command()
@click.argument("name")
@_file_option
@_host_option
@port_option
@_json_flag
@_one_line
def add(name: str, file: Path | None, host: str, port: int, *, as_json: bool) -> None:
    """Make a secret for an agent, and print its proxy address, which has it: keep it, it is not shown again.

    What the agent asks for may follow the secret, after a dot: `http://NAME:SECRET.task-12.prio-low@HOST:PORT`.

    \b
    Examples:
      hivemind agent add reviewer-1
      export HTTPS_PROXY="$(hivemind agent add ci --host proxy.local)"
      HIVEMIND_AGENT_SECRET=... hivemind exec --agent ci -- claude
    """
    with _changing(file, may_be_new=True) as agents:
        if name in agents:
            raise click.ClickException(
                f"there is an agent {name!r} already; `hivemind agent rotate {name}` makes it a new secret"
            )
        secret = _give_secret(agents, name)
    _print_secret(name, secret, host, port, as_json=as_json)
    click.echo(f"hivemind: start the proxy with `hivemind run --agent-secrets {_place(file)}`", err=True)


@agent.command()
@click.argument("name")
@_file_option
@_host_option
@port_option
@_json_flag
@_one_line
def rotate(name: str, file: Path | None, host: str, port: int, *, as_json: bool) -> None:
    """Make a new secret for an agent, and print its address; the old one is refused from then on.

    \b
    Examples:
      hivemind agent rotate reviewer-1
    """
    with _changing(file) as agents:
        _find(agents, name)
        secret = _give_secret(agents, name)
    _print_secret(name, secret, host, port, as_json=as_json)


@agent.command()
@click.argument("name")
@_file_option
@_one_line
def rm(name: str, file: Path | None) -> None:
    """Remove an agent: a running proxy refuses it from its next request on, two seconds later at most.

    \b
    Examples:
      hivemind agent rm reviewer-1
    """
    with _changing(file) as agents:
        del agents[_find(agents, name)]
    click.echo(f"{name} is no agent any more")


@agent.command(name="list")
@_file_option
@format_option
@_one_line
def list_(file: Path | None, form: Format) -> None:
    """List the agents that have a secret, and since when.

    \b
    Examples:
      hivemind agent list
      hivemind agent list --json | jq -r '.[].name'
    """
    place = _place(file)
    agents = read_secrets(place) if file is not None or place.exists() else {}
    rows = [{"name": name, "made": iso(known.made_wall)} for name, known in agents.items()]
    print_rows(
        rows,
        {"name": "agent", "made": "secret made"},
        form,
        none=f"no agent has a secret; `hivemind status agents` lists those that a proxy knows\n{place}",
    )


def _place(file: Path | None) -> Path:
    """The file itself, wherever a link leads."""
    return (file or state_folder() / _FILE_NAME).expanduser().resolve()


@contextmanager
def _changing(file: Path | None, *, may_be_new: bool = False) -> Iterator[dict[str, SecretHash]]:
    """The agents, which are written when nothing was raised. Nobody else changes them meanwhile."""
    place = _place(file)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = take_lock(place.with_name(f".{place.name}.lock"), wait_s=_LOCK_S)
    if lock is None:
        raise click.ClickException(f"{place}: another `hivemind agent` has been changing it for {_LOCK_S:.0f} s")
    try:
        agents = {} if may_be_new and not place.exists() else dict(read_secrets(place))
        yield agents
        write_secrets(place, agents)
    finally:
        os.close(lock)


def _find(agents: dict[str, SecretHash], name: str) -> str:
    if name not in agents:
        raise click.ClickException(f"no agent {name!r}; there are {', '.join(agents) or 'none'}")
    return name


def _give_secret(agents: dict[str, SecretHash], name: str) -> str:
    try:
        check_name(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from None
    secret = new_secret()
    agents[name] = hash_secret(secret, SystemClock().wall())
    return secret


def _print_secret(name: str, secret: str, host: str, port: int, *, as_json: bool) -> None:
    url = proxy_url(port, host=host, agent=name, words=[secret])
    if as_json:
        print_json({"name": name, "secret": secret, "url": url})
    else:
        click.echo(url)
