"""What a tool needs in its own files: values at paths of keys, and nothing else of the file."""

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import Struct

type Value = str | bool | int | list[Any] | dict[str, Any]
"""As JSON has it."""


class SetupTrouble(Exception):
    """A file cannot be changed; one line that names it and the cure."""


class HasComments(SetupTrouble):
    """JSON with comments: read by its tool, and not rewritten by us."""


class FileFormat(Enum):
    """How a file is written."""

    JSON = "json"
    TOML = "toml"
    DOTENV = "env"


class FileEntry(Struct, frozen=True):
    """One value."""

    path: tuple[str, ...]
    value: Value


class FilePlan(Struct, frozen=True):
    """What one file needs."""

    path: Path
    format: FileFormat
    entries: tuple[FileEntry, ...]


class SetupPlan(Struct, frozen=True):
    """What one tool needs."""

    tool: str
    files: tuple[FilePlan, ...]
    notes: tuple[str, ...]
    """What no file can say, one line each."""


class MergedText(Struct, frozen=True):
    """A file's text with the entries in it or taken out of it."""

    text: str
    put: tuple[FileEntry, ...]
    """What is ours in it now."""
    made: tuple[tuple[str, ...], ...] = ()
    """Paths of objects that were made to hold them."""
    kept: tuple[tuple[FileEntry, Value], ...] = ()
    """What is set otherwise by the user, and stays: what we would set, and what is there."""


def lookup(data: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value at a path; None: there is none. Raises KeyError where the way is blocked by something else."""
    here: Any = data
    for index, key in enumerate(path):
        if not isinstance(here, Mapping):
            raise KeyError(".".join(path[:index]))
        if key not in here:
            return None
        here = here[key]
    return here
