"""The kinds of agents: how each gets a task, which provider each asks, and which settings keep each quiet.

Each is as users have it; the settings in kinds.yaml switch off updates and statistics, permit the shell, and name a
model of the simulated provider where the usual choice would need a login.
"""

from collections.abc import Mapping
from enum import Enum
from functools import reduce
from pathlib import Path
from types import MappingProxyType

import msgspec

from hivemind_addon.formats.base.document import read_yaml
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.faults import KeepAlive
from hivemind_addon.sim.task import SimTask
from lab.fleets.programs import PACKAGES, Package

ANTHROPIC_HOST = "api.anthropic.com"
OPENAI_HOST = "api.openai.com"
GOOGLE_HOST = "generativelanguage.googleapis.com"


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"command_name": "package"}):
    """A kind of agent."""

    word: str
    """The beginning of the agents' names; the name for `hivemind exec`."""
    title: str
    command_name: str
    """The command of the package that has it."""
    host: str
    """Where the model is."""
    format: SimDialect
    """What it speaks with it."""
    command: tuple[str, ...]
    """Behind the executable's name; `{prompt}`, `{file}` and `{last_line}` stand for the task's."""
    environment: dict[str, str] = {}
    """`{home}` and `{key}` stand for the agent's home and its API key."""
    files: dict[str, str] = {}
    """Path below its home → content."""
    first: tuple[str, ...] = ()
    """More arguments, with which the first call is a turn, and no question about the model to take."""
    manners: tuple[KeepAlive, ...] = (KeepAlive.NOTHING, KeepAlive.BLANK_LINES, KeepAlive.COMMENTS)
    """The signs of life in the answers."""

    @property
    def package(self) -> Package:
        """What is installed."""
        return PACKAGES[self.command_name]

    def arguments(self, task: SimTask) -> tuple[str, ...]:
        """Behind the executable's name, for a task."""
        marks = (("{prompt}", task.prompt), ("{file}", task.file), ("{last_line}", task.last_line))
        return tuple(reduce(lambda text, mark: text.replace(*mark), marks, one) for one in self.command)


def _read() -> Mapping[str, Kind]:
    file = Path(__file__).with_name("kinds.yaml")
    read = read_yaml(file.read_bytes(), file)
    return {word: msgspec.convert({"word": word, **kind}, Kind) for word, kind in read.items()}


_KINDS = _read()


class Program(Enum):
    """Which agent."""

    CLAUDE = _KINDS["claude"]
    CODEX = _KINDS["codex"]
    CODEX_SOCKETS = _KINDS["codex-ws"]
    GEMINI = _KINDS["gemini"]
    OPENCODE = _KINDS["opencode"]
    QWEN = _KINDS["qwen"]
    AIDER = _KINDS["aider"]
    MINI = _KINDS["mini"]


QUIET: Mapping[str, str] = MappingProxyType(
    {
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NODE_USE_ENV_PROXY": "1",
        "NO_PROXY": "localhost,127.0.0.1",  # OpenCode talks to a server of its own
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
)
"""For every agent."""
