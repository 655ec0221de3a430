"""`hivemind exec | env`: an agent through the proxy, or what it needs to go through it."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import PurePath

import click
import msgspec

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.formats.wire.proxy_user import proxy_words
from hivemind_addon.kernel.values.ticket import Delivery, Priority
from hivemind_addon.proxy.api.control import UnreadableReport
from hivemind_addon.proxy.api.report import ProxyView
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.tools.commands.options import in_one_line, port_option
from hivemind_addon.tools.commands.proxy import no_proxy
from hivemind_addon.tools.launch import background, claim
from hivemind_addon.tools.launch.agent_environment import (
    NamelessSecret,
    NoBundle,
    agent_environment,
    asked_words,
    environment_changes,
    lacks_password,
    proved_name,
)
from hivemind_addon.tools.launch.environment import exports
from hivemind_addon.tools.launch.finding import Severity
from hivemind_addon.tools.launch.hindrance import hindrances
from hivemind_addon.tools.launch.port import AGENT_VARIABLE
from hivemind_addon.tools.launch.process_replacement import become
from hivemind_addon.tools.launch.programs import load_programs

WHY_NOT_BEHIND = (NoBundle, NamelessSecret, UnreadableReport, FolderNotPrivate, DocumentError, background.NotServed)
"""What `behind_proxy` raises, each one line."""
_one_line = in_one_line(*WHY_NOT_BEHIND)


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
    proxy that the environment names already becomes its upstream. Where the proxy asks agents for their secrets
    (`hivemind agent`), the variable HIVEMIND_AGENT_SECRET has this one's.

    \b
    Examples:
      hivemind exec -- claude
      hivemind exec --agent reviewer-1 --priority low -- claude -p "review"
      hivemind exec --delivery whole -- ./fleet.sh
      hivemind exec --task nightly-7 -- codex exec "update the docs"
      HIVEMIND_AGENT_SECRET=... hivemind exec --agent ann -- claude
    """
    become(
        *behind_proxy(
            command,
            port=port,
            agent=agent,
            delivery=Delivery(delivery),
            priority=priority,
            task=task,
            patience=patience,
        )
    )


def behind_proxy(
    command: Sequence[str],
    *,
    port: int,
    agent: str | None,
    delivery: Delivery = Delivery.AUTO,
    priority: str | None = None,
    task: str = "",
    patience: bool = True,
) -> tuple[list[str], dict[str, str]]:
    """What `become` takes to run a command behind the proxy, which is started where none runs.

    `agent`: its name; None: as the environment has it, else after the command. Raises NoBundle, NamelessSecret,
    UnreadableReport, FolderNotPrivate, DocumentError, NotServed and OSError.
    """
    table = load_programs()
    user = claim.use(port)
    proxy = background.find_or_start(port, clock=SystemClock())
    proved, secret = proved_name(os.environ if agent is None else {**os.environ, AGENT_VARIABLE: agent})
    name = agent or proved or f"{PurePath(command[0]).name}-{os.getpid()}"
    if found := table.find(command):
        program = found[0]
        for one in hindrances(program, environment=os.environ, table=table, hosts=proxy.hosts, listens=proxy.listens):
            if one.verdict is Severity.BAD or program.tunnelled:
                click.echo(f"hivemind: {one.text}", err=True)  # it starts all the same
    its_command, waits_s = table.patient(command) if patience else (list(command), 0)
    words = secret + asked_words(_delivery_of(delivery), priority=priority, waits_s=waits_s, task=task)
    changed = environment_changes(proxy, os.environ, agent=name, words=words, table=table, patience=patience)
    _tell_of_leases(proxy)
    # The command takes our place, so that signals, the terminal and its exit status are its own. What it holds of
    # the port's claim keeps the proxy, even when it leaves something running behind.
    os.set_inheritable(user, True)
    return its_command, agent_environment(proxy, dict(os.environ) | changed)


@click.command()
@port_option
@_of_an_agent
@click.option("--json", "as_json", is_flag=True, help="Print the variables as one JSON object.")
@_one_line
def env(
    port: int, agent: str | None, priority: str | None, delivery: str, task: str, *, patience: bool, as_json: bool
) -> None:
    """Print what `hivemind exec` sets, as lines for a shell.

    The proxy has to run. Whether a terminal watches is not known here: `auto` delivery goes by the agents' headers.

    \b
    Examples:
      eval "$(hivemind setup env --agent claude-1)"
      hivemind setup env -p 9090 > agent.env
      hivemind setup env --agent ci --json | jq -r .HTTPS_PROXY
    """
    proxy = background.running(port)
    if proxy is None:
        raise no_proxy(port)
    proved, secret = proved_name(os.environ if agent is None else {**os.environ, AGENT_VARIABLE: agent})
    words = secret + asked_words(Delivery(delivery), priority=priority, task=task)
    name = agent or proved or f"shell-{os.getppid()}"
    changed = environment_changes(proxy, os.environ, agent=name, words=words, table=load_programs(), patience=patience)
    _tell_of_leases(proxy)
    click.echo(msgspec.json.encode(changed).decode() + "\n" if as_json else exports(changed), nl=False)


def _tell_of_leases(proxy: ProxyView) -> None:
    if told := lacks_password(proxy, os.environ):
        click.echo(f"hivemind: {told}", err=True)


def _delivery_of(chosen: Delivery) -> Delivery:
    watched = sys.stdin.isatty() and sys.stdout.isatty()
    return Delivery.WHOLE if chosen is Delivery.AUTO and not watched else chosen
