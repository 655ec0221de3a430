"""The nearest peer, `hivemind-scheduler` from PyPI, as it is: in an environment of its own, before the same provider.

It is a proxy behind a base URL, so agents speak plain HTTP with it, and it with the provider. It is told the provider's
true concurrency cap, as in its paper; all else is its default.
"""

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import venv
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import certifi

from hivemind_addon.lab.sim.agents import Route
from hivemind_addon.lab.sim.exchange import pause
from hivemind_addon.lab.sim.live import LiveStage, serving
from hivemind_addon.lab.sim.mitmdump import MitmdumpNotStarted
from hivemind_addon.lab.sim.workload import Scenario
from hivemind_addon.system.folders import state_folder

NAME = "hivemind-scheduler"
VERSION = "0.2.0"
_DEFAULT_CAP = 5
_INSTALL_S = 300
_START_S = 30
_STOP_S = 5


class PeerUnavailable(Exception):
    """It cannot be installed here; the text is one line that says why."""


def install() -> Path:
    """The peer's program, installed when it is not there yet. Raises PeerUnavailable."""
    folder = state_folder() / "peer" / f"{NAME}-{VERSION}"
    program = folder / "bin" / "hivemind"
    if program.is_file():
        return program
    try:
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        subprocess.run(  # noqa: S603 - our own words
            [folder / "bin" / "python", "-m", "pip", "install", "--quiet", f"{NAME}=={VERSION}"],
            check=True,
            timeout=_INSTALL_S,
            capture_output=True,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        words = (error.stderr or "").strip().splitlines() or ["pip said nothing"]
        shutil.rmtree(folder, ignore_errors=True)
        raise PeerUnavailable(f"{NAME} {VERSION} cannot be installed: {words[-1]}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise PeerUnavailable(f"{NAME} {VERSION} cannot be installed: {error}") from None
    return program


@asynccontextmanager
async def through_peer(scenario: Scenario, seed: int) -> AsyncIterator[LiveStage]:
    """By the peer's proxy. Raises MitmdumpNotStarted, PeerUnavailable."""
    program = await asyncio.to_thread(install)
    async with serving(scenario, seed) as server:
        with tempfile.TemporaryDirectory(prefix="hivemind-peer-") as folder:
            port = _free_port()
            process = await asyncio.create_subprocess_exec(
                program,
                "--log-level",
                "WARNING",
                "proxy",
                "--port",
                str(port),
                "--upstream",
                server.url,
                "--max-concurrency",
                str(scenario.provider.concurrency or _DEFAULT_CAP),
                "--db",
                str(Path(folder) / "peer.db"),
                cwd=folder,
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=STDOUT,
                env={name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
                start_new_session=True,
            )
            try:
                await _listens(port, process)
                trust = ssl.create_default_context(cafile=certifi.where())
                yield LiveStage(server, Route(trust, base_url=f"http://127.0.0.1:{port}"))
            finally:
                await _end(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _listens(port: int, process: asyncio.subprocess.Process) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_S):
            while process.returncode is None:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await pause(0.1)
                else:
                    writer.close()
                    return
    raise MitmdumpNotStarted(f"{NAME} {VERSION} does not listen")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    with suppress(TimeoutError):
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
