"""The runner in the background that takes what is submitted on a port: found, or started, and gone when it is idle."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event

from hivemind_addon.launch.background import ALREADY_SUPERVISED
from hivemind_addon.runtime.clock import Clock, SystemClock
from hivemind_addon.runtime.control import is_answered
from hivemind_addon.runtime.folders import FolderNotPrivate, runtime_folder, state_folder
from hivemind_addon.tasks.model import NotTaken

IDLE_S = 60.0
"""It ends so long after the last task, when nobody asks any more."""
_START_S = 90.0
"""It may have to start a proxy, too."""
_LOOK_EVERY_S = 0.05
_ANSWER_S = 5.0
_MAX_LOG_BYTES = 4 * 1024 * 1024
_SHOWN_LINES = 5


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
        return place if is_answered(place, patience_s=_ANSWER_S) else _start(port, place, clock or SystemClock())
    except FolderNotPrivate as error:
        raise NotTaken(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise NotTaken(f"{where}{error.strerror or error}") from error


def _start(port: int, place: Path, clock: Clock) -> Path:
    log = log_file(port)
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # there is none, or another has just done it
        if log.stat().st_size > _MAX_LOG_BYTES:
            log.unlink()
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as output:
        before = output.tell()
        runner = subprocess.Popen(  # noqa: S603 - ourselves
            [
                *(sys.executable, "-P", "-m", "hivemind_addon", "fleet", "serve"),
                *("--port", str(port), "--idle", str(int(IDLE_S))),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # signals of the command's terminal are not its
        )
    give_up_at = clock.monotonic() + _START_S
    pause = Event()
    while clock.monotonic() < give_up_at:
        if is_answered(place, patience_s=_ANSWER_S):
            return place
        if runner.poll() not in (None, ALREADY_SUPERVISED):
            raise NotTaken(f"the runner of port {port} does not start; it said:\n{_last_words(log, before)}")
        pause.wait(_LOOK_EVERY_S)  # nobody tells us: it is another process that has to begin
    if runner.poll() is None:
        runner.terminate()
    raise NotTaken(f"the runner of port {port} does not answer at {place}; see {log}")


def _last_words(log: Path, before: int) -> str:
    with log.open("rb") as file:
        file.seek(before)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-_SHOWN_LINES:]) or "nothing"
