"""A program of ours in the background: started with a log of its own, and waited for until it answers."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event

from hivemind_addon.system.clock import Clock

ALREADY_THERE = 75
"""Exit status of one that found another in its place, which is going to answer."""
_LOOK_EVERY_S = 0.05
_SHOWN_LINES = 5
_MAX_LOG_BYTES = 4 * 1024 * 1024


class NotStarted(Exception):
    """It ended before it answered; the text is its last words."""


def start[Answer](
    arguments: Sequence[str], *, log: Path, look: Callable[[], Answer | None], patience_s: float, clock: Clock
) -> Answer | None:
    """Run `hivemind` with arguments, and look until there is an answer; None: it was none in time, and was ended.

    It outlives us, and signals of our terminal are not its. Blocks; raises NotStarted, OSError.
    """
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # there is none, or another has just done it
        if log.stat().st_size > _MAX_LOG_BYTES:
            log.unlink()
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


def _last_words(log: Path, before: int) -> str:
    with log.open("rb") as file:
        file.seek(before)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-_SHOWN_LINES:]) or "nothing"
