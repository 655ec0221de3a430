"""Names for the shell to complete, from the running proxy: quickly or not at all, and never a word of trouble."""

import os
from collections.abc import Callable, Iterator

import click
from click.shell_completion import CompletionItem

from hivemind_addon.proxy.api.command import ShowConfig
from hivemind_addon.proxy.api.control import control_socket, read_report, send_command
from hivemind_addon.proxy.api.report import Report
from hivemind_addon.tools.commands.options import configured_port
from hivemind_addon.tools.launch.port import PORT_VARIABLE

_PATIENCE_S = 0.5
"""Somebody waits for it with a finger on the key."""
_MOST = 200

_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _quietly(find: Callable[[int], Iterator[tuple[str, str]]]) -> _Complete:
    """Names with what they are, for a port; none where anything is amiss."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = dict(find(_port(ctx)))
        except Exception:  # noqa: BLE001 - whatever it is, a shell's prompt is no place for it
            return []
        fitting = {name: about for name, about in found.items() if name.startswith(incomplete) and name.isprintable()}
        chosen = [CompletionItem(name, help=about) for name, about in fitting.items()]
        return chosen[:_MOST]

    return complete


def _port(ctx: click.Context) -> int:
    return int(ctx.params.get("port") or os.environ.get(PORT_VARIABLE) or configured_port())


def _report(port: int) -> Report:
    report = read_report(control_socket(port), timeout_s=_PATIENCE_S)
    if report is None:
        raise LookupError(port)
    return report


@_quietly
def agent_names(port: int) -> Iterator[tuple[str, str]]:
    """Agents that the proxy knows: who is there now first."""
    report = _report(port)
    for pool in report.snapshot.pools:
        for view in pool.tickets:
            yield view.ticket.agent, view.state
    for session in reversed(report.stats.sessions):
        yield session.agent, session.model


@_quietly
def pool_names(port: int) -> Iterator[tuple[str, str]]:
    """Hosts, and their pools."""
    pools = _report(port).snapshot.pools
    for pool in pools:
        yield pool.key.host, "all its pools"
    for pool in pools:
        yield str(pool.key), f"{pool.in_flight} in flight, {pool.queued} queued"


@_quietly
def ticket_ids(port: int) -> Iterator[tuple[str, str]]:
    """Requests that have not ended."""
    for pool in _report(port).snapshot.pools:
        for view in pool.tickets:
            yield view.ticket.id, f"{view.ticket.agent}: {view.state}"


@_quietly
def option_names(port: int) -> Iterator[tuple[str, str]]:
    """Options that can be set while the proxy runs, and all others."""
    said = send_command(control_socket(port), ShowConfig(), timeout_s=_PATIENCE_S)
    options = said.value if isinstance(said.value, list) else []
    for option in options:
        yield option["name"], "" if option["settable"] else "only at the start"
