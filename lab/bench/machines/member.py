"""One machine of several: a folder of its own, a `hivemind run` in it, and what it tells of itself."""

import asyncio
import os
import signal
import ssl
import sys
from pathlib import Path

from hivemind_addon.proxy.api.control import UnreadableReport, read_report
from hivemind_addon.sim.exchange import pause
from lab.fleets import inside
from tests.e2e.proxy import free_port

_START_S = 60
_STOP_S = 15
_TRIP = "guard trip in"


class NotServing(Exception):
    """A proxy does not do what it must; the text has its last words."""


class Member:
    """A proxy, whichever process it is at the moment."""

    def __init__(self, folder, number):
        self.name = f"machine-{number + 1}"
        self.folder = folder / f"m{number + 1}"
        self.folder.mkdir()
        self.port = free_port()
        self.socket = self.folder / "hivemind" / f"{self.port}.sock"
        self.log_file = self.folder / "proxy.log"
        self.kills = 0
        self.process = None

    def __repr__(self):
        return f"<{self.name} on port {self.port}>"

    @property
    def log(self):
        return self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""

    @property
    def last_words(self):
        return "\n".join(self.log.splitlines()[-10:])

    @property
    def guard_trips(self):
        """Exceptions of the addon's own, in all its processes."""
        return self.log.count(_TRIP)

    def trust(self):
        """For its agents."""
        return ssl.create_default_context(cafile=self.folder / "mitmproxy" / "mitmproxy-ca-cert.pem")

    async def start(self, *settings):
        """`settings`: `name=value`, as `--set` takes them. Raises NotServing."""
        sets = (f"confdir={self.folder / 'mitmproxy'}", "flow_detail=0", *settings)
        # Whatever proxies the shell uses, what is simulated stays on this machine.
        inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        own = {"XDG_RUNTIME_DIR": str(self.folder), "XDG_STATE_HOME": str(self.folder), "PYTHONUNBUFFERED": "1"}
        with self.log_file.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "hivemind_addon", "run", "--port", str(self.port)),
                *(word for one in sets for word in ("--set", one)),
                *("-s", str(Path(inside.__file__))),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=inherited | own,
                start_new_session=True,  # Ctrl-C is for us: we end it
            )
        await self.when(lambda _: True, "start", within_s=_START_S)

    async def report(self):
        """What `hivemind status` says; None: nothing serves."""
        try:
            return await asyncio.to_thread(read_report, self.socket, timeout_s=20)
        except UnreadableReport:
            return None

    async def when(self, condition, what, *, within_s):
        """The first report for which it holds. Raises NotServing."""
        report = None
        try:
            async with asyncio.timeout(within_s):
                while True:
                    report = await self.report()
                    if report is not None and condition(report):
                        return report
                    if self.process.returncode is not None:
                        raise NotServing(f"{self.name} has ended before its {what}:\n{self.last_words}")
                    await pause(0.05)
        except TimeoutError as error:
            seen = "no report" if report is None else getattr(report, "cluster", report.snapshot)
            raise NotServing(f"{self.name}: no {what} in {within_s} s ({seen}):\n{self.last_words}") from error

    async def kill(self):
        """Kill -9 its process; `hivemind run` starts another one. The process id that it had."""
        report = await self.report()
        if report is None:
            raise NotServing(f"{self.name} is to be killed, and does not serve:\n{self.last_words}")
        os.kill(report.proxy.pid, signal.SIGKILL)
        self.kills += 1
        return report.proxy.pid

    async def stop(self):
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await self.process.wait()
        except TimeoutError:
            self.process.terminate()  # the second one ends what it waits for
            await self.process.wait()
