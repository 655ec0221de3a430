"""`hivemind run | exec | env | doctor`: parse, call, print."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from threading import Thread

import click
import msgspec

from hivemind_addon.api.control import UnreadableReport
from hivemind_addon.api.proxy_user import proxy_words
from hivemind_addon.api.ticket import Delivery, Priority
from hivemind_addon.system.clock import SystemClock
from hivemind_addon.system.folders import FolderNotPrivate
from hivemind_addon.system.typed import DocumentError
from hivemind_addon.tools.commands.proxy import in_one_line, no_proxy, port_option
from hivemind_addon.tools.launch import background, claim, detached
from hivemind_addon.tools.launch import doctor as doctors
from hivemind_addon.tools.launch.become import become
from hivemind_addon.tools.launch.behind import NoBundle, asked_words, environment_changes
from hivemind_addon.tools.launch.environment import exports
from hivemind_addon.tools.launch.neighbour import find_neighbour
from hivemind_addon.tools.launch.programs import load_programs
from hivemind_addon.tools.launch.proxy_command import (
    OLLAMA_PORT,
    NoMitmproxy,
    UnknownOption,
    UpstreamUnusable,
    check_options,
    child_environment,
    has_mode,
    mitmproxy_program,
    proxy_command,
    upstream_of,
)
from hivemind_addon.tools.launch.supervisor import Supervisor

_one_line = in_one_line(
    NoBundle,
    NoMitmproxy,
    UnknownOption,
    UpstreamUnusable,
    UnreadableReport,
    FolderNotPrivate,
    DocumentError,
    background.NotServed,
)


def _read_task(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """An id that arrives as it was given."""
    del ctx, param
    if value is not None and (not value or proxy_words(f"task-{value}").task != value):
        raise click.BadParameter(f"{value!r} would not arrive whole: no blanks, commas, dots and `+` in it")
    return value or ""


def _of_an_agent[**P, R](command: Callable[P, R]) -> Callable[P, R]:
    """What an agent is called, and what it asks for: the options of `exec` and `env`."""
    for option in (
        click.option(
            "--no-patience",
            "patience",
            flag_value=False,
            default=True,
            help="Leave the agents' own time-outs as they are.",
        ),
        click.option(
            "--task", metavar="ID", callback=_read_task, help="What its requests are kept under, beside their own ids."
        ),
        click.option(
            "--delivery",
            type=click.Choice([one.value for one in Delivery]),
            default=Delivery.AUTO.value,
            show_default=True,
            help="`whole`: answers are kept back until they are complete, so that any cut is tried again; `stream`: "
            "they come as they are made; `auto`: `whole` where no terminal watches, else as the agent's own headers "
            "say.",
        ),
        click.option(
            "--priority",
            type=click.Choice([one.name.lower() for one in Priority]),
            help="What it asks for; the agents file says what it gets.",
        ),
        click.option("--agent", metavar="NAME", help="The agent's name in logs, budgets and tables."),
    ):
        command = option(command)
    return command


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--web", is_flag=True, help="Start mitmweb instead of mitmdump.")
@port_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--ollama", is_flag=True, help=f"Serve a local Ollama, too: port {OLLAMA_PORT} leads to it through the scheduler."
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
@click.option("--max-concurrency", metavar="N", help="At most so many requests at once, in each pool of limits.")
@click.option("--total-budget", metavar="AMOUNT", help="What all agents together may spend: 500k, 20M tokens; $5.")
@click.option("--agent-budget", metavar="AMOUNT", help="What each agent may spend: tokens or dollars.")
@click.option(
    "--fresh", is_flag=True, help="Without the overrides and the budgets per run of earlier runs on this port."
)
@click.option("--while-used", is_flag=True, hidden=True, help="End with the last `hivemind exec` of this port.")
@click.argument("mitmproxy_options", nargs=-1, type=click.UNPROCESSED)
@_one_line
def run(
    port: int,
    host: str,
    capture: Path | None,
    mitmproxy_options: tuple[str, ...],
    upstream: str | None,
    max_concurrency: str | None,
    total_budget: str | None,
    agent_budget: str | None,
    *,
    web: bool,
    ollama: bool,
    no_content: bool,
    fresh: bool,
    while_used: bool,
) -> None:
    """Start mitmdump (or mitmweb) with the addon, from anywhere, and start it again should it die.

    All other options go to mitmproxy. A proxy that the environment names already becomes its upstream, unless you
    give a --mode.

    \b
    Examples:
      hivemind run
      hivemind run --web -p 9090
      hivemind run --set hivemind_agents=agents.yaml
      hivemind run --capture night.flow
      hivemind run --max-concurrency 4 --total-budget 20M
      hivemind run --upstream http://127.0.0.1:8000
    """
    own = [name for one in click.get_current_context().command.params for name in one.opts]
    check_options(mitmproxy_options, mitmproxy_program(web=web), own)
    lock = claim.supervise(port)
    if lock is None:
        if while_used:
            sys.exit(detached.ALREADY_THERE)
        raise click.ClickException(f"`hivemind run` serves port {port} already; use that, or choose another with -p")
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
    said = {
        "upstream": upstream,
        "max_concurrency": max_concurrency,
        "total_budget": total_budget,
        "agent_budget": agent_budget,
    }
    for name, value in said.items():
        mitmproxy_options += ("--set", f"hivemind_{name}={value}") if value is not None else ()
    proxy = None if has_mode(mitmproxy_options) else upstream_of(os.environ, port)
    command = proxy_command(
        port=port, host=host, web=web, ollama=ollama, fresh=fresh, upstream=proxy, options=mitmproxy_options
    )
    if proxy:
        click.echo(f"hivemind: going through {proxy.url}, as the environment says", err=True)
    supervisor = Supervisor(
        command,
        environment=child_environment(os.environ),
        clock=SystemClock(),
        tell=lambda line: click.echo(line, err=True),
    )
    status = asyncio.run(_supervise(supervisor, port, while_used=while_used))
    os.close(lock)
    sys.exit(status)


async def _supervise(supervisor: Supervisor, port: int, *, while_used: bool) -> int:
    if while_used:
        loop = asyncio.get_running_loop()

        def watch() -> None:
            claim.wait_until_unused(port)  # kept until we end, so that nobody begins to use what is ending
            loop.call_soon_threadsafe(supervisor.stop)

        # A daemon: blocked in the lock, it must not keep us from ending for another reason.
        Thread(target=watch, daemon=True).start()
    return await supervisor.run()


@click.command(name="exec", context_settings={"allow_interspersed_args": False})
@port_option
@_of_an_agent
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@_one_line
def execute(
    port: int,
    agent: str | None,
    priority: str | None,
    delivery: str,
    task: str,
    command: tuple[str, ...],
    *,
    patience: bool,
) -> None:
    """Run an agent through the proxy; its exit status is the command's.

    Starts a proxy in the background when none runs on the port, and ends it with the last command that uses it. A
    proxy that the environment names already becomes its upstream.

    \b
    Examples:
      hivemind exec -- claude
      hivemind exec --agent reviewer-1 --priority low -- claude -p "review this branch"
      hivemind exec --delivery whole -- ./fleet.sh
      hivemind exec --task nightly-7 -- codex exec "update the docs"
    """
    table = load_programs()
    user = claim.use(port)
    proxy = background.find_or_start(port, clock=SystemClock())
    name = agent or f"{PurePath(command[0]).name}-{os.getpid()}"
    its_command, waits_s = table.patient(command) if patience else (list(command), 0)
    words = asked_words(_delivery_of(Delivery(delivery)), priority=priority, waits_s=waits_s, task=task)
    changed = environment_changes(proxy, os.environ, agent=name, words=words, table=table, patience=patience)
    # The command takes our place, so that signals, the terminal and its exit status are its own. What it holds of
    # the port's claim keeps the proxy, even when it leaves something running behind.
    os.set_inheritable(user, True)
    become(its_command, dict(os.environ) | changed)


@click.command()
@port_option
@_of_an_agent
@click.option("--json", "as_json", is_flag=True, help="Print the variables as one JSON object.")
@_one_line
def env(
    port: int,
    agent: str | None,
    priority: str | None,
    delivery: str,
    task: str,
    *,
    patience: bool,
    as_json: bool,
) -> None:
    """Print what `hivemind exec` sets, as lines for a shell.

    The proxy has to run. Whether a terminal watches is not known here: `auto` delivery goes by the agents' headers.

    \b
    Examples:
      eval "$(hivemind env --agent claude-1)"
      hivemind env -p 9090 > agent.env
      hivemind env --agent ci --json | jq -r .HTTPS_PROXY
    """
    proxy = background.running(port)
    if proxy is None:
        raise no_proxy(port)
    words = asked_words(Delivery(delivery), priority=priority, task=task)
    name = agent or f"shell-{os.getppid()}"
    changed = environment_changes(proxy, os.environ, agent=name, words=words, table=load_programs(), patience=patience)
    click.echo(msgspec.json.encode(changed).decode() + "\n" if as_json else exports(changed), nl=False)


def _delivery_of(chosen: Delivery) -> Delivery:
    watched = sys.stdin.isatty() and sys.stdout.isatty()
    return Delivery.WHOLE if chosen is Delivery.AUTO and not watched else chosen


@click.command()
@port_option
@click.option("--agent", "program", metavar="PROGRAM", help="The program in question: claude, codex, gemini, …")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON list.")
@_one_line
def doctor(port: int, program: str | None, *, as_json: bool) -> None:
    """Find what keeps an agent from being scheduled, and say the cure; the exit status is 1 when something does.

    It looks at the environment that it is started in: start it where the agent starts, or through `hivemind exec`.

    \b
    Examples:
      hivemind exec -- hivemind doctor
      hivemind doctor --agent claude
      hivemind doctor --json | jq '.[] | select(.verdict == "bad")'
    """
    table = load_programs()
    if program is not None and program not in table.programs:
        raise click.BadParameter(
            f"no facts about {program!r}; there are {', '.join(table.programs)}", param_hint="--agent"
        )
    chosen = table.programs[program] if program else None
    findings = []
    for finding in doctors.examine(os.environ, port=port, program=chosen, table=table, clock=SystemClock()):
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.verdict.value:<4}  {finding.text}")  # as it is found: some take a moment
    if as_json:
        click.echo(msgspec.json.encode(findings).decode())
    if any(finding.verdict is doctors.Severity.BAD for finding in findings):
        sys.exit(1)
