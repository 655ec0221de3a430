"""Claude Code and Codex at pinned versions, installed into a cache folder."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CLAUDE_VERSION = "2.1.330"
CODEX_VERSION = "0.169.0"
_PACKAGES = (f"@anthropic-ai/claude-code@{CLAUDE_VERSION}", f"@openai/codex@{CODEX_VERSION}")
_INSTALL_S = 600


class NotInstalled(Exception):
    """The agents cannot be installed here; one line that says why."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the agents are."""

    claude: Path
    codex: Path


def cache_folder() -> Path:
    """Where they are installed: one folder for each choice of versions."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hivemind" / f"agents-claude-{CLAUDE_VERSION}-codex-{CODEX_VERSION}"


def install() -> Programs:
    """Install what is missing. Raises NotInstalled."""
    folder = cache_folder()
    modules = folder / "node_modules"
    programs = Programs(modules / ".bin" / "claude", modules / ".bin" / "codex")
    ready = folder / ".ready"
    if ready.is_file():
        return programs
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise NotInstalled("npm is missing, which installs the agents: install Node.js")
    folder.mkdir(parents=True, exist_ok=True)
    quiet = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error")
    _run([npm, "install", "--prefix", str(folder), *quiet, *_PACKAGES], folder)
    # npm >= 11 leaves a package's own install step to its user.
    _run([node, "install.cjs"], modules / "@anthropic-ai" / "claude-code")
    for program in (programs.claude, programs.codex):
        _run([str(program), "--version"], folder)
    ready.touch()
    return programs


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - what we just installed, and npm
            command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise NotInstalled(f"{' '.join(command[:2])} failed with status {done.returncode}: {last[-1]}")
