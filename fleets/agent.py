"""One real agent: its task, its folder, its command line and environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fleets.programs import Programs
from hivemind_addon.sim.task import Task

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

_CLAUDE_PATIENCE = {
    "API_TIMEOUT_MS": "3600000",
    "CLAUDE_CODE_MAX_RETRIES": "15",
    "CLAUDE_CODE_RETRY_WATCHDOG": "1",
    "CLAUDE_STREAM_IDLE_TIMEOUT_MS": "3600000",
    "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": "1800000",
}
# The built-in provider takes no settings: this is the same one under another name.
_PATIENT_PROVIDER = (
    'model_providers.hivemind={name="OpenAI", wire_api="responses", requires_openai_auth=true, '
    "supports_websockets=false, request_max_retries=30, stream_max_retries=30, stream_idle_timeout_ms=3600000}"
)
_CODEX_PATIENCE = ("-c", 'model_provider="hivemind"', "-c", _PATIENT_PROVIDER)


class Program(Enum):
    """Which agent."""

    CLAUDE = "Claude Code"
    CODEX = "Codex"

    @property
    def host(self) -> str:
        """Where its model is."""
        return ANTHROPIC_HOST if self is Program.CLAUDE else OPENAI_HOST


@dataclass(frozen=True, slots=True)
class Way:
    """How an agent reaches its provider."""

    proxy_port: int
    authority: Path
    """Certificate (PEM) of who signs what it gets to see."""
    words: str = ""
    """Password of the proxy address, which then also names the agent; empty: the proxy asks for neither."""
    patient: bool = False
    """Whether it is told to wait longer and to try more often than it does by itself."""

    def proxy_url(self, agent: str) -> str:
        """As HTTPS_PROXY takes it."""
        user = f"{agent}:{self.words}@" if self.words else ""
        return f"http://{user}127.0.0.1:{self.proxy_port}"


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent and its task."""

    program: Program
    task: Task
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


def launch(agent: Agent, way: Way, programs: Programs) -> Launch:
    """What to start; makes the agent's folders."""
    home, work = agent.folder / "home", agent.folder / "work"
    for folder in (home / ".claude", home / ".codex", work):
        folder.mkdir(parents=True, exist_ok=True)
    url = way.proxy_url(agent.name)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "HTTPS_PROXY": url,
        "HTTP_PROXY": url,
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "CODEX_HOME": str(home / ".codex"),
        "NODE_EXTRA_CA_CERTS": str(way.authority),
        "CODEX_CA_CERTIFICATE": str(way.authority),
        "SSL_CERT_FILE": str(way.authority),
        "ANTHROPIC_API_KEY": agent.key,
        "OPENAI_API_KEY": agent.key,
        "CODEX_API_KEY": agent.key,
        **_QUIET,
    }
    match agent.program:
        case Program.CLAUDE:
            if way.patient:
                environment |= _CLAUDE_PATIENCE
            command = [str(programs.claude), "-p", agent.task.prompt, "--dangerously-skip-permissions"]
        case Program.CODEX:
            command = [str(programs.codex), "exec", "--skip-git-repo-check"]
            command += ["--dangerously-bypass-approvals-and-sandbox", *_CODEX_QUIET]
            command += [*(_CODEX_PATIENCE if way.patient else ()), agent.task.prompt]
    return Launch(tuple(command), environment, work)
