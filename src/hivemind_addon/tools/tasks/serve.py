"""The runner in the background that takes what is submitted on a port: found, or started, and gone when it is idle."""

from pathlib import Path

from hivemind_addon.api.control import is_answered
from hivemind_addon.system.clock import Clock, SystemClock
from hivemind_addon.system.folders import FolderNotPrivate, runtime_folder, state_folder
from hivemind_addon.tools.launch import detached
from hivemind_addon.tools.tasks.model import NotTaken

IDLE_S = 60.0
"""It ends so long after the last task, when nobody asks any more."""
_START_S = 90.0
"""It may have to start a proxy, too."""
_ANSWER_S = 5.0


def socket_of(port: int) -> Path:
    """Where the runner of a port is asked. Raises FolderNotPrivate, OSError."""
    return runtime_folder() / f"r-{port}.sock"


def log_file(port: int) -> Path:
    """What the runner of a port says."""
    return state_folder() / f"runner-{port}.log"


def find_or_start(port: int, *, clock: Clock | None = None) -> Path:
    """The socket of the port's runner, started if there is none. Raises NotTaken."""
    try:
        place = socket_of(port)
        return _answering(place) or _start(port, place, clock or SystemClock())
    except FolderNotPrivate as error:
        raise NotTaken(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise NotTaken(f"{where}{error.strerror or error}") from error


def _start(port: int, place: Path, clock: Clock) -> Path:
    try:
        found = detached.start(
            ["fleet", "serve", "--port", str(port), "--idle", str(int(IDLE_S))],
            log=log_file(port),
            look=lambda: _answering(place),
            patience_s=_START_S,
            clock=clock,
        )
    except detached.NotStarted as said:
        raise NotTaken(f"the runner of port {port} does not start; it said:\n{said}") from said
    if found is None:
        raise NotTaken(f"the runner of port {port} does not answer at {place}; see {log_file(port)}")
    return found


def _answering(place: Path) -> Path | None:
    return place if is_answered(place, patience_s=_ANSWER_S) else None
