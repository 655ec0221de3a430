"""Keeps one proxy alive: a dead one is started again on the same port, one that refuses to start is not."""

import asyncio
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping
from typing import IO

from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.proxy.system.stop_signals import START_REFUSED
from hivemind_addon.tools.launch.proxy_command import ProxyCommand

SETTLED_S = 5.0
"""A proxy that has run this long has started well; one that ends earlier has failed to."""
MAX_FAILED_STARTS = 5
"""In a row, after a first good one."""
_FIRST_PAUSE_S = 0.25
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Runs one command until it is told to stop. Everything on one event loop."""

    def __init__(
        self,
        command: ProxyCommand,
        *,
        environment: Mapping[str, str],
        clock: Clock,
        tell: Callable[[str], None],
        output: IO[bytes] | None = None,
    ) -> None:
        """`tell` gets one line for people; `output` is the child's stdout and stderr (None: ours)."""
        self._command = command
        self._environment = environment
        self._clock = clock
        self._tell = tell
        self._output = output
        self._process: Process | None = None
        self._stopping = asyncio.Event()

    def __repr__(self) -> str:
        pid = self._process.pid if self._process else "no process"
        return f"<Supervisor of {pid} on port {self._command.port}>"

    async def run(self) -> int:
        """Until the proxy is to stop, or cannot be kept alive. The exit status for our caller."""
        loop = asyncio.get_running_loop()
        for name in _SIGNALS:
            loop.add_signal_handler(name, self._hang_up if name is signal.SIGHUP else self.stop)
        try:
            return await self._keep_alive()
        finally:
            for name in _SIGNALS:
                loop.remove_signal_handler(name)
            await self._end()

    def stop(self) -> None:
        """End it politely: requests may finish. A second call ends it now."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            # The addon takes a second SIGTERM as the word to wait for nothing.
            self._process.terminate()

    def _hang_up(self) -> None:
        """The terminal was closed, which sends more than one signal: that is no second word."""
        if not self._stopping.is_set():
            self.stop()

    async def _keep_alive(self) -> int:
        failed, served, command = 0, False, self._command.first
        while True:
            began_at = self._clock.awake()
            status = await self._once(command)
            if self._stopping.is_set():
                return 0 if status in (0, -signal.SIGTERM, -signal.SIGINT) else _exit_status(status)
            if status == 0:
                return 0  # it was ended by its own command
            settled = self._clock.awake() - began_at >= SETTLED_S and status != START_REFUSED
            failed = 0 if settled else failed + 1
            # A proxy that was killed did not refuse to start.
            served = served or settled or status < 0
            if not served or failed > MAX_FAILED_STARTS:
                return _exit_status(status)
            self._tell(f"hivemind: the proxy ended ({_cause(status)}); starting it again on port {self._command.port}")
            command = self._command.again
            if failed > 1 and await self._stopped_within(_FIRST_PAUSE_S * 2 ** (failed - 2)):
                return 0

    async def _once(self, command: tuple[str, ...]) -> int:
        """One life of the proxy. Its exit status; negative: the signal that ended it."""
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=self._environment,
            # Ctrl-C is for us, who pass it on once: two signals would mean "now".
            start_new_session=True,
        )
        if self._stopping.is_set():
            self._process.terminate()
        return await self._process.wait()

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    async def _end(self) -> None:
        """Nothing stays, whatever happened to us."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def _cause(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _exit_status(status: int) -> int:
    """As shells have it: 128 and the signal's number."""
    if status == START_REFUSED:
        return 1
    return status if status >= 0 else 128 - status
