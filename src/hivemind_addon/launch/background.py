"""The proxy that `hivemind exec` finds or starts: one for all, and gone with its last user."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from hivemind_addon.observe.report import ProxyView
from hivemind_addon.runtime.clock import Clock
from hivemind_addon.runtime.control import control_socket, read_report
from hivemind_addon.runtime.folders import state_folder

ALREADY_SUPERVISED = 75
"""Exit status of a supervisor that found another one on its port."""
_START_S = 60.0
_LOOK_EVERY_S = 0.05
_SHOWN_LINES = 5
_MAX_LOG_BYTES = 4 * 1024 * 1024


class NotServed(Exception):
    """No proxy serves the port, and none could be started; the text has the proxy's own last words."""


def log_file(port: int) -> Path:
    """What the background proxy of a port says."""
    return state_folder() / f"proxy-{port}.log"


def running(port: int) -> ProxyView | None:
    """The proxy that serves a port now. Raises UnreadableReport."""
    report = read_report(control_socket(port))
    return report.proxy if report else None


def find_or_start(port: int, *, options: Sequence[str], clock: Clock) -> ProxyView:
    """The port's proxy, started if there is none. Hold `claim.use(port)` before. Raises NotServed, UnreadableReport.

    `options`: more of `hivemind run`'s. Two who come at once both start a supervisor; the port's lock lets one stay.
    """
    if proxy := running(port):
        return proxy
    log = log_file(port)
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log.is_file() and log.stat().st_size > _MAX_LOG_BYTES:
        log.unlink()
    with log.open("ab") as output:
        before = output.tell()
        supervisor = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-P", "-m", "hivemind_addon", "run", "--while-used", "--port", str(port), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # signals of the command's terminal are not the proxy's
        )
    give_up_at = clock.monotonic() + _START_S
    pause = Event()
    while clock.monotonic() < give_up_at:
        if proxy := running(port):
            return proxy
        if supervisor.poll() not in (None, ALREADY_SUPERVISED):
            raise NotServed(f"the proxy does not start on port {port}; it said:\n{_last_words(log, before)}")
        pause.wait(_LOOK_EVERY_S)  # nobody tells us: it is another process that has to begin
    if supervisor.poll() is None:
        supervisor.terminate()
    raise NotServed(
        f"the proxy on port {port} does not answer at {control_socket(port)}: "
        "was it started with hivemind_control=off? Then stop it, or choose another port with --port"
    )


def _last_words(log: Path, before: int) -> str:
    with log.open("rb") as file:
        file.seek(before)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-_SHOWN_LINES:]) or "nothing"
