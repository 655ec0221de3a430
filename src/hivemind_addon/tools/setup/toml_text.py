"""TOML with its comments and order kept."""

from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from hivemind_addon.tools.setup.model import SetupTrouble, Value


def read(text: str) -> Mapping[str, Any]:
    """What it says. Raises SetupTrouble (without the file's name)."""
    try:
        data: dict[str, Any] = tomlkit.parse(text).unwrap()
    except (TOMLKitError, ValueError) as error:
        raise SetupTrouble(f"is no TOML ({error}); mend it first") from error
    return data


def put(text: str, path: Sequence[str], value: Value) -> str:
    """With a value where there is none: a table at the end of the file, which no comment of the user's is near."""
    table = tomlkit.table()
    for key, one in value.items() if isinstance(value, dict) else ():
        table.add(key, one)
    block = f"[{tomlkit.key(list(path)).as_string()}]\n{table.as_string()}"
    before = text if not text or text.endswith("\n") else f"{text}\n"
    changed = f"{before}\n{block}" if text else block
    read(changed)
    return changed


def take(text: str, path: Sequence[str]) -> str:
    """Without a value that is there."""
    document = tomlkit.parse(text)
    here: Any = document
    for key in path[:-1]:
        here = here[key]
    del here[path[-1]]
    changed = tomlkit.dumps(document)
    # The blank line that `put` has set before its table.
    return changed[:-1] if changed.endswith("\n\n") and not text.endswith("\n\n") else changed
