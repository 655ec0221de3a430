"""The proxy that `hivemind exec` finds or starts: one for all, and gone with its last user."""

from hivemind_addon.api.control import control_socket, read_report
from hivemind_addon.api.report import ProxyView
from hivemind_addon.system.clock import Clock
from hivemind_addon.tools.launch import detached
from hivemind_addon.tools.launch.neighbour import find_stranger
from hivemind_addon.tools.launch.port import log_file

_START_S = 60.0


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
    try:
        proxy = detached.start(
            ["run", "--while-used", "--port", str(port)],
            log=log_file(port),
            look=lambda: running(port),
            patience_s=_START_S,
            clock=clock,
        )
    except detached.NotStarted as said:
        raise NotServed(f"the proxy does not start on port {port}; it said:\n{said}") from said
    if proxy is None:
        raise NotServed(
            f"the proxy on port {port} does not answer at {control_socket(port)}: "
            "was it started with hivemind_control=off? Then stop it, or choose another port with --port"
        )
    return proxy
