"""`hivemind.yaml`: the options of a proxy where its command line says nothing.

What counts, the first that says anything: the command line, a variable `HIVEMIND_<OPTION>`, the project's file (in the
working folder, or the nearest above it), the user's file, the default. A project's file comes with the project, perhaps
from somebody else: it says neither what runs, nor where keys and files go, and loosens no bound of the user's file.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.proxy.system.folders import config_folder

FILE_NAME = "hivemind.yaml"
CONFIG_VARIABLE = "HIVEMIND_CONFIG"
"""A file to read instead of the project's and the user's; OFF for none."""
ALERTS_VARIABLE = "HIVEMIND_ALERTS"
"""Addresses that call for help, separated by spaces or line ends; for where the option says nothing. No option's own
variable: what an option says is shown."""
OFF = "off"
DEFAULT = "default"
PREFIX = "hivemind_"

RUN_KEYS: Mapping[str, tuple[type, object, str]] = {
    "port": (int, 8080, "The proxy's port, for `hivemind run` and for all commands that look for a proxy."),
    "host": (str, "127.0.0.1", "The address that `hivemind run` listens on."),
    "web": (bool, False, "Whether `hivemind run` starts mitmweb instead of mitmdump."),
    "loop": (str, "auto", "The event loop that `hivemind run` starts the proxy on: auto, asyncio or uvloop."),
    "ollama": (bool, False, "Whether `hivemind run` serves a local Ollama, too."),
}
"""Keys that are no options of the addon, but of `hivemind run`: type, default, meaning."""
BOOLEANS = frozenset({"web", "ollama", "fresh", "capture_content", "allow_lan", "refuse_unpriced"})
"""Keys that are true or false."""
PROJECT_KEYS = frozenset(
    {
        *("port", "web", "loop", "ollama", "agents", "max_concurrency", "total_budget", "agent_budget", "keep"),
        *("contexts", "context_warning", "metrics_agents", "capture_content", "refuse_unpriced"),
    }
)
"""What a project's file may say."""
USERS_FIRST = frozenset({"agents", "max_concurrency", "total_budget", "agent_budget", "refuse_unpriced"})
"""Bounds: where the user's own file says one, a project's does not loosen it."""
_PATH_KEYS = frozenset({"profiles", "agents", "agent_secrets", "journal", "control", "log", "capture"})
"""Relative to the file that says them."""
_NO_PATHS = ("", "-", OFF)
_VARIABLE_BY_ITSELF = ("HIVEMIND_CLUSTER", "HIVEMIND_CLUSTER_NAME")
"""The addon reads them where no option says the cluster."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file that counts."""

    path: Path
    is_project: bool
    values: Mapping[str, object]
    """As YAML has them."""


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The value of one key, and who says it."""

    value: object
    origin: str
    """A file's path, a variable's name, or `default`."""

    @property
    def is_default(self) -> bool:
        """Whether nobody says it."""
        return self.origin == DEFAULT


def user_file() -> Path:
    """Where a user's own file is, if there is one."""
    return config_folder() / FILE_NAME


def read_config(environment: Mapping[str, str], folder: Path) -> tuple[ConfigFile, ...]:
    """The files that count in a working folder, the nearest first. Raises DocumentError."""
    named = environment.get(CONFIG_VARIABLE, "")
    if named == OFF:
        return ()
    if named:
        return (_read(Path(named).expanduser().absolute(), is_project=False),)
    mine, found = user_file(), []
    project = _project_file(folder)
    if project is not None and project != mine:
        found.append(_read(project, is_project=True))
    if mine.is_file():
        found.append(_read(mine, is_project=False))
    return tuple(found)


def _project_file(folder: Path) -> Path | None:
    """In the folder or above, as far as folders are the user's own: nobody else's file says anything."""
    own = os.getuid()
    for place in (folder, *folder.parents):
        file = place / FILE_NAME
        try:
            if place.stat().st_uid != own:
                return None
            if file.is_file() and own == file.stat().st_uid:
                return file
        except OSError:
            return None
    return None


def _read(path: Path, *, is_project: bool) -> ConfigFile:
    from hivemind_addon.formats.base.document import read_document  # noqa: PLC0415 - YAML takes a while to load

    values = read_document(path, cure_when_empty="write keys, or remove it")
    # YAML takes the word `off` for false.
    words = {key: OFF if value is False and key not in BOOLEANS else value for key, value in values.items()}
    return ConfigFile(path, is_project, words)


def check_keys(files: Iterable[ConfigFile], known: Iterable[str]) -> None:
    """Raises DocumentError for a key that there is not, and for one that a project's file may not say."""
    names = [*RUN_KEYS, *known]
    for file in files:
        for key in file.values:
            if key not in names:
                close = difflib.get_close_matches(str(key).removeprefix(PREFIX), names, n=1)
                cure = f"did you mean {close[0]}?" if close else f"the keys are {', '.join(names)}"
                raise DocumentError(file.path, str(key), "no such key", cure)
            if file.is_project and key not in PROJECT_KEYS:
                problem = "a project's file may not say what runs, nor where keys and files go"
                cure = f"move it to {user_file()}, or trust this file: {CONFIG_VARIABLE}={file.path}"
                raise DocumentError(file.path, key, problem, cure)


def setting(key: str, default: object, environment: Mapping[str, str], files: Iterable[ConfigFile]) -> ConfigValue:
    """Who says a key, and what; the command line is not asked."""
    variable = f"{PREFIX}{key}".upper()
    if value := environment.get(variable, ""):
        return ConfigValue(value, variable)
    for file in sorted(files, key=lambda one: one.is_project) if key in USERS_FIRST else files:
        if key in file.values:
            return ConfigValue(_placed(key, file.values[key], file.path), str(file.path))
    return ConfigValue(default, DEFAULT)


def _placed(key: str, value: object, file: Path) -> object:
    if key not in _PATH_KEYS or not isinstance(value, str) or value in _NO_PATHS:
        return value
    return str(file.parent / Path(value).expanduser())


def option_values(
    names: Iterable[str], environment: Mapping[str, str], files: Iterable[ConfigFile]
) -> Mapping[str, ConfigValue]:
    """The addon's options that the environment or a file says: name without prefix → who and what."""
    files = tuple(files)
    found = {name: setting(name, None, environment, files) for name in names}
    return {name: one for name, one in found.items() if not one.is_default and one.origin not in _VARIABLE_BY_ITSELF}


def run_setting(key: str, environment: Mapping[str, str], files: Iterable[ConfigFile]) -> ConfigValue:
    """One of RUN_KEYS, of its type. Raises DocumentError."""
    kind, default, _ = RUN_KEYS[key]
    found = setting(key, default, environment, files)
    value: Any = found.value
    if isinstance(value, str) and not found.origin.endswith(FILE_NAME):  # a variable
        value = {"true": True, "false": False}.get(value, value) if kind is bool else value
        value = int(value) if kind is int and value.isdecimal() else value
    is_wrong = type(value) is not kind or (isinstance(value, int) and kind is int and not 0 < value < 65536)
    if is_wrong:
        kinds = {int: "a port from 1 to 65535", bool: "true or false", str: "a text"}
        raise DocumentError(Path(found.origin), key, f"{value!r} is not {kinds[kind]}", f"write {kinds[kind]}")
    return ConfigValue(value, found.origin)
