"""Runs a command in a process group of its own, so that whatever it starts ends with it."""

import asyncio
import os
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.fleets.agent import Launch

_KEPT_CHARS = 4000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TROUBLE = re.compile(r"error|exceeded|timed? ?out|disconnected|overloaded", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended."""

    status: int | None
    """None: it did not end in time, and was ended."""
    elapsed_s: float
    output: str
    """The end of what it said."""

    @property
    def last_words(self) -> str:
        """The last line about trouble; else the last line that is not empty."""
        lines = [line.strip() for line in _COLOUR.sub("", self.output).splitlines() if line.strip()]
        troubled = [line for line in lines if _TROUBLE.search(line)]
        return (troubled or lines or [""])[-1]


async def run(launch: Launch, log: Path, limit_s: float) -> Exit:
    """Run a process to the end, at most for `limit_s`; `log` gets the output. A cancelled run ends the process, too."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *launch.command,
            cwd=launch.folder,
            env=dict(launch.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    status: int | None = None
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                status = await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the group's id is its first process's, which we started
        await process.wait()
    return Exit(status, loop.time() - began_at, _end_of(log))


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-_KEPT_CHARS:]
