"""What is known of the programs that people run as agents: `agents.yaml`, typed."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from hivemind_addon.formats.base.document import read_document
from hivemind_addon.formats.base.typed import convert

_TABLE = Path(__file__).parent / "agents.yaml"


@dataclass(frozen=True, slots=True)
class Program:
    """One kind of agent."""

    commands: tuple[str, ...]
    """What its command line begins with."""
    kind: str = ""
    """The agent kind that it is as a task; empty: it is none."""
    headless: tuple[str, ...] = ()
    """Its command line for one prompt, `{prompt}`, after which it ends by itself."""
    ca: tuple[str, ...] = ()
    """The CA variables that it reads; one of them has to name a bundle with the proxy's CA."""
    base_url_variables: tuple[str, ...] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Where its model calls go when it is told nothing → when they do; empty: it is always told."""
    tunnelled: str = ""
    """Why none of its calls can be scheduled; empty: they can be."""
    fetches: bool = False
    """It calls by Node's own fetch, which obeys the proxy variables only where it is told to."""
    patience: Mapping[str, str] = field(default_factory=dict)
    """Variables that make it wait, set unless the user has set them."""
    variables_in: tuple[str, ...] = ()
    """Files of its own that set variables for it (JSON below `env`, or lines `NAME=value`), with `~` and `$NAME`."""
    config: str = ""
    """Its configuration file (TOML), with `~`."""
    arguments: tuple[str, ...] = ()
    """What makes it wait and is said on its command line only, right behind its name."""
    waits_s: int = 0
    """How long it then waits for an answer, where its requests do not say so themselves; 0: they do."""
    arguments_for: tuple[str, ...] = ()
    """Subcommands that get them; empty: all."""
    arguments_unless: tuple[str, ...] = ()
    """An argument that begins with one of these, or names it as a key, says that the user has chosen."""
    arguments_unless_config: tuple[str, ...] = ()
    """So does one of these keys in its configuration file."""

    def settings(self) -> Mapping[str, Any]:
        """What its configuration file says; empty where there is none to read."""
        if not self.config:
            return {}
        try:
            return tomllib.loads(Path(self.config).expanduser().read_text(encoding="utf-8"))
        except (OSError, ValueError, RuntimeError):  # RuntimeError: the user has no home
            return {}


@dataclass(frozen=True, slots=True)
class ProgramTable:
    """Everything that `agents.yaml` says."""

    ca_variables: tuple[str, ...]
    variables: Mapping[str, str]
    """Set for everybody, unless the user has set them."""
    base_url_variables: tuple[str, ...]
    launchers: tuple[str, ...]
    programs: Mapping[str, Program]

    @property
    def kinds(self) -> Mapping[str, Program]:
        """Agent kind → the program that a task of this kind runs."""
        return {program.kind: program for program in self.programs.values() if program.kind}

    def find(self, command: Sequence[str]) -> tuple[Program, int] | None:
        """The program of a command line, and where its name stands there; None: an unknown one."""
        for index, word in enumerate(command):
            name = _bare_name(word)
            for program in self.programs.values():
                if name in program.commands:
                    return program, index
            if name not in self.launchers and not (index and word.startswith("-")):
                return None
        return None

    def patient(self, command: Sequence[str]) -> tuple[list[str], int]:
        """The command line with what makes its program wait, where that is said there and the user said nothing.

        And how long it then waits, in seconds, where the proxy would not know; else 0.
        """
        found = self.find(command)
        if found is None:
            return list(command), 0
        program, index = found
        arguments = command[index + 1 :]
        asked = not program.arguments_for or any(word in program.arguments_for for word in arguments)
        chosen = any(_says(word, key) for word in arguments for key in program.arguments_unless)
        configured = any(key in program.settings() for key in program.arguments_unless_config)
        if not asked or chosen or configured:
            return list(command), 0
        return [*command[: index + 1], *program.arguments, *arguments], program.waits_s


def base_urls(settings: Mapping[str, Any]) -> Iterator[str]:
    """Every text below a key that ends in `base_url`."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from base_urls(value)
        elif key.endswith("base_url") and isinstance(value, str):
            yield value


@cache
def load_programs() -> ProgramTable:
    """The packaged table. DocumentError: the installation is damaged."""
    document = read_document(_TABLE, cure_when_empty="install again", packaged=True)
    table: ProgramTable = convert(ProgramTable, document, _TABLE)
    return table


def _bare_name(word: str) -> str:
    """`/usr/bin/claude`, `claude.cmd` and `@anthropic-ai/claude-code@latest` by their bare names."""
    name = PurePath(word).name.partition("@")[0]
    return re.sub(r"\.(exe|cmd|js|mjs|py)$", "", name)


def _says(argument: str, key: str) -> bool:
    return argument == key or argument.startswith((f"{key}=", f"--config={key}="))
