"""`hivemind logs | stop`: the proxy in the background, which `run --detach` and `exec` start."""

from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Event

import click

from hivemind_addon.proxy.api.words import printable, several
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.commands.options import in_one_line, port_option
from hivemind_addon.tools.commands.proxy import no_proxy, one_line
from hivemind_addon.tools.launch import background
from hivemind_addon.tools.launch.detached import old_log
from hivemind_addon.tools.launch.port import log_file

_LOOK_EVERY_S = 0.2
_NAMED = 5
"""So many agents are told by name."""


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "-n", "--lines", "most", type=click.IntRange(0), default=50, show_default=True, help="So many of the newest lines."
)
@port_option
def logs(most: int, port: int, *, follow: bool) -> None:
    """Print what the proxy in the background says, also after it has ended.

    Its log is a file in your state folder, for you alone, at most some 8 MB with the one before it. A proxy that
    `hivemind run` starts in a terminal says it there.

    \b
    Examples:
      hivemind logs
      hivemind logs -f
      hivemind logs -n 1000 | grep ERROR
    """
    log = log_file(port)
    with in_one_line():
        if not log.exists():
            raise click.ClickException(
                f"no proxy was in the background on port {port}: there is no {log}; `hivemind run --detach` starts one"
            )
        for line in _newest(log, most):
            click.echo(line, nl=False)
        if follow:
            with suppress(KeyboardInterrupt):  # that is how it ends
                _follow(log)


def _newest(log: Path, most: int) -> list[bytes]:
    lines: deque[bytes] = deque(maxlen=most)
    for file in (old_log(log), log):
        if file.exists():
            with file.open("rb") as whole:
                lines.extend(whole)
    return list(lines)


def _follow(log: Path) -> None:
    pause = Event()
    with log.open("rb") as file:
        file.seek(0, 2)
        while True:
            if log.stat().st_size < file.tell():
                file.seek(0)  # it began anew
            if new := file.read():
                click.echo(new, nl=False)
            pause.wait(_LOOK_EVERY_S)


@click.command()
@click.option("--now", is_flag=True, help="Cut off what is in flight, instead of waiting for it.")
@port_option
@one_line
def stop(port: int, *, now: bool) -> None:
    """End the proxy on a port, wherever it was started, and say what was ended.

    Requests that wait are sent back, so that their clients try again; requests in flight may end, half a minute long,
    unless you say --now. What was learned and spent is in the journal.

    \b
    Examples:
      hivemind stop
      hivemind stop --now -p 9090
    """
    with in_one_line(background.StillRunning):
        ended = background.stop(
            port, now=now, clock=SystemClock(), tell=lambda line: click.echo(f"hivemind: {line}", err=True)
        )
    if ended is None:
        raise no_proxy(port)
    click.echo(f"stopped the proxy on {', '.join(ended.listens)} (process {ended.pid}); {_fate(ended, now=now)}")
    if ended.is_used:
        click.echo("hivemind: commands that `hivemind exec` started go on, and have no proxy now", err=True)


def _fate(ended: background.StoppedProxy, *, now: bool) -> str:
    if not (ended.running or ended.waiting):
        return "nothing was in flight"
    running = f"{several(ended.running, 'request')} in flight {'cut off' if now else 'let end'}"
    waiting = f"{several(ended.waiting, 'request')} that waited sent back"
    told = ", ".join(words for count, words in ((ended.running, running), (ended.waiting, waiting)) if count)
    named = ", ".join(map(printable, ended.agents[:_NAMED])) + (", …" if len(ended.agents) > _NAMED else "")
    return f"{told}; of {named}" if named else told
