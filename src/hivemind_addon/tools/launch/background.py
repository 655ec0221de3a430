"""The proxy in the background: found, started, ended. That of `hivemind exec` is gone with its last user."""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event

from hivemind_addon.proxy.api.control import control_socket, read_report
from hivemind_addon.proxy.api.report import ProxyView, Report
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.tools.launch import claim, detached
from hivemind_addon.tools.launch.neighbour import find_stranger
from hivemind_addon.tools.launch.port import log_file

_START_S = 60.0
_END_S = 60.0
"""It lets running answers end for half of that."""
_NEWS_S = 5.0
"""A supervisor without a proxy is starting one."""
_LOOK_EVERY_S = 0.1


class NotServed(Exception):
    """No proxy serves the port, and none could be started; the text has the proxy's own last words."""


def running(port: int) -> ProxyView | None:
    """The proxy that serves a port now. Raises UnreadableReport."""
    report = read_report(control_socket(port))
    return report.proxy if report else None


def find_or_start(port: int, *, clock: Clock) -> ProxyView:
    """The port's proxy, started if there is none. Hold `claim.use(port)` before. Raises NotServed, UnreadableReport.

    Two who come at once both start a supervisor; the port's lock lets one stay.
    """
    if proxy := running(port):
        return proxy
    if (stranger := find_stranger(port)) is not None:
        raise NotServed(str(stranger))
    return start(["run", "--while-used", "--port", str(port)], port, clock=clock)


def start(arguments: Sequence[str], port: int, *, clock: Clock) -> ProxyView:
    """Start `hivemind` with arguments in the background, and wait until the proxy on `port` answers.

    Raises NotServed, UnreadableReport.
    """
    try:
        proxy = detached.start(
            arguments, log=log_file(port), look=lambda: running(port), patience_s=_START_S, clock=clock
        )
    except detached.NotStarted as said:
        raise NotServed(f"the proxy does not start on port {port}; it said:\n{said}") from said
    if proxy is None:
        raise NotServed(
            f"the proxy on port {port} does not answer at {control_socket(port)}: "
            "was it started with hivemind_control=off? Then stop it, or choose another port with --port"
        )
    return proxy


@dataclass(frozen=True, slots=True)
class StoppedProxy:
    """A proxy that was ended, and what it had to do when it was asked to."""

    pid: int
    listens: tuple[str, ...]
    running: int
    """Requests in flight, which were let end, unless it was told to end at once."""
    waiting: int
    """Requests that waited: their clients were told to try again."""
    agents: tuple[str, ...]
    """Whose they were."""
    is_used: bool
    """Whether commands that `hivemind exec` started go on without it."""


class StillRunning(Exception):
    """It was asked to end and has not; one line with the cure."""


def stop(port: int, *, now: bool, clock: Clock, tell: Callable[[str], None]) -> StoppedProxy | None:
    """End the port's proxy and its supervisor; None: there is none.

    What waits is sent back at once; what runs may end, half a minute long, unless `now`. Raises StillRunning,
    UnreadableReport, OSError.
    """
    pause = Event()
    report, supervisor = read_report(control_socket(port)), claim.supervisor_of(port)
    give_up_at = clock.awake() + _NEWS_S
    while report is None and supervisor is not None and clock.awake() < give_up_at:
        pause.wait(_LOOK_EVERY_S)
        report, supervisor = read_report(control_socket(port)), claim.supervisor_of(port)
    process = supervisor or (report.proxy.pid if report else None)
    if process is None:
        return None
    ended = _ended(process, port, report)
    if ended.running and not now:
        tell(f"waiting for {ended.running} in flight, half a minute at most; `hivemind stop --now` cuts them off")
    give_up_at, asked = clock.awake() + _END_S, 0
    while _is_alive(process):
        if not asked or now:  # a second word means at once
            _ask(process)
            asked += 1
        if clock.awake() > give_up_at:
            raise StillRunning(f"process {process} on port {port} has not ended; try `hivemind stop --now`")
        pause.wait(_LOOK_EVERY_S * 5 if now else _LOOK_EVERY_S)
    return ended


def _ended(process: int, port: int, report: Report | None) -> StoppedProxy:
    pools = report.snapshot.pools if report else ()
    return StoppedProxy(
        pid=report.proxy.pid if report else process,
        listens=report.proxy.listens if report else (f"port {port}",),
        running=sum(pool.in_flight for pool in pools),
        waiting=sum(pool.queued for pool in pools),
        agents=tuple(sorted({view.ticket.agent for pool in pools for view in pool.tickets})),
        is_used=claim.is_used(port),
    )


def _ask(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
