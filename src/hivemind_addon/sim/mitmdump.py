"""A real mitmdump with the addon, as a process of its own."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from hivemind_addon.formats.base.resources import script_path
from hivemind_addon.tools.launch.neighbour import free_port

_START_S = 60
_STOP_S = 10
_LISTENING = re.compile(r" listening at (?:\S*?:)?(\d+)\.")
_WEB_PORT = 8081
_WEB = re.compile(r"Web server listening at (\S+)")
_TRIP = "guard trip in"
_OPENED = ": breaker open "
_MAX_LINE_BYTES = 1024 * 1024
_KEPT_LINES = 200


class MitmdumpNotStarted(Exception):
    """Mitmdump did not start; the text has the reason, and the last lines of the log."""


class Mitmdump:
    """A running mitmdump."""

    def __init__(self, process: Process) -> None:
        self.port = 0
        self.web_url = ""
        """Of mitmweb's page with the token, as soon as the log shows that."""
        self.guard_trips = 0
        """Exceptions of the addon's own, by the log: of many alike the first few."""
        self.breaker_opened = 0
        """Times that a provider was taken for down, failed probes included."""
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        """The newest lines of the log."""
        self._process = process
        self._listens = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Mitmdump {self._process.pid} on port {self.port}>"

    async def listen(self) -> None:
        """Read the log to the end."""
        assert self._process.stdout is not None, "it was started with a pipe"
        async for raw in self._process.stdout:
            line = raw.decode(errors="replace").rstrip()
            self.lines.append(line)
            self.guard_trips += _TRIP in line
            self.breaker_opened += _OPENED in line
            if match := _WEB.search(line):
                self.web_url = match.group(1)
            elif not self.port and (match := _LISTENING.search(line)):
                self.port = int(match.group(1))
                self._listens.set()
        self._listens.set()

    async def started(self) -> None:
        """Wait until mitmdump listens. Raises MitmdumpNotStarted."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                await self._listens.wait()
        if not self.port:
            words = "\n".join(self.lines) or "it said nothing"
            raise MitmdumpNotStarted(f"mitmdump does not listen:\n{words}")


async def end(process: Process) -> None:
    """End a process by id: politely, then by force."""
    if process.returncode is None:
        process.terminate()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    await process.wait()


def off_proxies() -> dict[str, str]:
    """Our environment without the shell's proxies, so that simulations stay on loopback."""
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


@asynccontextmanager
async def running_mitmdump(
    confdir: Path, settings: Sequence[str], *, web: bool = False, journal: str = "off"
) -> AsyncIterator[Mitmdump]:
    """A mitmdump with the addon on a free port of loopback, until the block ends; `web`: a mitmweb.

    `settings`: `name=value`, for `--set`; `confdir` gets the CA. Raises MitmdumpNotStarted.
    """
    program = "mitmweb" if web else "mitmdump"
    executable = Path(sys.executable).parent / program
    if not executable.is_file():
        raise MitmdumpNotStarted(f"there is no {program} beside {sys.executable}: install hivemind-addon there")
    # A port of its own: of port 0 mitmweb does not tell what it became.
    told = ("web_open_browser=false", f"web_port={free_port(_WEB_PORT) or 0}") if web else ("flow_detail=0",)
    sets = (f"confdir={confdir}", "termlog_verbosity=info", f"hivemind_journal={journal}", *told, *settings)
    process = await asyncio.create_subprocess_exec(
        executable,
        "--mode",
        "regular@0",
        "--listen-host",
        "127.0.0.1",
        *(argument for one in sets for argument in ("--set", one)),
        "-s",
        script_path(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        limit=_MAX_LINE_BYTES,
        env=off_proxies() | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # Ctrl-C is for us: we end it
    )
    mitmdump = Mitmdump(process)
    listener = asyncio.create_task(mitmdump.listen())
    try:
        await mitmdump.started()
        yield mitmdump
    finally:
        await end(process)
        await listener
