"""One real agent: its task, its folder, its command line and environment."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fleets.programs import Programs
from hivemind_addon.lab.sim.task import SimTask
from hivemind_addon.tools.launch.programs import load_programs

ANTHROPIC_HOST = "api.anthropic.com"
OPENAI_HOST = "api.openai.com"

_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",  # as root Claude Code skips no permissions otherwise
}
_CODEX_QUIET = ("-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false")


class Program(Enum):
    """Which agent."""

    CLAUDE = "Claude Code"
    CODEX = "Codex"

    @property
    def host(self) -> str:
        """Where its model is."""
        return ANTHROPIC_HOST if self is Program.CLAUDE else OPENAI_HOST


@dataclass(frozen=True, slots=True)
class Straight:
    """Straight to the provider, through a tunnel that passes everything on."""

    port: int
    authority: Path
    """Certificate (PEM) of who signs what the agent gets to see."""
    patient: bool = False
    """Whether it is told to wait longer and to try more often than it does by itself."""


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
    """One agent and its task."""

    program: Program
    task: SimTask
    folder: Path
    """Its own: home and working folder are in it."""
    key: str = "sk-sim-fleet"

    @property
    def name(self) -> str:
        """As its task calls it."""
        return self.task.name

    @property
    def has_finished(self) -> bool:
        """Whether its file is there and right: each line once, in order."""
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
    home, work = agent.folder / "home", agent.folder / "work"
    for folder in (home / ".claude", home / ".codex", work):
        folder.mkdir(parents=True, exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "CODEX_HOME": str(home / ".codex"),
        "ANTHROPIC_API_KEY": agent.key,
        "OPENAI_API_KEY": agent.key,
        "CODEX_API_KEY": agent.key,
        **_QUIET,
    }
    command = _command(agent, programs)
    match way:
        case Straight():
            command, more = _straight(command, way)
        case Scheduled():
            command, more = [*_exec(agent, way), *command], dict(way.variables)
    return Launch(tuple(command), environment | more, work)


def _command(agent: Agent, programs: Programs) -> list[str]:
    match agent.program:
        case Program.CLAUDE:
            return [str(programs.claude), "-p", agent.task.prompt, "--dangerously-skip-permissions"]
        case Program.CODEX:
            command = [str(programs.codex), "exec", "--skip-git-repo-check"]
            return [*command, "--dangerously-bypass-approvals-and-sandbox", *_CODEX_QUIET, agent.task.prompt]


def _straight(command: list[str], way: Straight) -> tuple[list[str], dict[str, str]]:
    url, authority = f"http://127.0.0.1:{way.port}", str(way.authority)
    variables = {"HTTPS_PROXY": url, "HTTP_PROXY": url}
    variables |= dict.fromkeys(("NODE_EXTRA_CA_CERTS", "CODEX_CA_CERTIFICATE", "SSL_CERT_FILE"), authority)
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
