"""The proxy of a fleet, as a user starts it: `hivemind run`, which brings it back when it dies."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from hivemind_addon.proxy.api.report import Report
from hivemind_addon.sim.exchange import pause
from hivemind_addon.sim.mitmdump import MitmdumpNotStarted
from lab.fleets import inside

_START_S = 60.0
_LOOK_EVERY_S = 0.1
_STOP_S = 15.0
_TRIP = "guard trip in"
_SHOWN_LINES = 10


class FleetProxy:
    """One proxy, whichever process it is at the moment."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        """The same for all its processes."""
        self.variables = {"XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
        """What leads the commands of the fleet to this proxy."""
        self.back_after_s: float | None = None
        """How long nothing served after the kill; None: it was not killed, or is not back."""
        self.journal = folder / "hivemind_addon" / "journal.db"
        """What it wrote down of every call: its usual place, where contexts are looked for, too."""
        self._log = folder / "proxy.log"

    def __repr__(self) -> str:
        return f"<FleetProxy on port {self.port}>"

    @property
    def guard_trips(self) -> int:
        """Exceptions of the addon's own, in all its processes."""
        return self._log.read_text(encoding="utf-8", errors="replace").count(_TRIP)

    @property
    def last_words(self) -> str:
        """The newest lines of its log."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_SHOWN_LINES:])

    async def start(self, settings: Sequence[str]) -> Process:
        """Start `hivemind run` and wait until it serves. `settings`: `name=value`, for `--set`.

        Raises MitmdumpNotStarted.
        """
        sets = (argument for one in settings for argument in ("--set", one))
        with self._log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *_hivemind("run", self.port),
                *sets,
                "-s",
                str(Path(inside.__file__)),
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for us: we end it
            )
        try:
            async with asyncio.timeout(_START_S):
                while await self.report() is None:
                    if process.returncode is not None:
                        break
                    await pause(_LOOK_EVERY_S)
        except TimeoutError:
            process.terminate()
        if process.returncode is not None or await self.report() is None:
            raise MitmdumpNotStarted(f"the proxy does not serve:\n{self.last_words}")
        return process

    async def kill(self) -> None:
        """Kill its process, as a crash would, and wait until another one serves."""
        report = await self.report()
        assert report is not None, "it serves"
        loop = asyncio.get_running_loop()
        os.kill(report.proxy.pid, signal.SIGKILL)
        killed_at = loop.time()
        async with asyncio.timeout(_START_S):
            while True:
                now = await self.report()
                if now is not None and now.proxy.pid != report.proxy.pid:
                    break
        self.back_after_s = loop.time() - killed_at

    async def report(self) -> Report | None:
        """What `hivemind status` says; None: nothing serves."""
        asked = await asyncio.create_subprocess_exec(
            *_hivemind("status", self.port), "--json", stdout=PIPE, stderr=DEVNULL, env=self._environment
        )
        said, _ = await asked.communicate()
        return msgspec.json.decode(said, type=Report) if asked.returncode == 0 else None

    @property
    def _environment(self) -> Mapping[str, str]:
        # Whatever proxies the shell uses, what is simulated stays on this machine.
        inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        return inherited | self.variables | {"PYTHONUNBUFFERED": "1"}


@asynccontextmanager
async def running_proxy(folder: Path, settings: Sequence[str]) -> AsyncIterator[FleetProxy]:
    """It serves, until the block ends. `settings`: `name=value`, for `--set`. Raises MitmdumpNotStarted."""
    proxy = FleetProxy(folder)
    process = await proxy.start((f"confdir={folder / 'mitmproxy'}", "flow_detail=0", *settings))
    try:
        yield proxy
    finally:
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.terminate()  # the second one ends what it waits for
            await process.wait()


def _hivemind(command: str, port: int) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "hivemind_addon", command, "--port", str(port))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
