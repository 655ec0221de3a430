"""The agents at pinned versions, each installed into another cache folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_INSTALL_S = 900
_PYTHONS = ("python3.12", "python3.11", "python3.10")
"""aider needs a Python older than 3.13."""


class NotInstalled(Exception):
    """An agent cannot be installed here; the text is a line that says why."""


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """A package for Node."""

    name: str
    version: str
    command: str
    """What it is started by."""
    setup: str = ""
    """A script of the package that finishes the installation: npm >= 11 leaves that to the user."""

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return _cache_folder() / f"{self.command}-{self.version}"

    @property
    def executable(self) -> Path:
        """What runs."""
        return self.folder / "node_modules" / ".bin" / self.command

    def install(self) -> None:
        """Raises NotInstalled."""
        npm, node = shutil.which("npm"), shutil.which("node")
        if npm is None or node is None:
            raise NotInstalled(f"npm is missing, which installs {self.name}: install Node.js")
        quiet = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error")
        _run([npm, "install", "--prefix", str(self.folder), *quiet, f"{self.name}@{self.version}"], self.folder)
        if self.setup:
            _run([node, self.setup], self.folder / "node_modules" / self.name)


@dataclass(frozen=True, slots=True)
class PythonPackage:
    """A package for Python."""

    name: str
    version: str
    command: str
    beside: tuple[str, ...] = ()
    """What it needs and does not ask for."""

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return _cache_folder() / f"{self.name}-{self.version}"

    @property
    def executable(self) -> Path:
        """What runs."""
        return self.folder / "bin" / self.command

    def install(self) -> None:
        """Raises NotInstalled."""
        own = [sys.executable] if sys.version_info < (3, 13) else []
        python = next(iter([*own, *filter(None, map(shutil.which, _PYTHONS))]), None)
        if python is None:
            raise NotInstalled(f"{self.name} needs one of {', '.join(_PYTHONS)}: install it")
        _run([python, "-m", "venv", "."], self.folder)
        wanted = (f"{self.name}=={self.version}", *self.beside)
        _run([str(self.folder / "bin" / "pip"), "install", "--quiet", *wanted], self.folder)


Package = NpmPackage | PythonPackage

NODE = NpmPackage("node", "22.23.3", "node")
"""What runs the agents that are scripts: of this version whatever the machine has."""
CLAUDE_CODE = NpmPackage("@anthropic-ai/claude-code", "2.1.330", "claude", setup="install.cjs")
CODEX = NpmPackage("@openai/codex", "0.169.0", "codex")
GEMINI_CLI = NpmPackage("@google/gemini-cli", "0.61.0", "gemini")
OPENCODE = NpmPackage("opencode-ai", "1.18.33", "opencode")
QWEN_CODE = NpmPackage("@qwen-code/qwen-code", "0.24.4", "qwen")
AIDER = PythonPackage("aider-chat", "0.86.2", "aider")
MINI_SWE_AGENT = PythonPackage("mini-swe-agent", "2.4.6", "mini", beside=("mcp",))
PACKAGES: Mapping[str, Package] = {
    one.command: one for one in (CLAUDE_CODE, CODEX, GEMINI_CLI, OPENCODE, QWEN_CODE, AIDER, MINI_SWE_AGENT)
}
"""The agents by their commands."""
LLAMA_CPP = PythonPackage("xllamacpp", "2026.10.11549", "python", beside=("gguf==0.19.0",))
"""llama.cpp's server, ready to run: `lab/bench/llama_server.py` starts it."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the agents are."""

    folders: Mapping[Package, Path]
    """The folder of each executable."""

    def executable(self, package: Package) -> str:
        """Path of what runs."""
        return str(self.folders[package] / package.command)

    @property
    def path(self) -> str:
        """PATH for an agent: our Node first, if it is installed."""
        node = self.folders.get(NODE)
        return os.pathsep.join([*([str(node)] if node else []), os.environ["PATH"]])


def install(packages: Iterable[Package]) -> Programs:
    """Install what is missing of these, and Node for agents. Raises NotInstalled."""
    packages = list(packages)
    wanted = dict.fromkeys([*([] if packages == [LLAMA_CPP] else [NODE]), *packages])
    for package in wanted:
        ready = package.folder / ".ready"
        if not ready.is_file():
            package.folder.mkdir(parents=True, exist_ok=True)
            package.install()
            ready.touch()
    return Programs({package: package.executable.parent for package in wanted})


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hivemind" / "agents"


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - npm, pip, and what they just installed
            command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise NotInstalled(f"{' '.join(command[:2])} failed with status {done.returncode}: {last[-1]}")
