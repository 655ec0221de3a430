"""A real agent: the task, the folder, the command line and the environment; its process, in a group of its own."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hivemind_addon.sim.task import SimTask
from hivemind_addon.tools.launch.programs import load_programs
from lab.fleets.kinds import QUIET, Program
from lab.fleets.programs import Programs


@dataclass(frozen=True, slots=True)
class Straight:
    """Straight to the provider, through a tunnel that passes everything on."""

    port: int
    authority: Path
    """Certificate (PEM) of who signs what the agent gets to see."""
    patient: bool = False
    """Whether the settings make the agent wait longer and try more often than usual."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """By `hivemind exec`, through the proxy that `hivemind run` keeps."""

    port: int
    variables: Mapping[str, str]
    """What tells the commands of this fleet from others on this machine."""
    delivery: str
    """As `--delivery` takes it."""
    patient: bool = True
    """False: `--no-patience`."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent and a task."""

    program: Program
    task: SimTask
    folder: Path
    """Of this agent alone: home and working folder are in it."""
    key: str = "sk-sim-fleet"
    more: tuple[str, ...] = ()
    """Arguments before the usual arguments."""

    @property
    def name(self) -> str:
        """As the task calls the agent."""
        return self.task.name

    @property
    def has_finished(self) -> bool:
        """Whether the file is there and right: each line once, in order."""
        file = self.folder / "work" / self.task.file
        return file.is_file() and file.read_text(encoding="utf-8", errors="replace") == self.task.content


@dataclass(frozen=True, slots=True)
class Launch:
    """A process to be."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path


def launch(agent: Agent, way: Straight | Scheduled, programs: Programs) -> Launch:
    """What to start; makes the agent's folders."""
    kind, home, work = agent.program.value, agent.folder / "home", agent.folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    for path, content in kind.files.items():
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    own = {name: value.format(home=home, key=agent.key) for name, value in kind.environment.items()}
    for folder in (home, *(Path(value) for value in own.values() if value.startswith(f"{home}/"))):
        folder.mkdir(parents=True, exist_ok=True)
    environment = {"PATH": programs.path, "HOME": str(home), **QUIET, **own}
    command = [programs.executable(kind.package), *agent.more, *kind.arguments(agent.task)]
    match way:
        case Straight():
            command, more = _straight(command, way)
        case Scheduled():
            command, more = [*_exec(agent, way), *command], dict(way.variables)
    return Launch(tuple(command), environment | more, work)


_CA_VARIABLES = ("NODE_EXTRA_CA_CERTS", "CODEX_CA_CERTIFICATE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


def _straight(command: list[str], way: Straight) -> tuple[list[str], dict[str, str]]:
    url, authority = f"http://127.0.0.1:{way.port}", str(way.authority)
    variables = {"HTTPS_PROXY": url, "HTTP_PROXY": url}
    variables |= dict.fromkeys(_CA_VARIABLES, authority)
    if not way.patient:
        return command, variables
    table = load_programs()  # as `hivemind exec` tells them
    for program in table.programs.values():
        variables.update(program.patience)
    return table.patient(command)[0], variables


def _exec(agent: Agent, way: Scheduled) -> list[str]:
    patience = () if way.patient else ("--no-patience",)
    named = ("--port", str(way.port), "--agent", agent.name, "--delivery", way.delivery)
    return [sys.executable, "-P", "-m", "hivemind_addon", "exec", *named, *patience, "--"]


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
