"""A proxy as a user starts one: `hivemind run`, which starts a new process when the old process dies."""

import asyncio
import os
import signal
import socket
import ssl
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hivemind_addon.proxy.api.control import UnreadableReport, read_report
from hivemind_addon.proxy.api.report import Report
from hivemind_addon.sim.exchange import pause
from hivemind_addon.sim.mitmdump import MitmdumpNotStarted, off_proxies
from lab.fleets import inside

_START_S = 60.0
_STOP_S = 15.0
_REPORT_S = 20.0
_LOOK_EVERY_S = 0.05
_TRIP = "guard trip in"
_SHOWN_LINES = 10


class NotServing(MitmdumpNotStarted):
    """A proxy does not serve as expected; the text has the last words."""


class FleetProxy:
    """A proxy, whichever process serves at the moment."""

    def __init__(self, folder: Path, name: str = "the proxy") -> None:
        self.name = name
        self.folder = folder
        self.port = free_port()
        """The same for all processes."""
        self.variables = {"XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
        """Environment variables that lead the fleet's commands to this proxy."""
        self.back_after_s: float | None = None
        """How long nothing served after the kill; None: there was no kill, or nothing serves yet."""
        self.journal = folder / "hivemind_addon" / "journal.db"
        """The journal of every call, in the usual place, where contexts are looked for, too."""
        self.process: Process | None = None
        """`hivemind run`."""
        self._log = folder / "proxy.log"

    def __repr__(self) -> str:
        return f"<FleetProxy {self.name} on port {self.port}>"

    @property
    def log(self) -> str:
        """The log of all processes."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    @property
    def guard_trips(self) -> int:
        """Exceptions of the addon's own, in all processes."""
        return self.log.count(_TRIP)

    @property
    def last_words(self) -> str:
        """The newest lines of the log."""
        return "\n".join(self.log.splitlines()[-_SHOWN_LINES:])

    def trust(self) -> ssl.SSLContext:
        """The certificate authority for agents."""
        return ssl.create_default_context(cafile=self.folder / "mitmproxy" / "mitmproxy-ca-cert.pem")

    async def start(self, *settings: str) -> None:
        """Start `hivemind run`, wait until that serves. `settings`: `name=value`, for `--set`. Raises NotServing."""
        sets = (f"confdir={self.folder / 'mitmproxy'}", "flow_detail=0", *settings)
        with self._log.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "hivemind_addon", "run", "--port", str(self.port)),
                *(word for one in sets for word in ("--set", one)),
                *("-s", str(Path(inside.__file__))),
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                env=off_proxies() | self.variables | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is for us: we end it
            )
        await self.when(lambda _: True, "start", within_s=_START_S)

    async def report(self) -> Report | None:
        """The report that `hivemind status` shows; None: nothing serves."""
        try:
            path = self.folder / "hivemind" / f"{self.port}.sock"
            return await asyncio.to_thread(read_report, path, timeout_s=_REPORT_S)
        except UnreadableReport:
            return None

    async def when(self, condition: Callable[[Report], bool], what: str, *, within_s: float) -> Report:
        """The first report that meets the condition. Raises NotServing."""
        assert self.process is not None, "it was started"
        report = None
        try:
            async with asyncio.timeout(within_s):
                while True:
                    report = await self.report()
                    if report is not None and condition(report):
                        return report
                    if self.process.returncode is not None:
                        raise NotServing(f"{self.name} has ended before its {what}:\n{self.last_words}")
                    await pause(_LOOK_EVERY_S)
        except TimeoutError as error:
            seen = "no report" if report is None else report.cluster or report.snapshot
            raise NotServing(f"{self.name}: no {what} in {within_s:g} s ({seen}):\n{self.last_words}") from error

    async def kill(self) -> int:
        """Kill the process, as a crash would; `hivemind run` starts another. Returns the old process id."""
        report = await self.report()
        if report is None:
            raise NotServing(f"{self.name} is to be killed, and does not serve:\n{self.last_words}")
        os.kill(report.proxy.pid, signal.SIGKILL)
        return report.proxy.pid

    async def kill_once(self) -> None:
        """Kill the process, and wait until another serves."""
        loop = asyncio.get_running_loop()
        gone = await self.kill()
        killed_at = loop.time()
        await self.when(lambda report: report.proxy.pid != gone, "return", within_s=_START_S)
        self.back_after_s = loop.time() - killed_at

    async def stop(self) -> None:
        """End `hivemind run`, if that runs."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await self.process.wait()
        except TimeoutError:
            self.process.terminate()  # the second one ends what it waits for
            await self.process.wait()


@asynccontextmanager
async def running_proxy(folder: Path, settings: Sequence[str]) -> AsyncIterator[FleetProxy]:
    """A proxy that serves until the block ends. `settings`: `name=value`, for `--set`. Raises NotServing."""
    proxy = FleetProxy(folder)
    try:
        await proxy.start(*settings)
        yield proxy
    finally:
        await proxy.stop()


def free_port() -> int:
    """A port that nobody listens on just now: mitmproxy refuses two modes on port 0."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
