"""`hivemind mcp`: the scheduler's tools for agents."""

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hivemind_addon.kernel.values.command import nearest
from hivemind_addon.plugins.fleets.leases.model import LeaseError
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.commands.options import configured_port
from hivemind_addon.tools.launch.port import AGENT_VARIABLE, DEFAULT_PORT, PORT_VARIABLE
from hivemind_addon.tools.mcp.session import Permission, ServerScope, Session, caller_of

if TYPE_CHECKING:
    from hivemind_addon.tools.mcp.server import McpServer

_INTERRUPTED = 130


def _allowed(_: click.Context, __: click.Parameter, said: tuple[str, ...]) -> frozenset[Permission]:
    """The permissions, between commas or blanks; `all` is every one."""
    known = {one.value: {one} for one in Permission} | {"all": set(Permission)}
    words = " ".join(said).lower().replace(",", " ").split()
    for word in words:
        if word not in known:
            hint = f"; did you mean {near}?" if (near := nearest(word, known)) else ""
            raise click.BadParameter(f"{word!r} is nothing to allow; there are {', '.join(known)}{hint}")
    return frozenset[Permission]().union(*(known[word] for word in words))


@click.command()
@click.option("--agent", metavar="NAME", help=f"Who calls, as the proxy knows it.  [default: {AGENT_VARIABLE}]")
@click.option(
    "-p",
    "--port",
    type=click.IntRange(1, 65535),
    help=f"The proxy's port; else as {PORT_VARIABLE}, HTTPS_PROXY or hivemind.yaml say, or {DEFAULT_PORT}.",
)
@click.option(
    "--allow",
    metavar="WORDS",
    multiple=True,
    callback=_allowed,
    help=f"What the agent may do beside asking about itself: {', '.join(one.value for one in Permission)}, all.",
)
@click.option(
    "--allow-commands", is_flag=True, help="Tasks may be raw commands, and options such as name programs and files."
)
@click.option(
    "--http",
    "http_port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve HTTP on loopback; 0: any free port.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keeps the token that HTTP clients say; without it a new one is made and printed at each start.",
)
def mcp(
    agent: str | None,
    port: int | None,
    allow: frozenset[Permission],
    http_port: int | None,
    token_file: Path | None,
    *,
    allow_commands: bool,
) -> None:
    """Serve tools for agents: the Model Context Protocol, on standard input and output.

    An agent's program starts this server: `hivemind setup` writes the entry into the program's configuration. Without
    --allow an agent asks about itself, lets others go first and takes leases, and cannot steer others.

    \b
    Examples:
      claude mcp add hivemind -- hivemind mcp
      hivemind mcp --allow submit,batch
      hivemind mcp --http 8090 --agent lead
    """
    if token_file is not None and http_port is None:
        raise click.UsageError("--token-file is for --http PORT")
    if allow_commands and not allow & {Permission.SUBMIT, Permission.BATCH, Permission.CONFIG}:
        raise click.UsageError(
            "--allow-commands says what tasks and options may be: add --allow submit, batch or config"
        )
    from hivemind_addon.plugins.fleets.leases.choice import LeasePlace  # noqa: PLC0415 - only where a server runs
    from hivemind_addon.tools.mcp.server import make_server, serve_stdio  # noqa: PLC0415 - it takes half a second to load
    from hivemind_addon.tools.mcp.tools import TOOLS  # noqa: PLC0415 - as above

    scope = ServerScope(allow, commands=allow_commands)
    caller = caller_of(os.environ, agent=agent or "", port=port, usual_port=configured_port())
    try:
        leases, clock = LeasePlace.of(os.environ).open(os.environ), SystemClock()
    except LeaseError as error:
        raise click.ClickException(str(error)) from error

    server = make_server(TOOLS, scope, lambda: Session(caller=caller, scope=scope, clock=clock, leases=leases))
    if http_port is not None:
        _serve_http(server, http_port, token_file)
        return
    if sys.stdin.isatty():
        click.echo("hivemind: an agent's tool starts this and speaks to it here: see `hivemind setup`", err=True)
    # Its client ends it: by closing standard input, or by a signal, which must not wait for a line to come.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        asyncio.run(serve_stdio(server))
    except* BrokenPipeError:
        sys.exit(0)  # the client is gone


def _serve_http(server: "McpServer", port: int, token_file: Path | None) -> None:
    from hivemind_addon.tools.mcp import http  # noqa: PLC0415 - only where HTTP is served

    try:
        token = http.new_token() if token_file is None else http.kept_token(token_file)
        listening = http.listener(port)
    except http.BadToken as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        where = token_file if error.filename else f"{http.HOST}:{port}"
        raise click.ClickException(f"{where}: {error.strerror}") from error
    url = f"http://{http.HOST}:{listening.getsockname()[1]}{http.PATH}"
    shown = f"$(cat {shlex.quote(str(token_file))})" if token_file else token
    click.echo(f"serving {url}")
    click.echo(f'add it: claude mcp add --transport http hivemind {url} --header "Authorization: Bearer {shown}"')
    sys.stdout.flush()
    try:
        asyncio.run(http.serve_http(server, listening, token=token))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
