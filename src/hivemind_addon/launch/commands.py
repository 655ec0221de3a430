"""`hivemind run | exec | env | status | top | doctor`: parse, call, print."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from functools import wraps
from pathlib import Path, PurePath
from threading import Thread
from typing import NoReturn

import click
import msgspec
from rich.console import Console

from hivemind_addon.core.ticket import Priority
from hivemind_addon.dash.paper import is_screen, print_picture, svg_of
from hivemind_addon.launch import background, claim
from hivemind_addon.launch import doctor as doctors
from hivemind_addon.launch.bundle import NoBundle, is_ours, write_bundle
from hivemind_addon.launch.environment import changes, exports, proxy_url
from hivemind_addon.launch.programs import ProgramTable, load_programs
from hivemind_addon.launch.proxy_command import (
    DEFAULT_PORT,
    OLLAMA_PORT,
    NoMitmproxy,
    child_environment,
    has_mode,
    proxy_command,
)
from hivemind_addon.launch.steering import port_option
from hivemind_addon.launch.supervisor import Supervisor
from hivemind_addon.launch.upstream import UpstreamUnusable, upstream_of
from hivemind_addon.observe.report import ProxyView, Report
from hivemind_addon.profile.model import Delivery
from hivemind_addon.profile.typed import ProfileError
from hivemind_addon.runtime.clock import SystemClock
from hivemind_addon.runtime.control import UnreadableReport, control_socket, decode_report, read_report
from hivemind_addon.runtime.folders import FolderNotPrivate

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""Exit statuses, as shells have them."""
_EXPECTED = (
    NoBundle,
    NoMitmproxy,
    UpstreamUnusable,
    UnreadableReport,
    FolderNotPrivate,
    ProfileError,
    background.NotServed,
)


class DeliveryChoice(Enum):
    """What `--delivery` takes."""

    AUTO = "auto"
    STREAM = "stream"
    WHOLE = "whole"


def _one_line[**P, R](command: Callable[P, R]) -> Callable[P, R]:
    """What can be expected to go wrong is one line, and no traceback."""

    @wraps(command)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except _EXPECTED as error:
            raise click.ClickException(str(error)) from error
        except BrokenPipeError:
            raise  # whoever read us has seen enough: click ends without a word
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror or error}") from error

    return called


_agent = click.option("--agent", metavar="NAME", help="The agent's name in logs, budgets and tables.")
_priority = click.option(
    "--priority",
    type=click.Choice([one.name.lower() for one in Priority]),
    help="What it asks for; the agents file says what it gets.",
)
_delivery = click.option(
    "--delivery",
    type=click.Choice([one.value for one in DeliveryChoice]),
    default=DeliveryChoice.AUTO.value,
    show_default=True,
    help="`whole`: answers are kept back until they are complete, so that any cut is tried again; `stream`: they come "
    "as they are made; `auto`: `whole` where no terminal watches.",
)
_patience = click.option(
    "--no-patience", "patience", flag_value=False, default=True, help="Leave the agents' own time-outs as they are."
)


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
@click.option("--while-used", is_flag=True, hidden=True, help="End with the last `hivemind exec` of this port.")
@click.argument("mitmproxy_options", nargs=-1, type=click.UNPROCESSED)
@_one_line
def run(
    port: int,
    host: str,
    capture: Path | None,
    mitmproxy_options: tuple[str, ...],
    *,
    web: bool,
    ollama: bool,
    no_content: bool,
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
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    lock = claim.supervise(port)
    if lock is None:
        if while_used:
            sys.exit(background.ALREADY_SUPERVISED)
        raise click.ClickException(f"`hivemind run` serves port {port} already; use that, or choose another with -p")
    if no_content and capture is None:
        raise click.UsageError("--no-content says how to record: add --capture FILE")
    if capture is not None:
        mitmproxy_options += ("--set", f"hivemind_capture={capture.absolute()}")
        mitmproxy_options += ("--set", "hivemind_capture_content=false") if no_content else ()
    upstream = None if has_mode(mitmproxy_options) else upstream_of(os.environ, port)
    command = proxy_command(port=port, host=host, web=web, ollama=ollama, upstream=upstream, options=mitmproxy_options)
    if upstream:
        click.echo(f"hivemind: going through {upstream.url}, as the environment says", err=True)
    click.echo(f"put an agent behind it: {_hivemind('exec', port)} -- claude")
    if ollama:
        click.echo(f"put an Ollama client behind it: OLLAMA_HOST=127.0.0.1:{OLLAMA_PORT}")
    sys.stdout.flush()
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


@click.command(name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@port_option
@_agent
@_priority
@_delivery
@_patience
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@_one_line
def execute(
    port: int, agent: str | None, priority: str | None, delivery: str, command: tuple[str, ...], *, patience: bool
) -> None:
    """Run an agent through the proxy; its exit status is the command's.

    Starts a proxy in the background when none runs on the port, and ends it with the last command that uses it. A
    proxy that the environment names already becomes its upstream.

    \b
    Examples:
      hivemind exec -- claude
      hivemind exec --agent reviewer-1 --priority low -- claude -p "review this branch"
      hivemind exec --delivery whole -- ./fleet.sh
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    table = load_programs()
    user = claim.use(port)
    proxy = background.find_or_start(port, options=("--set", "flow_detail=0"), clock=SystemClock())
    name = agent or f"{PurePath(command[0]).name}-{os.getpid()}"
    its_command, waits_s = table.patient(command) if patience else (list(command), 0)
    words = _words(priority, DeliveryChoice(delivery), waits_s)
    environment = dict(os.environ) | _changes(proxy, agent=name, words=words, table=table, patience=patience)
    # The command takes our place, so that signals, the terminal and its exit status are its own. What it holds of
    # the port's claim keeps the proxy, even when it leaves something running behind.
    os.set_inheritable(user, True)
    _become(its_command, environment)


def _become(command: Sequence[str], environment: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)  # Python ignores these, and a program inherits that
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 - what the user asked for
    except FileNotFoundError:
        click.echo(f"Error: there is no command {command[0]!r} on the PATH", err=True)
        sys.exit(_NOT_FOUND)
    except OSError as error:
        click.echo(f"Error: {command[0]}: {error.strerror}", err=True)
        sys.exit(_NOT_EXECUTABLE)


@click.command()
@port_option
@_agent
@_priority
@_delivery
@_patience
@_one_line
def env(port: int, agent: str | None, priority: str | None, delivery: str, *, patience: bool) -> None:
    """Print what `hivemind exec` sets, as lines for a shell.

    `auto` delivery is `stream` here. The proxy has to run.

    \b
    Examples:
      eval "$(hivemind env --agent claude-1)"
      hivemind env -p 9090 > agent.env
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    proxy = background.running(port)
    if proxy is None:
        raise click.ClickException(f"no proxy serves port {port}; start it with `{_hivemind('run', port)}`")
    chosen = DeliveryChoice(delivery)
    words = _words(priority, DeliveryChoice.STREAM if chosen is DeliveryChoice.AUTO else chosen)
    name = agent or f"shell-{os.getppid()}"
    click.echo(exports(_changes(proxy, agent=name, words=words, table=load_programs(), patience=patience)), nl=False)


def _changes(
    proxy: ProxyView, *, agent: str, words: Sequence[str], table: ProgramTable, patience: bool
) -> dict[str, str]:
    users = {os.environ[name] for name in table.ca_variables if os.environ.get(name)}
    bundle = write_bundle(Path(proxy.confdir), sorted(file for file in users if not is_ours(file)))
    return changes(
        os.environ,
        url=proxy_url(proxy.port, agent=agent, words=words),
        bundle=bundle,
        hosts=proxy.hosts,
        table=table,
        patience=patience,
    )


def _words(priority: str | None, delivery: DeliveryChoice, waits_s: int = 0) -> list[str]:
    if delivery is DeliveryChoice.AUTO:
        watched = sys.stdin.isatty() and sys.stdout.isatty()
        delivery = DeliveryChoice.STREAM if watched else DeliveryChoice.WHOLE
    words = [Delivery(delivery.value).value]
    words += [f"prio-{priority}"] if priority else []
    return [*words, f"wait-{waits_s}"] if waits_s else words


@click.command()
@port_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as one line of JSON.")
@_one_line
def status(port: int, *, as_json: bool) -> None:
    """Show what the proxy does now: limits, what waits and why, budgets.

    \b
    Examples:
      hivemind status
      hivemind status --json | jq .snapshot.counters
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    report = _report(port)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        print_picture(report, requests=True)


@click.command()
@port_option
@click.option("--once", is_flag=True, help="Print one picture. So it is where there is no terminal to draw on.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one line of JSON.")
@click.option(
    "--snapshot",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show a report that was kept with --json, instead of a running proxy.",
)
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write one picture into this file.")
@_one_line
def top(port: int, file: Path | None, svg: Path | None, *, once: bool, as_json: bool) -> None:
    """Watch a running proxy: limits and queues, every agent and what it waits for, what happened; and steer it.

    Press ? for the keys. It attaches to the proxy and leaves it alone when it ends.

    \b
    Examples:
      hivemind top
      hivemind top --json > report.json      keep what is now, for a bug report
      hivemind top --snapshot report.json    look at it
      COLUMNS=200 hivemind top --once | less
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    report = decode_report(file.read_bytes(), str(file)) if file else _report(port)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    elif svg is not None:
        svg.write_text(svg_of(report, width=Console().width), encoding="utf-8")
    elif once or file or not is_screen():
        print_picture(report)
    else:
        from hivemind_addon.dash.feed import Feed  # noqa: PLC0415 - what follows takes half a second to load
        from hivemind_addon.dash.live import Top  # noqa: PLC0415 - as above

        Top(Feed(control_socket(port)), clock=SystemClock()).run(
            mouse=False
        )  # the terminal's own selection goes on working


def _report(port: int) -> Report:
    report = read_report(control_socket(port))
    if report is None:
        raise click.ClickException(f"no proxy serves port {port}; start it with `{_hivemind('run', port)}`")
    return report


@click.command()
@port_option
@click.option("--agent", "program", metavar="PROGRAM", help="The program in question: claude, codex, gemini, …")
@_one_line
def doctor(port: int, program: str | None) -> None:
    """Find what keeps an agent from being scheduled, and say the cure; the exit status is 1 when something does.

    It looks at the environment that it is started in: start it where the agent starts, or through `hivemind exec`.

    \b
    Examples:
      hivemind exec -- hivemind doctor
      hivemind doctor --agent claude
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    table = load_programs()
    if program is not None and program not in table.programs:
        raise click.BadParameter(
            f"no facts about {program!r}; there are {', '.join(table.programs)}", param_hint="--agent"
        )
    chosen = table.programs[program] if program else None
    bad = False
    for finding in doctors.examine(os.environ, port=port, program=chosen, table=table, clock=SystemClock()):
        click.echo(f"{finding.verdict.value:<4}  {finding.text}")
        bad = bad or finding.verdict is doctors.Verdict.BAD
    if bad:
        sys.exit(1)


def _hivemind(command: str, port: int) -> str:
    return f"hivemind {command}" + (f" -p {port}" if port != DEFAULT_PORT else "")


COMMANDS = (run, execute, env, status, top, doctor)
