"""A program of ours in the background: started with a log of its own, and waited for until it answers."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event

from hivemind_addon.proxy.system.clock import Clock

ALREADY_THERE = 75
"""Exit status of one that found another in its place, which is going to answer."""
_LOOK_EVERY_S = 0.05
_SHOWN_LINES = 5
_MAX_LOG_BYTES = 4 * 1024 * 1024
"""After that it begins anew, and what it was stands beside it as NAME.1."""


class NotStarted(Exception):
    """It ended before it answered; the text is its last words."""


def start[Answer](
    arguments: Sequence[str], *, log: Path, look: Callable[[], Answer | None], patience_s: float, clock: Clock
) -> Answer | None:
    """Run `hivemind` with arguments, and look until there is an answer; None: it was none in time, and was ended.

    It outlives us, and signals of our terminal are not its. Blocks; raises NotStarted, OSError.
    """
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    bound_log(log)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
        before = output.tell()
        program = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-P", "-m", "hivemind_addon", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    give_up_at = clock.awake() + patience_s
    pause = Event()
    while clock.awake() < give_up_at:
        if (answer := look()) is not None:
            return answer
        if program.poll() not in (None, ALREADY_THERE):
            raise NotStarted(_last_words(log, before))
        pause.wait(_LOOK_EVERY_S)  # nobody tells us: it is another process that has to begin
    if program.poll() is None:
        program.terminate()
    return None


def bound_log(log: Path) -> None:
    """Keep a log from growing for ever: a large one is copied aside and emptied, under those who append to it."""
    with suppress(FileNotFoundError):  # there is none
        if log.stat().st_size > _MAX_LOG_BYTES:
            shutil.copyfile(log, old_log(log), follow_symlinks=False)
            old_log(log).chmod(0o600)
            os.truncate(log, 0)


def old_log(log: Path) -> Path:
    """Where the log before this one is."""
    return log.with_name(f"{log.name}.1")


def is_our_output(log: Path) -> bool:
    """Whether what we print goes into a log."""
    try:
        return os.path.samestat(os.fstat(sys.stderr.fileno()), log.stat())
    except (OSError, ValueError, AttributeError):  # no such log, or no stream of a file
        return False


def _last_words(log: Path, before: int) -> str:
    with log.open("rb") as file:
        file.seek(before)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-_SHOWN_LINES:]) or "nothing"
