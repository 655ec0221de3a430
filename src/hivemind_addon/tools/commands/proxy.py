"""The running proxy that a command talks to: found by its port, asked once; what goes wrong is one line with a cure."""

import sys
from collections.abc import Iterator

import click
import msgspec

from hivemind_addon.proxy.api.command import Command, CommandReply
from hivemind_addon.proxy.api.control import (
    CommandUnanswered,
    UnreadableReport,
    control_socket,
    read_report,
    send_command,
    serving_ports,
)
from hivemind_addon.proxy.api.report import Report
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.proxy.system.json_socket import is_answered
from hivemind_addon.tools.commands.options import in_one_line
from hivemind_addon.tools.launch.neighbour import find_stranger
from hivemind_addon.tools.launch.port import DEFAULT_PORT

one_line = in_one_line(UnreadableReport, CommandUnanswered, FolderNotPrivate)
"""Around a command: what goes wrong with a proxy is one line."""


def report_of(port: int) -> Report:
    """What the proxy on a port tells. Raises ClickException: there is none; UnreadableReport, FolderNotPrivate."""
    report = read_report(control_socket(port))
    if report is None:
        raise no_proxy(port)
    return report


def reports_of(port: int | None) -> Iterator[Report]:
    """What the proxy on a port tells, or what each of this user's tells, by port; what cannot be read comes last.

    Raises ClickException: there is none; UnreadableReport, FolderNotPrivate.
    """
    if port is not None:
        yield report_of(port)
        return
    is_served, unreadable = False, None
    for one in serving_ports():
        try:
            report = read_report(control_socket(one))
        except UnreadableReport as error:
            unreadable = error
            continue
        if report is not None:
            is_served = True
            yield report
    if unreadable is not None:
        raise unreadable
    if not is_served:
        raise no_proxy(DEFAULT_PORT)


def ask(port: int, command: Command) -> CommandReply:
    """Have the proxy on a port carry out a command. Raises ClickException: there is none; CommandUnanswered."""
    path = control_socket(port)
    try:
        return send_command(path, command)
    except CommandUnanswered:
        if is_answered(path):
            raise
        raise no_proxy(port) from None


@one_line
def tell(command: Command, port: int, *, as_json: bool) -> None:
    """Have the proxy do it and print what is said; the exit status is 1 when nothing was done."""
    said = ask(port, command)
    if as_json:
        click.echo(msgspec.json.encode(said).decode())
    else:
        click.echo(said.text, err=not said.done)
    if not said.done:
        sys.exit(1)


def no_proxy(port: int) -> click.ClickException:
    """Nothing serves a port: what does, or how to start it."""
    others = serving_ports()
    if not others and (stranger := find_stranger(port)) is not None:
        return click.ClickException(f"no proxy of yours serves port {port}: it is taken by {stranger.who}")
    if not others:
        return click.ClickException(f"no proxy serves port {port}; start it with `{typed('run', port)}`")
    where = f"one serves port {others[0]}" if len(others) == 1 else f"there are some on {', '.join(map(str, others))}"
    return click.ClickException(f"no proxy serves port {port}; {where}: add `-p {others[0]}`")


def typed(command: str, port: int) -> str:
    """What a person types to run a command of ours on a port."""
    return f"hivemind {command}" + (f" -p {port}" if port != DEFAULT_PORT else "")
