"""`hivemind run`: the proxy alone, for all agents."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import cast, override

import click
from click.core import ParameterSource

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.proxy.api.config_file import run_setting
from hivemind_addon.proxy.api.control import UnreadableReport
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.engine_url import (
    CLUSTER_NAME_VARIABLE,
    CLUSTER_VARIABLE,
    OFF,
    PASSWORD_VARIABLE,
    BadEngineUrl,
    check_cluster_name,
    parse_engine_url,
)
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.tools.commands.options import config, in_one_line, port_option
from hivemind_addon.tools.commands.proxy import typed
from hivemind_addon.tools.launch import background, claim
from hivemind_addon.tools.launch.detached import ALREADY_THERE, bound_log, is_our_output
from hivemind_addon.tools.launch.neighbour import find_neighbour
from hivemind_addon.tools.launch.port import log_file
from hivemind_addon.tools.launch.proxy_command import (
    AUTO,
    LOOPS,
    OLLAMA_PORT,
    NoLoop,
    NoMitmproxy,
    UnknownOption,
    UpstreamUnusable,
    check_loop,
    check_options,
    child_environment,
    has_mode,
    is_proxy_of_exec,
    mitmproxy_program,
    proxy_command,
    served_port,
    upstream_of,
)
from hivemind_addon.tools.launch.supervisor import Supervisor

_NO_JOURNAL = "off"
_DETACH = "--detach"
_WORDS = "hivemind.run.words"
_BOUND_LOG_EVERY_S = 60.0
_one_line = in_one_line(
    background.NotServed,
    UnreadableReport,
    NoLoop,
    NoMitmproxy,
    UnknownOption,
    UpstreamUnusable,
    FolderNotPrivate,
    DocumentError,
)


class _RunCommand(click.Command):
    """A command that keeps the words it was called with, to repeat them in the background."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)


@click.command(cls=_RunCommand, context_settings={"ignore_unknown_options": True})
@click.option(
    _DETACH, is_flag=True, help="In the background: it says its addresses once it listens; `hivemind stop` ends it."
)
@click.option("--web", is_flag=True, help="Start mitmweb instead of mitmdump.")
@port_option
@click.option(
    "--host",
    metavar="ADDRESS",
    help="The address to listen on.  [default: 127.0.0.1; with --allow-clients 0.0.0.0, every interface]",
)
@click.option(
    "--allow-clients",
    metavar="CIDR,...",
    help="Networks that clients may be in beside this machine, for example 10.0.0.0/8,192.168.1.7. All others are "
    "refused.",
)
@click.option(
    "--ollama", is_flag=True, help=f"Serve a local Ollama, too: port {OLLAMA_PORT} leads to it through the scheduler."
)
@click.option(
    "--agent-secrets",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Names and secrets of agents, as `hivemind agent add` writes them: clients that prove none are refused.",
)
@click.option(
    "--loop",
    type=click.Choice(LOOPS),
    default=AUTO,
    show_default=True,
    help="The event loop that the proxy runs on; auto: uvloop where it is installed, else asyncio.",
)
@click.option(
    "--capture", type=click.Path(dir_okay=False, path_type=Path), help="Record every call into this file, as it ends."
)
@click.option("--no-content", is_flag=True, help="Record no words: only sizes, times and structure.")
@click.option(
    "--upstream",
    metavar="URL",
    help="The provider that requests straight to the proxy's own port go to, as with a base URL that names it. "
    "(A proxy to go through is `--mode upstream:URL`.)",
)
@click.option(
    "--tools",
    metavar="NAME,...",
    help="Services that are no models whose calls are scheduled, too: github, tavily, brave, exa, e2b; at a host of "
    "yours mcp=HOST, index=HOST, sandbox=HOST.",
)
@click.option("--max-concurrency", metavar="N", help="At most so many requests at once, in each pool of limits.")
@click.option("--total-budget", metavar="AMOUNT", help="What all agents together may spend: 500k, 20M tokens; $5.")
@click.option("--agent-budget", metavar="AMOUNT", help="What each agent may spend: tokens or dollars.")
@click.option(
    "--journal",
    metavar="FILE",
    help="Where every request is remembered, over restarts: an SQLite file; `off` for none.",
)
@click.option(
    "--cluster",
    metavar="URL",
    envvar=CLUSTER_VARIABLE,
    help="Schedule as one with all proxies that name the same Valkey or Redis server: valkey://[USER@]HOST[:PORT]. "
    f"The variable {CLUSTER_VARIABLE} says the same, and {PASSWORD_VARIABLE} its password.",
)
@click.option(
    "--cluster-name",
    metavar="NAME",
    envvar=CLUSTER_NAME_VARIABLE,
    help="The cluster's name, where a server has several.",
)
@click.option(
    "--fresh", is_flag=True, help="Without the overrides and the budgets per run of earlier runs on this port."
)
@click.option("--while-used", is_flag=True, hidden=True, help="End with the last `hivemind exec` of this port.")
@click.argument("mitmproxy_options", nargs=-1, type=click.UNPROCESSED)
@_one_line
def run(
    port: int,
    host: str | None,
    allow_clients: str | None,
    agent_secrets: Path | None,
    loop: str,
    capture: Path | None,
    mitmproxy_options: tuple[str, ...],
    upstream: str | None,
    tools: str | None,
    max_concurrency: str | None,
    total_budget: str | None,
    agent_budget: str | None,
    journal: str | None,
    cluster: str | None,
    cluster_name: str | None,
    *,
    detach: bool,
    web: bool,
    ollama: bool,
    no_content: bool,
    fresh: bool,
    while_used: bool,
) -> None:
    """Start mitmdump (or mitmweb) with the addon, from anywhere, and start it again if the proxy dies.

    Variables `HIVEMIND_<OPTION>` and hivemind.yaml set options that the command line leaves out (see `hivemind config
    show`). All other options go to mitmproxy. A proxy that the environment names already becomes the upstream, unless
    you give a --mode.

    \b
    Examples:
      hivemind run
      hivemind run --detach
      hivemind run --web -p 9090
      hivemind run --set hivemind_agents=agents.yaml
      hivemind run --capture night.flow
      hivemind run --max-concurrency 4 --total-budget 20M
      hivemind run --upstream http://127.0.0.1:8000
      hivemind run --tools github,tavily,mcp=localhost:9000
      hivemind run --cluster valkey://cache.example:6379
      hivemind run --allow-clients 10.0.0.0/8 --agent-secrets team.json
    """
    ctx = click.get_current_context()
    configured = config()

    def said[T](key: str, given: T) -> T:
        """The value from the command line, or else from a file or the environment."""
        if ctx.get_parameter_source(key) is not ParameterSource.DEFAULT:
            return given
        found = run_setting(key, os.environ, configured)
        return given if found.is_default else cast("T", found.value)

    host, web, loop, ollama = said("host", host), said("web", web), said("loop", loop), said("ollama", ollama)
    host = host or ("127.0.0.1" if allow_clients is None else "0.0.0.0")  # noqa: S104 - for those networks alone
    _check_cluster(cluster, cluster_name)
    check_loop(loop)
    params = click.get_current_context().command.params
    own = [name for one in params if not getattr(one, "hidden", False) for name in one.opts]
    check_options(mitmproxy_options, mitmproxy_program(web=web), own)
    taken = click.ClickException(f"`hivemind run` serves port {port} already; use that, or choose another with -p")
    if detach:
        if claim.is_supervised(port):
            raise taken
        words = [word for word in click.get_current_context().meta[_WORDS] if word != _DETACH]
        _detach(["run", *words], served_port(mitmproxy_options, port))
        return
    lock = claim.supervise(port)
    if lock is None:
        if while_used:
            sys.exit(ALREADY_THERE)
        raise taken
    moved = has_mode(mitmproxy_options) or "--listen-port" in mitmproxy_options or "--listen-host" in mitmproxy_options
    if not moved and (neighbour := find_neighbour(port, host)) is not None:
        raise click.ClickException(str(neighbour))
    if ollama and not moved and (neighbour := find_neighbour(OLLAMA_PORT, host)) is not None:
        cure = "use that one's" if neighbour.is_proxy else "end that"
        raise click.ClickException(
            f"port {OLLAMA_PORT}, which --ollama needs, is taken by {neighbour.who}; {cure}, or leave --ollama out"
        )
    if no_content and capture is None:
        raise click.UsageError("--no-content says how to record: add --capture FILE")
    if capture is not None:
        mitmproxy_options += ("--set", f"hivemind_capture={capture.absolute()}")
        mitmproxy_options += ("--set", "hivemind_capture_content=false") if no_content else ()
    as_options = {
        "upstream": upstream,
        "tools": tools,
        "max_concurrency": max_concurrency,
        "total_budget": total_budget,
        "agent_budget": agent_budget,
        "allow_clients": allow_clients,
        "journal": journal if journal in (None, _NO_JOURNAL) else str(Path(journal).expanduser().absolute()),
        "agent_secrets": str(agent_secrets.expanduser().absolute()) if agent_secrets else None,
    }
    for name, value in as_options.items():
        mitmproxy_options += ("--set", f"hivemind_{name}={value}") if value is not None else ()
    # Not on the command line, which every user of the machine may read.
    cluster_said = {CLUSTER_VARIABLE: cluster, CLUSTER_NAME_VARIABLE: cluster_name}
    in_environment = {name: value for name, value in cluster_said.items() if value is not None}
    proxy = None if has_mode(mitmproxy_options) else upstream_of(os.environ, port)
    command = proxy_command(
        port=port, host=host, web=web, loop=loop, ollama=ollama, fresh=fresh, upstream=proxy, options=mitmproxy_options
    )
    if proxy:
        click.echo(f"hivemind: going through {proxy.url}, as the environment says", err=True)
        said_by = click.get_current_context().get_parameter_source("cluster")
        if cluster and said_by is ParameterSource.ENVIRONMENT and is_proxy_of_exec(proxy, os.environ):
            # That one is a member. Were we one, too, each request would be admitted twice, and wait for itself.
            in_environment[CLUSTER_VARIABLE] = OFF
    supervisor = Supervisor(
        command,
        environment=child_environment(os.environ) | in_environment,
        clock=SystemClock(),
        tell=lambda line: click.echo(line, err=True),
    )
    status = asyncio.run(_supervise(supervisor, port, while_used=while_used))
    os.close(lock)
    sys.exit(status)


def _detach(words: Sequence[str], port: int) -> None:
    """Start the proxy in the background and print the addresses. Raises NotServed, UnreadableReport."""
    proxy = background.start(words, port, clock=SystemClock())
    lines = [
        ("serves", ", ".join(proxy.listens)),
        ("page", f"http://127.0.0.1:{proxy.port}/"),
        ("mitmweb", proxy.web),
        ("log", f"{log_file(port)} (`{typed('logs', port)}`)"),
        ("agents", f"`{typed('exec', port)} -- claude`"),
        ("end it", f"`{typed('stop', port)}`"),
    ]
    for name, value in lines:
        if value:
            click.echo(f"{name:<8} {value}")


def _check_cluster(url: str | None, name: str | None) -> None:
    """Check before anything is started: a proxy that ends at once may look like a proxy that fails."""
    said_by = click.get_current_context().get_parameter_source
    by_option = {
        parameter: said_by(parameter) is ParameterSource.COMMANDLINE for parameter in ("cluster", "cluster_name")
    }
    if by_option["cluster_name"] and not url:
        raise click.UsageError("--cluster-name says which cluster: add --cluster URL")
    if not url or url == OFF:
        return
    try:
        parse_engine_url(url, os.environ, option="--cluster" if by_option["cluster"] else CLUSTER_VARIABLE)
        if name:
            check_cluster_name(name, option="--cluster-name" if by_option["cluster_name"] else CLUSTER_NAME_VARIABLE)
    except BadEngineUrl as error:
        raise click.ClickException(str(error)) from None


async def _supervise(supervisor: Supervisor, port: int, *, while_used: bool) -> int:
    if is_our_output(log_file(port)):

        def bound() -> None:
            bound_log(log_file(port))
            asyncio.get_running_loop().call_later(_BOUND_LOG_EVERY_S, bound)

        bound()
    if while_used:
        loop = asyncio.get_running_loop()

        def watch() -> None:
            claim.wait_until_unused(port)  # kept until we end, so that nobody begins to use what is ending
            loop.call_soon_threadsafe(supervisor.stop)

        # A daemon: blocked in the lock, it must not keep us from ending for another reason.
        Thread(target=watch, daemon=True).start()
    return await supervisor.run()
